"""Runs a lesson's program, or a script on several ranks, and returns what it printed; the notebooks draw."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

BUILD = Path(os.environ.get("RING_ATTENTION_BUILD") or Path(__file__).parent / "../build/release").resolve()


class Skipped(Exception):
    """The lesson cannot run here. A notebook ends with it; execute.py takes it for no failure."""


def run(name, *arguments, ranks=None):
    """The report of lesson `name`, on `ranks` ranks if it needs MPI; columns() reads its tables.

    Raises Skipped where the lesson needs a GPU and there is none.
    """
    program = BUILD / "lessons" / name
    if not program.exists():
        raise FileNotFoundError(f"{program}: run `make lessons` first, or set RING_ATTENTION_BUILD")
    command = [program, "--json", *arguments]
    if ranks is not None:
        command = [BUILD / "mpirun", "-n", ranks, *command, "--expect-ranks", ranks]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=100)
    if done.returncode not in (0, 1):  # 1: it ran, and a check did not hold; the report says which
        raise RuntimeError(done.stderr)
    report = json.loads(done.stdout)
    if "skipped" in report:
        raise Skipped(report["skipped"])
    return report


UNITS = {"%": 0.01, "B": 1, "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "kB": 1e3, "MB": 1e6, "GB": 1e9,
         "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50}


def number(cell):
    """The number that a cell begins with, in bytes or seconds where it has a unit; NaN where it has none."""
    match = re.match(r"\s*([-+]?(?:[\d.]+(?:e[-+]?\d+)?|inf))(?: (\S+))?", cell)
    return float(match[1]) * UNITS.get(match[2], 1) if match else np.nan


def texts(report, table):
    """The columns of a table that the lesson printed, without their headings."""
    return list(zip(*report["figures"][table][1:]))


def columns(report, table):
    """The same as arrays of numbers."""
    return [np.array([number(cell) for cell in column]) for column in texts(report, table)]


def package():
    """The Python package of the build, imported. Raises Skipped where it is not built for this Python."""
    sys.path.insert(0, str(BUILD / "python"))
    try:
        import ring_attention
    except ImportError as error:
        raise Skipped(f"{error}: run `make python` first") from None
    return ring_attention


def python_with(module):
    """A Python that has a module: this one, or that of TORCH_PYTHON; else None."""
    for python in (sys.executable, os.environ.get("TORCH_PYTHON")):
        if python and subprocess.run([python, "-c", f"import {module}"], stderr=subprocess.DEVNULL).returncode == 0:
            return python
    return None


def run_python(script, ranks=1, python=sys.executable):
    """Runs a script on `ranks` ranks, with the package; returns what rank 0 prints, which is JSON."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "script.py"
        file.write_text(script, encoding="utf-8")
        done = subprocess.run([str(BUILD / "mpirun"), "-n", str(ranks), python, str(file)], capture_output=True,
                              text=True, timeout=100, env={**os.environ, "PYTHONPATH": str(BUILD / "python")})
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout)
