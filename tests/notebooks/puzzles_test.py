"""The judge of notebooks/ring_puzzles.ipynb: each puzzle with an empty hole, with the right lines, and with typical mistakes.

`puzzles_test.py right FILE` writes a copy of the notebook in which all is solved.
"""

import contextlib
import importlib.util
import io
import json
import linecache
import os
import re
import sys
import unittest
from pathlib import Path

if importlib.util.find_spec("numpy") is None:
    print(f"skipped: {sys.executable} has no NumPy")
    sys.exit(77)

os.environ.setdefault("MPLBACKEND", "agg")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the arrays are small
NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
sys.path.insert(0, str(NOTEBOOKS))
import puzzles

CELLS = json.loads((NOTEBOOKS / "ring_puzzles.ipynb").read_text(encoding="utf-8"))["cells"]
HOLE = re.compile(r"^( *)hole\(\).*$", re.M)

RIGHT = {  # of each puzzle: the lines of its holes, the holes divided by ---
    1: """
e = np.exp(x - x.max())
return e / e.sum()
""",
    2: """
m = np.maximum(a[1], b[1])
base = np.where(np.isfinite(m), m, 0)
f, g = np.exp(a[1] - base), np.exp(b[1] - base)
return f * a[0] + g * b[0], m, f * a[2] + g * b[2]
""",
    3: """
s = np.where(seen, q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1]), -np.inf)
m = s.max(-1, keepdims=True)
p = np.exp(s - np.where(np.isfinite(m), m, 0))
return p @ v, m, p.sum(-1, keepdims=True)
""",
    4: "return [held[r - 1] for r in range(len(held))]",
    5: """
for step in range(len(q)):
    for r in range(len(q)):
        states[r] = merge(states[r], tile(q[r], k[r], v[r]))
    if step + 1 < len(q):
        k, v = hop(k), hop(v)
""",
    6: """
owner = (rank - step) % ranks
return where[owner] <= where[rank][:, None]
""",
    7: """
n, last = tokens // (2 * ranks), 2 * ranks - 1 - rank
return np.concatenate([np.arange(rank * n, (rank + 1) * n), np.arange(last * n, (last + 1) * n)])
""",
    8: """
p = np.where(seen, np.exp(scale * q @ k.swapaxes(1, 2) - lse), 0)
dp = dout @ v.swapaxes(1, 2)
delta = (dout * out).sum(-1, keepdims=True)
ds = p * (dp - delta)
""",
    9: """
for t in range(len(k)):
    compute(k, v, dq, dk, dv)
    dk, dv = hop(dk), hop(dv)
    if t + 1 < len(k):
        k, v = hop(k), hop(v)
""",
    10: """
return np.repeat(x, heads // len(x), axis=0)
---
return dx.reshape(kv_heads, -1, *dx.shape[1:]).sum(1)
""",
    11: """
of_query, of_key = (np.searchsorted(starts, x, side="right") for x in (i, j))
return (of_query[:, None] == of_key) & (i[:, None] >= j)
""",
    12: """
state = empty(q)
for a, b in zip(k, v):
    state = merge(state, tile(q, a, b))
return finish(state)
""",
}

OTHER = {  # other right lines
    1: "return np.exp(x - np.logaddexp.reduce(x))",
    2: """
m = np.maximum(a[1], b[1])
f, g = (np.nan_to_num(np.exp(x[1] - m)) for x in (a, b))
return [f * a[0] + g * b[0], m, f * a[2] + g * b[2]]
""",
    4: "return held[-1:] + held[:-1]",
    5: """
held = list(zip(k, v))
for step in range(len(q)):
    states = [merge(state, tile(x, *kv)) for state, x, kv in zip(states, q, held)]
    held = hop(held) if step < len(q) - 1 else held
""",
    7: """
chunks = np.arange(tokens).reshape(2 * ranks, -1)
return np.concatenate([chunks[rank], chunks[-1 - rank]]).tolist()
""",
    8: """
p = np.exp(np.where(seen, scale * np.einsum("hid,hjd->hij", q, k), -np.inf) - lse)
ds = p * np.einsum("hid,hijd->hij", dout, v[:, None] - out[:, :, None])
""",
    10: """
return x[np.arange(heads) * len(x) // heads]
---
return np.stack([part.sum(0) for part in np.split(dx, kv_heads)])
""",
    11: """
number = lambda x: (x[:, None] >= starts).sum(1)
return (number(i)[:, None] == number(j)) & (j <= i[:, None])
""",
    12: """
o, m, l = map(np.stack, zip(*map(tile, [q] * len(k), k, v)))
f = np.exp(m - m.max(0))
return (f * o).sum(0) / (f * l).sum(0), m.max(0) + np.log((f * l).sum(0))
""",
}

