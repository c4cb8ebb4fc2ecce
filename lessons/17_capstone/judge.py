"""Judges a ring attention in any language: judge.py DIR. `make capstone DIR=...` calls it.

For each level, DIR/run RANK RANKS IN OUT is started once for each rank; IN has the arrays of this rank alone. The
results of all ranks are diagnosed. Exit code 0: all levels; 1: not all; 2: bad input. LIMIT=120 gives a run 120 s
instead of 30; RUNS=20 runs each case 20 times; KEEP=1 keeps the folders of a run that fails.
"""

import contextlib
import dataclasses
import importlib.util
import itertools
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

if importlib.util.find_spec("numpy") is None:
    print(f"error: {sys.executable} has no NumPy: `sh setup.sh diagnose` installs it for the system's python3", file=sys.stderr)
    sys.exit(2)

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src/python"))

import numpy as np
from ring_attention_diagnose import InputError, judged
from ring_attention_diagnose.files import read_array
from ring_attention_diagnose.layout import shape_text
from ring_attention_diagnose.placement import Job
from ring_attention_diagnose.problem import BACKWARD, Problem, every_case

LEVELS = (  # name, cases of diagnose, placement, has it gradients
    ("full", ("full",), "contiguous", False), ("causal", ("causal", "large"), "contiguous", False),
    ("placement", ("causal", "uneven"), "zigzag", False), ("GQA", ("gqa", "uneven"), "zigzag", False),
    ("gradients", ("gqa", "uneven", "large"), "zigzag", True))
RANKS = (3, 4)
PORTS = range(20000, 32000)  # a system draws none of these for the other end of a connection
CANNOT_SEE = ("one rank that computes everything, one that reads the folders of others, messages that are too many, too "
              "large or rounded, a deadlock that only large messages show, a race that shows in none of its runs "
              "(RUNS=20 makes 20 of each case), and how much a rank holds")
UNKNOWN = "wrong, by no mistake that is known here"


def shown(text):
    if text:
        print(text, flush=True)


def free_port(ranks):
    """The first of as many ports of this machine, free a moment ago."""
    while True:
        first = PORTS[secrets.randbelow(len(PORTS) - ranks)]
        try:
            for port in range(first, first + ranks):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            return first
        except OSError:
            continue


def case_of(name, first, job):
    """A case of diagnose. "uneven" is the first one of the level, a token shorter."""
    cases = {case.name: case for case in every_case(job)}
    return cases[name] if name != "uneven" else dataclasses.replace(cases[first], tokens=cases[first].tokens - 1)


def write_inputs(problem, rank, gradients, port, shared, folder):
    """case.txt and the arrays of one rank, float32 [heads, tokens of the rank, dim]."""
    case, job, words = problem.case, problem.job, problem.description()
    here = words["tokens_of_rank"][rank]
    lines = {"rank": rank, "ranks": job.ranks, "tokens": case.tokens, "heads": case.heads, "kv_heads": case.kv_heads,
             "dim": case.dim, "scale": repr(case.scale), "causal": int(case.causal), "gradients": int(gradients),
             "port": port, "shared": shared}
    lines.update((f"positions_{of}", " ".join(map(str, tokens))) for of, tokens in enumerate(words["tokens_of_rank"]))
    (folder / "case.txt").write_text("".join(f"{name} {value}\n" for name, value in lines.items()), encoding="utf-8")
    for name in ("q", "k", "v", "dout") if gradients else ("q", "k", "v"):
        np.save(folder / f"{name}.npy", getattr(problem, name)[:, here].astype(np.float32))


def stop(processes):
    """Ends these processes and what they started."""
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    for process in processes:
        process.wait()


def started(command, **more):
    try:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, **more)
    except OSError as error:
        raise InputError(command[0], f"cannot be started, {error.strerror}", "its first line must be #!/bin/sh or another "
                         "interpreter, with LF line ends") from error


def named(ranks):
    """"rank 1", or "ranks 0, 1 and 2"."""
    *more, last = map(str, ranks)
    return f"ranks {', '.join(more)} and {last}" if more else f"rank {last}"


