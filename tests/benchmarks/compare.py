"""Compares the engines of two build folders, in turn, and names what is more than 3 % slower.

    compare.py BEFORE AFTER [--isa avx2] [--seq 4096] [--dim 64] [--rounds 5]

Both folders need the target benchmark_attention, of the same compiler. Every instruction set of this machine is measured on
one thread, by its CPU time: float and double, forward and backward, full, causal, with dropout, with a bias. This takes
some minutes. A figure is the median over pairs of runs, one directly after the other. What looks slower is measured again,
with four times the rounds. The exit code is 1 if something is slower after that.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

import bench
import tables

LIMIT = 1.03
SUBJECTS = "(fast|double)_(forward|backward)(_causal|_dropout|_bias)?"


def program(folder, isa):
    """A command of benchmark_attention without its other arguments."""
    return [folder / "tests/benchmarks/benchmark_attention", "--isa", isa]


def cases(folders, isa, options):
    """What both programs can measure: nothing where this machine cannot run the instruction set."""
    found = []
    for folder in folders:
        done = subprocess.run([*program(folder, isa), "--benchmark_list_tests"], capture_output=True, text=True)
        found.append(done.stdout.split() if done.returncode == 0 else [])
    wanted = re.compile(f"^{SUBJECTS}/S:{options.seq}/D:{options.dim or '(64|128)'}/T:1/")
    return [name for name in found[1] if name in found[0] and wanted.match(name)]


def milliseconds(folder, isa, name):
    report = json.loads(bench.run([*program(folder, isa), f"--benchmark_filter=^{name}$", "--benchmark_format=json",
                                   "--benchmark_min_time=0.02"]))["benchmarks"][0]
    if report.get("error_occurred"):
        sys.exit(f"{folder}: {name}: {report['error_message']}")
    return report["cpu_time"]


def ratios(folders, isa, names, rounds):
    """Time after / time before of each name: the medians. Who begins changes from round to round."""
    found = {name: [] for name in names}
    for number in range(rounds):
        order = (0, 1) if number % 2 == 0 else (1, 0)
        for name in names:
            time = {which: milliseconds(folders[which], isa, name) for which in order}
            found[name].append(time[1] / time[0])
    return {name: statistics.median(values) for name, values in found.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="a build folder, as build/release")
    parser.add_argument("after", type=Path, help="another")
    parser.add_argument("--isa", choices=list(tables.KINDS), help="one instruction set; else all that this machine can run")
    parser.add_argument("--seq", type=int, choices=(1024, 4096, 16384), default=1024)
    parser.add_argument("--dim", type=int, choices=(64, 128), help="else both")
    parser.add_argument("--rounds", type=int, choices=range(1, 100), default=5, metavar="N")
    options = parser.parse_args()
    folders = [options.before.resolve(), options.after.resolve()]
    if missing := [folder for folder in folders if not program(folder, "")[0].exists()]:
        parser.error(f"{missing[0]}: build its target benchmark_attention (`sh setup.sh bench`, then configure it again)")

    count, slower = 0, []
    for isa in [options.isa] if options.isa else tables.KINDS:
        names = cases(folders, isa, options)
        found = ratios(folders, isa, names, options.rounds)
        found.update(ratios(folders, isa, [name for name in names if not found[name] <= LIMIT], 4 * options.rounds))
        for name, ratio in found.items():
            bench.say(f"{isa:8} {name.removesuffix('/real_time'):40} time after / before {ratio:.3f}"
                      + " SLOWER" * (not ratio <= LIMIT))
        slower += [name for name in names if not found[name] <= LIMIT]
        count += len(names)
    if count == 0:
        parser.error("both have nothing in common that this machine can run; --isa names an instruction set that it has")
    print(f"{len(slower)} of {count} are more than {100 * (LIMIT - 1):.0f} % slower")
    sys.exit(1 if slower else 0)


if __name__ == "__main__":
    main()
