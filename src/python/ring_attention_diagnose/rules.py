"""`Rules`: every decision that a ring makes, each as a value or a short function. A mistake is an edit of them.

Functions take and return arrays, so that one call answers for all ranks R, steps T, heads H and slots N.
"""

from __future__ import annotations

import dataclasses
from typing import Callable

import numpy as np

from .placement import Slots
from .problem import INF, Case, document

NO_RANK = -1
Edit = Callable[["Rules"], None]
EDITS: dict[str, tuple[Edit, bool]] = {}  #: by id of mistakes.tsv; `directed`: it depends on the way of the parcels


def in_block(case: Case, position: np.ndarray) -> np.ndarray:
    return (case.block[0] <= position) & (position < case.block[1])


class Steps:
    """What each rank does at each step: tables [R, T]. In a right ring all of them are the owner."""

    TABLES = ("k", "v", "positions", "dk_to", "dv_to")

    def __init__(self, ranks: int, direction: int):
        self.ranks, self.direction, self.rank = ranks, direction, np.arange(ranks)[:, None]  #: +1: parcels go to the next rank
        owner = self.owner(np.arange(ranks))
        self.k = self.v = owner  #: whose keys, whose values it computes with
        self.positions = owner  #: whose positions it takes the keys to have
        self.dk_to = self.dv_to = owner  #: to whom the parts of dK, dV go

    def owner(self, hops) -> np.ndarray:
        """The rank whose K,V are here after so many hops."""
        return self.behind(self.rank, hops)

    def behind(self, rank: np.ndarray, hops) -> np.ndarray:
        return (rank - self.direction * hops) % self.ranks

    @property
    def count(self) -> int:
        return self.k.shape[1]


class Place:
    """Tokens in shards, by arrays that broadcast to [R, T, N, N]."""

    def __init__(self, slots: Slots, rank: np.ndarray, slot: np.ndarray, position: np.ndarray, first: int = 0):
        self.slots, self.rank, self.slot, self.position = slots, rank, slot, position + first
        self.first = first  #: the position of the first one


class Pair:
    """Queries, the keys as the mask takes them to be, and the keys that really are there."""

    def __init__(self, slots: Slots, keys: Slots, first_query: int, steps: Steps):
        ranks, slot, row = np.arange(slots.ranks)[:, None, None, None], np.arange(keys.count), np.arange(slots.count)[:, None]
        self.direction = steps.direction
        of = lambda table: Place(keys, table[:, :, None, None], slot, keys.position[table][:, :, None])  # noqa: E731
        self.query = Place(slots, ranks, row, slots.position[:, None, :, None], first_query)
        if slots.one_query:
            self.query = Place(slots, ranks, 0 * row, 0 * row + slots.tokens - 1)
        self.key, self.content = of(steps.positions), of(steps.k)
        self.in_place_of_key = Place(keys, ranks, slot, keys.position[:, None, None])  #: what the query's rank has there

    @property
    def on_one_rank(self) -> np.ndarray:
        return self.query.rank == self.key.rank


def rescale(m: np.ndarray, to: np.ndarray) -> np.ndarray:
    return np.where(m == -INF, 0.0, np.exp(m - to))


def to_common_maximum(m, m_new, merged):
    """The factors of the online merge: of o and l before, and of those of the new step."""
    old, new = rescale(m, merged), rescale(m_new, merged)
    return old, old, new, new


def lse_of(m: np.ndarray, l: np.ndarray) -> np.ndarray:
    return np.where(l > 0, m + np.log(l), -INF)


