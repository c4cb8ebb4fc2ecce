"""Every link, picture, heading and formula that a tracked Markdown file names is whole."""

import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import unquote

import address
from markdown import ROOT, Document


def tracked():
    """Markdown files that git knows; all, in a copy without git."""
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z", "*.md"], capture_output=True, text=True)
    if listed.returncode != 0:
        return sorted(file for file in ROOT.rglob("*.md") if "build" not in file.relative_to(ROOT).parts)
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]


def complaints(document):
    for line, link in document.links():
        target = document.target(unquote(link))
        if target is None:
            continue
        path, heading = target
        if path != document.path and not (path.exists() and path.is_relative_to(ROOT)):
            yield line, f"{link}: there is no such file in the repository"
        elif path.suffix == ".html":
            yield line, f"{link}: a code host shows the source of that page, not the page. Remedy: docs/player.md"
        elif heading and path.suffix == ".md" and heading not in Document(path).slugs():
            yield line, f"{link}: that file has no such heading"
    for position, letter in enumerate(document.text):
        if letter == "$":
            yield document.line(position), "a $ that opens or closes no formula (write \\$ for the sign)"


# What must be complained about, or this test cannot fail; and what must not.
HTML = f"[a]({ROOT / 'docs/player/index.html'})"
WRONG = [HTML, "[a](nowhere.md)", "![a](nowhere.svg)", '<img src="nowhere.svg">', "[a](#no-such-heading)", "half $x", "$ x $", "$$x$"]
RIGHT = ["# A b\n\n[a](#a-b)", "$x_1$, `$x`, $$y\nz$$ and 5 \\$", "```sh\necho $HOME\n```", "[a](https://b.c/d)"]


def rules_that_fail():
    with tempfile.TemporaryDirectory() as folder:
        for text, expected in [(text, True) for text in WRONG] + [(text, False) for text in RIGHT]:
            file = Path(folder) / "example.md"
            file.write_text(text, encoding="utf-8")
            if bool(list(complaints(Document(file)))) != expected:
                yield f"this test is wrong about {text!r}"


def main():
    files = tracked()
    found = 0
    for complaint in rules_that_fail():
        print(complaint)
        found += 1
    for complaint in address.complaints():
        print(complaint)
        found += 1
    for file in files:
        for line, complaint in complaints(Document(file)):
            print(f"{file.relative_to(ROOT)}:{line}: {complaint}")
            found += 1
    print(f"{len(files)} Markdown files, {found} complaints")
    return 1 if found or not files else 0


if __name__ == "__main__":
    sys.exit(main())
