"""The judge of ring_puzzles.ipynb and its pictures. It needs NumPy, and matplotlib for the pictures."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

import numpy as np

CLONE = Path(__file__).resolve().parent.parent / "src/python"
if CLONE.is_dir():
    sys.path.insert(0, str(CLONE))
try:
    from ring_attention_diagnose import InputError, judged, problems_of
    from ring_attention_diagnose.mistakes import MISTAKES
except ImportError as error:
    raise ImportError("ring_attention_diagnose is missing: open the notebook in the folder notebooks of a clone, or run "
                      "`pip install CLONE/src/python/ring_attention_diagnose`") from error
try:
    import matplotlib.pyplot as plt
except ImportError:
    plt = None

RANKS = 4
UNKNOWN = "wrong, by no mistake that is known here"
COLOURS = np.array([[0, 114, 178], [230, 159, 0], [0, 158, 115], [204, 121, 167]]) / 255  # Okabe and Ito
DUE = {
    1: "return the weights e^x / (sum of all e^x) of scores x [n] of any size",
    2: "return the state (o, m, l) over the keys of both states",
    3: "return the state (o, m, l) of the queries over the keys of this tile",
    4: "return the list of what each rank holds after all have sent theirs to the next rank",
    5: "the loop: each rank merges the tile of its queries with all K,V, which travel round the ring",
    6: "return an array [queries of this rank, keys that it holds]: True where the query sees the key",
    7: "return the positions of the tokens that this rank holds",
    8: "p and ds of this tile",
    9: "the loop: K,V travel round the ring, and dK,dV travel with them, to the end at the rank that owns them",
    10: "the KV head of each query head; and for each KV head, its gradient",
    11: "return an array [queries, keys]: True where the query sees the key",
    12: "return out and lse of the one query over the keys of all ranks",
}
solved: set[int] = set()


class Hole(Exception):
    """A hole of a puzzle is empty."""


class NotYet(Exception):
    """The sentence that says what is wrong."""


def hole():
    """Stands where your lines go."""
    raise Hole


class _Board:
    """Who computed which score, and how many arrays were sent. The parts below write on it."""

    def __init__(self):
        self.rows, self.columns, self.who, self.sent = {}, {}, np.full((24, 24), -1), 0

    def tokens(self, q, k):
        """Tokens are known by their numbers."""
        self.rows = {row.tobytes(): at for at, row in enumerate(q)}
        self.columns = {row.tobytes(): at for at, row in enumerate(k)}

    def write(self, q, k, rank_of):
        i = [self.rows.get(row.tobytes(), -1) for row in q[0]]
        j = [self.columns.get(row.tobytes(), -1) for row in k[0]]
        if min(i + j) >= 0:
            self.who[np.ix_(i, j)] = rank_of(i, j)


_board = _Board()
_holder = np.repeat(np.arange(RANKS), 24 // RANKS)  # by position
_rank_of = lambda i, j: _holder[i][:, None]  # noqa: E731: a query's rank computes; in decoding, a key's


# What the puzzles are made of


def empty(q):
    """The state (o, m, l) of queries that have seen no key."""
    none = np.zeros_like(q[..., :1])
    return none, none - np.inf, none


def _scores(q, k, seen):
    return np.where(seen, float(q.shape[-1]) ** -0.5 * q @ k.swapaxes(1, 2), np.array(-np.inf, q.dtype))


def tile(q, k, v, seen=True):
    """The state of queries q [heads, n, dim] over keys k and values v alone."""
    _board.write(q, k, _rank_of)
    k, v = (np.repeat(x, len(q) // len(x), axis=0) for x in (k, v))
    s = _scores(q, k, seen)
    m = s.max(-1, keepdims=True, initial=-np.inf)
    p = np.exp(s - np.where(np.isfinite(m), m, 0))
    return p @ v, m, p.sum(-1, keepdims=True)


def merge(a, b):
    """The state over the keys of both states."""
    m = np.maximum(a[1], b[1])
    of_a, of_b = (np.exp(x[1] - np.where(np.isfinite(m), m, 0)) for x in (a, b))
    return of_a * a[0] + of_b * b[0], m, of_a * a[2] + of_b * b[2]


def finish(state):
    """out and lse of a state; 0 and -inf where no key was seen."""
    o, m, l = state
    return o / np.where(l > 0, l, 1), m + np.log(l)


def hop(held):
    """Each rank sends what it holds to the next one, all at the same time; returns what each holds then."""
    _board.sent += sum(len(x) if isinstance(x, (tuple, list)) else 1 for x in held)
    return [held[rank - 1] for rank in range(len(held))]


# A problem of ring_attention_diagnose, dealt to the ranks


class _Deal:
    def __init__(self, case, placement="contiguous", where=None):
        self.problem = problems_of(RANKS, placement, only=[case])[0]
        self.where = where or [np.array(here) for here in self.problem.description()["tokens_of_rank"]]
        arrays = {name: array[0].astype(np.float32) for name, array in self.problem.inputs().items()}
        self.q, self.k, self.v = ([arrays[name][:, here] if arrays[name].shape[1] > 1 else arrays[name]
                                   for here in self.where] for name in "qkv")
        self.dout = [arrays["dout"][:, here] for here in self.where] if "dout" in arrays else None
        self.right = {name: [array.astype(np.float32)[:, here] for here in self.where]
                      for name, array in self.problem.right.items()}
        self.whole_k = arrays["k"]
        _board.__init__()
        _board.tokens(arrays["q"][0], arrays["k"][0])
        for rank, here in enumerate(self.where):
            _holder[here] = rank

    def one_hot(self):
        """As v: the outputs are then the weights that each key has got."""
        return [np.broadcast_to(np.eye(24, dtype=np.float32)[here], (len(self.k[0]), len(here), 24)) for here in self.where]

    def seen(self, i, j):
        case = self.problem.case
        document = [np.searchsorted(case.documents[1:], x, side="right") for x in (i, j)]
        return (not case.causal) | (j <= i[:, None]) & (document[1] == document[0][:, None])

    def due(self):
        """Which scores count."""
        return np.broadcast_to(self.seen(np.arange(24), np.arange(24)), (24, 24))

    def judge(self, **of_ranks):
        """NotYet with the mistake, unless all is right."""
        whole = {name: np.concatenate(arrays, 1) for name, arrays in of_ranks.items()}
        order = np.argsort(np.concatenate(self.where))
        given = {name: [(f"your {name}", array[:, order] if array.shape[1] == 24 else array)] for name, array in whole.items()}
        right, report, found = judged([self.problem], [given], lists_not_tested=False)
        for which in (found["forward"], found["backward"]):
            ids = list(dict.fromkeys(one for tried in which["explanations"] for one in tried["mistakes"]))
            if which["state"] == "wrong" and ids:
                says = "; or ".join(dict.fromkeys(tried["sentence"] for tried in which["explanations"]))
                raise NotYet(says, *[f"look at: {MISTAKES[one].look} (lesson {MISTAKES[one].lesson})" for one in ids])
        if not right:
            raise NotYet(UNKNOWN, *filter(str.strip, report.split("\n\n", 1)[1].splitlines()))
        for says in found["conventions"]:
            raise NotYet(says)


def _ring(deal, v, hop=hop, seen=None, heads=lambda x, heads: x):
    """A ring whose parts can be replaced."""
    seen = seen or (lambda step, rank: deal.seen(deal.where[rank], deal.where[(rank - step) % RANKS]))
    states, held = [empty(q) for q in deal.q], list(zip(deal.k, v))
    for step in range(RANKS):
        for rank, q in enumerate(deal.q):
            k, v = (_given(heads(x, len(q)), x, len(q)) for x in held[rank])
            states[rank] = merge(states[rank], tile(q, k, v, seen(step, rank)))
        if step + 1 < RANKS:
            held = _list(hop(held))
    return [finish(state) for state in states]


def _given(array, like, heads):
    if np.shape(array) != (heads, *like.shape[1:]):
        raise NotYet(f"the array is {list(np.shape(array))}, and [{', '.join(map(str, (heads, *like.shape[1:])))}] is due")
    return array


def _list(held):
    if not isinstance(held, (list, tuple)) or len(held) != RANKS:
        raise NotYet(f"a list of {RANKS} is due, an element for each rank")
    return held


def _pairs(returned, rest="(out, lse) of each rank"):
    if not isinstance(returned, (list, tuple)) or len(returned) != RANKS or any(x is None or len(x) != 2 for x in returned):
        raise NotYet(f"{rest} are due")
    return {"out": [x[0] for x in returned], "lse": [x[1] for x in returned]}


def _forward(picture, deal, ring):
    """Judges ring(v), which returns (out, lse) of each rank."""
    picture["due"] = deal.due()
    found = _pairs(ring(deal.v))
    sent, picture["who"] = _board.sent, _board.who.copy()
    weights = np.concatenate([out[0] for out in _pairs(ring(deal.one_hot()))["out"]])
    picture["weights"] = weights[np.argsort(np.concatenate(deal.where))]
    deal.judge(**found)
    return sent


# Puzzles 1 to 3: the mistake is the one whose result is yours


def _named(given, due, mistakes):
    """NotYet unless the arrays are due; mistakes: {sentence: a function that makes it}."""
    same = lambda xs, ys: all(np.shape(x) == np.shape(y) and np.allclose(x, y, 1e-6, 1e-12, equal_nan=True)  # noqa: E731
                              for x, y in zip(xs, ys))
    for x, y in zip(given, due):
        if np.shape(x) != np.shape(y):
            raise NotYet(f"an array {list(np.shape(y))} is due, yours is {list(np.shape(x))}")
    if not same(given, due):
        for says, made in mistakes.items():
            if same(given, made()):
                raise NotYet(says)
        nan = any(np.isnan(x).any() for x in given)
        raise NotYet("the result has NaN" if nan else UNKNOWN)


def _rows(seed=1):
    return np.random.default_rng(seed).normal(0, 2, (24, 24))


def judge_1(picture, softmax):
    rows = [*_rows(), np.array([1000.0, 1001, 999]), np.array([-1000.0, 1000]), np.array([-1000.0, -1001])]

    def with_shift(shift, divide=True):
        terms = [np.exp(x - shift(x)) for x in rows]
        return [p / p.sum() if divide else p for p in terms]

    picture.update(due=np.full((24, 24), True), who=np.zeros((24, 24), int))
    given = [np.array(softmax(x.copy()), float) for x in rows]
    picture["weights"] = np.array(given[:24]) if all(p.shape == (24,) for p in given[:24]) else None
    _named(given, with_shift(np.max), {
        "no maximum is subtracted, or with the wrong sign: e^1000 overflows (lesson 01)": lambda: with_shift(lambda x: 0),
        "the weights are not divided by their sum": lambda: with_shift(np.max, False),
        "something smaller than the maximum is subtracted, and the largest score can be far above it":
            lambda: with_shift(np.mean),
        "the largest |x| is subtracted: where all x are far below it, every e^x is 0": lambda: with_shift(lambda x: abs(x).max())})


def judge_2(picture, merge_of):
    s, v = _rows()[None], np.eye(24)[None]

    def state(first, last):
        m = s[..., first:last].max(-1, keepdims=True)
        p = np.exp(s[..., first:last] - m)
        return p @ v[:, first:last], m, p.sum(-1, keepdims=True)

    a, b, nothing = state(0, 12), state(12, 24), empty(s)
    nothing = (np.zeros_like(a[0]), *nothing[1:])
    pairs = [(a, b), (b, a), (a, nothing), (nothing, b), (nothing, nothing)]

    def with_factors(*which, power=1, guard=True, divide=False):
        """o and l of a, o and l of b: which are moved to the common maximum?"""
        results = []
        for one, other in pairs:
            m = np.maximum(one[1], other[1])
            base = np.where(np.isfinite(m), m, 0) if guard else m
            fa, fb = np.exp(power * (one[1] - base)), np.exp(power * (other[1] - base))
            f = [x if use else 1 for x, use in zip((fa, fa, fb, fb), which)]
            o, l = f[0] * one[0] + f[2] * other[0], f[1] * one[2] + f[3] * other[2]
            results += [o / np.where(l > 0, l, 1) if divide else o, m, l]
        return results

    who = np.repeat([[0] * 12 + [1] * 12], 24, 0)
    picture.update(due=np.full((24, 24), True), who=who)
    given = []
    for one, other in pairs:
        returned = merge_of(one, other)
        if not isinstance(returned, (tuple, list)) or len(returned) != 3:
            raise NotYet("a state is due: (o, m, l)")
        given += returned
    picture["weights"] = (given[0] / given[2])[0] if np.shape(given[0]) == (1, 24, 24) else None
    yes, no = True, False
    says = lambda name: f"{MISTAKES[name].says} (lesson {MISTAKES[name].lesson})"  # noqa: E731
    _named(given, with_factors(yes, yes, yes, yes), {
        "states that have seen no key: e^(-inf - (-inf)) is NaN, and such a factor is 0 (lesson 02)":
            lambda: with_factors(yes, yes, yes, yes, guard=False),
        says("o-not-rescaled"): lambda: with_factors(no, yes, no, yes),
        says("l-not-rescaled"): lambda: with_factors(yes, no, yes, no),
        says("new-not-rescaled"): lambda: with_factors(no, no, no, no),
        "the factors stand at the first state only; the second needs its own": lambda: with_factors(yes, yes, no, no),
        "the factors stand at the second state only; the first needs its own": lambda: with_factors(no, no, yes, yes),
        says("factor-inverted"): lambda: with_factors(yes, yes, yes, yes, power=-1),
        "o is divided by l: the state keeps the sum, and only the end divides": lambda: with_factors(yes, yes, yes, yes, divide=True),
        "the o of the first state is not moved to the new maximum": lambda: with_factors(no, yes, yes, yes),
        "the o of the second state is not moved to the new maximum": lambda: with_factors(yes, yes, no, yes),
        says("last-wins"): lambda: [x for _, other in pairs for x in other]})


def judge_3(picture, tile_of):
    i, j = np.arange(4, 16), np.arange(8, 20)  # queries 4 to 7 see none of these keys
    rng = np.random.default_rng(2)
    q, k, v = (rng.standard_normal((2, 12, 16)) for _ in range(3))
    q[1, :4] *= 1000  # scores of some hundreds and more
    seen = j <= i[:, None]

    def of(scale=0.25, hidden=-np.inf, guard=True, shift=True, divide=False, v=v, seen=seen, of_all=False):
        every = scale * q @ k.swapaxes(1, 2)
        s = np.where(seen, every, hidden)
        m = (every if of_all else s).max(-1, keepdims=True) if shift else np.zeros_like(s[..., :1])
        p = np.exp(s - (np.where(np.isfinite(m), m, 0) if guard else m))
        l = p.sum(-1, keepdims=True)
        return p @ v / (l if divide else 1), m, l

    due, who = np.full((24, 24), False), np.full((24, 24), -1)
    due[4:16, 8:20], who[4:16, 8:20] = seen, 0
    picture["due"] = due
    given = tile_of(q, k, v, seen)
    if not isinstance(given, (tuple, list)) or len(given) != 3:
        raise NotYet("a state is due: (o, m, l)")
    picture.update(who=who, weights=np.zeros((24, 24)))
    one_hot = tile_of(q, k, np.broadcast_to(np.eye(12), (2, 12, 12)), seen)
    picture["weights"][4:16, 8:20] = one_hot[0][0] / np.where(one_hot[2][0] == 0, 1, one_hot[2][0])
    lowest = np.min(np.where(np.isfinite(given[1]), given[1], 0))
    _named(given, of(), {
        "a query that sees no key of the tile: e^(-inf - (-inf)) is NaN; its weights are 0 (lesson 03)": lambda: of(guard=False),
        "the scores are not multiplied by the scale, 1 / sqrt(dim)": lambda: of(scale=1),
        "o is divided by l: the state keeps the sum, and only the end divides": lambda: of(divide=True),
        "o is divided by l, and a query that sees no key has 0/0: the state keeps the sum": lambda: of(divide=True, guard=False),
        "no maximum is subtracted (lesson 01)": lambda: of(shift=False),
        "the mask is ignored": lambda: of(seen=True),
        "m is the largest of all scores, and that of the keys that are seen is due": lambda: of(of_all=True),
        "a hidden score is 0, and its weight e^0: it must be -inf": lambda: of(hidden=0),
        MISTAKES["finite-mask"].says: lambda: of(hidden=lowest)})


# Puzzles 4 to 12


def judge_4(picture, hop_of):
    held = _list(hop_of([f"of rank {rank}" for rank in range(RANKS)]))
    twice = {x for x in held if list(held).count(x) > 1}
    if twice:
        raise NotYet(f"all ranks send at the same time, and here a rank sends on what it has just received: {min(twice)} is "
                     f"now on {list(held).count(min(twice))} ranks")
    if list(held) == [f"of rank {(rank + 1) % RANKS}" for rank in range(RANKS)]:
        raise NotYet("each rank sends to the rank before it, and the next one is due: rank 0 has what rank 1 held")
    deal = _Deal("causal")
    _forward(picture, deal, lambda v: _ring(deal, v, hop=hop_of))


def _check_hops(sent, due):
    if sent > due:
        raise NotYet("the numbers are right, and K,V make N hops, not N - 1: after the last step nothing needs them")
    if sent < due:
        raise NotYet("the numbers are right, and a rank computes with what no `hop` has brought to it")


def judge_5(picture, ring):
    deal = _Deal("full")
    sent = _forward(picture, deal, lambda v: ring(list(deal.q), list(deal.k), list(v)))
    _check_hops(sent, 2 * RANKS * (RANKS - 1))


def judge_6(picture, seen):
    deal = _Deal("causal", "zigzag")
    mask = lambda step, rank: _mask(seen(step, rank, RANKS, deal.where), deal.where[rank])  # noqa: E731
    _forward(picture, deal, lambda v: _ring(deal, v, seen=mask))


def _mask(seen, i):
    if np.shape(seen)[-2:] != (len(i), len(i)) or np.asarray(seen).dtype != bool:
        raise NotYet(f"an array of True and False is due, [{len(i)}, {len(i)}], not {list(np.shape(seen))}")
    return seen


def judge_7(picture, zigzag):
    where = [np.array(zigzag(rank, RANKS, 24)) for rank in range(RANKS)]
    if any(here.ndim != 1 or here.dtype.kind not in "iu" for here in where):
        raise NotYet("an array of whole numbers is due for each rank")
    everything, picture["due"] = np.concatenate(where), np.tri(24, dtype=bool)
    for token in range(24):
        if (everything == token).sum() != 1:
            raise NotYet(f"{(everything == token).sum()} ranks hold token {token}: each of the 24 tokens has one rank")
    if len(everything) != 24:
        raise NotYet(f"position {everything.max()} is held, and the last token is 23")
    picture.update(who=np.where(picture["due"], 0, -1), weights=picture["due"] / 24)
    for rank, here in enumerate(where):
        picture["who"][here] = np.where(picture["due"][here], rank, -1)
    work = [int((here + 1).sum()) for here in where]
    if max(work) > min(work):
        raise NotYet(f"the ranks compute {', '.join(map(str, work))} scores: the ring waits for rank {int(np.argmax(work))}",
                     "look at: an early chunk is cheap, a late one dear (lesson 09)")
    if any(here.tolist() != sorted(here) for here in where) or [list(x) for x in where] != [list(x) for x in _Deal(
            "causal", "zigzag").where]:
        raise NotYet("every rank computes the same number of scores, but not with two chunks of consecutive tokens in order: "
                     "rank 0 has the first chunk and the last one, rank 1 the second and the last but one")
    deal = _Deal("causal", "zigzag", where)
    _forward(picture, deal, lambda v: _ring(deal, v))


def _no_picture_of_weights(picture, deal):
    picture.update(due=deal.due(), who=_board.who, weights=None)


def _backward_tile(q, k, v, seen, out, lse, dout, *, delta_of_tile=False, times=1, mask=True):
    p, dp = np.exp(times * _scores(q, k, seen | (not mask)) - lse), dout @ v.swapaxes(1, 2)
    ds = float(q.shape[-1]) ** -0.5 * p * (dp - (p * dp if delta_of_tile else dout * out).sum(-1, keepdims=True))
    return ds @ k, ds.swapaxes(1, 2) @ q, p.swapaxes(1, 2) @ dout


def _sum_of_tiles(deal, tile_of):
    """dQ, dK, dV of each rank, where every sum comes home."""
    totals = [[np.zeros_like(x) for x in arrays] for arrays in (deal.q, deal.k, deal.v)]
    for rank, i in enumerate(deal.where):
        for owner, j in enumerate(deal.where):
            if not deal.seen(i, j).any():
                continue
            _board.write(deal.q[rank], deal.k[owner], _rank_of)
            parts = tile_of(deal.q[rank], deal.k[owner], deal.v[owner], deal.seen(i, j), deal.right["out"][rank],
                            deal.right["lse"][rank], deal.dout[rank])
            if not isinstance(parts, tuple) or len(parts) != 3:
                raise NotYet("dq, dk and dv of the tile are due")
            for total, at, part in zip(totals, (rank, owner, owner), parts):
                total[at] += _given(part, total[at], len(total[at]))
    return totals


def _judge_gradients(deal, dq, dk, dv):
    deal.judge(out=deal.right["out"], lse=deal.right["lse"], dq=dq, dk=dk, dv=dv)


def judge_8(picture, tile_of):
    deal = _Deal("causal")
    picture["due"] = deal.due()
    totals = _sum_of_tiles(deal, tile_of)
    _no_picture_of_weights(picture, deal)
    for says, mistake in (
        ("delta runs over the keys of the tile only, and all keys of the sequence are due", {"delta_of_tile": True}),
        ("a key that `seen` hides has a weight", {"mask": False}),
        ("the scores in p are not multiplied by the scale", {"times": float(deal.q[0].shape[-1]) ** 0.5}),
    ):
        wrong = _sum_of_tiles(deal, lambda *arrays: _backward_tile(*arrays, **mistake))  # noqa: B023
        if all(np.allclose(x, y, 1e-4, 1e-4) for xs, ys in zip(totals, wrong) for x, y in zip(xs, ys)):
            raise NotYet(says)
    _judge_gradients(deal, *totals)


def judge_9(picture, backward):
    deal = _Deal("full")
    picture["due"] = deal.due()

    def compute(k, v, *totals):
        for rank in range(RANKS):
            _board.write(deal.q[rank], k[rank], _rank_of)
            parts = _backward_tile(deal.q[rank], k[rank], v[rank], True, deal.right["out"][rank], deal.right["lse"][rank],
                                   deal.dout[rank])
            for total, part in zip(totals, parts):
                total[rank] += part

    zeros = [[np.zeros_like(x) for x in arrays] for arrays in (deal.q, deal.k, deal.v)]
    found = backward(compute, list(deal.k), list(deal.v), *zeros)
    if not isinstance(found, tuple) or len(found) != 3:
        raise NotYet("the lists dq, dk and dv are due")
    _no_picture_of_weights(picture, deal)
    _judge_gradients(deal, *found)
    _check_hops(_board.sent, 2 * RANKS * (2 * RANKS - 1))


def judge_10(picture, for_query_heads, of_kv_heads):
    deal = _Deal("gqa")
    _forward(picture, deal, lambda v: _ring(deal, v, heads=for_query_heads))

    def tile_of(q, k, v, *rest):
        dq, *of_heads = _backward_tile(q, *(_given(for_query_heads(x, len(q)), x, len(q)) for x in (k, v)), *rest)
        return dq, *(_given(of_kv_heads(x, len(k)), k, len(k)) for x in of_heads)

    _judge_gradients(deal, *_sum_of_tiles(deal, tile_of))


def judge_11(picture, seen):
    deal = _Deal("documents")
    starts, everything = np.array(deal.problem.case.documents[:-1]), np.arange(24)
    late = np.searchsorted(starts, everything, side="left")
    for says, mask in (("the mask is not causal: a query sees keys of its document that come after it", deal.due() | deal.due().T),
                       (MISTAKES["documents-plus-one"].says, np.tri(24, dtype=bool) & (late == late[:, None]))):
        if np.array_equal(seen(everything, everything, starts), mask):
            raise NotYet(says)
    where = lambda step, rank: (deal.where[rank], deal.where[(rank - step) % RANKS])  # noqa: E731
    _forward(picture, deal, lambda v: _ring(deal, v, seen=lambda step, rank: _mask(seen(*where(step, rank), starts),
                                                                                   deal.where[rank])))


def judge_12(picture, decode):
    global _rank_of
    deal = _Deal("decode")
    picture["due"] = np.arange(24)[:, None] == 23 + 0 * np.arange(24)
    _board.rows = {row.tobytes(): 23 for row in deal.q[0][0]}
    holders = []  # of the keys of each tile

    def of_keys(i, j):
        holders.append(set(_holder[j]))
        return _holder[j]

    before, _rank_of = _rank_of, of_keys
    try:
        returned = decode(deal.q[0], list(deal.k), list(deal.v))
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise NotYet("out and lse are due")
        if _board.sent or max(map(len, holders), default=1) > 1:
            raise NotYet("the keys of several ranks come together: they have travelled, and they are what is long (lesson 15)")
        picture.update(who=_board.who, weights=np.zeros((24, 24)))
        average = np.mean([finish(tile(deal.q[0], k, v))[0] for k, v in zip(deal.k, deal.v)], 0)
        picture["weights"][23] = decode(deal.q[0], list(deal.k), deal.one_hot())[0][0]
    finally:
        _rank_of = before
    if np.allclose(returned[0], average, 1e-5, 1e-5):
        raise NotYet("the outputs of the ranks are averaged: a rank whose scores are large counts more (lesson 15)")
    deal.judge(out=[returned[0]], lse=[returned[1]])


# The verdict and the picture of a try


def _counted(picture):
    """Which scores count in the results, and which are missing there; NaN is both."""
    due, who, weights = picture["due"], picture.get("who", np.full((24, 24), -1)), picture.get("weights")
    if weights is None:
        return due & (who >= 0), due & (who < 0)
    return ~(np.abs(weights) < 1e-30), due & ~(np.abs(weights) > 1e-30)


def _draw(title, picture):
    """Full colour: the rank computed the score, and it counts; pale: computed for nothing."""
    if plt is None:
        return
    due, who = picture["due"], picture.get("who", np.full((24, 24), -1))
    image, computed, (counts, missing) = np.ones((24, 24, 3)), who >= 0, _counted(picture)
    image[computed] = COLOURS[who[computed]]
    image[computed & ~counts] += 0.75 * (1 - image[computed & ~counts])
    figure, axes = plt.subplots(figsize=(5, 3.4), dpi=90, layout="constrained")
    axes.imshow(image)
    for cells, marker, colour, says in ((missing, "x", "#c00000", "missing"),
                                        (counts & ~due, "s", "black", "hidden, counted")):
        if cells.any():
            axes.scatter(*np.argwhere(cells).T[::-1], s=9, marker=marker, c=colour, linewidths=0.8, label=says)
    for rank in np.unique(who[computed]):
        axes.scatter([], [], marker="s", color=COLOURS[rank], label=f"rank {rank}")
    axes.set(title=title, xlabel="key", ylabel="query", xticks=range(0, 24, 6),
             yticks=range(0, 24, 6))
    axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1), fontsize=8, frameon=False)
    plt.show()
    plt.close(figure)


def _where(error):
    """The reader's line in which it was raised."""
    lines = [frame for frame in traceback.extract_tb(error.__traceback__)
             if frame.filename != __file__ and "site-packages" not in frame.filename and "dist-packages" not in frame.filename
             and "<__array_function__" not in frame.filename]
    return f", in `{lines[-1].line}`" if lines and lines[-1].line else ""