def log_add(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    most = np.maximum(a, b)
    return most + np.log(np.exp(a - most) + np.exp(b - most))


def weights_by_lse(before, piece):
    """How a merge of normalised pieces weighs the out before and the new one; the lse after it."""
    lse = log_add(before.lse, piece.lse)
    return np.exp(before.lse - lse), np.exp(piece.lse - lse), lse


Mask = Callable[[Case, Pair], np.ndarray]  #: which of the pairs are seen
_same_head = lambda c, h: h  # noqa: E731
_one = lambda c: 1.0  # noqa: E731
_add = lambda total, part, step: total + part  # noqa: E731


@dataclasses.dataclass
class Rules:
    """The rules of one pass; these are right. `c` is a case."""

    direction: int = 1
    follows_content: bool = False  #: gradients of K,V go to the rank whose K,V were used, as autograd sends them
    schedule: tuple[Callable[[Steps], None], ...] = ()  #: edits of the steps
    # What a query sees: edits of the positions that the mask, or the bias, takes tokens to have; then four rules.
    mask_positions: tuple[Callable[[Slots, Pair], None], ...] = ()
    bias_positions: tuple[Callable[[Slots, Pair], None], ...] = ()
    causal: Mask = lambda c, p: p.key.position <= p.query.position
    window: Mask = lambda c, p: p.query.position - p.key.position < c.window
    documents: Mask = lambda c, p: document(c, p.query.position) == document(c, p.key.position)
    # What it sees although these hide it.
    block: Mask = lambda c, p: in_block(c, p.query.position) & in_block(c, p.key.position)
    first_keys: Mask = lambda c, p: (p.key.position < c.sink_tokens) & (p.key.position <= p.query.position)
    counts_twice: bool = False  #: first keys that the window reaches as well
    padding: Mask = lambda c, p: (p.content.position >= c.padding) & (p.content.position < c.tokens)
    skips_partial_tiles: bool = False  #: steps of which a rank sees a part
    # What a rank computes with: q, k or v of all ranks, [R, heads, N, D].
    q: Callable = lambda problem: problem.shards("q")
    kv: Callable = lambda problem, name: problem.shards(name)
    # Scores: capped(scale q k^T) + bias. Of heads: the one of another array that head h uses.
    scale: Callable[[Case], float] = lambda c: c.scale
    bias: Callable[[Case, np.ndarray], np.ndarray] = lambda c, of_pairs: of_pairs
    hidden_score: float = -INF
    capped: Callable[[Case, np.ndarray], np.ndarray] = lambda c, x: c.softcap * np.tanh(x / c.softcap)
    cap_slope: Callable[[Case, np.ndarray], np.ndarray] = lambda c, x: 1 - np.tanh(x / c.softcap) ** 2
    caps_hidden: bool = False  #: the mask stands inside of the cap
    kv_head: Callable[[Case, np.ndarray], np.ndarray] = lambda c, h: h // c.group
    bias_head: Callable = _same_head
    slope_head: Callable = _same_head
    sink_head: Callable = _same_head
    # The softmax of a step: its maximum, of that of its scores; and a guard of e^{-inf - (-inf)}.
    maximum: Callable[[np.ndarray], np.ndarray] = lambda m: m
    guarded: bool = True
    skips_hidden_tiles: bool = False  #: steps of which a rank sees nothing
    # The merge of a step: of states, or of normalised pieces where there is such a rule.
    factors: Callable = to_common_maximum
    factor_edits: tuple[Callable, ...] = ()  #: of these: (o, l, new_o, new_l), m, merged
    weights: Callable | None = None
    lse_unit: float = 1  #: in which the lse of a step is handed to the merge of pieces
    lse_of_nothing: float = -INF  #: what a step without keys hands to the merge of pieces
    lse_read: Callable | None = None  #: by the merge of pieces: (problem, lse [..., R, T, H, N])
    out_kept_in: str | None = None  #: between steps
    lse_kept_in: str | None = None
    # The end of the forward.
    sink_times: Callable = lambda steps_with_keys, ranks: np.ones_like(steps_with_keys)
    normalised: bool = True
    returned_lse: Callable = lambda m, l, lse: lse  #: m, l: of the steps [T, ...]
    after_forward: tuple[Callable, ...] = ()  #: edits of the arrays: (slots, case, arrays, steps)
    # The backward.
    dout: Callable = lambda slots, problem: problem.shards("dout")
    lse_from: str = "whole"  #: or own_shard, step, overwritten
    lse_factor: Callable[[Case], float] = _one
    dv_normalised: bool = True  #: by l
    delta_from: str = "whole"  #: or own_shard, step, none
    dq_factor: Callable[[Case], float] = _one  #: in addition to the scale
    dk_factor: Callable[[Case], float] = _one
    add_dq: Callable = _add
    add_dkdv: Callable = _add
    part_zeroed: bool = True  #: the step's part of dK,dV, before it is filled
    dq_kept_in: str | None = None  #: between steps
    dkdv_kept_in: str | None = None
    dkdv_head: Callable | None = None  #: the KV head that sums those of a query head; None: kv_head
    dkdv_of: Callable = lambda c, h: np.ones(len(h))  #: times which it counts
    after_backward: tuple[Callable, ...] = ()  #: edits of the arrays: (slots, case, arrays, steps)

    def steps(self, ranks: int) -> Steps:
        steps = Steps(ranks, self.direction)
        for edit in self.schedule:
            edit(steps)
        if self.follows_content:
            steps.dk_to, steps.dv_to = steps.k, steps.v
        return steps


def mistake(name: str, directed: bool = False, **rules) -> None:
    """A mistake that replaces rules, and adds to those that are lists of edits."""
    def edit(r: Rules) -> None:
        for rule, value in rules.items():
            before = getattr(r, rule)
            setattr(r, rule, (*before, value) if isinstance(before, tuple) else value)

    EDITS[name] = edit, directed
