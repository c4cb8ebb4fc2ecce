"""Checks that racecheck finds the race of each missing barrier: racecheck_test.py PROGRAM SOURCE [PROGRAM SOURCE ...]

compute-sanitizer's racecheck must find no race in the unchanged kernel, and a race if any one of its barriers or waits
for copies is left out. Skipped without a GPU or without compute-sanitizer."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

BARRIER = re.compile(r"__syncthreads\(\)|cp_async_wait<")
HAZARDS = 9


def breakable_lines(source):
    lines = Path(source).read_text().splitlines()
    return [number for number, line in enumerate(lines, 1) if BARRIER.search(line.split("//")[0])]


def racecheck(sanitizer, program, line):
    """True if races were found, False if none. Exits with the output if the program failed."""
    run = subprocess.run([sanitizer, "--tool", "racecheck", "--error-exitcode", str(HAZARDS), program, str(line)],
                         capture_output=True, text=True, timeout=120)
    if run.returncode not in (0, HAZARDS):
        sys.exit(f"{program} {line}: exit status {run.returncode}\n{run.stdout}{run.stderr}")
    return run.returncode == HAZARDS


def main(pairs):
    # Without this check the test would pass if the pattern matched no barrier.
    assert all(len(breakable_lines(source)) >= 2 for _, source in pairs), "no barriers in the sources?"
    probe = subprocess.run([pairs[0][0]], capture_output=True, text=True, timeout=120)
    if probe.returncode == 77:
        print(probe.stdout.strip())
        return 77
    cuda = os.environ.get("CUDA_PATH", "/usr/local/cuda")
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=f"{cuda}/bin")
    if not sanitizer:
        print("skipped: there is no compute-sanitizer in PATH")
        return 77
    bad = 0
    for program, source in pairs:
        for line in [0] + breakable_lines(source):
            found, wanted = racecheck(sanitizer, program, line), line != 0
            what = f"without line {line}" if line else "unchanged"
            print(f"{Path(source).name:20} {what:20} {'races' if found else 'no race':8} "
                  f"{'ok' if found == wanted else 'WRONG'}")
            bad += found != wanted
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(list(zip(sys.argv[1::2], sys.argv[2::2]))))