MISTAKES = {  # the line of RIGHT that is changed, into what, and what the judge says
    1: [("e = np.exp(x - x.max())", "e = np.exp(x)", "no maximum is subtracted"),
        ("x.max()", "x.mean()", "something smaller than the maximum is subtracted"),
        ("x.max()", "abs(x).max()", "the largest |x|"),
        ("x - x.max()", "x + x.max()", "with the wrong sign"),
        ("return e / e.sum()", "return e", "not divided by their sum")],
    2: [("base = np.where(np.isfinite(m), m, 0)", "base = m", "e^(-inf - (-inf)) is NaN"),
        ("return f * a[0] + g * b[0]", "return a[0] + b[0]", "l is moved to the new maximum, o is not"),
        ("f * a[2] + g * b[2]", "a[2] + b[2]", "o is moved to the new maximum, l is not"),
        ("f, g = np.exp(a[1] - base), np.exp(b[1] - base)", "f = g = 1", "added without a common maximum"),
        ("np.exp(b[1] - base)", "1", "the second needs its own"),
        ("np.exp(a[1] - base), np.exp(b[1] - base)", "np.exp(base - a[1]), np.exp(base - b[1])", "e^(m' - m)"),
        ("f, g = np.exp(a[1] - base), np.exp(b[1] - base)", "return b", "each step overwrites"),
        ("f, g = np.exp(a[1] - base), np.exp(b[1] - base)", "return merge(a, b)", "`merge` is the helper's"),
        ("return f * a[0] + g * b[0], m, f * a[2] + g * b[2]",
         "l = f * a[2] + g * b[2]\nreturn (f * a[0] + g * b[0]) / np.where(l > 0, l, 1), m, l", "only the end divides"),
        ("f * a[0]", "a[0]", "the o of the first state"), ("g * b[0]", "b[0]", "the o of the second state")],
    3: [("np.where(np.isfinite(m), m, 0)", "m", "a query that sees no key of the tile"),
        (" / np.sqrt(q.shape[-1])", "", "not multiplied by the scale"),
        ("-np.inf", "0", "a hidden score is 0"),
        ("-np.inf", "-1e9", "a large negative number"),
        ("return p @ v, m", "return p @ v / p.sum(-1, keepdims=True), m", "only the end divides"),
        ("m = s.max(-1, keepdims=True)", "m = np.zeros_like(s[..., :1])", "no maximum is subtracted"),
        ("m = s.max(-1, keepdims=True)", "m = (q @ k.swapaxes(1, 2) / 4).max(-1, keepdims=True)", "that of the keys that are seen"),
        ("np.where(seen, q", "np.where(True, q", "the mask is ignored")],
    4: [("r - 1", "r", "every step uses the rank's own K,V"),
        ("held[r - 1]", "held[(r + 1) % len(held)]", "each rank sends to the rank before it"),
        ("return [held[r - 1] for r in range(len(held))]",
         "for r in range(len(held) - 1): held[r + 1] = held[r]\nreturn held", "sends on what it has just received"),
        ("return [held[r - 1] for r in range(len(held))]", "return held[:1]", "a list of 4 is due")],
    5: [("range(len(q)):\n    for r", "range(len(q) - 1):\n    for r", "N - 1 steps: the last parcel of K,V is never used"),
        ("k, v = hop(k), hop(v)", "k = hop(k)", "K travels, V stays"),
        ("k, v = hop(k), hop(v)", "v = hop(v)", "V travels, K stays"),
        ("k, v = hop(k), hop(v)", "pass", "every step uses the rank's own K,V"),
        ("if step + 1 < len(q)", "if True", "K,V make N hops, not N - 1"),
        ("tile(q[r], k[r], v[r]))\n    if step + 1 < len(q):\n        k, v = hop(k), hop(v)", "tile(q[r], k[step], v[step]))",
         "a rank computes with what no `hop` has brought"),
        ("merge(states[r], tile(q[r], k[r], v[r]))", "tile(q[r], k[r], v[r])", "each step overwrites the result")],
    6: [("(rank - step)", "(rank + step)", "the owner of a parcel is taken as (r + t) mod N"),
        ("where[owner] <= where[rank][:, None]", "where[owner] < where[rank][:, None]", "does not see its own key"),
        ("where[owner] <= where[rank][:, None]", "where[owner] >= where[rank][:, None]", "the causal mask is reversed"),
        ("where[owner] <= where[rank][:, None]", "np.tri(len(where[rank]), dtype=bool)", "places in the shards, not positions"),
        ("where[owner] <= where[rank][:, None]", "np.full((6, 6), owner <= rank)", puzzles.UNKNOWN),
        ("where[owner] <= where[rank][:, None]", "where[owner] <= where[rank]", "an array of True and False is due")],
    7: [("2 * ranks - 1 - rank", "ranks + rank", "the ring waits for rank 3"),
        ("n, last = tokens // (2 * ranks), 2 * ranks - 1 - rank",
         "n = tokens // ranks\nreturn np.arange(rank * n, (rank + 1) * n)", "the ranks compute 21, 57, 93, 129 scores"),
        ("n, last = tokens // (2 * ranks), 2 * ranks - 1 - rank", "return np.arange(rank, tokens, ranks)", "the ring waits for"),
        ("2 * ranks - 1 - rank", "2 * ranks - rank", "0 ranks hold token"),
        ("2 * ranks - 1 - rank", "rank", "2 ranks hold token 0")],
    8: [("(dp - delta)", "dp", "no delta"),
        ("np.where(seen, np", "np.where(True, np", "a key that `seen` hides has a weight"),
        ("(dout * out)", "(dout * (p @ v))", "delta runs over the keys of the tile only"),
        ("np.exp(scale * q @ k.swapaxes(1, 2) - lse)", "np.exp(q @ k.swapaxes(1, 2) - lse)", "not multiplied by the scale"),
        ("ds = p * (dp - delta)", "p = p / p.sum(-1, keepdims=True)\nds = p * (dp - delta)", "the lse of each step"),
        ("ds = p * (dp - delta)", "ds = scale * p * (dp - delta)", "dQ with the scale twice")],
    9: [("    dk, dv = hop(dk), hop(dv)\n    if", "    if", "dK,dV are summed where they are computed"),
        ("    dk, dv = hop(dk), hop(dv)\n    if t + 1 < len(k):\n", "    if t + 1 < len(k):\n        dk, dv = hop(dk), hop(dv)\n",
         "dK,dV stop one hop before their owner"),
        ("hop(dk), hop(dv)", "hop(dv), hop(dk)", puzzles.UNKNOWN),
        ("if t + 1 < len(k)", "if True", "K,V make N hops, not N - 1"),
        ("        k, v = hop(k), hop(v)", "        pass", "every step uses the rank's own K,V")],
    10: [("np.repeat(x, heads // len(x), axis=0)", "np.tile(x, (heads // len(x), 1, 1))", "h mod Hkv, not h / g"),
         ("np.repeat(x, heads // len(x), axis=0)", "x[:1].repeat(heads, 0)", "all query heads use KV head 0"),
         ("dx.reshape(kv_heads, -1, *dx.shape[1:]).sum(1)", "dx[:: len(dx) // kv_heads]", "the first query head of a group"),
         (".sum(1)", ".mean(1)", "the mean over the query heads"),
         ("(kv_heads, -1, *dx.shape[1:]).sum(1)", "(-1, kv_heads, *dx.shape[1:]).sum(0)", "query heads of other groups"),
         ("return np.repeat(x, heads // len(x), axis=0)", "return x", "the array is [2, 6, 16], and [4, 6, 16] is due")],
    11: [('side="right"', 'side="left"', "documents begin one token too late"),
         ("(of_query[:, None] == of_key) & ", "", "the boundaries of documents are ignored"),
         (" & (i[:, None] >= j)", "", "the mask is not causal"),
         (" >= j", " > j", "does not see its own key"),
         ("of_query, of_key = (np.searchsorted(starts, x, side=\"right\") for x in (i, j))",
          "of_query = of_key = np.searchsorted(starts, i, side='right')", "the document of a key is looked up in the rank's own list")],
    12: [("state = empty(q)", "parts = [finish(tile(q, a, b)) for a, b in zip(k, v)]\nreturn tuple(map(np.mean, zip(*parts), (0, 0)))",
          "the outputs of the ranks are averaged"),
         ("return finish(state)", "return finish(state)[0], state[1]", "the returned lse is the maximum only"),
         ("state = merge(state, tile(q, a, b))", "state = tile(q, a, b)", "18 scores are missing, of keys of rank 0, 1, 2"),
         ("return finish(state)", "return state[0], finish(state)[1]", "out is not divided by l"),
         ("state = empty(q)", "return finish(tile(q, np.concatenate(k, 1), np.concatenate(v, 1)))",
          "the keys of several ranks come together"),
         ("    state = merge(state, tile(q, a, b))", "    state = merge(state, tile(q, a, b))\n    k = hop(k)",
          "the keys of several ranks come together")],
}


