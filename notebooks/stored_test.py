"""Notebooks are stored with their pictures, small enough for a clone, end in an assert, and link to files that exist."""

import json
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
BYTES, ALL_BYTES = 150_000, 1_500_000
WITHOUT = ("11_tensor_cores.ipynb",)  # no GPU has run it yet


def complaints(notebook, name):
    cells = notebook["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells):
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", "".join(cell["source"]) * (cell["cell_type"] == "markdown")):
            if not link.startswith("http") and not (HERE / link).exists():
                yield f"cell {number}: {link}: there is no such file"
    if notebook["metadata"]["kernelspec"]["name"] != "python3":
        yield "the kernel is not python3"
    if not code or not re.search(r"^assert ", "".join(code[-1]["source"]), re.MULTILINE):
        yield "the last code cell asserts nothing"
    if name in WITHOUT:
        return
    if [cell["execution_count"] for cell in code] != list(range(1, len(code) + 1)):
        yield "it is not stored as `make notebooks` stores it, executed from its first cell to its last"
    if not any("image/png" in output.get("data", ()) for cell in code for output in cell["outputs"]):
        yield "there is no picture"


def main():
    found, sizes = [], {file: file.stat().st_size for file in sorted(HERE.glob("*.ipynb"))}
    for file, size in sizes.items():
        found += [f"{file.name}: {says}" for says in complaints(json.loads(file.read_text(encoding="utf-8")), file.name)]
        if size > BYTES:
            found.append(f"{file.name} has {size} bytes, more than {BYTES}")
    if sum(sizes.values()) > ALL_BYTES:
        found.append(f"all notebooks have {sum(sizes.values())} bytes, more than {ALL_BYTES}")
    print("\n".join(found + [f"{len(sizes)} notebooks, {sum(sizes.values())} bytes, {len(found)} complaints"]))
    return 1 if found or not sizes else 0


if __name__ == "__main__":
    sys.exit(main())
