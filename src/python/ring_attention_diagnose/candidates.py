"""Which hypotheses are worth trying, and what each of them returns."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Callable, Iterable

import numpy as np

from .mistakes import Mistake
from .problem import BACKWARD, FORWARD
from .residual import BEYOND_FLOAT, SAFETY
from .ring import Arrays, Forward, backwards, forwards, in_groups
from .rounding import coarser, random_array
from .rules import Rules
from .search import Evidence, Explanation, Search, Simulate


def singles(mistakes: Iterable[Mistake], backward: bool, ring: int,
            base: Explanation = Explanation()) -> list[Explanation]:
    """Single mistakes of a pass, in both directions of the ring where that matters, on top of `base`."""
    found = []
    for mistake in mistakes:
        if not (mistake.in_backward if backward else mistake.in_forward) or mistake in base.mistakes:
            continue
        if mistake.loses_digits and base.mistakes:
            continue
        one = replace(base, mistakes=(*base.mistakes, mistake))
        follows = {base.follows_content: 0, **({True: 0} if backward and mistake.moves_content else {})}
        for direction in (1, -1) if ring > 2 and one.any_of("directed") else (1,):
            found += [replace(one, direction=direction, follows_content=f) for f in follows]
    return found


def pairs(candidates: list[Explanation], search: Search) -> list[Explanation]:
    """All pairs of these that may explain the case which `search` looks at first."""
    some = [one for one in candidates if not one.any_of("loses_digits")]
    shows = search.shows(0, some)
    explains = shows & search.explains_first(some)
    found = []
    for i, second in enumerate(some):
        for j, first in enumerate(some[:i]):
            # What does not show in the first case leaves it to the other to explain it.
            if (shows[i] and shows[j]) or explains[i] or explains[j]:
                found += _joined(first, second)
    return found


def _joined(first: Explanation, second: Explanation) -> list[Explanation]:
    """An explanation with the mistakes of the two, if one ring can make them."""
    turns = {one.direction for one in (first, second) if one.any_of("directed")}
    if len(turns) == 2 or second.mistakes[-1] in first.mistakes:
        return []
    return [replace(second, mistakes=(*first.mistakes, second.mistakes[-1]), direction=turns.pop() if turns else 1,
                    follows_content=first.follows_content or second.follows_content)]


class Simulations:
    """What was simulated once, for one type of numbers, is not simulated again for another. It outlives the
    searches."""

    def __init__(self):
        self._known: dict[tuple, Arrays] = {}

    def _remembering(self, explanations: list[Explanation], group_of: Callable[[Explanation], tuple],
                     simulate: Callable[[tuple, list[Rules]], Iterable[Arrays]]) -> list[Arrays]:
        keys = [(group_of(one), one.mistakes, one.direction, one.follows_content) for one in explanations]
        missing = {key: one for key, one in zip(keys, explanations) if key not in self._known}
        run = lambda group, some: simulate(group, [missing[key].rules() for key in some])  # noqa: E731
        new = dict(zip(missing, in_groups(list(missing), lambda key: key[0], run)))
        self._known.update((key, arrays) for key, arrays in new.items() if len(key[1]) < 2)
        return [new[key] if key in new else self._known[key] for key in keys]

    def forward(self) -> Simulate:
        """out and lse of forwards."""
        def simulate(one: Evidence, explanations: list[Explanation], precision: str) -> list[Arrays]:
            run = lambda group, rules: (found.arrays for found in forwards(one.problem, rules, group[1]))  # noqa: E731
            return self._remembering(explanations, lambda e: (one.problem, _type_of(e, precision)), run)

        return simulate

    def backward(self, of: Explanation) -> Simulate:
        """dq, dk and dv of backwards, whose forward is explained by `of`."""
        own = functools.lru_cache(maxsize=None)(functools.partial(_own_forward, of))

        def simulate(one: Evidence, explanations: list[Explanation], precision: str) -> list[Arrays]:
            def run(group: tuple, rules: list[Rules]) -> Iterable[Arrays]:
                given = own(one, precision) if group[0] else one.right
                found = backwards(one.problem, rules, given, precision)
                return map(_without_nan, found) if group[0] and _has_nan(given) else found

            where = one.problem if of.mistakes else one
            return self._remembering(explanations, lambda e: (
                e.given_own, where if e.given_own else one.problem, of, precision), run)

        return simulate


def _type_of(forward: Explanation, precision: str) -> str:
    return coarser(precision, "float32") if forward.any_of("in_float") else precision


def _own_forward(forward: Explanation, one: Evidence, precision: str) -> Forward:
    """What a wrong forward returned: what the user has, or else what is simulated."""
    (own,) = forwards(one.problem, [forward.rules()], _type_of(forward, precision))
    if not forward.mistakes:
        own.arrays.update((name, one.got[name]) for name in FORWARD if name in one.got)
    return own


def _has_nan(forward: Forward) -> bool:
    return any(np.isnan(forward.arrays[name]).any() for name in FORWARD)


def _without_nan(gradients: Arrays) -> Arrays:
    """Where NaN of a forward goes depends on whether a code multiplies it by the zeros of hidden pairs: nothing can be
    said."""
    return {name: np.where(np.isnan(array), BEYOND_FLOAT, array) for name, array in gradients.items()}


def is_derivative(cases: list[Evidence], forward: Explanation, precision: str) -> bool:
    """Are the gradients the derivative of a wrong forward? Along a few directions, by differences."""
    step, least, looked = 1e-5, 1e-5, False
    for one in cases:
        if one.problem.case.large_scores:  # steps would have to be smaller
            continue
        for gradient in BACKWARD:
            if gradient not in one.got:
                continue
            got = one.got[gradient]
            tolerance = max(SAFETY * least, one.yardstick.tolerances(precision)[gradient])
            for seed in range(3):
                direction = random_array(got.shape, seed, 99)
                loss = []
                for side in (-step, step):
                    moved = one.problem.given({gradient[1]: getattr(one.problem, gradient[1]) + side * direction})
                    out = forwards(moved, [forward.rules()], _type_of(forward, "float64"))[0].arrays["out"]
                    loss.append((out * moved.dout).sum())
                slope = (loss[1] - loss[0]) / (2 * step)
                if not abs((got * direction).sum() - slope) <= tolerance * np.sqrt((got**2).sum()):
                    return False
                looked = True
    return looked
