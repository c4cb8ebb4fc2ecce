"""Executes notebooks and compares what they show with what is stored in them: `execute.py [--write] NOTEBOOK...`.

A failing cell is a failure, and so is a text that differs: a line that is printed, or a title, label or number in a
picture. Integers have to be the same; other numbers may differ by one in their last digit. A cell with the tag `measured`
shows a time, a speed or an error of rounding, which each machine has its own of, and is not compared. --write stores what
the cells show, with their pictures. `execute.py --which` prints the Python in which it does so.

The cells run as plain Python in this process, which starts faster than a kernel. Lines for %pip are left out: the package
ring_attention is that of the build.

Exit code 77 and a reason when no Python here can do it, or when every one of them needs what is not here (a GPU).
"""

import ast
import base64
import contextlib
import importlib.util
import io
import json
import linecache
import os
import re
import subprocess
import sys
import warnings
from decimal import Decimal
from itertools import zip_longest
from pathlib import Path

NEEDED = ("matplotlib", "numpy", "PIL")
COLOURS = 64  # of a picture; a line and its smooth edges take about ten
NUMBER = re.compile(r"[-\u2212]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


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


def texts(figure):
    """What is written in a drawn figure, but for ticks that Matplotlib has chosen: versions choose differently."""
    from matplotlib.text import Text
    from matplotlib.ticker import FixedLocator

    chosen = {
        label
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for label in (*axis.get_minorticklabels(), axis.get_offset_text(),
                      *(() if isinstance(axis.get_major_locator(), FixedLocator) else axis.get_majorticklabels()))
    }
    found = (text for text in figure.findobj(Text) if text.get_visible() and text not in chosen)
    return "\n".join(filter(None, (text.get_text() for text in found)))


def png(figure):
    """With a small palette, and without a word on the version that drew it."""
    from PIL import Image

    drawn, reduced = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", bbox_inches="tight", metadata={"Software": None})
    image = Image.open(drawn).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    image.save(reduced, format="png", optimize=True)
    return base64.b64encode(reduced.getvalue()).decode() + "\n"


def run(source, code, names):
    """Runs a cell. Jupyter would show the value of its last line; none of them is worth a look."""
    linecache.cache[code] = len(source), None, source.splitlines(keepends=True), code  # for tracebacks
    body = ast.parse(source, code).body
    last = body.pop() if isinstance(body[-1], ast.Expr) and not source.rstrip().endswith(";") else None
    exec(compile(ast.Module(body, []), code, "exec"), names)
    if last and eval(compile(ast.Expression(last.value), code, "eval"), names) is not None:
        raise ValueError(f"{code}: Jupyter shows the value of the last line; a semicolon at its end prevents it")


def outputs(cell, code, names, write):
    """What Jupyter shows below the cell."""
    from matplotlib import pyplot

    printed, shown, raised = io.StringIO(), [], []

    def show():
        for figure in map(pyplot.figure, pyplot.get_fignums()):
            figure.canvas.draw()
            data = {"image/png": png(figure)} if write else {}
            data["text/plain"] = texts(figure).splitlines(keepends=True)
            shown.append({"data": data, "metadata": {}, "output_type": "display_data"})
        pyplot.close("all")

    pyplot.show = show
    source = "".join(line for line in cell["source"] if not line.startswith("%pip "))
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # a reader would see it above the picture
        try:
            if source:
                run(source, code, names)
        except AssertionError as error:
            if "raises-exception" not in cell["metadata"].get("tags", ()):
                raise
            says = f"{type(error).__name__}: {error}"
            raised = [{"ename": type(error).__name__, "evalue": str(error), "output_type": "error", "traceback": [says]}]
        show()
    lines = printed.getvalue().splitlines(keepends=True)
    return [{"name": "stdout", "output_type": "stream", "text": lines}] * bool(lines) + shown + raised


def lines_of(outputs):
    """The lines of all texts of outputs."""
    found = (output.get("text") or output.get("data", {}).get("text/plain") or output["evalue"] for output in outputs)
    return [line for text in found for line in "".join(text).splitlines()]


def close(stored, now):
    """Are two numbers the same, or, if they are rounded, one apart in their last digit?"""
    a, b = (Decimal(number.replace("\u2212", "-")) for number in (stored, now))
    rounded = set(".e").intersection(stored + now)
    return a == b or rounded and abs(a - b) <= Decimal((0, (1,), max(a.as_tuple().exponent, b.as_tuple().exponent)))


def same(stored, now):
    """Are two lines the same up to rounding? None is a line that is not there."""
    if None in (stored, now) or NUMBER.sub("", stored) != NUMBER.sub("", now):
        return stored == now
    return all(map(close, NUMBER.findall(stored), NUMBER.findall(now)))


def execute(path, write):
    """Runs the cells of a notebook, and returns the texts that differ; None if its lesson cannot run here."""
    import matplotlib

    os.chdir(path.parent)
    sys.path[0] = str(path.parent)
    matplotlib.rcdefaults()
    notebook, names, differ, count = json.loads(path.read_text(encoding="utf-8")), {"__name__": "__main__"}, [], 0
    stored = any(cell.get("outputs") for cell in notebook["cells"])  # stored_test.py says which are not
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] != "code":
            continue
        code, count = f"{path.name}, cell {number}", count + 1
        try:
            shown = outputs(cell, code, names, write)
        except SystemExit:
            raise RuntimeError(f"{code} ends Python") from None
        except Exception as error:
            kind = type(error).__name__
            if kind == "Skipped" or (kind == "ModuleNotFoundError" and "ring_attention" in str(error)):
                print(f"{path.name}: skipped: {error}")
                return None
            raise
        if stored and not write and "measured" not in cell["metadata"].get("tags", ()):
            for before, now in zip_longest(lines_of(cell["outputs"]), lines_of(shown)):
                if not same(before, now):
                    differ.append(f"{code}: stored is {before!r}, and now it shows {now!r}")
        cell.update(execution_count=count, outputs=shown)
    if write:
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print("\n".join(differ) or f"{path.name}: all cells ran")
    return differ


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
    from lesson import BUILD  # it needs NumPy

    os.environ["MPLBACKEND"] = "agg"
    sys.path.append(str(BUILD / "python"))
    write = "--write" in arguments
    paths = [Path(name).resolve() for name in arguments if name != "--write"]  # a notebook runs in its folder
    found = [execute(path, write) for path in paths]
    if any(found):
        print("Remedy, if that is right: `make notebooks` stores what they show now. Look at the pictures.")
        return 1
    return 77 if found and all(differ is None for differ in found) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
