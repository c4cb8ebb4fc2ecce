"""Mistakes in what a pass makes of its steps: softmax, merge, what is returned, and the sums of the backward."""

from __future__ import annotations

from typing import Callable

import numpy as np

from .problem import BACKWARD, INF, document
from .rounding import rounded
from .rules import Rules, log_add, lse_of, mistake, weights_by_lse
from .tile_edits import modulo

LN2 = np.log(2)

# ---- the softmax of one step, and what the forward returns -----------------------------------------------------------

mistake("no-max", maximum=lambda m: np.zeros_like(m), guarded=False)
mistake("m-starts-0", maximum=lambda m: np.maximum(m, 0.0), guarded=False)
mistake("finite-start", maximum=lambda m: np.maximum(m, -1e4), guarded=False)


def _plain_factors(m, m_new, merged):
    old, new = np.exp(m - merged), np.exp(m_new - merged)
    return old, old, new, new


mistake("unguarded", directed=True, guarded=False, factors=_plain_factors)
mistake("unguarded-row", directed=True, guarded=False, factors=_plain_factors, skips_hidden_tiles=True)
mistake("finite-mask-1e4", hidden_score=-1e4)
mistake("finite-mask", hidden_score=-1e30)
mistake("out-not-normalised", normalised=False)
mistake("lse-added", returned_lse=lambda m, l, lse: np.where(l > 0, m + np.log(l), 0).sum(0))
mistake("lse-of-own-shard", returned_lse=lambda m, l, lse: lse_of(m[0], l[0]))
mistake("lse-of-last-step", directed=True, returned_lse=lambda m, l, lse: lse_of(m[-1], l[-1]))
mistake("lse-is-max", returned_lse=lambda m, l, lse: m.max(0))


