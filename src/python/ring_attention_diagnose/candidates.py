"""Which hypotheses are worth trying, and what each of them returns."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from typing import Iterable

import numpy as np

from .mistakes import Mistake
from .problem import BACKWARD, FORWARD, Problem
from .residual import BEYOND_FLOAT, SAFETY
from .ring import Arrays, Forward, backwards, forwards, in_groups
from .rounding import random_array
from .search import Evidence, Explanation, Search


def singles(mistakes: Iterable[Mistake], ring: int, base: Explanation) -> tuple[Explanation, ...]:
    """Single mistakes of a pass, in both directions of the ring where that matters, on top of `base`."""
    return _singles(tuple(mistakes), ring, base)


@functools.lru_cache(maxsize=64)  # each type of numbers, and each case alone, tries the same
def _singles(mistakes: tuple[Mistake, ...], ring: int, base: Explanation) -> tuple[Explanation, ...]:
    found = []
    for mistake in mistakes:
        if (mistake.in_backward if base.forward else mistake.in_forward) and mistake not in base.mistakes:
            one = replace(base, mistakes=(*base.mistakes, mistake))
            follows = {base.follows_content, base.follows_content or bool(base.forward) and mistake.moves_content}
            for direction in (1, -1) if ring > 2 and one.any_of("directed") else (1,):
                found += [replace(one, direction=direction, follows_content=f) for f in sorted(follows)]
    return tuple(found)


def pairs(candidates: Iterable[Explanation], search: Search) -> list[Explanation]:
    """All pairs of these that may explain the case which `search` looks at first."""
    some = [one for one in candidates if not one.any_of("loses_digits")]
    shows = search.shows(0, some)
    explains = shows & (search.residuals(0, some).worst <= 1)
    # What does not show in the first case leaves it to the other to explain it.
    worth = shows[:, None] & shows | explains[:, None] | explains
    return [pair for i, j in np.argwhere(np.tril(worth, -1)) for pair in _joined(some[j], some[i])]


def _joined(first: Explanation, second: Explanation) -> list[Explanation]:
    """An explanation with the mistakes of the two, if one ring can make them."""
    turns = {one.direction for one in (first, second) if one.any_of("directed")}
    if len(turns) == 2 or first.mistakes == second.mistakes:
        return []
    return [replace(second, mistakes=first.mistakes + second.mistakes, direction=turns.pop() if turns else 1,
                    follows_content=first.follows_content or second.follows_content)]


class Simulations:
    """What was simulated once, for one type of numbers, is not simulated again for another. It outlives the
    searches."""

    def __init__(self):
        self._known: dict[tuple, Arrays] = {}

    def arrays(self, one: Evidence, explanations: list[Explanation], precision: str) -> list[Arrays]:
        """out and lse of forwards; dq, dk and dv of backwards."""
        def key_of(e: Explanation) -> tuple:
            of_users = e.forward and e.given_own and not e.forward.mistakes
            group = one if of_users else one.problem, e.forward, e.given_own, e.simulated_in(precision)
            return group, e.mistakes, e.direction, e.follows_content

        keys = [key_of(e) for e in explanations]
        missing = {key: e for key, e in zip(keys, explanations) if key not in self._known}
        run = lambda group, some: _simulated(one, [missing[key] for key in some], group[-1])  # noqa: E731
        new = dict(zip(missing, in_groups(list(missing), lambda key: key[0], run)))
        self._known.update((key, arrays) for key, arrays in new.items() if len(key[1]) < 2)
        return [new[key] if key in new else self._known[key] for key in keys]


def _simulated(one: Evidence, explanations: list[Explanation], precision: str) -> Iterable[Arrays]:
    """What passes after one forward return, or forwards."""
    first, rules = explanations[0], [e.rules() for e in explanations]
    if not first.forward:
        return (found.arrays for found in forwards(one.problem, rules, precision))
    given = _own_forward(first.forward, one, precision) if first.given_own else one.right
    found = backwards(one.problem, rules, given, precision)
    return map(_without_nan, found) if any(np.isnan(given.arrays[name]).any() for name in FORWARD) else found


def _own_forward(forward: Explanation, one: Evidence, precision: str) -> Forward:
    """What a wrong forward returned: what the user has, or else what is simulated."""
    (own,) = forwards(one.problem, [forward.rules()], forward.simulated_in(precision))
    if not forward.mistakes:
        own.arrays.update((name, one.got[name]) for name in FORWARD if name in one.got)
    return own


def _without_nan(gradients: Arrays) -> Arrays:
    """Where NaN of a forward goes depends on whether a code multiplies it by the zeros of hidden pairs: nothing can be
    said."""
    return {name: np.where(np.isnan(array), BEYOND_FLOAT, array) for name, array in gradients.items()}


def _loss(problem: Problem, forward: Explanation, moved: Arrays) -> float:
    """The loss of the case with some other arrays; its gradient with respect to out is dout."""
    (found,) = forwards(problem.given(moved), [forward.rules()], forward.simulated_in("float64"))
    return (found.arrays["out"] * problem.dout).sum()


def is_derivative(cases: list[Evidence], forward: Explanation, precision: str) -> bool:
    """Are the gradients the derivative of a wrong forward? Along a few directions, by differences."""
    step, least = 1e-5, 1e-5
    gradients = [(one, name) for one in cases for name in BACKWARD
                 if name in one.got and not one.problem.case.large_scores]  # steps would have to be smaller
    for (one, name), seed in itertools.product(gradients, range(3)):
        problem, got, array = one.problem, one.got[name], name[1]
        direction = random_array(got.shape, seed, 99)
        before, after = (_loss(problem, forward, {array: getattr(problem, array) + side * direction})
                         for side in (-step, step))
        tolerance = max(SAFETY * least, one.yardstick.tolerances(precision)[name])
        difference = (got * direction).sum() - (after - before) / (2 * step)
        if not abs(difference) <= tolerance * np.sqrt((got**2).sum()):
            return False
    return bool(gradients)
