"""Runs a script of the tests: script.py SCRIPT [ARGUMENT...]. CTest and mutants.py start every script of Python with it.

A file of unittest's or pytest's cases needs no lines that start them: arguments are names of unittest's cases, or flags of
pytest, and `long`. A script does not look for what it imports: exit code 77 and a reason where a module of OPTIONAL is not
here. A script that is also started by hand, with an `if __name__`, is started as it is.
"""

import importlib
import os
import sys
import tempfile
import unittest
from pathlib import Path

OPTIONAL = {"numpy", "pytest", "ring_attention", "torch", "transformers"}


def main(script, *arguments):
    if '\nif __name__ == "__main__":' in Path(script).read_text(encoding="utf-8"):
        os.execv(sys.executable, [sys.executable, script, *arguments])
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        module = importlib.import_module(Path(script).stem)
        cases = {name for name, value in vars(module).items() if name.startswith("test_") or name.startswith("Test") and
                 isinstance(value, type) and not issubclass(value, unittest.TestCase)}
        of_pytest = cases and importlib.import_module("pytest")
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in OPTIONAL:
            raise
        print(f"skipped: {sys.executable}: {error}")
        return 77
    chosen = [script, *(word for word in sys.argv[1:] if word != "long")]
    if of_pytest:
        del sys.modules[module.__name__]  # pytest imports it again, to say of each assertion what was compared
        with tempfile.TemporaryDirectory() as folder:  # without it pytest's tmp_path stays
            return of_pytest.main(["-q", "-rs", "-p", "no:cacheprovider", f"--basetemp={folder}", *chosen])
    if any(isinstance(value, type) and issubclass(value, unittest.TestCase) for value in vars(module).values()):
        unittest.main(module, argv=chosen, verbosity=2)
    return 0  # a script without cases has done its work


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