def _permute_heads(slots, case, arrays, steps):
    """The all-to-all was not undone: ranks first, then their heads."""
    group, here = slots.job.ulysses, case.heads // case.batch
    heads = np.arange(case.heads) % here
    order = np.arange(case.heads) - heads + heads % group * (here // group) + heads // group
    arrays.update((name, arrays[name][order]) for name in ("out", "lse", "dq") if name in arrays)


mistake("heads-not-returned", after_forward=_permute_heads)
mistake("heads-not-returned-backward", after_backward=_permute_heads)


def _view_for_transpose(slots, case, arrays, steps):
    """[heads, tokens] of a rank, read as [tokens, heads]."""
    for rank in range(0 if case.decodes else slots.job.ranks):
        here = slots.job.tokens_of(rank, slots.tokens)
        read = arrays["out"][:, here].reshape(case.batch, len(here), case.heads // case.batch, -1).swapaxes(1, 2)
        arrays["out"][:, here] = read.reshape(case.heads, len(here), -1)


mistake("view-for-transpose", after_forward=_view_for_transpose)


def _joined_as(placement: str) -> None:
    """The rows of the ranks, put together in the order of another placement."""
    def change(slots, case, arrays, steps):
        job, ranks = slots.job, range(0 if case.decodes else slots.job.ring)
        for name in arrays:
            tokens = case.rows_of(name)
            of_ranks, other = (sum((job.shard(rank, tokens, at) for rank in ranks), []) for at in (None, placement))
            moved = arrays[name].copy()
            moved[:, other] = arrays[name][:, of_ranks]
            arrays[name] = moved

    mistake(f"joined-as-{placement}", after_forward=change, after_backward=change)


_joined_as("zigzag")
_joined_as("striped")

# ---- how what a step has found joins what was found before -----------------------------------------------------------


def _weights(name: str, weigh, directed: bool = False) -> None:
    """The right lse, and other weights."""
    mistake(name, directed, weights=lambda b, p: (*weigh(b, p)[:2], weights_by_lse(b, p)[2], *weigh(b, p)[2:]))


def _by_max(b, p):
    m = log_add(b.m, p.m)
    return np.exp(b.m - m), np.exp(p.m - m), m


def _in_base_2(b, p):
    """2^lse where e^lse should be."""
    lse = log_add(b.lse * LN2, p.lse * LN2)
    return np.exp(b.lse * LN2 - lse), np.exp(p.lse * LN2 - lse), lse / LN2


def _textbook(b, p):
    lse = rounded(b.lse + np.log(1 + rounded(np.exp(p.lse - b.lse), "float32")), "float32")
    return np.exp(b.lse - lse), np.exp(p.lse - lse), lse


_weights("average", lambda b, p: (b.steps / (b.steps + 1), 1 / (b.steps + 1)))
_weights("average-in-turn", lambda b, p: (0.5, 0.5), directed=True)
_weights("sum-normalised", lambda b, p: (1.0, 1.0))
_weights("swapped-sigmoid", lambda b, p: weights_by_lse(b, p)[1::-1], directed=True)
_weights("merge-by-max", _by_max)
mistake("last-wins", directed=True, weights=lambda b, p: (0.0, 1.0, p.lse))


def _other_layout(problem, lse):
    """[tokens, heads] of a rank, read as [heads, tokens]."""
    found = lse.copy()
    for rank, count in () if problem.case.decodes else problem.slots.of_ranks():
        here = lse[:, rank, :, :, :count].reshape(len(lse), lse.shape[2], problem.case.batch * problem.job.ulysses, -1, count)
        found[:, rank, :, :, :count] = here.swapaxes(-1, -2).reshape(found[:, rank, :, :, :count].shape)
    return found


def _padded_offset(problem, lse):
    """The lse of a rank's documents, one after the other, each as long as the longest: read without cutting."""
    slots, found = problem.slots, lse.copy()
    for rank, count in () if problem.case.decodes else slots.of_ranks():
        numbers = document(problem.case, slots.position[rank, :count])
        rows = [np.flatnonzero(numbers == number) for number in np.unique(numbers)]
        longest = max(map(len, rows), default=0)
        padded = [np.pad(some, (0, longest - len(some)), constant_values=-1) for some in rows]
        order = np.array(padded, int).reshape(-1)[:count]
        found[:, rank, :, :, :count] = np.where(order < 0, 0, lse[:, rank][..., order])
    return found


mistake("lse-other-layout", weights=weights_by_lse, lse_read=_other_layout)
mistake("lse-padded-offset", weights=weights_by_lse, lse_read=_padded_offset)
mistake("merge-base-2", weights=weights_by_lse, lse_unit=LN2)
mistake("merge-base-2-back", weights=_in_base_2)
mistake("textbook-lse", directed=True, weights=_textbook)
mistake("empty-lse-inf", directed=True, weights=weights_by_lse, lse_of_nothing=INF)
mistake("bf16-lse", directed=True, weights=weights_by_lse, lse_kept_in="bf16")
mistake("bf16-out", directed=True, weights=weights_by_lse, out_kept_in="bf16")


_inverted = lambda m, to: np.where(m == -INF, 0, np.exp(to - m))  # noqa: E731
mistake("o-not-rescaled", directed=True, factor_edits=lambda f, m, to: (1.0, *f[1:]))
mistake("l-not-rescaled", directed=True, factor_edits=lambda f, m, to: (f[0], 1.0, *f[2:]))
mistake("neither-rescaled", directed=True, factor_edits=lambda f, m, to: (1.0, 1.0, *f[2:]))
mistake("new-not-rescaled", factor_edits=lambda f, m, to: (1.0, 1.0, 1.0, 1.0))
mistake("factor-inverted", directed=True, factor_edits=lambda f, m, to: (_inverted(m, to), _inverted(m, to), *f[2:]))

# ---- the backward alone: how parts add up, and which out and lse they are formed with --------------------------------

_overwrite = lambda total, part, step: part  # noqa: E731
mistake("dkdv-overwritten", directed=True, add_dkdv=_overwrite)
mistake("dq-overwritten", directed=True, add_dq=_overwrite)


def _onto_itself(total, part, step):
    """The part overwrites the sum, and is added to it."""
    if step == 0:
        return part
    half = part.shape[-2] // 2
    some, in_first = (x.any((-3, -2, -1), keepdims=True) for x in (part, part[..., :half, :]))
    found = np.where(some, 2 * part, total)
    if part.shape[-2] == 2 * half:  # zigzag: the second half of the queries stands in the first rows of the buffer
        second = part[..., half:, :]
        moved = np.concatenate([second, total[..., half:, :] + second], axis=-2)
        found = np.where(some & ~in_first, moved, found)
    return found


mistake("dq-one-buffer", directed=True, add_dq=_onto_itself)
mistake("dq-own-step", add_dq=lambda total, part, step: total + part if step == 0 else total)
mistake("part-not-zeroed", directed=True, part_zeroed=False)
mistake("no-delta", delta_from="none")
mistake("delta-own-shard", delta_from="own_shard")
mistake("delta-of-step", delta_from="step")
mistake("lse-own-shard-backward", lse_from="own_shard")
mistake("lse-of-step", lse_from="step")
mistake("saved-lse-overwritten", lse_from="overwritten")
for _array in ("dk", "dq"):
    mistake(f"{_array}-no-scale", **{f"{_array}_factor": lambda c: 1 / c.scale})
    mistake(f"{_array}-scale-twice", **{f"{_array}_factor": lambda c: c.scale})
mistake("lse-scaled-backward", lse_factor=lambda c: c.scale)
mistake("dv-without-l", dv_normalised=False)
mistake("gqa-last-head", dkdv_of=lambda c, h: 1.0 * (h % c.group + 1 == c.group))
mistake("gqa-first-head", dkdv_of=lambda c, h: 1.0 * (h % c.group == 0))
mistake("gqa-mean", dkdv_of=lambda c, h: np.full(len(h), 1 / c.group))
mistake("gqa-wrong-axis", dkdv_head=modulo)
mistake("gqa-fold-groups", dkdv_head=Rules.kv_head, kv_head=modulo)


mistake("dout-order", dout=lambda slots, problem: slots.shards(problem.dout, slots.placed("contiguous")))
mistake("dout-ones", dout=lambda slots, problem: slots.shards(np.ones_like(problem.dout)))
mistake("dkdv-exchanged", after_backward=lambda slots, case, arrays, steps: arrays.update(
    {"dk": arrays["dv"], "dv": arrays["dk"]} if case.value_dim == case.dim else {}))


def _add_pair(slots, case, arrays, steps):
    """(received, sent) taken for (dK, dV), and added: dK = dK + dV, and dV = the same of the rank before."""
    if case.value_dim != case.dim:
        return
    arrays["dk"] = arrays["dk"] + arrays["dv"]
    for rank in range(slots.ranks):
        here, there = (slots.job.shard(r, case.tokens) for r in (rank, steps.behind(rank, -1)))
        both = min(len(here), len(there))
        arrays["dv"][:, here[:both]] = arrays["dk"][:, there[:both]]


mistake("dkdv-pair-added", directed=True, after_backward=_add_pair)


def _scales(name: str, names: tuple[str, ...], factor: Callable[[int], float]) -> None:
    mistake(name, after_backward=lambda slots, case, arrays, steps: arrays.update(
        {array: arrays[array] * factor(slots.job.ranks) for array in names}))


for _word, _factor in (("over", lambda n: 1 / n), ("times", lambda n: n)):
    _scales(f"dkdv-{_word}-ranks", ("dk", "dv"), _factor)
    _scales(f"gradients-{_word}-ranks", BACKWARD, _factor)
mistake("unguarded-backward", guarded=False)
mistake("dkdv-bf16", directed=True, dkdv_kept_in="bf16")
mistake("dq-bf16", directed=True, dq_kept_in="bf16")
