"""Mistakes in what a step computes with: which K,V, which pairs take part, what a score is made of."""

from __future__ import annotations

import functools
from typing import Callable

import numpy as np

from .placement import PLACEMENTS
from .problem import INF, document
from .rules import NO_RANK, Steps, in_block, mistake

# ---- which K,V a rank computes with at which step, and whose it takes them to be -------------------------------------


def _steps(name: str, kept: Callable[[np.ndarray], np.ndarray], directed: bool = False) -> None:
    """Other steps, by their numbers, where there is more than one."""
    def change(steps: Steps) -> None:
        numbers = np.arange(steps.count)
        for table in steps.TABLES if steps.count > 1 else ():
            setattr(steps, table, getattr(steps, table)[:, kept(numbers)])

    mistake(name, directed, schedule=change)


def _tables(name: str, tables: str, value: Callable[[Steps], np.ndarray], directed: bool = False) -> None:
    """Some tables of the steps, all with another value."""
    def change(steps: Steps) -> None:
        steps.__dict__.update(dict.fromkeys(tables.split(), value(steps) + 0 * steps.k))

    mistake(name, directed, schedule=change)


def _moved(table: np.ndarray, by: int) -> np.ndarray:
    """At each step what is right so many steps later."""
    return table[:, np.clip(np.arange(table.shape[1]) + by, 0, table.shape[1] - 1)]


_steps("steps-short", lambda numbers: numbers[:-1], directed=True)
_steps("skip-own", lambda numbers: numbers[1:])
_steps("extra-step", lambda numbers: np.append(numbers, 0))
_steps("no-ring", lambda numbers: numbers[:1])
_tables("not-sent", "k v", lambda s: s.rank)
_tables("k-stays", "k", lambda s: s.rank)
_tables("v-stays", "v", lambda s: s.rank)
_tables("early-swap", "k v", lambda s: _moved(s.k, 1), directed=True)
_tables("step-before", "k v", lambda s: _moved(s.k, -1), directed=True)
_tables("v-step-before", "v", lambda s: _moved(s.v, -1), directed=True)
_tables("owner-wrong-way", "positions", lambda s: s.owner(-np.arange(s.count)), directed=True)
_tables("owner-off-by-one", "positions", lambda s: s.owner(np.arange(s.count) + 1), directed=True)
_tables("dkdv-stay-local", "dk_to dv_to", lambda s: s.rank)
_tables("hop-short", "dk_to dv_to", lambda s: s.behind(s.dk_to, 1), directed=True)
_tables("dkdv-wrong-way", "dk_to dv_to", lambda s: s.owner(-np.arange(s.count)))
_tables("dkdv-own-only", "dk_to dv_to", lambda s: np.where(s.dk_to == s.rank, s.dk_to, NO_RANK))


def _first_tokens(problem, name):
    """Each rank has the first tokens of the sequence."""
    slots = problem.key_slots
    return slots.shards(getattr(problem, name), 0 * slots.position + np.arange(slots.count))


def _read_as_heads(problem, name):
    """[tokens, heads] of a rank, read as [heads, tokens]."""
    shards = problem.shards(name).copy()
    for rank, count in problem.key_slots.of_ranks():
        here = shards[rank, :, :count]
        by_batch = here.reshape(problem.case.batch, -1, *here.shape[1:])
        shards[rank, :, :count] = by_batch.swapaxes(1, 2).reshape(here.shape)
    return shards


def _zero_without_keys(problem):
    slots, case = problem.key_slots, problem.case
    has_keys = ((slots.position >= case.padding) & (slots.position < case.tokens)).any(1)
    return problem.shards("q") * has_keys[:, None, None, None]


mistake("slots-of-whole-cache", kv=_first_tokens)
mistake("kv-transposed-twice", kv=_read_as_heads)
mistake("query-zero-without-keys", q=_zero_without_keys)


# ---- which pairs of a query and a key take part ----------------------------------------------------------------------

