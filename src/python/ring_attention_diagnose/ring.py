"""A ring of ranks, simulated: what it hands back under given rules, right or wrong.

No rank runs and no message is sent: all tiles are computed here, densely and in double. Ulysses is a ring of fewer
ranks, whose heads may be mixed up. Many rules are simulated at once: B is the axis of those that differ only in
numbers, and the arrays are [B, R, T, H, N, ...], with the letters of rules.py.
"""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Callable, Iterable

import numpy as np

from .plan import Plan
from .problem import BACKWARD, INF, Problem
from .rounding import product, rounded, sums_of
from .rules import NO_RANK, Rules, lse_of, rescale

Arrays = dict  #: name: [heads, tokens, dim] in the order of positions; lse is [heads, tokens, 1]

# The fields in which rules of one batch are the same: functions and switches. The others become numbers.
_FORWARD_KEY = ("q", "kv", "maximum", "guarded", "skips_hidden_tiles", "factors", "factor_edits", "weights", "lse_unit",
                "lse_of_nothing", "lse_read", "out_kept_in", "lse_kept_in", "sink_times", "normalised", "returned_lse")
_BACKWARD_KEY = ("kv", "guarded", "lse_from", "dv_normalised", "delta_from", "add_dq", "add_dkdv", "part_zeroed",
                 "dq_kept_in", "dkdv_kept_in")
_MOST_SCORES = 300_000  # of a batch: larger ones do not fit the caches


@dataclasses.dataclass
class Forward:
    """out and lse, and what the backward may need: the normalised out and the lse of each step, [R, T, H, N, ...]."""

    arrays: Arrays
    piece_out: np.ndarray
    piece_lse: np.ndarray


def _col(x: np.ndarray) -> np.ndarray:
    return np.asarray(x)[..., None]


