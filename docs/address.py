"""The address of the site, and how the player is opened: `address.py` writes both into the pages, `address.py open [SCENE]`
opens the player.

Where the site has no address, the pages say how to open the player in a clone. links_test.py compares the pages.
"""

import json
import re
import sys
import textwrap
import webbrowser

from markdown import ROOT

ADDRESS = ""  # as https://name.github.io/ring-attention/; empty until the site is published
PLAYER = ROOT / "docs/player/index.html"
BEGIN, END = "<!-- docs/address.py -->", "<!-- end -->"
PAGES = ("README.md", "lessons/README.md", "docs/player.md")


def how_to_open():
    if ADDRESS:
        return f"[It opens here]({ADDRESS}player/index.html)."
    return "In your clone, double-click `docs/player/index.html` or type `make player`."


def recorded_scenes():
    """The player's, by their names."""
    text = (PLAYER.parent / "scenes.js").read_text(encoding="utf-8")
    return {scene["name"]: scene for scene in json.loads(text[text.index("["):text.rindex(";")])}


def scenes():
    """A heading for each scene, to which lessons lead: on the site they lead to the scene itself."""
    for name, scene in recorded_scenes().items():
        lesson = next(ROOT.glob(f"lessons/{scene['lesson']}_*"))
        where = f"[Open it]({ADDRESS}player/index.html#{name})" if ADDRESS else f"`make player SCENE={name}`"
        words = f"{scene['title']}. {scene['text']} {where}; [lesson {scene['lesson']}](../lessons/{lesson.name}/README.md)."
        yield f"### {name}\n\n{textwrap.fill(words, 118, break_on_hyphens=False)}\n"


def page(name):
    """The text that a page should have."""
    text = (ROOT / name).read_text(encoding="utf-8")
    text = re.sub(rf"{BEGIN}(\s+).*?{END}", lambda found: f"{BEGIN}{found[1]}{how_to_open()}{END}", text, flags=re.DOTALL)
    if name == "docs/player.md":
        text = text[:text.index("## The scenes")] + "## The scenes\n\n" + "\n".join(scenes())
    return text


def complaints():
    for name in PAGES:
        text = (ROOT / name).read_text(encoding="utf-8")
        if BEGIN not in text or text != page(name):
            yield f"{name}: not what docs/address.py writes. Remedy: python3 docs/address.py"


def open_player(scene=""):
    url = PLAYER.as_uri() + (f"#{scene}" if scene else "")
    print(url)
    if not webbrowser.open(url):
        print("No browser was found. Remedy: open this address in one")  # no error: what `make live` makes is there


if __name__ == "__main__":
    if sys.argv[1:2] == ["open"]:
        open_player(*sys.argv[2:])
    else:
        for name in PAGES:
            (ROOT / name).write_text(page(name), encoding="utf-8")
