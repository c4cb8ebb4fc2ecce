"""The loop that README.md shows is the loop of ring/forward.hpp, letter for letter; a code host clips none of its code."""

import os
import sys
from pathlib import Path

ROOT = Path(os.environ.get("RING_ATTENTION_SOURCE", Path(__file__).resolve().parents[2]))
WIDEST = 95
BEGIN, END = "template <class T>\nvoid ring_forward(", "\n}\n"


def loop(text):
    """From the first line of the function to its last, or None."""
    begin = text.find(BEGIN)
    end = text.find(END, begin)
    return text[begin:end + len(END)] if begin >= 0 and end >= 0 else None


def wide(page):
    """Lines of code that are wider than a code host shows."""
    blocks = page.split("```")[1::2]
    return [line for block in blocks for line in block.splitlines() if len(line) > WIDEST]


def complaint(page, source):
    """What is wrong, or None."""
    wanted = loop(source)
    if wanted is None:
        return "ring/forward.hpp has no function ring_forward"
    if f"```cpp\n{wanted}```\n" not in page:
        return "README.md does not show the function ring_forward as it is; it is\n" + wanted
    if wide(page):
        return f"README.md: lines of code with more than {WIDEST} columns: {wide(page)}"
    return None


def main():
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    source = (ROOT / "src/ring_attention/ring/forward.hpp").read_text(encoding="utf-8")
    found = complaint(page, source)
    if found:
        sys.exit(found)
    # This test can fail.
    for old, new in (("step + 1", "step"), ("```cpp", "```"), ("advance", "retreat"), ("$ make run", "$ make run" + 90 * "-")):
        wrong = page.replace(old, new, 1)
        if complaint(wrong, source) is None:
            sys.exit("this test does not notice a wrong page")
    if complaint(page, source.replace("void ring_forward", "void ring")) is None:
        sys.exit("this test does not notice that the function is gone")
    print("README.md shows the loop of ring/forward.hpp")


if __name__ == "__main__":
    main()
