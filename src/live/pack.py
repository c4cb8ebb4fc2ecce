"""`pack.py LIVE.WASM [FILE]` writes docs/player/module.js: the module, the mistakes that it makes, and the commit that it is made from.
`pack.py LIVE_LESSONS.WASM` writes docs/lessons_page/module.js.

A page from a disk can load a script, and no other file.
"""

import base64
import csv
import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST_PACKED, MOST_LESSONS = 300_000, 600_000
# The scores of the page are small and each query sees a key: they do not show.
LARGE_SCORES = {"no-max", "m-starts-0", "finite-start", "textbook-lse", "unguarded-row"}


def mistakes():
    """id: what is wrong, of the mistakes that a choice of the page shows."""
    header = (ROOT / "src/mistakes/ring_mistakes.hpp").read_text(encoding="utf-8")
    with open(ROOT / "src/python/ring_attention_diagnose/mistakes.tsv", encoding="utf-8", newline="") as file:
        says = {row["id"]: row["says"] for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)}
    return {one: says[one] for one in re.findall(r'\.id = "([\w-]+)"', header) if one not in LARGE_SCORES}


def write(name, wasm, to, most, **more):
    packed = gzip.compress(Path(wasm).read_bytes(), 9, mtime=0)
    if len(packed) > most:
        sys.exit(f"pack.py: the module takes {len(packed)} bytes: at most {most}")
    version = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"],
                             capture_output=True, text=True).stdout.strip()
    module = {"commit": version or "of a source archive", **more, "wasm": base64.b64encode(packed).decode()}
    Path(to).write_text(f"// Written by src/live/pack.py.\nwindow.{name} = {json.dumps(module)};\n", encoding="utf-8")
    print(f"{to}: {len(packed)} bytes, from {version}")


def main(wasm, to=ROOT / "docs/player/module.js"):
    if Path(wasm).stem == "live_lessons":
        write("lessonsModule", wasm, ROOT / "docs/lessons_page/module.js", MOST_LESSONS)
    else:
        write("liveModule", wasm, to, MOST_PACKED, mistakes=mistakes())


if __name__ == "__main__":
    main(*sys.argv[1:])