def _moves(name: str, query=None, key=None, of: str = "mask_positions") -> None:
    """Lets the mask, or the bias, take queries and keys to be elsewhere."""
    def change(slots, pair):
        for place, where in ((pair.query, query), (pair.key, key)):
            if where:
                place.position = where(slots, place)

    mistake(name, **{of: change})


def _at_slot(slots, place):
    return place.slot


def _as_placed(placement, slots, place):
    return place.slots.placed(placement)[place.rank, place.slot] + place.first


_moves("mask-local", _at_slot, _at_slot)
_moves("queries-local", _at_slot)
_moves("keys-in-rank-order", None, functools.partial(_as_placed, "contiguous"))
for _placement in PLACEMENTS:
    _moves(f"mask-as-{_placement}", *2 * [functools.partial(_as_placed, _placement)])
_over_world = lambda slots, place: place.slots.placed_over_world[place.position - place.first] + place.first  # noqa: E731
_moves("world-placement", _over_world, _over_world)
_moves("swapped-axes", *2 * [lambda slots, place: place.slots.with_swapped_axes[place.rank, place.slot] + place.first])
_moves("query-offset", lambda slots, place: place.position - place.first)
_everything = lambda c, p: np.True_  # noqa: E731
mistake("no-mask", causal=_everything, window=_everything, documents=_everything)
mistake("causal-strict", causal=lambda c, p: p.key.position < p.query.position)
mistake("causal-reversed", causal=lambda c, p: p.key.position >= p.query.position)
mistake("causal-plus-one", causal=lambda c, p: p.key.position <= p.query.position + 1)
mistake("partial-tiles-skipped", skips_partial_tiles=True)


def _remote(rule):
    """The causal rule of tiles of other ranks."""
    return lambda c, p: np.where(p.on_one_rank, p.key.position <= p.query.position, rule(p))


mistake("remote-unmasked", causal=_remote(lambda p: True))


