"""A lesson as a reader uses it, and as a notebook does: flags, --json, and mutants, which must fail.

    lesson_test.py LESSON [PROGRAM ARGUMENT...] [long]

LESSON is a name such as 05_blocking_ring or 03_blockwise_attention_cuda. A lesson that needs a GPU may be skipped,
always in the same words; this test is skipped then, too (exit code 77). PROGRAM, which takes the ARGUMENTs before all
others, stands for <build>/lessons/LESSON: one whose GPU is emulated, which must not be skipped. With `long`: runs on every
number of ranks, and mutants on four, instead.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from expect import expect, failures, finish

SOURCE = Path(os.environ.get("RING_ATTENTION_SOURCE", Path(__file__).resolve().parents[2]))
BUILD = Path(os.environ.get("RING_ATTENTION_BUILD", SOURCE / "build/release")).resolve()
MPIRUN = os.environ.get("MPIRUN", str(BUILD / "mpirun"))

LONG = sys.argv[-1] == "long"
LESSON, *ARGUMENTS = sys.argv[1:-1] if LONG else sys.argv[1:]
PROGRAM = ARGUMENTS or [str(BUILD / "lessons" / LESSON)]
NUMBER, NAME = LESSON.split("_", 1)
FOLDER = SOURCE / "lessons" / re.sub("_(cuda|nccl)$", "", LESSON)
if LESSON.endswith(("_cuda", "_nccl")):
    FOLDER /= "gpu" if LESSON.endswith("_cuda") else "nccl"
TEXT = (FOLDER / "main.cpp").read_text(encoding="utf-8")
SENDS_MESSAGES = "mpi_main(" in TEXT
NEEDS_GPU = "needs_gpu(" in TEXT or LESSON.endswith("_nccl")
EMULATED = bool(ARGUMENTS)
RACES = {"no-barrier"}  # on a GPU they may show or not; the emulator looks for a schedule in which they do
SHARE = ["--share-gpu"] if LESSON.endswith("_nccl") else []  # one GPU is enough for correctness
RANKS = 4  # of the run whose tables are looked at
FEW_RANKS = 4 if LONG else 2  # for the rest
NEEDS_FOUR = {"first-replica"}  # a mutant: two KV heads, each on two ranks
FEW = "24"  # tokens of which a lesson measures no times
MOST = 256  # tokens of the run whose tables are looked at
LIMIT = (120 if NEEDS_GPU else 60) * int(os.environ.get("RING_ATTENTION_SLOWNESS", "1"))  # seconds
VERDICT = re.compile(rf"lesson {NUMBER} {NAME}: (PASS|FAIL|SKIPPED) \| error \S+ \| \S.*")


class Run:
    """One run to its end; `verdict` is None when the last line is not one."""

    def __init__(self, *arguments, ranks=FEW_RANKS):
        self.name = " ".join([f"{LESSON} on {ranks}" if SENDS_MESSAGES else LESSON, *arguments])
        command = [*PROGRAM, *SHARE, *arguments]
        if SENDS_MESSAGES:
            command = [MPIRUN, "-n", str(ranks), *command]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
            self.code, self.out, self.err = done.returncode, done.stdout, done.stderr
        except subprocess.TimeoutExpired:
            self.code, self.out, self.err = None, "", f"killed after {LIMIT} s"
        last = VERDICT.fullmatch((self.out.splitlines() or [""])[-1])
        self.verdict = last and last[1]

    def expect(self, holds, what):
        expect(holds, f"{self.name}: {what}", [f"exit code {self.code}", f"stdout: {self.out}", f"stderr: {self.err}"])

    def expect_end(self, code, verdict):
        self.expect(self.code == code and self.verdict == verdict, f"exit code {code}, last line says {verdict}")

    def expect_one_line_error(self):
        lines = self.err.splitlines()
        self.expect(
            self.code == 2 and not self.out and len(lines) == 1 and lines[0].startswith("error: "),
            "exit code 2, nothing but one line on stderr",
        )

    def report(self):
        """The JSON object, of which standard output consists."""

        def refuse(word):
            raise ValueError(f"{word} is not JSON")

        try:
            return json.loads(self.out, parse_constant=refuse)
        except ValueError as error:
            self.expect(False, f"prints one JSON object ({error})")
            return {}


def check_flags():
    well = Run("--help")
    flags = {"--help", "--json", "--seed", "--mutant"}
    flags |= ({"--expect-ranks"} if SENDS_MESSAGES else set()) | ({"--device"} if NEEDS_GPU else set())
    well.expect(well.code == 0 and not well.err and all(flag in well.out for flag in flags), f"explains {flags}")
    Run("--no-such-flag").expect_one_line_error()
    Run("--seed", "many").expect_one_line_error()
    Run("--mutant", "no-such-mutant").expect_one_line_error()
    if SENDS_MESSAGES:
        Run("--expect-ranks", str(FEW_RANKS + 1)).expect_one_line_error()
    return well.out


def check_json(help_text):
    seq = re.search(r"--seq N [^-]*\(default (\d+)\)", help_text) if SENDS_MESSAGES and not EMULATED else None
    few = ["--seq", str(MOST)] if seq and int(seq[1]) > MOST else []
    run = Run("--json", *few, *(["--expect-ranks", str(RANKS)] if SENDS_MESSAGES else []), ranks=RANKS)
    report = run.report()
    types = {"lesson": str, "ok": bool, "showed": str, "error": float, "seed": int, "figures": dict, "checks": list}
    if SENDS_MESSAGES:
        types["ranks"] = int
    for name, kind in types.items():
        run.expect(isinstance(report.get(name), kind), f"{name} is there, a {kind.__name__}")
    run.expect(run.code == 0 and report.get("ok") is True and not run.err, "exit code 0, ok, no word on stderr")
    named = report.get("lesson") == LESSON and report.get("ranks", RANKS) == RANKS
    run.expect(named, "says which lesson, how many ranks")
    checks = report.get("checks", [])
    hold = checks and all(check["ok"] is True and check["what"] for check in checks)
    run.expect(hold, "every check has its name and holds")
    for name, table in report.get("figures", {}).items():
        texts = all(isinstance(cell, str) for row in table for cell in row)
        run.expect(len(table) > 1 and texts and len({len(row) for row in table}) == 1, f"{name} is a table with a heading")


def check_mutants(help_text):
    words = re.search(r"--mutant WORD .*?One of none, ([a-z0-9, -]+) \(default none\)", " ".join(help_text.split()))
    all_words = words[1].split(", ") if words else []
    mutants = [word for word in all_words if not word.startswith("mystery-")]
    few = ["--seq", FEW] if SENDS_MESSAGES and "--seq" in help_text and "--seq" not in PROGRAM else []
    Run("--mutant", "none", *few).expect_end(0, "PASS")
    for mutant in mutants:
        run = Run("--mutant", mutant, *few, ranks=RANKS if mutant in NEEDS_FOUR else FEW_RANKS)
        if mutant in RACES and not EMULATED and run.verdict == "PASS":
            print(f"     {run.name}: the race did not show", flush=True)
            continue
        run.expect_end(1, "FAIL")
        run.expect("  FAIL  " in run.out, "names the check that fails")
    if not mutants:
        Run("--help").expect(False, "offers a mutant")
        return
    if "mystery-1" in all_words and not RACES & set(mutants):
        run = Run("--mutant", "mystery-1", *few)
        run.expect_end(1, "FAIL")
        run.expect(not any(f"MUTANT: {mutant}" in run.out for mutant in mutants), "does not name the mistake")
    run = Run("--json", "--mutant", mutants[0], *few)
    failed = run.code == 1 and run.report().get("ok") is False
    run.expect(failed, "exit code 1, and the JSON object says that it failed")


def check_rank_counts(cases):
    for ranks, seq in cases:
        Run("--expect-ranks", str(ranks), "--seq", str(seq), ranks=ranks).expect_end(0, "PASS")


def skipped():
    """Is it, for want of a GPU? Then it says so in every way that it promises."""
    why = re.fullmatch(r".*: SKIPPED \| error - \| (no GPU: \S.*)", (Run().out.splitlines() or [""])[-1])
    if not why:
        return False
    plain, json_run = Run(), Run("--json")
    plain.expect(plain.code == 0 and plain.verdict == "SKIPPED" and not plain.err, "exit code 0, no word on stderr")
    report = json_run.report()
    json_run.expect(json_run.code == 0 and report == {"lesson": LESSON, "skipped": why[1]}, "the same in JSON")
    Run("--device", "cuda").expect_one_line_error()
    print(f"skipped: {why[1]}")
    return True


if LONG:
    check_mutants(Run("--help").out)
    check_rank_counts([(ranks, seq) for ranks in (1, 2, 3, 5, 7) for seq in (5, 1)])
else:
    help_text = check_flags()
    if NEEDS_GPU and not EMULATED and skipped():
        sys.exit(1 if failures else 77)
    check_json(help_text)
    check_mutants(help_text)
    if SENDS_MESSAGES and "--seq" in help_text:
        check_rank_counts([(1, 5), (3, 5), (5, 1)])  # one rank; uneven shards; ranks without tokens
finish()
