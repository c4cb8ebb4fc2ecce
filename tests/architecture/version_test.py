"""The version has one home, CMakeLists.txt: CITATION.cff, the newest heading of docs/CHANGELOG.md and Python's packages
agree. And pyproject.toml names every package of src/python.

With the argument `release` the heading must also have a date: .ci/release asks for that.
"""

import os
import re
import sys
from pathlib import Path

ROOT = Path(os.environ.get("RING_ATTENTION_SOURCE", Path(__file__).resolve().parents[2]))


def found(name, pattern):
    match = re.search(pattern, (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)
    return match.group(1) if match else None


def complaints(texts, release):
    """What is wrong. `texts` has the version in CMake, in the citation, of both packages, and the newest heading of the
    changes."""
    version, citation, pip, diagnose, heading = texts
    if not re.fullmatch(r"\d+\.\d+\.\d+", version or ""):
        yield f"CMakeLists.txt: project() has the version {version}"
    if citation != version:
        yield f"CITATION.cff has the version {citation}, CMakeLists.txt {version}"
    if pip != version:
        yield f"pyproject.toml reads the version {pip} from CMakeLists.txt, CMake {version}"
    if diagnose != version:
        yield f"src/python/ring_attention_diagnose/__init__.py has the version {diagnose}, CMakeLists.txt {version}"
    number, _, date = (heading or "").partition(", ")
    if number != version:
        yield f"docs/CHANGELOG.md begins with {heading}, not with {version}"
    if release and not re.fullmatch(r"\d{4}-\d\d-\d\d", date):
        yield f"docs/CHANGELOG.md: the heading {heading} has no date; write '{version}, YEAR-MONTH-DAY'"


def main():
    regex = found("pyproject.toml", r"^regex = '(.*)'$").replace("?P<value>", "")
    texts = (found("CMakeLists.txt", r"^project\([^)]*\bVERSION (\S+)"), found("CITATION.cff", r"^version: (\S+)$"),
             found("CMakeLists.txt", regex),
             found("src/python/ring_attention_diagnose/__init__.py", r'^__version__ = "(.*)"$'),
             found("docs/CHANGELOG.md", r"^## (.*)$"))
    wrong = list(complaints(texts, "release" in sys.argv[1:]))
    listed = re.findall('"(.*?)"', found("pyproject.toml", r"^wheel.packages = \[(.*)\]$"))
    there = [path.parent.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob("src/python/*/__init__.py"))]
    if sorted(listed) != there:
        wrong.append(f"pyproject.toml: wheel.packages are {listed}, and src/python has {there}")
    print("\n".join(wrong) or f"version {texts[0]}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