class _Batch:
    """Plans whose rules have the same functions."""

    def __init__(self, problem: Problem, plans: list[Plan], precision: str):
        self.problem, self.c, self.slots, self.plans = problem, problem.case, problem.slots, plans
        self.rules, self.heads = plans[0].rules, np.arange(problem.case.heads)
        self.precision, self.sums = precision, sums_of(precision)
        self.scale = self.numbers(lambda r: r.scale(self.c))

    def low(self, x: np.ndarray) -> np.ndarray:
        return rounded(x, self.precision)

    def sum(self, x: np.ndarray) -> np.ndarray:
        return rounded(x, self.sums)

    def stack(self, of: Callable[[Plan], np.ndarray]) -> np.ndarray:
        """[B, ...]: what the plans do not share."""
        return np.stack([of(plan) for plan in self.plans])

    def numbers(self, of: Callable[[Rules], float]) -> np.ndarray:
        """[B, 1, 1, 1, 1, 1]: a number of each plan."""
        return self.stack(lambda plan: np.full((1, 1, 1, 1, 1), of(plan.rules), float))

    def of_steps(self, array: str) -> np.ndarray:
        """K or V of each step, by query head: [B, R, T, H, N, D]"""
        rank = self.stack(lambda plan: getattr(plan.steps, array))[..., None]
        head = self.stack(lambda plan: plan.rules.kv_head(self.c, self.heads))[:, None, None]
        return self.rules.kv(self.problem, array)[rank, head]

    def of_products(self, rule: str) -> np.ndarray:
        """A rule of the products of the scores."""
        return np.stack([getattr(plan.rules, rule)(self.c, x) for plan, x in zip(self.plans, self.products)])

    def scores(self) -> np.ndarray:
        """[B, R, T, H, N, N]; -inf hides a key."""
        q = self.rules.q(self.problem)[None, :, None]
        scores = self.products = self.scale * product(q, self.of_steps("k").swapaxes(-1, -2), self.sums)
        if self.c.softcap:
            scores = self.of_products("capped")
        if self.plans[0].bias is not None:
            scores = scores + self.stack(lambda plan: plan.bias)
        hidden = self.numbers(lambda r: -self.c.softcap if r.caps_hidden and self.c.softcap else r.hidden_score)
        return np.where(self.stack(lambda plan: plan.seen), self.sum(scores), hidden)

    # ---- forward ----------------------------------------------------------------------------------------------------

    def forward(self) -> list[Forward]:
        r = self.rules
        steps = self.softmaxes(self.scores())
        row = self.with_sink((self.merged_pieces if r.weights else self.merged_states)(steps), steps)
        lse = lse_of(row.m, row.l) if r.guarded else row.m + np.log(row.l)
        lse = self.sum(r.returned_lse(np.moveaxis(steps.m, 2, 0), np.moveaxis(steps.l, 2, 0), lse))
        out = self.slots.joined(self.low(self.out_of(row, r.guarded) if r.normalised else row.o))
        lse, piece_out, piece_lse = self.slots.joined(_col(lse)), self.out_of(steps, True), lse_of(steps.m, steps.l)
        return [Forward(self.edited(plan, plan.rules.after_forward, {"out": out, "lse": lse}), *pieces)
                for plan, out, lse, *pieces in zip(self.plans, out, lse, piece_out, piece_lse)]

    def edited(self, plan: Plan, edits: Iterable[Callable], arrays: Arrays) -> Arrays:
        for edit in edits:
            edit(self.slots, self.c, arrays, plan.steps)
        return arrays

    def softmaxes(self, s: np.ndarray) -> SimpleNamespace:
        """o, m and l of all steps; o is not normalised."""
        r, most = self.rules, s.max(-1)
        skipped = _col(most.max(-1) == -INF) if r.skips_hidden_tiles else np.False_
        m = r.maximum(most)
        p = np.exp(s - _col(m))
        if r.guarded or r.skips_hidden_tiles:
            p = np.where(_col((m == -INF) & (r.guarded | skipped)), 0.0, p)
        p = self.sum(p)
        o = self.sum(product(self.low(p), self.of_steps("v"), self.sums))
        return SimpleNamespace(m=m, l=self.sum(p.sum(-1)), o=o, skipped=np.broadcast_to(skipped, m.shape))

    def merged_states(self, steps: SimpleNamespace) -> SimpleNamespace:
        """The online merge: (o, m, l) of each step in turn."""
        o, m, l = steps.o[:, :, 0], steps.m[:, :, 0], steps.l[:, :, 0]
        for step in range(1, steps.m.shape[2]):
            new_o, new_m, new_l = steps.o[:, :, step], steps.m[:, :, step], steps.l[:, :, step]
            merged = np.maximum(m, new_m)
            factors = self.rules.factors(m, new_m, merged)
            for edit in self.rules.factor_edits:
                factors = edit(factors, m, merged)
            f_o, f_l, n_o, n_l = factors
            both = self.sum(_col(f_o) * o + _col(n_o) * new_o), self.sum(f_l * l + n_l * new_l), merged
            if self.rules.skips_hidden_tiles:
                skipped = steps.skipped[:, :, step]
                both = np.where(_col(skipped), o, both[0]), np.where(skipped, l, both[1]), np.where(skipped, m, merged)
            o, l, m = both
        return SimpleNamespace(o=o, m=m, l=l)

    def merged_pieces(self, steps: SimpleNamespace) -> SimpleNamespace:
        """The merge of normalised pieces (out, lse). As a state: o = out, m = lse, l = 1."""
        r, has_keys, outs = self.rules, steps.l > 0, self.out_of(steps, True)
        lses = np.where(has_keys, self.sum(lse_of(steps.m, steps.l) / r.lse_unit), r.lse_of_nothing)
        if r.lse_read:
            lses = r.lse_read(self.problem, lses)
        out, nothing = np.zeros_like(outs[:, :, 0]), np.full_like(lses[:, :, 0], -INF)
        all = SimpleNamespace(lse=nothing, m=nothing, steps=np.zeros_like(nothing))
        for step in range(lses.shape[2]):
            new = outs[:, :, step]
            piece = SimpleNamespace(lse=lses[:, :, step], m=steps.m[:, :, step], steps=1.0 * has_keys[:, :, step])
            weight, new_weight, lse, *m = r.weights(all, piece)
            first, none = all.lse == -INF, piece.lse == -INF
            pick = lambda old, new, both: np.where(none, old, np.where(first, new, both))  # noqa: B023, E731
            merged = _col(weight) * out + _col(new_weight) * new
            out = np.where(_col(none), out, np.where(_col(first), new, merged))
            out = rounded(out, r.out_kept_in or self.sums)
            all = SimpleNamespace(lse=rounded(pick(all.lse, piece.lse, lse), r.lse_kept_in or self.sums),
                                  m=pick(all.m, piece.m, m[0] if m else 0.0),
                                  steps=np.where(none, all.steps, all.steps + piece.steps))
        return SimpleNamespace(o=out, m=all.lse, l=np.where(all.lse == -INF, 0.0, 1.0))

    @staticmethod
    def out_of(row, guarded: bool) -> np.ndarray:
        return np.where(_col(row.l) > 0, row.o / _col(row.l), 0.0) if guarded else row.o / _col(row.l)

    def with_sink(self, row: SimpleNamespace, steps: SimpleNamespace) -> SimpleNamespace:
        if not self.c.sinks:
            return row
        sinks = self.stack(lambda plan: self.problem.sinks[plan.rules.sink_head(self.c, self.heads)])
        times = self.rules.sink_times(1.0 * (steps.l > 0).sum(2), self.slots.ranks)
        sink = np.where(times == 0, -INF, sinks[:, None, :, None])
        m = np.maximum(row.m, sink)
        factor = rescale(row.m, m)
        return SimpleNamespace(o=row.o * _col(factor), m=m, l=row.l * factor + times * rescale(sink, m))

    # ---- backward ---------------------------------------------------------------------------------------------------

    def backward(self, given: Forward) -> list[Arrays]:
        r, scores = self.rules, self.scores()
        dout = self.stack(lambda plan: plan.rules.dout(self.slots, self.problem))  # [B, R, H, N, D]
        lse = self.given(given, r.lse_from, self.slots.shards(given.arrays["lse"])[..., 0], given.piece_lse)
        lse = lse * self.numbers(lambda r: r.lse_factor(self.c))[..., 0]
        p = self.sum(np.exp(scores - _col(lse)))
        if r.guarded:
            p = np.where((scores == -INF) | (_col(lse) == -INF), 0.0, p)
        by_step = dout[:, :, None]
        ds = product(by_step, self.of_steps("v").swapaxes(-1, -2), self.sums)
        if r.delta_from != "none":
            out = self.given(given, r.delta_from, self.slots.shards(given.arrays["out"]), given.piece_out)
            ds = ds - _col(self.sum((by_step * out).sum(-1)))
        ds = self.low(p * ds * (self.of_products("cap_slope") if self.c.softcap else 1.0))
        dq = self.scale * self.numbers(lambda r: r.dq_factor(self.c)) * product(ds, self.of_steps("k"), self.sums)
        q = self.problem.shards("q")[None, :, None]
        dk = self.scale * self.numbers(lambda r: r.dk_factor(self.c)) * product(ds.swapaxes(-1, -2), q, self.sums)
        if not r.dv_normalised:
            p = self.sum(rescale(scores, scores.max((2, 5), keepdims=True)))
        dv = product(self.low(p).swapaxes(-1, -2), by_step, self.sums)
        dq = self.slots.joined(self.sum_of_steps(dq))
        dk, dv = self.handed_out("dk_to", dk), self.handed_out("dv_to", dv)
        found = [self.edited(plan, plan.rules.after_backward, dict(zip(BACKWARD, arrays)))
                 for plan, *arrays in zip(self.plans, dq, dk, dv)]
        return [{name: self.low(array) for name, array in arrays.items()} for arrays in found]

    def given(self, given: Forward, source: str, whole: np.ndarray, pieces: np.ndarray) -> np.ndarray:
        """[R, T, ...]: out or lse of the forward, as each step takes it."""
        if source in ("whole", "none"):
            return whole[:, None]
        if source == "overwritten":  # of step 0, by the merge: e^{lse_0 - lse} counts twice. In zigzag on rank 0 only:
            # the others next see half of the keys for all queries, and merge that into a new array
            ranks = slice(1 if self.slots.job.placement == "zigzag" else None)
            lse = np.repeat(whole[:, None], self.plans[0].steps.count, axis=1)
            lse[ranks, 0] += whole[ranks] - pieces[ranks, 0]
            return lse
        steps = np.minimum(np.arange(self.plans[0].steps.count), pieces.shape[1] - 1)
        return pieces[:, steps if source == "step" else 0 * steps]

    def sum_of_steps(self, parts: np.ndarray) -> np.ndarray:
        total = np.zeros_like(parts[:, :, 0])
        for step in range(parts.shape[2]):
            total = rounded(self.rules.add_dq(total, parts[:, :, step], step), self.rules.dq_kept_in or self.sums)
        return total

    def handed_out(self, name: str, parts: np.ndarray) -> np.ndarray:
        """[B, kv_heads, tokens, D]: adds what the queries of one rank give to the keys of another."""
        r, to = self.rules, self.stack(lambda plan: getattr(plan.steps, name))
        if not r.part_zeroed:
            parts = np.cumsum(parts, axis=2)
        batch, ranks = np.arange(len(to))[:, None], self.slots.ranks
        total = np.zeros((len(to), ranks, *parts.shape[3:]))
        kept_in = r.dkdv_kept_in or self.sums
        for step in range(to.shape[2]):
            rows = to[:, :, step]
            if (np.sort(rows, axis=1) == np.arange(ranks)).all():  # each rank gets one part
                total[batch, rows] = rounded(r.add_dkdv(total[batch, rows], parts[:, :, step], step), kept_in)
                continue
            for rank in range(ranks):
                some = np.flatnonzero(rows[:, rank] != NO_RANK)
                where = some, rows[some, rank]
                total[where] = rounded(r.add_dkdv(total[where], parts[some, rank, step], step), kept_in)
        return self.over_groups(self.problem.key_slots.joined(total))

    def over_groups(self, of_query_heads: np.ndarray) -> np.ndarray:
        c, batch = self.c, np.arange(len(self.plans))
        sums = np.zeros((len(self.plans), c.kv_heads, c.tokens, of_query_heads.shape[-1]))
        to = self.stack(lambda plan: (plan.rules.dkdv_head or plan.rules.kv_head)(c, self.heads))
        times = self.stack(lambda plan: plan.rules.dkdv_of(c, self.heads))
        for head in self.heads:
            sums[batch, to[:, head]] += times[:, head, None, None] * of_query_heads[:, head]
        return sums