@np.errstate(all="ignore")
def judge(number, *functions):
    """Says what is wrong, or that all is right, and draws what was computed, and by whom."""
    picture, more = {"due": np.tri(24, dtype=bool)}, ()
    solved.discard(number)
    try:
        if number in (2, 3, 4) and (helpers := {"merge", "tile", "hop"} & set(functions[0].__code__.co_names)):
            raise NotYet(f"`{helpers.pop()}` is the helper's, and this puzzle is to write it")
        globals()[f"judge_{number}"](picture, *functions)
        solved.add(number)
        says = f"right. {len(solved)} of {len(DUE)} puzzles are solved."
    except Hole:
        picture, says = None, f"a hole is empty. Due: {DUE[number]}."
    except NotYet as found:
        (says, *more) = found.args
        counts, missing = _counted(picture)
        for cells, text in ((missing, "are missing"), (counts & ~picture["due"], "are counted, and hidden")):
            if says == UNKNOWN and cells.any():
                more.append(f"{cells.sum()} scores {text}, of keys of rank {', '.join(map(str, np.unique(_holder[np.any(cells, 0)])))}")
        says = f"not yet: {says}"
    except InputError as error:
        says = f"not yet: {error}"
    except Exception as error:
        says = f"not yet: {type(error).__name__}: {error}{_where(error)}"
    print("\n    ".join((f"Puzzle {number}: {says}", *dict.fromkeys(more))))
    if picture:
        _draw(f"puzzle {number}: {'right' if number in solved else 'not yet'}", picture)


def example():
    """What a try draws, here a causal ring that is right."""
    picture, deal = {}, _Deal("causal")
    _forward(picture, deal, lambda v: _ring(deal, v))
    _draw("a causal ring on four ranks: right", picture)


def left():
    """The puzzles that are not solved yet."""
    return sorted(set(DUE) - solved)