def _tiles_of(placement: str, name: str, rule, halves: bool) -> None:
    """In remote tiles of a placement this rule decides; of other placements there is no remote tile."""
    def change(slots, pair):
        if slots.job.placement != placement:
            pair.key.rank = pair.query.rank
        if halves:
            pair.query.slot, pair.key.slot = (2 * place.slot // place.slots.count for place in (pair.query, pair.key))

    mistake(name, mask_positions=change, causal=_remote(rule))


# right: of a rank before, the first half of the keys; else the second half of the queries
_by_rank = lambda p, before, after: np.where(p.key.rank < p.query.rank, before, after)  # noqa: E731
_tiles_of("zigzag", "zigzag-halves", lambda p: _by_rank(p, p.key.slot == 1, p.query.slot != 1), True)
_tiles_of("zigzag", "zigzag-reversed", lambda p: _by_rank(p, p.query.slot == 1, p.key.slot != 1), True)
_tiles_of("striped", "striped-strict", lambda p: p.key.slot < p.query.slot, False)
_distance = lambda p: p.query.position - p.key.position  # noqa: E731
mistake("window-ignored", window=_everything)
mistake("window-plus-one", window=lambda c, p: _distance(p) - 1 < c.window)
mistake("window-minus-one", window=lambda c, p: _distance(p) + 1 < c.window)
mistake("window-local", window=lambda c, p: p.query.slot - p.key.slot < c.window)
mistake("window-local-right", window=lambda c, p: (p.query.slot - p.key.slot < c.window)
        & (p.key.slot <= p.query.slot))
mistake("window-own-only", window=lambda c, p: np.where(p.on_one_rank, _distance(p), 0) < c.window)
mistake("block-ignored", block=lambda c, p: np.False_)
mistake("block-local", block=lambda c, p: in_block(c, p.query.slot) & in_block(c, p.key.slot))
mistake("first-keys-local", first_keys=lambda c, p: (p.key.slot < c.sink_tokens) & (p.key.position <= p.query.position))
mistake("pairs-counted-twice", counts_twice=True)
mistake("documents-ignored", documents=_everything)
mistake("documents-plus-one",
        documents=lambda c, p: document(c, p.query.position, 1) == document(c, p.key.position, 1))
mistake("documents-local",
        documents=lambda c, p: document(c, p.query.position) == document(c, p.in_place_of_key.position))
mistake("hidden-keys-seen", padding=lambda c, p: p.content.position < c.tokens)
mistake("hidden-keys-local", padding=lambda c, p: (p.content.slot >= c.padding) & (p.content.position < c.tokens))
mistake("padding-counted", padding=lambda c, p: p.content.position >= c.padding)


def _cut_length(name: str, is_cut: Callable) -> None:
    """Some tokens are no keys, and their rows are empty: is_cut(slots, positions, places in shards)"""
    def hide(slots, pair):
        content, keys = pair.content, pair.content.slots
        content.position = np.where(is_cut(keys, content.position, content.slot), keys.tokens, content.position)

    def cut(slots, case, arrays, steps):
        there = is_cut(slots, slots.position, np.arange(slots.count)) & (slots.position < slots.tokens)
        for array in (array for array in arrays if array not in ("dk", "dv")):
            arrays[array][:, slots.position[there]] = -INF if array == "lse" else 0

    mistake(name, mask_positions=hide, after_forward=cut, after_backward=cut)


_cut_length("length-rounded-down", lambda slots, position, slot: position >= slots.tokens // slots.ranks * slots.ranks)
_cut_length("length-over-ranks", lambda slots, position, slot: slot + 0 * position >= slots.tokens // slots.ranks)
mistake("window-sentinel", padding=lambda c, p: (p.content.position >= c.padding) & (p.content.position < c.tokens)
        & (c.window > 0))


# ---- heads, scale, bias, sinks: what a score is made of --------------------------------------------------------------

def _first_head(c, h):
    return h - h % (c.heads // c.batch)


def modulo(c, h):
    return h % c.kv_heads


def _local_head(c, h):
    """The number of a head on its rank, where ranks share the heads."""
    return h % (c.heads // c.ulysses)


mistake("gqa-modulo", kv_head=modulo)
mistake("gqa-first-kv", kv_head=_first_head)
mistake("no-scale", scale=lambda c: 1.0)
mistake("scale-twice", scale=lambda c: c.scale**2)
mistake("scale-all-heads", scale=lambda c: c.scale / np.sqrt(c.heads // c.batch))
mistake("softcap-ignored", capped=lambda c, x: x, cap_slope=lambda c, x: 1 + 0 * x)
mistake("softcap-over-mask", caps_hidden=True)
mistake("softcap-before-scale", capped=lambda c, x: c.scale * c.softcap * np.tanh(x / c.scale / c.softcap),
        cap_slope=lambda c, x: 1 - np.tanh(x / c.scale / c.softcap) ** 2)
mistake("softcap-slope-missing", cap_slope=lambda c, x: 1 + 0 * x)
mistake("bias-ignored", bias=lambda c, x: 0 * x)
mistake("bias-times-scale", bias=lambda c, x: x * c.scale)


_moves("bias-local-columns", None, _at_slot, "bias_positions")
_moves("bias-query-0", _at_slot, None, "bias_positions")
_moves("alibi-local", _at_slot, _at_slot, "bias_positions")


def _in_order_of_arrival(slots, pair):
    hops = pair.direction * (pair.query.rank - pair.key.rank) % slots.ranks
    pair.key.position = hops * pair.key.slots.count + pair.key.slot


mistake("bias-on-arrival", directed=True, bias_positions=_in_order_of_arrival)
mistake("bias-head-0", bias_head=_first_head)
mistake("local-head", slope_head=_local_head, sink_head=_local_head)
mistake("sink-ignored", sink_times=lambda steps, ranks: 0 * steps)
mistake("sink-every-rank", sink_times=lambda steps, ranks: 0 * steps + ranks)
mistake("sink-every-step", sink_times=lambda steps, ranks: steps)
mistake("sink-head-0", sink_head=_first_head)
