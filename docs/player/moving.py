"""docs/ring.svg: a recorded trace of a ring of four ranks, which plays by CSS alone.

The picture moves where a browser shows it, from the middle of the run on, so that a preview and print show that moment. It
stands still there where motion is not wanted (`prefers-reduced-motion`), or where CSS animations are not supported.
Each parcel, cell and mark has its own keyframes.
"""

import math

SECONDS, PAUSE = 12, 3  # for the run, and for its end before it begins again
CENTRE, RADIUS, INSIDE, CELL, LEFT, TOP = (165, 148), 112, 0.5, 60, 420, 32
STILL = 0.5  # of the run
MOVE, FADE = 0.012, 0.001  # of the run: from the second buffer into the first; to appear
COLOURS = [("#1d4ed8", "#79c0ff"), ("#b45309", "#ffa657"), ("#047857", "#56d364"), ("#be123c", "#ff8f87")]
TITLE = "Ring Attention on four ranks, from a recorded run: queries stay, keys and values move to the next rank"
TEXT = [
    "Each rank keeps its queries:", "a row of the square.", "",
    "It merges the K,V that it has", "into its state (o, m, l). At the", "same time a copy of these K,V",
    "travels to the next rank.", "",
    "After 4 steps and 3 hops", "each query has met all keys,", "and no rank has held more",
    "than two shards of K,V.",
]  # fmt: skip


def in_slices(events):
    """Each event, with the stack of the slices of its line that are open, those that it begins or ends among them."""
    lines = {}
    for event in events:
        line = lines.setdefault((event["pid"], event["tid"]), [])
        if event["ph"] == "B":
            line.append(event)
        yield event, line
        if event["ph"] == "E":
            line.pop()


def read(events):
    """Steps {(rank, owner): (begin, end)} and hops {(to, owner): (from, begin, end)}, as parts of the run."""
    steps, hops, sent = {}, {}, {}
    for event, line in in_slices(events):
        if event["ph"] == "E" and "keys" in line[-1].get("args", {}):
            steps[event["pid"], line[-1]["args"]["owner"]] = line[-1]["ts"], event["ts"]
        elif event["ph"] == "s":
            sent[event["id"]] = event, line[-1]["args"]["owner"]
    for event in events:
        if event["ph"] == "f":
            begin, owner = sent[event["id"]]
            hops[event["pid"], owner] = begin["pid"], begin["ts"], event["ts"]
    first, last = min(begin for begin, _ in steps.values()), max(end for _, end in steps.values())

    def part(time):
        return min(max((time - first) / (last - first), 0), 1)

    return (
        {key: (part(begin), part(end)) for key, (begin, end) in steps.items()},
        {key: (source, part(begin), part(end)) for key, (source, begin, end) in hops.items()},
        last - first,
    )


def at(angle, share=1.0):
    """A place on the circle of ranks; the angle counts ranks."""
    turn = (angle - 1) * math.pi / 2
    return CENTRE[0] + RADIUS * share * math.cos(turn), CENTRE[1] + RADIUS * share * math.sin(turn)


class Moving:
    """Elements whose style is a function of the time, as points [time, style] between which a browser interpolates."""

    def __init__(self):
        self.frames, self.lines = [], []

    def add(self, points, still, element):
        """points: the last one stays to the end. element: with {} where the animation and the style of the still frame belong."""
        stops = {}
        for time, style in [*points, ((SECONDS + PAUSE) / SECONDS, points[-1][1])]:
            stops[f"{100 * time * SECONDS / (SECONDS + PAUSE):.2f}%"] = style
        name = f"k{len(self.frames)}"
        self.frames.append(f"@keyframes {name} {{ " + " ".join(f"{stop} {{ {style} }}" for stop, style in stops.items()) + " }")
        self.lines.append(element.format(f'style="animation-name: {name}; {still}"'))


def moved(place, opacity=1):
    return f"transform: translate({place[0]:.0f}px, {place[1]:.0f}px); opacity: {opacity}"


def parcel(moving, steps, hops, rank, owner):
    """K,V of an owner in the buffers of a rank: they arrive, are computed with, and make place for the next."""
    begin, end = steps[rank, owner]
    later = [start for (where, _), (start, _) in steps.items() if where == rank and start > begin]
    gone = min(later, default=2)
    held = at(rank, INSIDE)
    if (rank, owner) in hops:
        source, leaves, comes = hops[rank, owner]
        ends = at(source + 0.32), at(source + 0.68)
        # A parcel moves when the second buffer of the next rank is free, and is there when its rank sends another.
        moves = max([leaves] + [start for (where, _), (start, _) in steps.items() if where == rank and start < begin])
        comes = min([comes] + [start for (to, _), (_, start, _) in hops.items() if to == rank and start > leaves])
        moves = min(max(moves, leaves + FADE), comes)
        points = [(0, moved(ends[0], 0)), (leaves, moved(ends[0], 0)), (leaves + FADE, moved(ends[0])),
                  (moves, moved(ends[0])), (comes, moved(ends[1])), (begin, moved(ends[1])),
                  (begin + MOVE, moved(held))]  # fmt: skip
        share = min(max((STILL - moves) / max(comes - moves, 1e-9), 0), 1)
        place = tuple(a + (b - a) * share for a, b in zip(*ends)) if STILL < begin else held
        still = moved(place, int(leaves < STILL < gone))
    else:
        points, still = [(0, moved(held))], moved(held, int(STILL < gone))
    if gone < 1:
        points += [(gone, moved(held)), (gone + FADE, moved(held, 0))]
    moving.add(points, still, f'<g class="a" {{}}><rect class="c{owner}" x="-21" y="-11" width="42" height="22" rx="5"/>'
               f'<text class="on" y="5">K,V {owner}</text></g>')  # fmt: skip


