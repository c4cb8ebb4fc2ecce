"""`Plan`: what some rules amount to for one problem, in numbers. The letters are those of rules.py."""

from __future__ import annotations

import numpy as np

from .problem import Problem
from .rules import Pair, Rules


class Plan:
    """The numbers of some rules for one problem: whose K,V at which step, which keys are seen, and so on."""

    def __init__(self, problem: Problem, rules: Rules):
        c, slots, heads = problem.case, problem.slots, np.arange(problem.case.heads)
        self.rules, key = rules, ("steps", rules.schedule, rules.direction, rules.follows_content)
        if key not in problem.cache:
            problem.cache[key] = rules.steps(slots.ranks)
        self.steps = problem.cache[key]
        self.seen, twice = self._seen(problem)
        self.bias = twice * rules.counts_twice if c.block else self._bias(problem, heads)  #: what scores have more

    def _pair(self, problem: Problem, edits) -> Pair:
        pair = Pair(problem.slots, problem.key_slots, problem.case.first_query, self.steps)
        for edit in edits:
            edit(problem.slots, pair)
        return pair

    def _seen(self, problem: Problem) -> tuple[np.ndarray, np.ndarray]:
        """Which pairs are seen, [R, T, 1, N, N], and what the scores of pairs that may count twice have more then."""
        c, r, steps = problem.case, self.rules, self.steps
        rules = [getattr(r, mask) for mask in ("causal", "window", "documents") if getattr(c, mask)]
        more = [r.block, r.first_keys] if c.block else []
        key = ("seen", steps.k.tobytes(), steps.positions.tobytes(), r.padding, r.skips_partial_tiles, r.mask_positions,
               *rules, *more)
        if key not in problem.cache:
            p = self._pair(problem, r.mask_positions)
            seen = np.ones((*steps.k.shape, problem.slots.count, problem.key_slots.count), bool)
            for rule in rules:
                seen &= rule(c, p)
            twice = seen & r.first_keys(c, p)
            for rule in more:
                seen |= rule(c, p)
            seen &= r.padding(c, p)
            if r.skips_partial_tiles:
                plain = self._pair(problem, ())
                tokens = np.maximum(plain.query.position, plain.content.position) < c.tokens
                seen &= ~((seen & tokens).sum((2, 3)) < tokens.sum((2, 3)))[:, :, None, None]
            problem.cache[key] = seen[:, :, None], np.where(twice, np.log(2), 0)[:, :, None]
        return problem.cache[key]

    def _bias(self, problem: Problem, heads: np.ndarray) -> np.ndarray | None:
        """[R, T, H, N, N]"""
        c, r = problem.case, self.rules
        if not (c.alibi or c.bias):
            return None
        key = ("bias", self.steps.positions.tobytes(), r.direction, r.bias, r.slope_head, r.bias_head, r.bias_positions)
        if key not in problem.cache:
            p = self._pair(problem, r.bias_positions)
            shape = (*self.steps.k.shape, problem.slots.count, problem.key_slots.count)
            query, key_at = (np.broadcast_to(place.position, shape) for place in (p.query, p.key))
            if c.alibi:
                slopes = problem.slopes[r.slope_head(c, heads)][:, None, None]
                bias = r.bias(c, -slopes * abs(query - key_at)[:, :, None])
            else:
                inside = np.maximum(query, key_at) < c.tokens
                of_pairs = problem.bias[r.bias_head(c, heads)][:, query * inside, key_at * inside]
                bias = np.where(inside[:, :, None], r.bias(c, np.moveaxis(of_pairs, 0, 2)), 0)
            problem.cache[key] = bias
        return problem.cache[key]
