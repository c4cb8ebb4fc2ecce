"""The pictures of lessons/03_blockwise_attention/LADDER.md, as SVG, from what benchmarks measured."""

import math

import tables

STEPS = ("textbook_eigen", "preallocated_eigen", "queries_in_lanes", "fast_forward")
PEERS = ("dense_eigen", "onednn")
LABELS = {"textbook_eigen": "1. textbook Eigen", "preallocated_eigen": "2. no temporaries",
          "queries_in_lanes": "3. queries in lanes", "fast_forward": "4. vector types",
          "dense_eigen": "dense Eigen", "onednn": "oneDNN, three calls"}

STYLE = """  <style>
    text { font-family: system-ui, "Segoe UI", Helvetica, Arial, sans-serif; font-size: 14px; fill: #1f2328; }
    .title { font-weight: 600; font-size: 15px; }
    .dim { fill: #59636e; font-size: 13px; }
    .end { text-anchor: end; }
    .mid { text-anchor: middle; }
    .card { fill: #ffffff; stroke: #d0d7de; }
    .grid { stroke: #d0d7de; }
    .line { stroke: #59636e; stroke-width: 2; fill: none; }
    .mark { stroke: #b35b10; stroke-width: 1.5; stroke-dasharray: 5 4; }
    .d64 { fill: #2f6fbf; }
    .d128 { fill: #7fb0e8; }
    .peer { fill: #8c959f; }
    .peer128 { fill: #c2c9d1; }
    .warn { fill: #b35b10; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3; }
      .dim { fill: #9198a1; }
      .card { fill: #0d1117; stroke: #3d444d; }
      .grid { stroke: #3d444d; }
      .line { stroke: #9198a1; }
    }
  </style>"""


def svg(width, height, title, body):
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" role="img" aria-label="{title}">\n  <title>{title}</title>\n{STYLE}\n'
            f'  <rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>')
    return "\n".join([head, *("  " + line for line in body), "</svg>"]) + "\n"


def text(x, y, words, kind=""):
    words = words.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{words}</text>'


def bar(x, y, width, height, kind):
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="2"/>'


def measured(results):
    """(S, speed(what, D)): one thread, S = 4096 where that was measured; speed in GFLOP/s or None."""
    rows = results["attention"]["rows"]
    seq = tables.usual_length(rows)

    def speed(what, dim):
        row = tables.find(rows, what=what, seq=seq, dim=dim, threads=1)
        return row and row["gflops"][1]
    return seq, speed


def ladder(results):
    """Bars: every step and peer, as a share of sgemm (of the fastest, without OpenBLAS)."""
    seq, speed = measured(results)
    shown = [what for what in STEPS + PEERS if speed(what, 64) and speed(what, 128)]
    full = {dim: speed("sgemm", dim) or max(speed(what, dim) for what in shown) for dim in (64, 128)}
    unit = "sgemm" if speed("sgemm", 64) else "the fastest"
    left, top, scale, row = 180, 74, 460, 46
    bottom = top + row * len(shown)
    body = [text(25, 30, f"The forward, as a share of {unit} on the same core: S = {seq}, one thread", "title"),
            bar(left, 46, 12, 12, "d64"), text(left + 18, 57, "D = 64", "dim"),
            bar(left + 90, 46, 12, 12, "d128"), text(left + 108, 57, "D = 128", "dim")]
    for percent in (0, 25, 50, 75, 100):
        x = left + scale * percent / 100
        body += [f'<line class="{"mark" if percent == 100 else "grid"}" x1="{x:.1f}" y1="{top - 6}" x2="{x:.1f}" y2="{bottom}"/>',
                 text(x, bottom + 18, f"{percent} %", "dim mid")]
    for i, what in enumerate(shown):
        y = top + row * i
        body.append(text(left - 10, y + 22, LABELS[what], "end"))
        for j, dim in enumerate((64, 128)):
            share = speed(what, dim) / full[dim]
            kind = ("peer", "peer128")[j] if what in PEERS else ("d64", "d128")[j]
            body += [bar(left, y + 17 * j, scale * share, 15, kind),
                     text(left + scale * share + 6, y + 17 * j + 12.5, f"{100 * share:.0f} %", "dim")]
    return svg(760, bottom + 34, f"The forward as a share of {unit}", body)


def intensities(seq, dim):
    """{what: floating-point operations per byte that has to come from memory}, one head, float32.

    Tiles read q, k, v and write out once; k and v come from the cache after that. Dense attention also writes and
    reads the scores: the first product writes them, the softmax reads and writes them, the second product reads them.
    """
    flop = 4 * seq * seq * dim
    return {"tiles": flop / (4 * 4 * seq * dim), "dense": flop / (4 * 4 * seq * dim + 4 * 4 * seq * seq)}


def roofline(results):
    """Operations a byte against operations a second, both axes in powers of ten."""
    seq, speed = measured(results)
    peak = speed("sgemm", 64) or speed("fast_forward", 64)
    unit = "sgemm" if speed("sgemm", 64) else "fast forward"
    copied = tables.find(results["attention"]["rows"], what="copy", seq=seq, dim=64, threads=1)
    bandwidth = copied["gflops"][1]  # GB/s, read and written
    x_range, y_range = (0, 4), (0, math.ceil(math.log10(peak) + 0.05))
    left, top, width, height = 80, 70, 620, 300

    def x_of(value):
        return left + width * (math.log10(value) - x_range[0]) / (x_range[1] - x_range[0])

    def y_of(value):
        return top + height - height * (math.log10(value) - y_range[0]) / (y_range[1] - y_range[0])

    body = [text(25, 30, f"What memory allows and what is reached: S = {seq}, D = 64, one thread", "title")]
    for power in range(x_range[0], x_range[1] + 1):
        x = x_of(10**power)
        body += [f'<line class="grid" x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{top + height}"/>',
                 text(x, top + height + 18, f"{10**power:g}", "dim mid")]
    for power in range(y_range[0], y_range[1] + 1):
        y = y_of(10**power)
        body += [f'<line class="grid" x1="{left}" y1="{y:.1f}" x2="{left + width}" y2="{y:.1f}"/>',
                 text(left - 8, y + 4, f"{10**power:g}", "dim end")]
    ridge = peak / bandwidth
    body += [f'<path class="line" d="M{x_of(1):.1f} {y_of(bandwidth):.1f}L{x_of(ridge):.1f} {y_of(peak):.1f}'
             f'L{left + width} {y_of(peak):.1f}"/>',
             text(left + width, y_of(peak) - 8, f"{unit}: {peak:.0f} GFLOP/s", "dim end"),
             text(x_of(1.4), y_of(bandwidth), f"memory: {bandwidth:.0f} GB/s copied", "dim"),
             text(left + width / 2, top + height + 40, "operations a byte that comes from memory", "dim mid"),
             text(left, top - 10, "GFLOP/s", "dim mid")]
    at = intensities(seq, 64)
    for what, kind, place in [("fast_forward", "d64", "tiles"), ("textbook_eigen", "warn", "tiles"),
                              ("dense_eigen", "peer", "dense")]:
        if value := speed(what, 64):
            body += [f'<circle class="{kind}" cx="{x_of(at[place]):.1f}" cy="{y_of(value):.1f}" r="6"/>',
                     text(x_of(at[place]) + 10, y_of(value) + (18 if what == "fast_forward" else 5),
                          f"{LABELS[what]}, {value:.0f}", "dim")]
    return svg(760, top + height + 56, "A roofline: operations a byte against operations a second", body)
