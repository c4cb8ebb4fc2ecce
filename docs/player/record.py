"""Records the player's scenes from real runs: `record.py [BUILD_FOLDER]`.

Writes scenes.js (traces of the program, and of what scenes.cpp makes), the
picture of lesson 06, docs/ring.svg, docs/player.png and the list of docs/player.md. Of each
scene the fastest of some runs is taken, with its times as they were: from the first event of the attention on, in whole
microseconds.
"""

import base64
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
import moving
import picture
import player_test

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RUNS = 7
NOT_DRAWN = {"hop", "to", "from", "send", "receive", "pairs"}

PROBLEM = "--random 1,2,2048,64"
SCENES = [  # (name, lesson, title, what to see, ranks, words of the program, or a scene of scenes.cpp)
    (
        "blocking",
        "05",
        "A blocking ring",
        "Each rank computes, then waits for a whole hop: nothing travels meanwhile.",
        4,
        f"run {PROBLEM} --transport odd-even",
    ),
    (
        "overlapped",
        "06",
        "An overlapped ring",
        "K,V leave when a step begins, and travel while the rank computes.",
        4,
        f"run {PROBLEM}",
    ),
    (
        "hides",
        "06",
        "Two ranks: a hop that hides",
        "Shards of 4096 tokens over a link of 0.11 GB/s: the parcel is there before the step ends.",
        2,
        "hides",
    ),
    (
        "sticks-out",
        "06",
        "Two ranks: a hop that does not hide",
        "Shards of 512 tokens over the same link: the step is over before the parcel is there.",
        2,
        "sticks-out",
    ),
    (
        "backward",
        "08",
        "Forward, then backward",
        "In the backward K,V go round again; dK,dV follow one step behind, and make one hop more.",
        4,
        f"run {PROBLEM} --backward",
    ),
    (
        "causal-contiguous",
        "09",
        "A causal mask, contiguous",
        "Rank 0 has little to compute and rank 3 most of it.",
        4,
        f"run {PROBLEM} --causal",
    ),
    (
        "causal-striped",
        "09",
        "A causal mask, striped",
        "Token i is on rank i mod 4: each rank has nearly the same work at each step.",
        4,
        f"run {PROBLEM} --causal --placement striped",
    ),
    (
        "causal-zigzag",
        "09",
        "A causal mask, zigzag",
        "Each rank has one early and one late piece: the same work for all.",
        4,
        f"run {PROBLEM} --causal --placement zigzag",
    ),
    (
        "window",
        "12",
        "A window of 512 keys",
        "K,V make the hops that a query needs: one instead of three.",
        4,
        f"run {PROBLEM} --window 512,0",
    ),
    (
        "ulysses",
        "10",
        "Ulysses",
        "Two exchanges of all ranks with all; between them each rank computes some heads of all tokens.",
        4,
        "run --random 1,4,2048,64 --parallel ulysses",
    ),
    (
        "hybrid",
        "10",
        "A hybrid",
        "Pairs of ranks share the heads; rings of two share the tokens.",
        4,
        "run --random 1,4,2048,64 --parallel hybrid --ulysses 2",
    ),
    (
        "all-gather",
        "10",
        "All-gather",
        "All K,V come first; then no rank waits for another.",
        4,
        f"run {PROBLEM} --parallel all-gather",
    ),
    (
        "decoding",
        "15",
        "Decoding",
        "A prompt on a ring, then tokens one by one: keys stay, and states are exchanged.",
        4,
        "decode --random 1,4,32,64 --prompt 28",
    ),
    (
        "training",
        "13",
        "A step of a training",
        "The second step of a small transformer: its attention, forward and backward, then sums over the ranks.",
        2,
        "train --seq 512 --steps 4 --evaluation-tokens 512",
    ),
    (
        "same-bits",
        "16",
        "The same bits",
        "Ranks hold whole tiles of 256 tokens: 3, 3 and 2. K,V travel as usual; only the sums differ.",
        3,
        f"run {PROBLEM} --same-bits",
    ),
    (
        "step-too-few",
        "05",
        "A mistake: a step too few",
        "N - 1 steps, as the paper's algorithm 1 is printed: a part of the square is computed by no rank.",
        4,
        "steps-short",
    ),
    (
        "hop-too-few",
        "08",
        "A mistake: a hop too few",
        "dK,dV make N - 1 hops, like K,V: the gradients of each rank end on the rank before it.",
        4,
        "hop-short",
    ),
]


def trace_of(build, ranks, words):
    """The events of one run."""
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "trace.json")
        program = (
            [build / "ring-attention", *words.split(), "--trace", file]
            if " " in words
            else [build / "docs/player_scenes", words, file]
        )
        subprocess.run([build / "mpirun", "-n", str(ranks), *program], check=True, stdout=subprocess.DEVNULL)
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
    """docs/player.png, where there is a browser."""
    if not (chrome := player_test.browser()):
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        page = player_test.Page(chrome, folder)
        page.look(1130, height=2400, reduced=True)
        page.open(f"{(HERE / 'index.html').as_uri()}#causal-zigzag")
        page.run(
            "player.seek(player.trace.computes.filter((slice) => slice.step === 2)"
            ".map((slice) => slice.end).sort((a, b) => a - b)[2])"
        )
        bottom = page.run("by('lanes').getBoundingClientRect().bottom")
        clip = {"x": 0, "y": 0, "width": 1130, "height": bottom + 4, "scale": 1}
        (HERE.parent / "player.png").write_bytes(base64.b64decode(page.call("Page.captureScreenshot", clip=clip)["data"]))
        page.close()


def main(build=ROOT / "build/release"):
    build = Path(build).resolve()
    subprocess.run(["cmake", "--build", build, "--target", "ring-attention", "player_scenes"], check=True)
    scenes = {}
    for name, lesson, title, text, ranks, words in SCENES:
        scenes[name] = min((trimmed(trace_of(build, ranks, words)) for _ in range(RUNS)), key=duration)
        print(f"{name}: {duration(scenes[name]) / 1000:.1f} ms")
    lines = ",\n".join(
        json.dumps({"name": name, "lesson": lesson, "title": title, "text": text, "command": f"-n {ranks} {words}"})[:-1]
        + ', "events": '
        + json.dumps(scenes[name], separators=(",", ":"))
        + "}"
        for name, lesson, title, text, ranks, words in SCENES
    )
    # A script, not JSON: browsers read no JSON from a disk.
    written = f"// Written by record.py.\nwindow.recordedScenes = [\n{lines}\n];\n"
    (HERE / "scenes.js").write_text(written, encoding="utf-8")
    (ROOT / "lessons/06_overlapped_ring/trace.svg").write_text(
        picture.two_hops(scenes["hides"], scenes["sticks-out"]), encoding="utf-8"
    )
    words = next(words for name, _, _, _, _, words in SCENES if name == "overlapped")
    (HERE.parent / "ring.svg").write_text(moving.ring(scenes["overlapped"], words), encoding="utf-8")
    screenshot()
    subprocess.run([sys.executable, HERE.parent / "address.py"], check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
