"""Which hypotheses explain some arrays of all cases."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import replace
from typing import Callable, Iterable

import numpy as np

from .mistakes import Mistake
from .problem import ARRAYS, Problem
from .residual import SAFETY, Residuals, Tolerances, Yardstick, widened
from .ring import Arrays, forwards
from .rounding import coarser
from .rules import Rules

NO_FIT = 1e9  #: `worst` of an explanation that is ruled out
_NAMED_ABOVE = 5  # a mistake explains that many times better than "right"
_ALIKE_BELOW = 5  # explanations that are worse by more are no ties
_FAR_OFF = 0.2  # errors of half of the rows: no rounding
_NO_BETTER = 0.9  # than "right": what is left of the squares
_AT_ONCE = 250  # candidates


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What one pass may have done, and how well that fits. No mistake: it is right."""

    mistakes: tuple[Mistake, ...] = ()
    direction: int = 1  #: of the ring
    #: The gradients of K,V go to the rank whose K,V were used, not to the one that should have been used.
    follows_content: bool = False
    forward: Explanation | None = None  #: of a backward: the one before it
    #: Of a backward: it takes the out and lse that the user's forward returned; else the right ones.
    given_own: bool = True
    is_derivative: bool = False  #: of a backward: the gradients are the derivative of the wrong forward
    worst: float = 0  #: the largest row error in tolerances; at most 1: rounding explains what is left
    explained: float = 0  #: 1 - (squares that are left) / (squares of the distance from the right results)

    def rules(self) -> Rules:
        rules = Rules(self.direction, self.follows_content)
        for mistake in self.mistakes:
            mistake.edit(rules)
        return rules

    def any_of(self, word: str) -> bool:
        """Has a mistake this property: in_float, directed, loses_digits?"""
        return any(getattr(mistake, word) for mistake in self.mistakes)

    def simulated_in(self, precision: str) -> str:
        """The type of its simulation for a code in that type."""
        return coarser(precision, "float32") if self.any_of("in_float") else precision

    @property
    def fits(self) -> bool:
        return self.worst <= 1


class Evidence:
    """What a code returned for one case, with what is needed to judge it."""

    def __init__(self, problem: Problem, got: Arrays):
        self.problem, self.got, self.yardstick = problem, got, Yardstick(problem)
        self.right = forwards(problem, [Rules()])[0]  #: simulated, for its pieces

    def translated(self, translate: Callable[[Arrays], Arrays]) -> Evidence:
        other = copy.copy(self)
        other.got = translate(self.got)
        return other

    def has_any(self, which: tuple[str, ...]) -> bool:
        return any(name in self.got for name in which)

    def residual(self, want: Arrays, which: tuple[str, ...], tolerances: Tolerances) -> Residuals:
        return self.yardstick.residuals(self.got, [want], which, tolerances)

    def is_right(self, which: tuple[str, ...], precision: str) -> bool:
        """Is what is left of these arrays the rounding of a type?"""
        return self.residual(self.problem.right, which, self.yardstick.tolerances(precision)).worst[0] <= 1

    def largest_errors(self) -> dict[str, float]:
        """The largest error of each array that a code returned."""
        largest = self.yardstick.largest(self.got, self.problem.right)
        return {name: float(largest[name]) for name in ARRAYS if name in self.got}


#: The arrays of explanations for one case, as a code in some type would return them.
Simulate = Callable[[Evidence, "list[Explanation]", str], "list[Arrays]"]


def _one_of_each(explanations: Iterable[Explanation]) -> list[Explanation]:
    """For each set of mistakes the first."""
    found: dict[frozenset, Explanation] = {}
    for one in explanations:
        found.setdefault(frozenset(one.mistakes), one)
    return list(found.values())


