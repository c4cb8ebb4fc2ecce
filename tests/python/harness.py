"""Finds the package and NumPy, or skips the tests with a reason; starts jobs on several ranks."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILD = Path(os.environ.get("RING_ATTENTION_BUILD") or HERE.parents[1] / "build/release").resolve()
PACKAGE = BUILD / "python"
MPIRUN = os.environ.get("MPIRUN") or str(BUILD / "mpirun")
SLOWNESS = float(os.environ.get("RING_ATTENTION_SLOWNESS", 1))  # of the machine: limits are longer
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{PACKAGE}{os.pathsep}{HERE}", "OMP_NUM_THREADS": "1"}
sys.path.insert(0, str(PACKAGE))
if "MPI4PY_FOLDER" in os.environ:
    for _variable in ("PYTHONPATH", "LD_LIBRARY_PATH"):
        ENVIRONMENT[_variable] = os.pathsep.join(filter(None, (ENVIRONMENT.get(_variable), os.environ["MPI4PY_FOLDER"])))


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


def require(*modules):
    """Imports them, or skips."""
    for module in modules:
        try:
            __import__(module)
        except ImportError as error:
            skip(f"{sys.executable}: {error}")


def use_python_with(module):
    """Goes on in the Python of TORCH_PYTHON when this one has not the module."""
    other = os.environ.get("TORCH_PYTHON")
    if other and subprocess.run([sys.executable, "-c", f"import {module}"], stderr=subprocess.DEVNULL).returncode:
        if Path(other).exists() and os.environ.get("RING_ATTENTION_IN_TORCH_PYTHON") is None:
            os.environ["RING_ATTENTION_IN_TORCH_PYTHON"] = "1"
            os.execv(other, [other, str(HERE.parent / "script.py"), *sys.argv])


def run(ranks, script, *arguments, limit=60, python=sys.executable, **words):
    """Runs `python SCRIPT ARGUMENTS` on some ranks. Another `python` has the launcher of its MPI next to it."""
    launcher = [MPIRUN] if python == sys.executable else [str(Path(python).with_name("mpiexec")), "--oversubscribe"]
    command = [*launcher, "-n", str(ranks), python, str(HERE / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=limit * SLOWNESS,
                          stdin=subprocess.DEVNULL, **words)


def run_text(ranks, program):
    """Runs the text of a program on some ranks."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script.py"
        script.write_text(program, encoding="utf-8")
        return run(ranks, script)


def python_blocks(page):
    """The programs that a page shows between ```python and ```."""
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def lines_for_torch():
    """What README.md shows for tensors: an import, a call, and the backward."""
    source = Path(os.environ.get("RING_ATTENTION_SOURCE") or HERE.parents[1])
    lines = (source / "README.md").read_text(encoding="utf-8").splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("from ring_attention.torch import"))
    return lines[first:lines.index("```", first)]
