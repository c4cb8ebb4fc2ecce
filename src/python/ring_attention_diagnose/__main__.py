"""`python3 -m ring_attention_diagnose`, `ring-attention-diagnose`, and `ring-attention diagnose`, which starts this
file."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

from . import __version__, judged, problems_of
from .files import MOST_SEED, read_layouts, read_results, write_cases
from .placement import MOST_BLOCK, MOST_DIM, MOST_RANKS, PARTITIONS, PLACEMENTS, InputError
from .problem import MOST_RUNS

#: Letters, default, and what a value may be: words, or the bounds of a whole number.
_CASES_FLAGS = {
    "--ranks": ("N", 3, (1, MOST_RANKS)), "--placement": ("WORD", "contiguous", PLACEMENTS),
    "--parallel": ("WORD", "ring", PARTITIONS), "--ulysses": ("N", 2, (1, MOST_RANKS)),
    "--tokens-of-rank": ("PATH", "", None),
    "--tokens": ("N", 0, (1, 4096)), "--heads": ("N", 0, (1, 96)), "--dim": ("N", 16, (1, MOST_DIM)),
    "--block": ("N", 1, (1, MOST_BLOCK)), "--only": ("NAME,...", "", None),
    "--repeat": ("N", 1, (1, MOST_RUNS)), "--seed": ("N", 1, (0, MOST_SEED)),
    "--out": ("PATH", "my-ring", None),
}


def _value(flag: str, letters: str, allowed, text: str):
    if not text or text.startswith("--"):
        raise InputError(flag, f"needs a value, not '{text}'")
    if letters == "WORD" and text not in allowed:
        raise InputError(flag, f"{text} not in {{{','.join(allowed)}}}")
    if letters != "N":
        return text
    if not (text.isascii() and text.isdigit() and allowed[0] <= int(text[:20]) <= allowed[1]):
        raise InputError(flag, f"needs N, each a whole number from {allowed[0]} to {allowed[1]}, not '{text}'")
    return int(text)


def _cases_options(words: list[str]) -> dict:
    """The flags of `cases`, `--flag value` or `--flag=value`."""
    given, words = {}, list(words)
    while words:
        flag, equals, value = words.pop(0).partition("=")
        if flag not in _CASES_FLAGS:
            raise InputError("The following argument was not expected", flag)
        letters, _, allowed = _CASES_FLAGS[flag]
        if not equals and not words:
            raise InputError(flag, f"1 required {letters} missing")
        if flag in given:
            raise InputError(flag, "At Most 1 required but received 2")
        given[flag] = _value(flag, letters, allowed, value if equals else words.pop(0))
    options = {flag[2:]: given.get(flag, default) for flag, (_, default, _) in _CASES_FLAGS.items()}
    if "--ulysses" in given and options["parallel"] != "hybrid":
        raise InputError("--ulysses goes with --parallel hybrid")
    if "--placement" in given and "--tokens-of-rank" in given:
        raise InputError("--placement and --tokens-of-rank are two placements: give one of them")
    if "--placement" in given and options["parallel"] == "ulysses":
        raise InputError("--placement goes with --parallel ring or hybrid or all-gather")
    return options


def _cases(options: dict) -> int:
    out, only, own = (options.pop(name) for name in ("out", "only", "tokens-of-rank"))
    names = only.split(",") if only else []
    if own:
        layouts = read_layouts(own)
        names = names or list(layouts)
        missing = [name for name in names if name not in layouts]
        if missing:
            raise InputError(own, f"has no layout of the case {missing[0]}", "give one, or leave the case out of --only")
        options["placement"] = lambda words: layouts[words["name"]]
    problems = problems_of(**options, only=names)
    write_cases(problems, options["parallel"], out)
    for problem in problems:
        print(f"{out}/{problem.case.folder}: {problem.case.tests}")
    print(f"{out}/cases.json says what to compute. Your code writes out.npy (and lse, dq, dk, dv) next to q.npy.")
    return 0


def _show(line: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{line}", end="", file=sys.stderr, flush=True)


def _directory(words: list[str]) -> str:
    """DIR of `diagnose DIR`; empty if there is none."""
    positional = [word for word in words if word != "--json"]
    strange = [word for word in positional if word.startswith("-")] + positional[1:]
    if strange:
        raise InputError("The following argument was not expected", strange[0])
    if words.count("--json") > 1:
        raise InputError("--json", "At Most 1 required but received 2")
    if positional == ["cases"]:
        raise InputError("cases excludes --json")
    return "".join(positional)


def _diagnose(directory: str, as_json: bool) -> int:
    if not directory:
        raise InputError("diagnose", "no directory", "`diagnose cases --out DIR` makes one, `diagnose DIR` reads it")
    right, text, words = judged(*read_results(directory), progress=lambda line: _show(f"{line} "))
    _show("")
    print(json.dumps(words, indent=2, ensure_ascii=False) + "\n" if as_json else text, end="")
    return 0 if right else 1


def main(words: list[str] | None = None) -> int:
    """Returns the exit code: 0 right, 1 wrong, 2 bad input."""
    words = sys.argv[1:] if words is None else words
    name = os.environ.get("RING_ATTENTION_DIAGNOSE_NAME") or "ring-attention-diagnose"
    writes = words[:1] == ["cases"]
    try:
        code = 0
        if words == ["--version"]:
            print(name, __version__)
        elif "--help" in words or "-h" in words:
            text = (Path(__file__).parent / ("cases_help.txt" if writes else "help.txt")).read_text(encoding="utf-8")
            print(text.replace("{name}", name), end="")
        else:
            try:
                options = _cases_options(words[1:]) if writes else _directory(words)
            except InputError as error:
                raise InputError(str(error), f"see {name}{' cases' * writes} --help") from error
            code = _cases(options) if writes else _diagnose(options, "--json" in words)
        sys.stdout.flush()
        return code
    except InputError as error:  # it may quote what a user wrote, with a line break
        print("error: " + re.sub(r"[\x00-\x1f\x7f]", "?", str(error)), file=sys.stderr)
    except OSError as error:  # of stdout: no more is written there when Python ends
        if not isinstance(error, BrokenPipeError):
            print(f"error: the output cannot be written: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 2


if __name__ == "__main__":
    sys.exit(main())