def source_of(number):
    return next("".join(cell["source"]) for cell in CELLS if f"\njudge({number}," in "".join(cell["source"]))


def filled(number, lines):
    """The cell with these lines in its holes."""
    holes = iter(lines.strip("\n").split("\n---\n"))
    return HOLE.sub(lambda at: "\n".join(at[1] + line for line in next(holes).split("\n")), source_of(number))


def said(source):
    """What the judge prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        names = {}
        exec("".join(CELLS[1]["source"]), names)
        linecache.cache["a cell"] = len(source), None, source.splitlines(keepends=True), "a cell"
        exec(compile(source, "a cell", "exec"), names)
    return printed.getvalue()


class Puzzles(unittest.TestCase):
    def test_an_empty_hole_says_what_is_due(self):
        for number, due in puzzles.DUE.items():
            self.assertEqual(said(source_of(number)), f"Puzzle {number}: a hole is empty. Due: {due}.\n")

    def test_the_right_lines_are_right(self):
        puzzles.solved.clear()
        for number, lines in RIGHT.items():
            for hole in lines.strip().split("---"):
                self.assertLessEqual(len(hole.strip().splitlines()), 5, number)
            self.assertEqual(said(filled(number, lines)),
                             f"Puzzle {number}: right. {number} of 12 puzzles are solved.\n")
        exec("".join(CELLS[-1]["source"]), {"left": puzzles.left})

    def test_other_right_lines_are_right(self):
        for number, lines in OTHER.items():
            self.assertIn(": right.", said(filled(number, lines)), number)

    def test_a_mistake_is_named(self):
        self.assertEqual(set(MISTAKES), set(puzzles.DUE))
        puzzles.plt = None  # saves half of the time
        for number, mistakes in MISTAKES.items():
            self.assertGreaterEqual(len(mistakes), 3)
            for right, wrong, says in mistakes:
                with self.subTest(puzzle=number, wrong=wrong):
                    self.assertIn(right, RIGHT[number])
                    report = said(filled(number, RIGHT[number].replace(right, wrong)))
                    self.assertTrue(report.startswith(f"Puzzle {number}: not yet: "), report)
                    self.assertIn(says, report)

    def test_an_error_is_shown_with_its_line(self):
        report = said(filled(4, "return held[7]"))
        self.assertEqual(report.split("\n")[0], "Puzzle 4: not yet: IndexError: list index out of range, in `return held[7]`")
        self.assertEqual(said(filled(5, "return None")), "Puzzle 5: not yet: (out, lse) of each rank are due\n")

    def test_no_line_of_an_answer_stands_in_the_notebook(self):
        text = "\n".join("".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code")
        for number, lines in RIGHT.items():
            for line in lines.strip().splitlines():
                self.assertFalse(len(line) > 12 and line.strip() in text, line)


if __name__ == "__main__":
    if sys.argv[1:2] == ["right"]:
        for cell in CELLS:
            source = "".join(cell["source"])
            found = re.search(r"^judge\((\d+),", source, re.M)
            if found:
                cell["source"] = filled(int(found[1]), RIGHT[int(found[1])]).splitlines(keepends=True)
        book = json.loads((NOTEBOOKS / "ring_puzzles.ipynb").read_text(encoding="utf-8"))
        Path(sys.argv[2]).write_text(json.dumps({**book, "cells": CELLS}), encoding="utf-8")
    else:
        unittest.main()
