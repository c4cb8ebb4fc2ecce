"""accuracy.svg, the picture of the page, from what the lesson measures:

    build/release/mpirun -n 2 build/release/lessons/13_blockwise_transformer --train full --json | python3 accuracy.py
"""

import json
import math
import sys
from pathlib import Path

LEFT, RIGHT, TOP, BOTTOM = 70, 560, 70, 330
STYLE = """
    text { font-family: system-ui, "Segoe UI", Helvetica, Arial, sans-serif; font-size: 14px; fill: #1f2328; }
    .title { font-weight: 600; font-size: 15px; } .dim { fill: #59636e; font-size: 13px; } .mid { text-anchor: middle; }
    .end { text-anchor: end; } .card { fill: #ffffff; stroke: #d0d7de; } .grid { stroke: #d0d7de; }
    .ring { fill: #2f6fbf; stroke: #2f6fbf; } .window { fill: #b35b10; stroke: #b35b10; } .shard { fill: #7a4fb5; stroke: #7a4fb5; }
    path { stroke-width: 1.6; } path.ring, path.window, path.shard { fill: none; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3; } .dim { fill: #9198a1; } .card { fill: #0d1117; stroke: #3d444d; } .grid { stroke: #3d444d; }
      .ring { fill: #6ea8fe; stroke: #6ea8fe; } .window { fill: #e08e45; stroke: #e08e45; } .shard { fill: #b794f4; stroke: #b794f4; }
      path.ring, path.window, path.shard { fill: none; }
    }
  """
TITLE = "Accuracy against context: with the ring, with a window of 1024 tokens, with the own shard of 4 ranks"


def main():
    rows = json.load(sys.stdin)["figures"]["contexts"]
    lengths = [row[0] for row in rows]

    def x(length):
        first, last = math.log2(lengths[0]), math.log2(lengths[-1])
        return LEFT + (math.log2(length) - first) / (last - first) * (RIGHT - LEFT)

    def y(accuracy):
        return BOTTOM - accuracy * (BOTTOM - TOP)

    def curve(kind, column):
        points = " L ".join(f"{x(row[0]):.1f} {y(row[column]):.1f}" for row in rows)
        return f'  <path class="{kind}" d="M {points}"/>'

    def dots(kind, column):
        return [f'  <circle class="{kind}" cx="{x(row[0]):.1f}" cy="{y(row[column]):.1f}" r="4"/>' for row in rows]

    svg = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 390" width="760" height="390" role="img">',
        f"  <title>{TITLE}</title>",
        f"  <style>{STYLE}</style>",
        '  <rect class="card" x="0.5" y="0.5" width="759" height="389" rx="8"/>',
        '  <text class="title" x="25" y="30">The same weights, asked with more and more lines in the context</text>',
        '  <text class="dim" x="25" y="50">dots: measured; lines of the window and the shard: p + (1 - p) / 64</text>',
    ]
    for share in (0, 0.25, 0.5, 0.75, 1):
        svg.append(f'  <path class="grid" d="M {LEFT} {y(share):.1f} H {RIGHT}"/>')
        svg.append(f'  <text class="dim end" x="{LEFT - 10}" y="{y(share) + 5:.1f}">{share:g}</text>')
    for length in lengths:
        svg.append(f'  <text class="dim mid" x="{x(length):.1f}" y="{BOTTOM + 22}">{length:g}</text>')
    svg.append(f'  <text class="dim mid" x="{(LEFT + RIGHT) / 2}" y="{BOTTOM + 44}">tokens; the longest of the training is 4096</text>')
    for kind, measured, line in (("shard", 2, 3), ("window", 4, 5), ("ring", 1, 1)):
        svg.append(curve(kind, line))
        svg += dots(kind, measured)
    last = rows[-1]
    for text, column in (("with the ring", 1), ("own shard, N = 4", 2), ("window of 1024", 4)):
        svg.append(f'  <text x="{RIGHT + 14}" y="{y(last[column]) + 5:.1f}">{text}: {last[column]:.3f}</text>')
    svg.append("</svg>")
    Path(__file__).with_name("accuracy.svg").write_text("\n".join(svg) + "\n", encoding="utf-8")


main()
