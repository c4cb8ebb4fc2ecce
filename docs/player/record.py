"""Records the player's scenes again, in scenes.js: `record.py [SCENE...]`, all where none is named.

A scene is a line there: its words, and the events of its `command`, a run of the program or an address of the player, whose
ring a browser computes. Also draws the picture of lesson 06, docs/ring.svg, docs/player.png and the list of docs/player.md. Of
each scene the fastest of some runs is taken, with its times as they were: from the first event of the attention on, in whole
microseconds.
"""

import base64
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
import address
import moving
import picture
import player_test
from player_test import BUILD, ROOT

HERE = Path(__file__).resolve().parent
RUNS = 7
NOT_DRAWN = {"hop", "to", "from", "send", "receive", "pairs"}


@contextlib.contextmanager
def opened(place):
    """The player in a browser."""
    with (tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
          contextlib.closing(player_test.Page(player_test.browser(), folder)) as page):
        page.look(1130, height=2400, reduced=True)
        page.open(f"{address.PLAYER.as_uri()}#{place}")
        yield page


def trace_of(command):
    """The events of one run."""
    if "#" in command:
        with opened(command.partition("#")[2]) as page:
            if not page.until("Boolean(live.last?.events)", 60):
                sys.exit(f"record.py: the page has not computed {command}")
            return page.run("live.last.events")
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "trace.json")
        mpirun, n, ranks, program, *words = command.split()
        subprocess.run([BUILD / mpirun, n, ranks, BUILD / program, *words, "--trace", file], check=True,
                       stdout=subprocess.DEVNULL)
        return json.loads(Path(file).read_text(encoding="utf-8"))


def trimmed(events):
    """What the player draws, from the first event of the attention on."""
    drawn = [event for event in events if event["ph"] != "M" and event["tid"] != 0]
    begin = min(event["ts"] for event in drawn)
    kept = [event for event in events if event.get("name") == "attention"][:1]
    for event in kept:
        event["pid"] = 0
    for event in drawn:
        event["ts"] = round(event["ts"] - begin)
        event.pop("s", None)
        for field in NOT_DRAWN & event.get("args", {}).keys():
            del event["args"][field]
        if event["ph"] in "sf":
            for field in ("name", "bp"):
                event.pop(field, None)
    return kept + drawn


def duration(events):
    return max(event["ts"] for event in events)


def screenshot():
    """docs/player.png"""
    with opened("causal-zigzag") as page:
        page.run(
            "player.seek(player.trace.computes.filter((slice) => slice.step === 2)"
            ".map((slice) => slice.end).sort((a, b) => a - b)[2])"
        )
        bottom = page.run("by('lanes').getBoundingClientRect().bottom")
        clip = {"x": 0, "y": 0, "width": 1130, "height": bottom + 4, "scale": 1}
        (HERE.parent / "player.png").write_bytes(base64.b64decode(page.call("Page.captureScreenshot", clip=clip)["data"]))


def main(*names):
    if not player_test.browser():
        sys.exit("record.py: no browser. Remedy: install chromium, or set CHROME.")
    subprocess.run(["cmake", "--build", BUILD, "--target", "ring-attention"], check=True)
    scenes = address.recorded_scenes()
    if unknown := sorted(set(names) - set(scenes)):
        sys.exit(f"record.py: no scene {unknown[0]}. Remedy: one of {', '.join(scenes)}")
    for name, scene in scenes.items():
        if name in names or not names:
            runs = 1 if "#" in scene["command"] else RUNS  # the page's clock is a model
            scene["events"] = min((trimmed(trace_of(scene["command"])) for _ in range(runs)), key=duration)
            print(f"{name}: {duration(scene['events']) / 1000:.1f} ms")
    lines = ",\n".join(json.dumps(scene, separators=(",", ":")) for scene in scenes.values())
    # A script, not JSON: browsers read no JSON from a disk.
    written = f"// record.py writes the events.\nwindow.recordedScenes = [\n{lines}\n];\n"
    (HERE / "scenes.js").write_text(written, encoding="utf-8")
    (ROOT / "lessons/06_overlapped_ring/trace.svg").write_text(
        picture.two_hops(scenes["hides"]["events"], scenes["sticks-out"]["events"]), encoding="utf-8"
    )
    (HERE.parent / "ring.svg").write_text(moving.ring(scenes["overlapped"]), encoding="utf-8")
    screenshot()
    subprocess.run([sys.executable, HERE.parent / "address.py"], check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
