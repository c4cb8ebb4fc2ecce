"""Notebooks are stored without outputs, end in an assert, and link to files that exist."""

import json
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def complaints(notebook):
    cells = notebook["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells):
        if cell.get("outputs") or cell.get("execution_count") is not None:
            yield f"cell {number} is stored with its output; clear it (Kernel, Restart & Clear Output)"
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", "".join(cell["source"]) * (cell["cell_type"] == "markdown")):
            if not link.startswith("http") and not (HERE / link).exists():
                yield f"cell {number}: {link}: there is no such file"
    if notebook["metadata"]["kernelspec"]["name"] != "python3":
        yield "the kernel is not python3"
    if not code or not re.search(r"^assert ", code[-1], re.MULTILINE):
        yield "the last code cell asserts nothing"
    if not any("plt." in source or "judge(" in source for source in code):
        yield "there is no picture"


def main():
    files = sorted(HERE.glob("*.ipynb"))
    found = [
        f"{file.name}: {complaint}"
        for file in files
        for complaint in complaints(json.loads(file.read_text(encoding="utf-8")))
    ]
    print("\n".join(found + [f"{len(files)} notebooks, {len(found)} complaints"]))
    return 1 if found or not files else 0


if __name__ == "__main__":
    sys.exit(main())
