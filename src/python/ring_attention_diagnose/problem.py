"""The cases: small problems that show some mistakes, their arrays and their right results."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Callable

import numpy as np

from .placement import InputError, Job, Slots, own_layout
from .rounding import mixed, random_array, rounded

FORWARD, BACKWARD = ("out", "lse"), ("dq", "dk", "dv")
ARRAYS = FORWARD + BACKWARD  #: what the attention under test may hand back: also the names of the files
MORE = ("dbias", "dsinks")  #: and of cases with a bias, or with sinks; they are judged by themselves
INF = np.inf
MOST_RUNS = 100


@dataclasses.dataclass(frozen=True)
class Case:
    """One problem, in words that a user's code can follow."""

    name: str
    tests: str  #: what it adds to those before it
    tokens: int
    number: int = 0  #: in the ladder: no two cases have the same arrays
    heads: int = 4
    kv_heads: int = 4
    dim: int = 16
    value_dim: int = 16  #: of V, and of out
    queries: int = 0  #: the last of the tokens; 0: all
    batch: int = 1  #: sequences; heads and kv_heads are those of all of them, one sequence after the other
    causal: bool = False
    window: int = 0  #: keys that a query sees, its own included; 0: all
    block: tuple[int, ...] = ()  #: begin and end of tokens that see each other in both directions
    sink_tokens: int = 0  #: the first keys, which later queries see also behind the window
    documents: tuple[int, ...] = ()  #: cu_seqlens of packed documents
    alibi: bool = False
    bias: bool = False
    sinks: bool = False
    padding: int = 0  #: the first keys, which no query sees
    ulysses: int = 1  #: ranks that share the heads
    decodes: bool = False  #: every rank has the query of the last token, and its own part of the keys
    softcap: float = 0  #: a product x of the scores becomes softcap * tanh(x / softcap); 0: it stays
    large_scores: bool = False  #: in three of four heads: near +-100, near -10150, near -120
    run: int = 1  #: a code that is run again gets the same arrays, and has to return the same

    @property
    def folder(self) -> str:
        """The name of its entry and folder."""
        return f"{self.name}.{self.run}" if self.run > 1 else self.name

    @property
    def first_query(self) -> int:
        return self.tokens - self.queries if self.queries else 0

    def rows_of(self, array: str) -> int:
        return self.tokens if array in ("k", "v", "dk", "dv") else self.tokens - self.first_query

    @property
    def by_name_only(self) -> bool:
        """Few attentions have it: it is left out where no case is named."""
        return self.decodes or self.softcap > 0 or self.block != () or self.batch > 1 or self.value_dim != self.dim or (
            self.queries > 0)

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.dim)

    def extents_of(self, array: str, tokens: int) -> tuple[int, ...]:
        """[heads, tokens, dim], of several sequences [batch, heads, tokens, dim]; lse has no dim."""
        heads = self.kv_heads if array in ("dk", "dv") else self.heads
        dim = self.value_dim if array in ("out", "dv") else self.dim
        extents = (heads // self.batch, tokens, dim)[: 2 if array == "lse" else 3]
        return (self.batch, *extents) if self.batch > 1 else extents


def every_case(job: Job) -> list[Case]:
    """The cases for a job, the simplest first."""
    # Heads that the ranks of Ulysses can share, and tokens that all placements can share out equally: of a rank another
    # number than of heads or of columns, so that the axes of its arrays can be told apart.
    heads, part = job.heads or (2 * job.ulysses if job.ulysses > 2 else 4), 2 * job.ranks * job.block
    tokens = job.tokens or -(-24 // part) * part
    while tokens in (heads * job.ranks, job.dim * job.ranks) and not job.tokens:
        tokens += part
    full = {"tokens": tokens, "heads": heads, "kv_heads": heads, "dim": job.dim, "value_dim": job.dim,
            "ulysses": job.ulysses}
    # A placement of one's own may deal each document: documents of twice the ranks, or a multiple.
    documents = sorted({0, 2 * job.ranks, tokens - 2 * job.ranks, tokens}) if job.placement == "own" else (0, 5, 14, tokens)
    return [
        Case(name, tests, number=number, **{**full, **more})
        for number, (name, tests, more) in enumerate((
            ("full", "no mask", {}),
            ("causal", "a causal mask", {"causal": True}),
            ("gqa", "query heads that share KV heads; causal", {"causal": True, "kv_heads": heads // 2}),
            ("window", "a sliding window; causal", {"causal": True, "window": 5}),
            ("documents", "packed documents; causal", {"causal": True, "documents": tuple(documents)}),
            ("alibi", "the ALiBi bias; causal", {"causal": True, "alibi": True}),
            ("bias", "a dense bias", {"bias": True}),
            ("sinks", "a logit without a value in each head; causal", {"causal": True, "sinks": True}),
            ("uneven", "a length that the ranks cannot share out equally", {"tokens": tokens - 1}),
            ("padding", "keys that no query sees", {"padding": 3}),
            ("empty-rows", "queries that see no key; causal", {"causal": True, "padding": 3}),
            ("large", "large scores, and scores far below zero; causal", {"causal": True, "large_scores": True}),
            ("decode", "one query, which all ranks have, and a cache that they share",
             {"causal": True, "kv_heads": heads // 2, "decodes": True}),
            ("softcap", "scores softcap * tanh(scale q.k / softcap); causal", {"causal": True, "softcap": 2.0}),
            ("intervals",
             "an image that sees itself in both directions, and first keys that are seen behind the window; causal",
             {"causal": True, "window": 5, "block": (6, 13), "sink_tokens": 2}),
            ("decode-few", "one query, and fewer keys than ranks: a rank has none",
             {"causal": True, "decodes": True, "padding": tokens - max(1, job.ranks - 1)}),
            ("batch", "two sequences; causal", {"causal": True, "batch": 2, "heads": 2 * heads, "kv_heads": 2 * heads}),
            ("more-keys", "the second half of the tokens as queries, all as keys; causal",
             {"causal": True, "tokens": 2 * tokens, "queries": tokens}),
            ("wide-v", "V of another width than Q and K; causal", {"causal": True, "value_dim": 2 * job.dim}),
        ))
    ]


def ladder(job: Job, names: list[str] | tuple[str, ...] = ()) -> list[Case]:
    """The cases for a job, the simplest first: those with these names, or all that are not left out."""
    cases = every_case(job)
    known = [case.name for case in cases]
    for name in names:
        if name not in known:
            raise InputError(f"case '{name}'", "there is none", f"take some of {', '.join(known)}")
    return [case for case in cases if (case.name in names if names else not case.by_name_only)]


def runs_of(case: Case, repeat: int) -> list[Case]:
    """The case, and the same again."""
    return [dataclasses.replace(case, run=run) for run in range(1, repeat + 1)]


def problem_of(case: Case, job: Job, seed: int, layout: Callable[[dict], list] | None = None) -> Problem:
    """:param layout: of a placement of one's own: the tokens of each rank, from words about the case"""
    if layout is None:
        return Problem(case, job, seed)
    if case.queries:
        raise InputError(f"case {case.name}", "has no placement of one's own for its queries", "leave it out")
    words = {"name": case.name, "ranks": job.ranks, "tokens": case.tokens}
    own = layout({**words, **({"cu_seqlens": list(case.documents)} if case.documents else {})})
    return Problem(case, dataclasses.replace(job, own=own_layout(case.name, case.tokens, job.ranks, own)), seed)


def _alibi_slopes(heads: int) -> list[float]:
    below = 1 << heads.bit_length() - 1
    slopes = [2 ** (-8 * h / below) for h in range(1, below + 1)]
    return (slopes + [2 ** (-4 * h / below) for h in range(1, 2 * heads, 2)])[:heads]


def _set_level(array: np.ndarray, first_column: float) -> None:
    """Brings all scores of a head near one level, which the first column makes; the other columns are multiples of 1/4,
    so that a score is exact in float."""
    scaled = 4 * array
    array[:] = (np.sign(scaled) * np.floor(abs(scaled) + 0.5)) / 4
    array[:, 0] = first_column


def document(case: Case, position: np.ndarray, late: int = 0) -> np.ndarray:
    """The number of a position's document, where each begins `late` tokens late."""
    return np.searchsorted([begin + late for begin in case.documents if begin > 0], position, side="right")


class Problem:
    """A case with its arrays, [heads, tokens, dim]. Their elements are exact in bf16 and in fp16: a code of any type
    gets the same problem."""

    def __init__(self, case: Case, job: Job, seed: int):
        self.case, self.job, self.seed = case, job, seed
        key = mixed(seed + case.number)

        def array(shape: tuple[int, ...], stream: int, size: float) -> np.ndarray:
            return rounded(size * random_array(shape, key, stream), "bf16")

        of_query, of_key = (case.heads, case.rows_of("q"), case.dim), (case.kv_heads, case.tokens, case.dim)
        # Scores have a standard deviation of 2.25: large enough for weights to differ, small enough for all keys to
        # count.
        self.q, self.k = array(of_query, 0, 1.5), array(of_key, 1, 1.5)
        self.v, self.dout = (array((*shape[:2], case.value_dim), stream, 1) for stream, shape in ((2, of_key), (3, of_query)))
        for head in range(0, case.heads - 3, 4) if case.large_scores else ():
            self.q[head] *= 4  # lse of shards differ by more than 89
            self.k[head] *= 8
            for offset, of_q, of_k in ((1, 200, -203), (2, 16, -30)):  # near -10150, near -120
                _set_level(self.q[head + offset], rounded(np.float64(of_q / 4 / case.scale), "bf16"))
                _set_level(self.k[head + offset], of_k)
        if case.decodes:  # a ring whose ranks hold copies of one query; their results are as many rows
            self.q[:] = self.q[:, -1:]
        self.bias = array((case.heads, case.tokens, case.tokens), 4, 1) if case.bias else None
        self.slopes = np.array(_alibi_slopes(case.heads)) if case.alibi else None
        self.sinks = 1 + array((case.heads,), 5, 1) if case.sinks else None
        self.slots, self._shards = Slots(job, case.rows_of("q"), case.decodes), {}
        self.key_slots = Slots(job, case.tokens) if case.queries else self.slots
        self.cache, self.right = {}, self._dense()  #: tables that rules make; dense attention in double

    def given(self, arrays: dict[str, np.ndarray]) -> Problem:
        """This problem with some other arrays, and their right results."""
        other = copy.copy(self)
        other.__dict__.update(_shards={}, cache={} if "bias" in arrays else self.cache, **arrays)
        other.right = other._dense()
        return other

    def part_of(self, array: str, positions: list[int]) -> np.ndarray:
        """The gradient of the bias, or of the sinks, from some queries."""
        some = np.zeros_like(self.parts[array])
        some[:, positions] = self.parts[array][:, positions]
        return some if array == "dbias" else some.sum(1, keepdims=True)

    def shards(self, name: str) -> np.ndarray:
        """An input, cut into the shards of the ranks."""
        if name not in self._shards:
            self._shards[name] = (self.key_slots if name in "kv" else self.slots).shards(getattr(self, name))
        return self._shards[name]

    def inputs(self) -> dict[str, np.ndarray]:
        """q, k, v, dout, and bias where there is one: whole arrays in the order of positions."""
        if self.case.decodes:
            return {"q": self.q[None, :, -1:], "k": self.k[None], "v": self.v[None]}
        b = self.case.batch
        names = ("q", "k", "v", "dout") + (("bias",) if self.case.bias else ())
        arrays = {name: getattr(self, name) for name in names}
        return {name: array.reshape(b, len(array) // b, *array.shape[1:]) for name, array in arrays.items()}

    def description(self) -> dict:
        """An entry of cases.json; what a case has not is left out."""
        c = self.case
        words = {"name": c.folder, "tests": c.tests, "heads": c.heads // c.batch, "kv_heads": c.kv_heads // c.batch,
                 "tokens": c.tokens,
                 "dim": c.dim, "scale": c.scale, "causal": c.causal}
        more = {"batch": c.batch * (c.batch > 1), "value_dim": c.value_dim * (c.value_dim != c.dim),
                "window": c.window, "block": c.block, "sink_tokens": c.sink_tokens, "cu_seqlens": c.documents,
                "hidden_keys": c.padding, "alibi_slopes": self.slopes, "softcap": c.softcap, "sinks": self.sinks,
                "query_position": c.decodes * (c.tokens - 1)}
        words.update((name, np.array(value).tolist()) for name, value in more.items() if np.any(value))
        of_ranks = lambda tokens: [self.job.tokens_of(rank, tokens) for rank in range(self.job.ranks)]  # noqa: E731
        if c.queries:
            words.update(queries=c.queries, first_query=c.first_query, queries_of_rank=of_ranks(c.queries))
        return {**words, "tokens_of_rank": of_ranks(c.tokens)}

    def _seen(self) -> np.ndarray:
        c, j = self.case, np.arange(self.case.tokens)
        i = np.maximum(j[c.first_query :], c.tokens - 1 if c.decodes else 0)[:, None]
        seen = (j >= c.padding) & (i >= 0)
        if c.causal:
            seen &= j <= i
        if c.window:
            seen &= i - j < c.window
        if c.block:
            begin, end = c.block
            seen |= (begin <= np.minimum(i, j)) & (np.maximum(i, j) < end) | (j < c.sink_tokens) & (j <= i)
        return seen & (document(c, i) == document(c, j))

    @np.errstate(all="ignore")
    def _dense(self) -> dict[str, np.ndarray]:
        c, i = self.case, np.arange(self.case.tokens)
        k, v = np.repeat(self.k, c.group, 0), np.repeat(self.v, c.group, 0)
        scores = c.scale * self.q @ k.swapaxes(1, 2)
        slope = 1.0
        if c.softcap:
            slope = 1 - np.tanh(scores / c.softcap) ** 2
            scores = c.softcap * np.tanh(scores / c.softcap)
        if c.alibi:
            scores = scores - self.slopes[:, None, None] * abs(i[c.first_query :, None] - i)
        if c.bias:
            scores = scores + self.bias
        scores = np.where(self._seen(), scores, -INF)
        sinks = np.full(c.heads, -INF) if self.sinks is None else self.sinks
        m = np.maximum(scores.max(2), sinks[:, None])
        p = np.exp(scores - np.where(m == -INF, 0, m)[..., None])
        l = p.sum(2) + np.exp(sinks[:, None] - np.where(m == -INF, 0, m))
        p = p / np.where(l > 0, l, 1)[..., None]
        out = p @ v
        delta = (self.dout * out).sum(2, keepdims=True)
        ds = p * (self.dout @ v.swapaxes(1, 2) - delta) * slope
        over_group = lambda x: x.reshape(c.kv_heads, c.group, c.tokens, -1).sum(1)  # noqa: E731
        lse = np.where(l > 0, m + np.log(l), -INF)[..., None]
        # What each query gives to the gradient of the bias, or of the sinks: [heads, tokens, ...].
        self.parts = {"dbias": ds} if c.bias else {"dsinks": -np.exp(sinks[:, None, None] - lse) * delta} if c.sinks else {}
        return {"out": out, "lse": lse, "dq": c.scale * ds @ k,
                "dk": over_group(c.scale * ds.swapaxes(1, 2) @ self.q), "dv": over_group(p.swapaxes(1, 2) @ self.dout)}