def in_groups(items: list, key_of: Callable, run: Callable) -> list:
    """The results of `run(key, items)`, which takes items of one key at a time, in the order of the items."""
    groups: dict = {}
    for i, item in enumerate(items):
        groups.setdefault(key_of(item), []).append(i)
    results = [None] * len(items)
    for key, numbers in groups.items():
        for i, result in zip(numbers, run(key, [items[i] for i in numbers])):
            results[i] = result
    return results


def _simulated(problem: Problem, rules: Iterable[Rules], precision: str, fields: tuple[str, ...], run) -> list:
    """`run` of batches, in the order of the rules."""
    def of_one_key(_: tuple, plans: list[Plan]) -> Iterable:
        size = max(1, _MOST_SCORES // (plans[0].seen.size * problem.case.heads))
        for begin in range(0, len(plans), size):
            yield from run(_Batch(problem, plans[begin : begin + size], precision))

    with np.errstate(all="ignore"):
        return in_groups([Plan(problem, one) for one in rules],
                         lambda plan: (plan.steps.count, *(getattr(plan.rules, field) for field in fields)), of_one_key)


def forwards(problem: Problem, rules: Iterable[Rules], precision: str = "float64") -> list[Forward]:
    """:param precision: of the code: numbers that it would store in that type are rounded to it"""
    return _simulated(problem, rules, precision, _FORWARD_KEY, _Batch.forward)


def backwards(problem: Problem, rules: Iterable[Rules], given: Forward, precision: str = "float64") -> list[Arrays]:
    """dq, dk and dv of backwards that take out and lse from `given`. Its pieces are those of the user's forward."""
    return _simulated(problem, rules, precision, _BACKWARD_KEY, lambda batch: batch.backward(given))


def simulated(problem: Problem, precision: str, forward: Rules, backward: Rules) -> Arrays:
    """All arrays of one ring."""
    (given,) = forwards(problem, [forward], precision)
    return {**given.arrays, **backwards(problem, [backward], given, precision)[0]}
