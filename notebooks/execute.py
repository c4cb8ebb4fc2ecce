"""Executes notebooks: `execute.py NOTEBOOK... [--save FOLDER]`. A failing cell is a failure.

Exit code 77 and a reason when no Python here can do it, or when every one of them needs what is not here (a GPU).
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

NEEDED = "import ipykernel, matplotlib, nbclient, nbformat, numpy"
SECONDS_A_CELL = 100


def use_python_that_can():
    """Goes on in the first Python that has what is needed: the first in PATH may not be it."""
    candidates = (sys.executable, "python3", "/usr/bin/python3", "/opt/homebrew/bin/python3", "/usr/local/bin/python3")
    for python in dict.fromkeys(candidates):
        try:
            able = subprocess.run([python, "-c", NEEDED], stderr=subprocess.DEVNULL).returncode == 0
        except OSError:
            continue
        if able and python != sys.executable:
            os.execvp(python, [python, *sys.argv])
        if able:
            return
    print(f"skipped: no Python here can `{NEEDED}`. Remedy: sh setup.sh notebooks")
    sys.exit(77)


def execute(path, folder, scratch):
    """False when the notebook was skipped: its lesson cannot run here."""
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError
    from traitlets.config import Config

    notebook = nbformat.read(path, as_version=4)
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
        if error.ename != "Skipped":
            raise
        print(f"{path.name}: skipped: {error.evalue}")
        return False
    print(f"{path.name}: all cells ran")
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, folder / path.name)
        print(f"  with its pictures: {folder / path.name}")
    return True


def main(arguments):
    folder = None
    if "--save" in arguments:
        at = arguments.index("--save")
        folder = Path(arguments[at + 1])
        del arguments[at : at + 2]
    use_python_that_can()
    os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"
    with tempfile.TemporaryDirectory(dir="/tmp") as scratch:  # the home folder may be read-only, and stays clean
        os.environ["IPYTHONDIR"] = os.environ["JUPYTER_RUNTIME_DIR"] = scratch
        ran = [execute(Path(name).resolve(), folder, scratch) for name in arguments]
    return 0 if any(ran) or not ran else 77


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