class Search:
    """:param which: arrays that are to be explained
    :param spread: the type is coarser than that of the numbers: only errors that are everywhere are rounding"""

    def __init__(self, cases: list[Evidence], which: tuple[str, ...], precision: str, spread: bool, simulate: Simulate):
        self.which, self.precision, self.spread, self._simulate = which, precision, spread, simulate
        judged = [(one, one.residual(one.problem.right, which, one.yardstick.tolerances(precision)))
                  for one in cases if one.has_any(which)]
        self.right_worst = max((float(residual.worst[0]) for _, residual in judged), default=0.0)
        everywhere = all(residual.median[0] >= self._least(one) for one, residual in judged)
        self.right = self.right_worst <= 1 and (everywhere or not spread)
        judged.sort(key=lambda pair: -pair[1].square[0])
        self.cases = [one for one, _ in judged]  # the one that is furthest from right first
        self.right_squares = [float(residual.square[0]) for _, residual in judged]

    def _tolerances(self, one: Evidence) -> Tolerances:
        return one.yardstick.tolerances(self.precision, states_only=True)

    def _least(self, one: Evidence) -> float:
        """Errors below it are not everywhere."""
        return min(self._tolerances(one).values()) / SAFETY / 50

    def residuals(self, number: int, explanations: list[Explanation]) -> Residuals:
        """The residuals of a case. Where the wrong results need a wider tolerance, with theirs."""
        one, tolerances = self.cases[number], self._tolerances(self.cases[number])
        exact = self._simulate(one, explanations, "float64")
        found = one.yardstick.residuals(one.got, exact, self.which, tolerances)
        # A mistake that does not show in this case leaves right results, which may be merged in either way.
        same = ~(found.worst <= 1) & np.isclose(found.square, self.right_squares[number], rtol=1e-6, atol=0)
        if same.any():
            both_ways = one.yardstick.tolerances(self.precision)
            found.worst[same] = one.residual(one.problem.right, self.which, both_ways).worst[0]
        no_hope = found.most_above(_FAR_OFF) | (found.square > _NO_BETTER * self.right_squares[number])
        wrong = np.flatnonzero(~(found.worst <= 1) & ~no_hope)
        # Wrong results may be larger, and rounding moves them further. Where the mistake is an overflow, the rows that
        # do so are the evidence.
        again = [explanations[i] for i in wrong if not explanations[i].any_of("in_float")]
        stored = dict(zip(again, self._simulate(one, again, self.precision)))
        for i in wrong:
            second, other = None, stored.get(explanations[i])
            if explanations[i].any_of("loses_digits"):
                second = self._of_lost_digits(one, exact[i], tolerances)
            elif other:
                wider = widened(tolerances, one.yardstick.largest(other, exact[i], other))
                second = one.yardstick.residuals(one.got, [exact[i]], self.which, wider, [other])
            if second and second.count[0]:
                found.rows[i], found.worst[i], found.count[i] = second.rows[0], second.worst[0], second.count[0]
        return found

    def _of_lost_digits(self, one: Evidence, want: Arrays, tolerances: Tolerances) -> Residuals | None:
        """Such a mistake does nothing but rounding: as large in every case."""
        right = one.problem.right
        lost = one.yardstick.largest(want, right)
        if max(lost.values()) > _FAR_OFF:  # the hypothesis does more than lose digits
            return None
        expected = one.yardstick.residuals(want, [right], self.which, tolerances).median[0]
        if one.residual(right, self.which, tolerances).median[0] < expected / 10:
            return None
        return one.residual(want, self.which, widened(tolerances, lost))

    def judged(self, candidates: list[Explanation],
               progress: Callable[[int], None] = lambda done: None) -> list[Explanation]:
        """How well they do; of one that does not explain a case, the later cases are not looked at."""
        results = []
        for begin in range(0, len(candidates), _AT_ONCE):
            progress(begin)
            results += self._judged(candidates[begin : begin + _AT_ONCE])
        return results

    def _judged(self, candidates: list[Explanation]) -> list[Explanation]:
        worst, explained, alive = np.zeros(len(candidates)), np.zeros(len(candidates)), np.arange(len(candidates))
        for number, one in enumerate(self.cases):
            if not alive.size:
                break
            left = self.residuals(number, [candidates[i] for i in alive])
            if number == 0:
                explained = 1 - left.square / max(self.right_squares[0], 1e-300)
            not_everywhere = left.median < self._least(one) if self.spread else np.False_
            worst[alive] = np.where(not_everywhere, NO_FIT, np.maximum(worst[alive], left.worst))
            alive = alive[worst[alive] <= 1]
        worst[(worst <= 1) & (self.right_worst < _NAMED_ABOVE * worst)] = NO_FIT
        return [replace(e, worst=float(w), explained=float(x)) for e, w, x in zip(candidates, worst, explained)]

    def _explained(self, explanation: Explanation) -> float:
        """Over all cases."""
        left = sum(float(self.residuals(number, [explanation]).square[0]) for number in range(len(self.cases)))
        return 1 - left / max(sum(self.right_squares), 1e-300)

    def shows(self, number: int, explanations: list[Explanation]) -> np.ndarray:
        """Do they change the arrays of a case? Number 0 is the one that is looked at first."""
        one = self.cases[number]
        found = self._simulate(one, explanations, "float64")
        arrays = {name: np.stack([of_one[name] for of_one in found]) for name in self.which if name in one.got and found}
        return one.yardstick.residuals(arrays, len(found) * [one.problem.right], self.which, self._tolerances(one)).worst > 1

    def fitting(self, candidates: list[Explanation]) -> list[Explanation]:
        """The best first, and for each set of mistakes one."""
        # What changes nothing explains nothing, even if a wider tolerance lets it fit.
        fits = [one for one in candidates if one.fits and any(self.shows(i, [one])[0] for i in range(len(self.cases)))]
        fits = _one_of_each(sorted(fits, key=lambda one: one.worst))
        fits = [one for one in fits if not one.any_of("loses_digits")] or fits
        return [one for one in fits if one.worst <= max(_ALIKE_BELOW * fits[0].worst, 1 / _ALIKE_BELOW)]

    def nearest(self, candidates: list[Explanation], most: int) -> list[Explanation]:
        """The best that do not fit."""
        best = sorted((one for one in candidates if one.explained > 0.5), key=lambda one: -one.explained)
        near = [replace(one, explained=self._explained(one)) for one in _one_of_each(best)[:most]]
        return sorted((one for one in near if one.explained > 0), key=lambda one: -one.explained)
