"""Executes notebooks: `execute.py NOTEBOOK... [--save FOLDER]`. A failing cell is a failure. `execute.py --which` prints
the Python in which it does so.

Lines for %pip are left out: the package ring_attention is that of the build.
With --save each notebook has a kernel of its own, and a copy with its pictures is written. Without it the cells run as
plain Python in this process, which starts faster; their figures are drawn, too.

Exit code 77 and a reason when no Python here can do it, or when every one of them needs what is not here (a GPU).
"""

import importlib.util
import json
import linecache
import os
import subprocess
import sys
import tempfile
from pathlib import Path

NEEDED = ("ipykernel", "matplotlib", "nbclient", "nbformat", "numpy")
SECONDS_A_CELL = 100


def python_that_can():
    """The first Python that has what is needed, or None: the first in PATH may not be it."""
    if all(map(importlib.util.find_spec, NEEDED)):
        return sys.executable
    look = f"import importlib.util, sys; all(map(importlib.util.find_spec, {NEEDED})) and print(sys.executable)"
    for python in ("python3", "/usr/bin/python3", "/opt/homebrew/bin/python3", "/usr/local/bin/python3"):
        try:
            found = subprocess.run([python, "-c", look], capture_output=True, text=True).stdout.strip()
        except OSError:
            continue
        if found:
            return found
    return None


def without_pip(source):
    return "".join(line for line in source.splitlines(keepends=True) if not line.startswith("%pip "))


def cannot_run(kind, module):
    """Is this error no failure of the notebook?"""
    return kind == "Skipped" or (kind == "ModuleNotFoundError" and "ring_attention" in module)


def execute(path):
    """Runs the cells of a notebook in this process. False when it was skipped: its lesson cannot run here."""
    from matplotlib import pyplot

    os.chdir(path.parent)
    sys.path[0] = str(path.parent)
    names = {"__name__": "__main__"}
    for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
        if cell["cell_type"] != "code":
            continue
        code, source = f"{path.name}, cell {number}", without_pip("".join(cell["source"]))
        linecache.cache[code] = len(source), None, source.splitlines(keepends=True), code  # for tracebacks
        try:
            exec(compile(source, code, "exec"), names)
        except SystemExit:
            raise RuntimeError(f"{code} ends Python") from None
        except Exception as error:
            if not cannot_run(type(error).__name__, str(error)):
                raise
            print(f"{path.name}: skipped: {error}")
            return False
        for figure in pyplot.get_fignums():
            pyplot.figure(figure).canvas.draw()
        pyplot.close("all")
    print(f"{path.name}: all cells ran")
    return True


def execute_and_save(path, folder, scratch):
    """The same in a kernel; writes the notebook with its pictures to `folder`."""
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError
    from traitlets.config import Config

    notebook = nbformat.read(path, as_version=4)
    sources = [cell.source for cell in notebook.cells]
    for cell in notebook.cells:
        cell.source = without_pip(cell.source)
    client = NotebookClient(
        notebook,
        timeout=SECONDS_A_CELL,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        # Files instead of ports: two notebooks at once never want the same one.
        config=Config({"KernelManager": {"transport": "ipc", "ip": f"{scratch}/{path.stem}"}}),
    )
    try:
        client.execute()
    except CellExecutionError as error:
        if not cannot_run(error.ename, error.evalue):
            raise
        print(f"{path.name}: skipped: {error.evalue}")
        return False
    for cell, source in zip(notebook.cells, sources):
        cell.source = source
    folder.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, folder / path.name)
    print(f"{path.name}: all cells ran; with its pictures: {folder / path.name}")
    return True


def main(arguments):
    python = python_that_can()
    if arguments == ["--which"]:
        print(python or sys.executable)
        return 0
    if python is None:
        print(f"skipped: no Python here can import {', '.join(NEEDED)}. Remedy: sh setup.sh notebooks")
        return 77
    if python != sys.executable:
        os.execv(python, [python, *sys.argv])
    folder = None
    if "--save" in arguments:
        at = arguments.index("--save")
        folder = Path(arguments[at + 1])
        del arguments[at : at + 2]
    from lesson import BUILD  # it needs NumPy

    sys.path.append(str(BUILD / "python"))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(BUILD / "python"))))
    os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"
    with tempfile.TemporaryDirectory(dir="/tmp") as scratch:  # the home folder may be read-only, and stays clean
        os.environ["IPYTHONDIR"] = os.environ["JUPYTER_RUNTIME_DIR"] = scratch
        paths = [Path(name).resolve() for name in arguments]
        ran = [execute_and_save(path, folder, scratch) if folder else execute(path) for path in paths]
    return 0 if any(ran) or not ran else 77


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
