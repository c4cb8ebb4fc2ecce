"""Judges a ring attention in any language: judge.py DIR. `make capstone DIR=...` calls it.

For each level, DIR/run RANK RANKS IN OUT is started once for each rank; IN has the arrays of this rank alone. The
results of all ranks are diagnosed. Exit code 0: all levels; 1: not all; 2: bad input. LIMIT=120 gives a run 120 s
instead of 30.
"""

import importlib.util
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

if importlib.util.find_spec("numpy") is None:
    print(f"error: {sys.executable} has no NumPy: python3 -m pip install numpy", file=sys.stderr)
    sys.exit(2)

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src/python"))

import numpy as np
from ring_attention_diagnose import InputError, judged
from ring_attention_diagnose.files import read_array
from ring_attention_diagnose.placement import Job
from ring_attention_diagnose.problem import BACKWARD, Problem, every_case

LEVELS = (  # name, case of diagnose, placement, has it gradients
    ("full", "full", "contiguous", False), ("causal", "causal", "contiguous", False),
    ("placement", "causal", "zigzag", False), ("GQA", "gqa", "zigzag", False), ("gradients", "gqa", "zigzag", True))
RANKS = (3, 4)
CANNOT_SEE = "one rank that computes everything, messages that are larger than needed, and how much a rank holds"


def shown(text):
    if text:
        print(text, flush=True)


def free_port(ranks):
    """The first of as many ports of this machine, free a moment ago."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            first = probe.getsockname()[1]
        try:
            for port in range(first, first + ranks):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            return first
        except (OSError, OverflowError):
            continue


def write_inputs(problem, rank, gradients, port, folder):
    """case.txt and the arrays of one rank, float32 [heads, tokens of the rank, dim]."""
    case, job, words = problem.case, problem.job, problem.description()
    here = words["tokens_of_rank"][rank]
    lines = {"rank": rank, "ranks": job.ranks, "tokens": case.tokens, "heads": case.heads, "kv_heads": case.kv_heads,
             "dim": case.dim, "scale": repr(case.scale), "causal": int(case.causal), "gradients": int(gradients),
             "port": port}
    lines.update((f"positions_{of}", " ".join(map(str, tokens))) for of, tokens in enumerate(words["tokens_of_rank"]))
    (folder / "case.txt").write_text("".join(f"{name} {value}\n" for name, value in lines.items()), encoding="utf-8")
    for name in ("q", "k", "v", "dout") if gradients else ("q", "k", "v"):
        np.save(folder / f"{name}.npy", getattr(problem, name)[:, here].astype(np.float32))


def stop(processes):
    """Ends these processes and what they started."""
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run_ranks(program, folders, limit):
    """What went wrong, in one line; empty if every rank ended well."""
    ranks = len(folders)
    environment = {**os.environ, "PYTHON": sys.executable}
    outputs = [open(folder / "output.txt", "wb") for folder in folders]
    processes = []
    try:
        for rank, folder in enumerate(folders):
            command = [str(program), str(rank), str(ranks), str(folder / "in"), str(folder / "out")]
            processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=outputs[rank],
                                              stderr=outputs[rank], env=environment, start_new_session=True))
        end = time.monotonic() + limit
        while any(process.poll() is None for process in processes):
            failed = next((rank for rank, process in enumerate(processes) if process.poll()), None)
            if failed is not None:
                break
            if time.monotonic() > end:
                waiting = ", ".join(str(rank) for rank, process in enumerate(processes) if process.poll() is None)
                return f"no end after {limit} s: rank {waiting} of {ranks} still runs; do all wait for a message?"
            time.sleep(0.01)
        codes = [process.poll() for process in processes]
    finally:
        stop(processes)
        for output in outputs:
            output.close()
    for rank, code in enumerate(codes):
        if code:
            said = (folders[rank] / "output.txt").read_text(encoding="utf-8", errors="replace").strip()
            last = said.splitlines()[-1][:200] if said else "it printed nothing"
            return f"rank {rank} of {ranks} ended with exit code {code}: {last}"
    return ""


def results_of(problem, folders, gradients):
    """{array: [(name in errors, array)]}, an array a rank."""
    given = {}
    for name in ("out", "lse", *BACKWARD):
        files = [folder / "out" / f"{name}.npy" for folder in folders]
        there = [file.exists() for file in files]
        required = name == "out" or (gradients and name != "lse")
        if required and not all(there) or any(there) != all(there):
            raise InputError(f"rank {there.index(False)}", f"wrote no {name}.npy into OUT", "every rank has to")
        if all(there):
            given[name] = [(f"{name}.npy of rank {rank}", read_array(str(file), 2 * problem.q.size))
                           for rank, file in enumerate(files)]
    return given


def failure(program, level, ranks, limit):
    """(one line, a report) about the level; empty if it holds."""
    _, name, placement, gradients = level
    job = Job(ranks, placement)
    problem = Problem(next(case for case in every_case(job) if case.name == name), job, 1000 + secrets.randbelow(2**31))
    with tempfile.TemporaryDirectory() as place:
        folders, port = [Path(place, secrets.token_hex(8)) for _ in range(ranks)], free_port(ranks)
        for rank, folder in enumerate(folders):
            for inside in ("in", "out"):
                (folder / inside).mkdir(parents=True)
            write_inputs(problem, rank, gradients, port, folder / "in")
        line = run_ranks(program, folders, limit)
        if line:
            return line, ""
        try:
            right, report, words = judged([problem], [results_of(problem, folders, gradients)])
        except InputError as error:
            return str(error), ""
    if right:
        return "", ""
    named = [one["sentence"] for of in ("forward", "backward") for one in words[of]["explanations"] if one["sentence"]]
    return "; or ".join(dict.fromkeys(named)) or "wrong, by no mistake that is known here", report


def level_reached(program, limit):
    for number, level in enumerate(LEVELS, 1):
        for ranks in RANKS:
            line, report = failure(program, level, ranks, limit)
            if line:
                shown(f"level {number} {level[0]}: FAIL | {line}")
                shown(textwrap.indent(report, "  ").rstrip())
                return number - 1
        shown(f"level {number} {level[0]}: PASS | {' and '.join(map(str, RANKS))} ranks")
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
    if build.is_file() and subprocess.run([str(build)], cwd=folder, stdin=subprocess.DEVNULL).returncode:
        raise InputError(str(build), "failed", "see above")
    return program


def main():
    try:
        limit = int(os.environ.get("LIMIT", "30"))
        program = checked_program(sys.argv[1:])
    except (InputError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    level = level_reached(program, limit)
    shown(f"The judge cannot see {CANNOT_SEE}.")
    shown(f"capstone: level {level} of {len(LEVELS)}")
    return 0 if level == len(LEVELS) else 1


if __name__ == "__main__":
    sys.exit(main())