def cell(moving, steps, rank, owner):
    begin, end = steps[rank, owner]
    part = min(max((STILL - begin) / (end - begin), 0), 1)
    points = [(0, "transform: scaleX(0)"), (begin, "transform: scaleX(0)"), (end, "transform: scaleX(1)")]
    moving.add(points, f"transform: scaleX({part:.2f})", f'<rect class="a c{rank} cell" x="{LEFT + owner * CELL}" '
               f'y="{TOP + rank * CELL}" width="{CELL}" height="{CELL}" {{}}/>')  # fmt: skip


def mark(moving, steps, rank):
    """A line round a rank that computes."""
    points, still = [(0, "opacity: 0")], 0
    for (where, _), (begin, end) in sorted(steps.items(), key=lambda one: one[1]):
        if where == rank:
            points += [(begin, "opacity: 0"), (begin + FADE, "opacity: 1"), (end - FADE, "opacity: 1"), (end, "opacity: 0")]
            still = max(still, int(begin <= STILL < end))
    x, y = at(rank)
    moving.add(points, f"opacity: {still}", f'<circle class="a line" cx="{x:.0f}" cy="{y:.0f}" r="29" {{}}/>')


def ring(scene):
    """The picture of a recorded scene."""
    steps, hops, microseconds = read(scene["events"])
    words = scene["command"].partition("ring-attention ")[2]
    ranks, moving = range(4), Moving()
    texts = []
    for rank in ranks:
        x, y = at(rank)
        texts.append(f'<circle class="c{rank}" cx="{x:.0f}" cy="{y:.0f}" r="25"/>'
                     f'<text class="on" x="{x:.0f}" y="{y + 5:.0f}">Q{rank}</text>')  # fmt: skip
        texts.append(f'<text class="ink" x="{LEFT - 20}" y="{TOP + rank * CELL + 35}">Q{rank}</text>'
                     f'<text class="ink" x="{LEFT + rank * CELL + 30}" y="{TOP - 10}">K,V {rank}</text>')  # fmt: skip
        mark(moving, steps, rank)
        for owner in ranks:
            cell(moving, steps, rank, owner)
    for rank in ranks:
        for owner in ranks:
            parcel(moving, steps, hops, rank, owner)
    grid = "".join(f"M{LEFT + i * CELL} {TOP} v{4 * CELL} M{LEFT} {TOP + i * CELL} h{4 * CELL} " for i in range(5))
    texts += [f'<text class="ink start" x="680" y="{TOP + 12 + 20 * i}">{line}</text>' for i, line in enumerate(TEXT) if line]
    texts.append(f'<text class="ink" x="430" y="308">Recorded: ring-attention {words}: {microseconds / 1000:.1f} ms, four ranks on '
                 f"two cores, played {SECONDS * 1e6 / microseconds:,.0f} times slower.</text>")  # fmt: skip
    colours = [" ".join(f".c{i} {{ fill: {pair[dark]}; }}" for i, pair in enumerate(COLOURS)) for dark in (0, 1)]
    new_line = "\n  "
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 320" width="900" height="320" \
font-family="Helvetica, Arial, sans-serif" font-size="14" text-anchor="middle" role="img" aria-label="{TITLE}">
  <title>{TITLE}</title>
  <style>
  .ink {{ fill: #57606a; }} .line {{ stroke: #57606a; fill: none; stroke-width: 2.5; }} .on {{ fill: #ffffff; font-size: 13px; }}
  .grid {{ stroke: #8c959f; fill: none; }} .dash {{ stroke-dasharray: 3 4; }} .start {{ text-anchor: start; }}
  {colours[0]}
  .cell {{ transform-box: fill-box; transform-origin: left; }}
  .a {{ animation: {SECONDS + PAUSE}s linear -{STILL * SECONDS:.0f}s infinite; }}
  @media (prefers-color-scheme: dark) {{
  .ink {{ fill: #c9d1d9; }} .line {{ stroke: #c9d1d9; }} .on {{ fill: #0d1117; }} .grid {{ stroke: #6e7681; }}
  {colours[1]} }}
  @media (prefers-reduced-motion: reduce) {{ .a {{ animation: none; }} }}
  {new_line.join(moving.frames)}
  </style>
  <circle class="grid dash" cx="{CENTRE[0]}" cy="{CENTRE[1]}" r="{RADIUS}"/>
  {new_line.join(texts + moving.lines)}
  <path class="grid" d="{grid.strip()}"/>
</svg>
"""
