"""The messages that the pages explain are those of the source: in tables whose first column is "message", and in the lists of
the emulator's page. Of each, the words between "...", numbers, names in capitals and colons are looked up.
"""

import os
import re
import sys
from pathlib import Path

ROOT = Path(os.environ.get("RING_ATTENTION_SOURCE", Path(__file__).resolve().parents[1]))
PAGES = [*(ROOT / "docs").glob("*.md"), *(ROOT / "lessons").glob("*/*.md")]
SOURCES = ("src", "lessons/emulator", "tests/cuda", "CMakeLists.txt")
OF_OTHERS = {"unsupported GNU version": "nvcc", "unhandled system error": "NCCL"}
CODE = re.compile(r"`([^`]+)`")
BETWEEN = re.compile(r"\.\.\.|[:()]|\b(?:\d+|[A-Zr])\b|FILE|LINE")


def quoted(page):
    """Each message of a page."""
    in_table = failure = False
    for line in re.sub(r"\n {2,}", " ", page.read_text(encoding="utf-8")).splitlines():
        if line.startswith("#"):
            failure = "How to read a failure" in line
        in_table = line.startswith("| message |") or (in_table and line.startswith("|"))
        if in_table:
            yield from CODE.findall(line.split("|")[1])
        elif failure and line.startswith("- `"):
            yield from CODE.findall(line)


def printed():
    """The text of all sources, with literals that follow each other in one."""
    files = [file for name in SOURCES for file in [ROOT / name, *(ROOT / name).rglob("*")]
             if file.suffix in (".cpp", ".hpp", ".cu", ".cuh", ".py", ".cmake", ".txt")]
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    return re.sub(r'"\s*\n\s*f?"', "", text)


def main():
    source, looked_up, unknown = printed(), 0, []
    for page in PAGES:
        for message in quoted(page):
            pieces = [piece.strip(" ,") for piece in BETWEEN.split(message)]
            for piece in pieces:
                if " " not in piece:
                    continue
                looked_up += 1
                if piece not in source and piece not in OF_OTHERS:
                    unknown.append(f"{page.relative_to(ROOT)}: `{message}`: no source prints {piece!r}")
    if looked_up < 30:
        unknown.append(f"only {looked_up} messages were found")
    print("\n".join(unknown) or f"{looked_up} quoted messages are in the source")
    return bool(unknown)


if __name__ == "__main__":
    sys.exit(main())
