"""Runs a lesson's program and returns what it measured. The lesson computes; the notebooks only draw."""

import json
import os
import subprocess
from pathlib import Path

BUILD = Path(os.environ.get("RING_ATTENTION_BUILD") or Path(__file__).parent / "../build/release").resolve()


class Skipped(Exception):
    """The lesson cannot run here. A notebook ends with it; execute.py takes it for no failure."""


def run(name, *arguments, ranks=None):
    """The report of lesson `name`, on `ranks` ranks if it needs MPI; its numbers are in ["figures"].

    Raises Skipped where the lesson needs a GPU and there is none.
    JSON has no NaN and no infinity: they arrive as None. np.array(figure, dtype=float) makes them NaN.
    """
    program = BUILD / "lessons" / name
    if not program.exists():
        raise FileNotFoundError(f"{program}: run `make lessons` first, or set RING_ATTENTION_BUILD")
    command = [program, "--json", *arguments]
    if ranks is not None:
        command = [BUILD / "mpirun", "-n", ranks, *command, "--np", ranks]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=100)
    if done.returncode not in (0, 1):  # 1: it ran, and a check did not hold; the report says which
        raise RuntimeError(done.stderr)
    report = json.loads(done.stdout)
    if "skipped" in report:
        raise Skipped(report["skipped"])
    return report
