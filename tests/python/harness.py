"""Finds the package and NumPy, or skips the tests with a reason; starts jobs on several ranks."""

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE = Path(os.environ.get("RING_ATTENTION_SOURCE") or HERE.parents[1])
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
    """The programs that a page of docs shows between ```python and ```."""
    return re.findall(r"```python\n(.*?)```", (SOURCE / "docs" / page).read_text(encoding="utf-8"), re.DOTALL)


class Jobs(unittest.TestCase):
    """Tests of jobs that run cases of PROGRAM."""

    PROGRAM = "ranks_program.py"

    def well(self, ranks, *cases, **words):
        done = run(ranks, self.PROGRAM, *cases, **words)
        self.assertEqual((done.returncode, done.stdout), (0, f"all is well on {ranks} ranks\n"), done.stderr)

    def has_the_bits(self, program, ranks, kind, ways, *flags):
        """The case `program` of PROGRAM writes what `program run` does, for ways such as "zigzag:ring" to share the work."""
        import numpy as np

        names, rng = ("q", "k", "v", "dout"), np.random.default_rng(3)
        if not program.exists():
            self.skipTest(f"{program.name} is not built")
        with tempfile.TemporaryDirectory() as folder:
            for name in names:
                np.save(f"{folder}/{name}.npy", rng.standard_normal((2, 4, 37, 16)).astype(kind))
            self.well(ranks, *(f"program:{folder}:{way}" for way in ways))
            for way in ways:
                placement, parallel = way.split(":")  # the program refuses a placement of Ulysses
                subprocess.run([MPIRUN, "-n", str(ranks), program, "run", *(f"--{name}={folder}/{name}.npy" for name in names),
                                f"--out={folder}/results", "--causal", "--dropout=0.25", "--dropout-seed=7", f"--parallel={parallel}",
                                *([] if parallel == "ulysses" else [f"--placement={placement}"]),
                                *(["--ulysses=2"] if parallel == "hybrid" else []), *flags], check=True, capture_output=True)
                for name in ("out", "lse", "dq", "dk", "dv"):
                    mine, wanted = (np.load(f"{folder}/{file}{name}.npy") for file in (f"{parallel}_", "results/"))
                    if wanted.dtype == np.float16:  # of a GPU: the program writes in the type of its arrays
                        mine = mine.astype(np.float16)
                    self.assertEqual((mine.dtype, mine.shape), (wanted.dtype, wanted.shape))
                    self.assertEqual(mine.tobytes(), wanted.tobytes(), (way, name))

    def set_timeout(self, seconds=2 * SLOWNESS):
        """Of the jobs of this test. Returns it."""
        ENVIRONMENT["RING_ATTENTION_TIMEOUT"] = str(seconds)
        self.addCleanup(ENVIRONMENT.pop, "RING_ATTENTION_TIMEOUT")
        return seconds


def lines_for_torch():
    """What README.md shows for tensors: an import, a call, and the backward."""
    lines = (SOURCE / "README.md").read_text(encoding="utf-8").splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("from ring_attention.torch import"))
    return lines[first:lines.index("```", first)]