def printed(rank, folder):
    """The last lines that a rank printed."""
    lines = (folder / "output.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()[-10:]
    return f"rank {rank} printed {'last:' if lines else 'nothing'}\n" + "".join(f"  {line[:200]}\n" for line in lines)


def command_of(program, rank, folders):
    return [str(program), str(rank), str(len(folders)), str(folders[rank] / "in"), str(folders[rank] / "out")]


def run_ranks(program, folders, required, limit):
    """(what went wrong in one line, what these ranks printed); empty if every rank ended well."""
    ranks, processes, ended, failed = len(folders), [], [], []  # ended: in this order
    missing = lambda rank: [name for name in required if not (folders[rank] / f"out/{name}.npy").exists()]  # noqa: E731
    end = time.monotonic() + limit
    try:
        for rank, folder in enumerate(folders):
            with open(folder / "output.txt", "wb") as output:
                processes.append(started(command_of(program, rank, folders), stdout=output, stderr=output,
                                         env={**os.environ, "PYTHON": sys.executable}, start_new_session=True))
        while len(ended) < ranks and time.monotonic() < end:
            time.sleep(0.002)
            ended += [rank for rank in range(ranks) if rank not in ended and processes[rank].poll() is not None]
            wrong = [rank for rank in ended if processes[rank].returncode or missing(rank)]
            if wrong and not failed:
                end = time.monotonic() + 1  # a rank that closes its connections may end later than its victims
            failed = wrong
    finally:
        stop(processes)
    failed.sort(key=lambda rank: processes[rank].returncode != 0)  # who ends without an error is no victim
    bad = failed or [rank for rank in range(ranks) if rank not in ended]
    told = "".join(printed(rank, folders[rank]) for rank in bad)
    well = sorted(set(ended) - set(failed))
    before = f" ({named(well)} ended with exit code 0)" if well else ""
    if failed:
        code, last = processes[bad[0]].returncode, printed(bad[0], folders[bad[0]]).splitlines()[-1].strip()
        how = f"exit code {code}" if code >= 0 else f"signal {-code}, {signal.strsignal(-code).lower()}"
        what = last if code else f"it wrote no {missing(bad[0])[0]}.npy into OUT"
        return f"rank {bad[0]} of {ranks} ended{'' if well else ' first,'} with {how}{before}: {what}", told
    still = f"{named(bad)} of {ranks} still run{'s' * (len(bad) == 1)}{before}" if bad else ""
    return still and f"no end after {limit} s: {still}; do all wait for a message?", told


def read_result(problem, name, rank, file):
    """(name in errors, array) of a rank. Axes of extent 1 do not count."""
    title, case = f"{name}.npy of rank {rank}", problem.case
    shape = case.extents_of(name, len(problem.job.tokens_of(rank, case.tokens)))
    try:
        array = read_array(str(file), 1 << 20)
    except InputError as error:
        raise InputError(title, str(error).removeprefix(f"{file}: ")) from error
    if [extent for extent in array.shape if extent != 1] != [*shape]:
        axes = ("kv_heads" if name in ("dk", "dv") else "heads", "tokens", "dim")[: len(shape)]
        raise InputError(title, f"the shape {shape_text(array.shape)} is not {shape_text(axes)}, here {shape_text(shape)}")
    if np.load(file).dtype.itemsize < 4:
        raise InputError(title, "the elements are float16", "save float32 or float64")
    return title, array


def results_of(problem, folders, required):
    """{array: [(name in errors, array)]}, an array a rank."""
    without = [rank for rank, folder in enumerate(folders) if not (folder / "out/lse.npy").exists()]
    if 0 < len(without) < len(folders):
        raise InputError(named(without), "wrote no lse.npy into OUT", "others did")
    return {name: [read_result(problem, name, rank, folder / f"out/{name}.npy") for rank, folder in enumerate(folders)]
            for name in (required if without else (*required, "lse"))}


def mistake_in(problem, given):
    """What the package found: (one line, a report); the line is empty if all is right."""
    right, report, words = judged([problem], [given], lists_not_tested=False)
    passes = words["forward"], words["backward"]
    known = [one["sentence"] for found in passes for one in found["explanations"] if one["sentence"]]
    if known:
        return "; or ".join(dict.fromkeys(known)), report
    for name, arrays in given.items():
        strange = [rank for rank, (_, array) in enumerate(arrays) if not (abs(array) < 1e38).all()]
        if strange:
            why = ("a number that overflows, or a sum that is 0: is the maximum subtracted? (lesson 01)"
                   if problem.case.large_scores else "a step in which a row sees no key? (lessons 02, 03)")
            return f"{name} has NaN or infinity in {named(strange)}: {why}", report
    if words["right"] and words["conventions"]:
        return "; ".join(words["conventions"]), report
    error, name = max((error, name) for of_case in words["errors"].values() for name, error in of_case.items())
    coarse = any(found["within_rounding_of"] in ("fp16", "bf16") for found in passes)
    if coarse if words["right"] else error < 1e-2:  # as rounding in a coarser type
        return f"{name} is right to {error:.0e}, which is not float32's 1e-06: is something rounded, or a term nearly right?", report
    if words["right"]:
        return "", ""
    if "lse" in given:  # of another mistake than the rest?
        line, _ = mistake_in(problem, {name: arrays for name, arrays in given.items() if name != "lse"})
        if line != UNKNOWN:
            return f"{line or 'all but lse is right'}; lse.npy does not fit this", report
    return UNKNOWN, report


def failure(place, program, case, placement, gradients, ranks, limit):
    """(one line, a report) about a case; empty if it is right."""
    required, job = ("out", *BACKWARD) if gradients else ("out",), Job(ranks, placement)
    problem = Problem(case, job, 1000 + secrets.randbelow(2**31))
    folders, port, shared = [place / secrets.token_hex(8) for _ in range(ranks)], free_port(ranks), place / "shared"
    for folder in (shared, *(folder / inside for folder in folders for inside in ("in", "out"))):
        folder.mkdir(parents=True)
    for rank, folder in enumerate(folders):
        write_inputs(problem, rank, gradients, port, shared, folder / "in")
    try:
        line, report = run_ranks(program, folders, required, limit)
        if not line:
            line, report = mistake_in(problem, results_of(problem, folders, required))
    except InputError as error:
        line, report = str(error), ""
    if line and os.environ.get("KEEP"):
        report += f"By hand, all at the same time:\n  export PYTHON={sys.executable}\n" + "".join(
            f"  {shlex.join(command_of(program, rank, folders))} &\n" for rank in range(ranks))
    return line, report


def level_reached(place, program, limit, runs):
    for number, (level, cases, placement, gradients) in enumerate(LEVELS, 1):
        for name, ranks, run in itertools.product(cases, RANKS, range(1, runs + 1)):
            case = case_of(name, cases[0], Job(ranks, placement))
            line, report = failure(place / f"{number}-{name}-{ranks}-{run}", program, case, placement, gradients, ranks, limit)
            if line:
                more = {"uneven": "with uneven shards: ", "large": "with large scores: "}.get(name, "")
                again = f"in run {run} of {runs}, and not before (a race?): " if run > 1 else ""
                shown(f"level {number} {level}: FAIL | {again}{more}{line}")
                shown(textwrap.indent(report, "  ").rstrip())
                return number - 1
        shown(f"level {number} {level}: PASS | {', '.join(cases)}, on {' and '.join(map(str, RANKS))} ranks")
    return len(LEVELS)


def checked_program(words):
    """DIR/run, after DIR/build if there is one."""
    if len(words) != 1 or not words[0]:
        raise InputError("capstone", "no folder", "`make capstone DIR=my-ring`; my-ring/run is your program")
    folder = Path(words[0]).resolve()
    program, build = folder / "run", folder / "build"
    if not program.is_file():
        raise InputError(str(program), "is not there", f"copy a start: {Path(__file__).parent / 'start'}")
    for file in (program, build):
        if file.is_file() and not os.access(file, os.X_OK):
            raise InputError(str(file), "cannot be executed", f"chmod +x {file}")
    if build.is_file() and started([str(build)], cwd=folder).wait():
        raise InputError(str(build), "failed", "see above")
    return program


def main():
    try:
        limit, runs = (int(os.environ.get(name, default)) for name, default in (("LIMIT", "30"), ("RUNS", "1")))
        if runs < 1:
            raise InputError("RUNS", f"it is {runs}", "a case is run once at least")
        program = checked_program(sys.argv[1:])
    except (InputError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    with contextlib.nullcontext(tempfile.mkdtemp()) if os.environ.get("KEEP") else tempfile.TemporaryDirectory() as place:
        level = level_reached(Path(place), program, limit, runs)
    if level < len(LEVELS) and not os.environ.get("KEEP"):
        shown("KEEP=1 make capstone ... keeps what the ranks read, wrote and printed, and says how to start them by hand.")
    shown(f"The judge cannot see {CANNOT_SEE}.")
    shown(f"capstone: level {level} of {len(LEVELS)}")
    return 0 if level == len(LEVELS) else 1


if __name__ == "__main__":
    sys.exit(main())
