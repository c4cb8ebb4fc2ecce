"""The picture of lesson 06, drawn from two recorded traces of two ranks: a hop that hides, and one that does not."""

import moving

STYLE = """<style>
    .ink { fill: #57606a; } .line { stroke: #57606a; fill: none; stroke-width: 1.4; }
    .compute { fill: #1d4ed8; } .hop { fill: #b45309; } .on { fill: #ffffff; font-size: 13px; }
    .wait { fill: none; stroke: #cf222e; stroke-width: 1.4; stroke-dasharray: 4 3; } .red { fill: #cf222e; font-size: 13px; }
    @media (prefers-color-scheme: dark) {
      .ink { fill: #c9d1d9; } .line { stroke: #c9d1d9; } .red { fill: #ff7b72; } .wait { stroke: #ff7b72; } }
  </style>"""
TITLE = "Two ranks over time, from traces: a hop that hides behind a step, and one that does not"
LEFT, WIDTH, HEIGHT = 145, 645, 26


def bar(kind, x, y, width, text, text_kind="on"):
    label = (
        f'<text class="{text_kind}" x="{x + width / 2:.1f}" y="{y + 18}" text-anchor="middle">{text}</text>'
        if width > 46
        else ""
    )
    return f'  <rect class="{kind}" x="{x:.1f}" y="{y}" width="{max(width, 0.5):.1f}" height="{HEIGHT}" rx="3"/>{label}'


def panel(events, top, heading):
    """The lanes of both ranks: what they compute, and the hop of K,V below it, with its wait."""
    found = [(event["pid"], event["tid"], line[-1]["name"], line[-1]["ts"], event["ts"])
             for event, line in moving.in_slices(events)
             if event["ph"] == "E" and event["tid"] in (1, 2) and line[-1]["name"] != "finish"]
    first, last = min(one[3] for one in found), max(one[4] for one in found)
    scale = WIDTH / (last - first)
    lines = [f'  <text class="ink" x="20" y="{top}">{heading}; {(last - first) / 1000:.1f} ms</text>']
    for rank in (0, 1):
        y = top + 14 + rank * 70
        lines += [
            f'  <text class="ink" x="20" y="{y + 18}">rank {rank}, compute</text>',
            f'  <text class="ink" x="20" y="{y + 48}">rank {rank}, K,V</text>',
        ]
        for of, track, name, begin, end in found:
            x, width = LEFT + (begin - first) * scale, (end - begin) * scale
            if of != rank:
                continue
            if track == 1:
                lines.append(bar("compute", x, y, width, name))
            elif name == "hop":
                lines.append(bar("hop", x, y + 30, width, "hop"))
            else:
                lines.append(bar("wait", x, y, width, f"waits {(end - begin) / 1000:.1f} ms", "red"))
    return lines


def two_hops(hides, sticks_out):
    lines = panel(hides, 28, "shards of 4096 tokens: the hop hides")
    lines.append('  <path class="line" d="M20 190 L800 190"/>')
    lines += panel(sticks_out, 218, "shards of 512 tokens over the same link: it does not")
    return (
        f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 820 372" width="820" height="372" \
font-family="Helvetica, Arial, sans-serif" font-size="14" role="img" aria-label="{TITLE}">
  <title>{TITLE}</title>
  {STYLE}
"""
        + "\n".join(lines)
        + "\n</svg>\n"
    )
