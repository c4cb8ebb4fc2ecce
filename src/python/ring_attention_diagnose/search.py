"""Which hypotheses explain some arrays of all cases."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Callable

import numpy as np

from .mistakes import Mistake
from .problem import Problem
from .residual import SAFETY, Residuals, Tolerances, Yardstick
from .ring import Arrays, forwards, in_groups
from .rules import Rules
from .tile_edits import follow_content

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
    #: Of a backward: it takes the out and lse that the user's forward returned; else the right ones.
    given_own: bool = True
    is_derivative: bool = False  #: of a backward: the gradients are the derivative of the wrong forward
    worst: float = 0  #: the largest row error in tolerances; at most 1: rounding explains what is left
    explained: float = 0  #: 1 - (squares that are left) / (squares of the distance from the right results)

    def rules(self) -> Rules:
        rules = Rules(direction=self.direction)
        for mistake in self.mistakes:
            mistake.edit(rules)
        if self.follows_content:
            rules.schedule = (*rules.schedule, follow_content)
        return rules

    def any_of(self, word: str) -> bool:
        """Has a mistake this property: in_float, directed, loses_digits?"""
        return any(getattr(mistake, word) for mistake in self.mistakes)

    @property
    def fits(self) -> bool:
        return self.worst <= 1


class Evidence:
    """What a code returned for one case, with what is needed to judge it."""

    def __init__(self, problem: Problem, got: Arrays, known: Evidence | None = None):
        self.problem, self.got = problem, got
        self.yardstick = known.yardstick if known else Yardstick(problem)
        self.right = known.right if known else forwards(problem, [Rules()])[0]  #: simulated, for its pieces

    def has_any(self, which: tuple[str, ...]) -> bool:
        return any(name in self.got for name in which)

    def residual(self, want: Arrays, which: tuple[str, ...], tolerances: Tolerances) -> Residuals:
        return self.yardstick.residuals(self.got, [want], which, tolerances)


#: The arrays of explanations for one case, in a type of numbers.
Simulate = Callable[[Evidence, "list[Explanation]", str], "list[Arrays]"]


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

    def _simulated(self, one: Evidence, explanations: list[Explanation], precisions: list[str]) -> list[Arrays]:
        return in_groups(list(zip(precisions, explanations)), lambda pair: pair[0],
                         lambda precision, some: self._simulate(one, [pair[1] for pair in some], precision))

    def _exact(self, one: Evidence, explanations: list[Explanation]) -> list[Arrays]:
        precisions = ["float32" if e.any_of("in_float") else "float64" for e in explanations]
        return self._simulated(one, explanations, precisions)

    def _residuals(self, number: int, explanations: list[Explanation]) -> Residuals:
        """The residuals of a case. Where the wrong results need a wider tolerance, with theirs."""
        one, tolerances = self.cases[number], self._tolerances(self.cases[number])
        exact = self._exact(one, explanations)
        first = one.yardstick.residuals(one.got, exact, self.which, tolerances)
        no_hope = (first.median > _FAR_OFF) | (first.square > _NO_BETTER * self.right_squares[number])
        again = []
        for i in np.flatnonzero(~(first.worst <= 1) & ~no_hope):
            if explanations[i].any_of("loses_digits"):
                self._replace(first, i, self._of_lost_digits(one, exact[i], tolerances))
            else:
                again.append(i)
        # Wrong results may be larger, and rounding moves them further. Where the mistake is an overflow, the rows that
        # do so are the evidence.
        overflows = [explanations[i].any_of("in_float") for i in again]
        precisions = ["float64" if over else self.precision for over in overflows]
        others = self._simulated(one, [explanations[i] for i in again], precisions)
        for i, over, other in zip(again, overflows, others):
            wider = self._widened(tolerances, one.yardstick.largest(other, exact[i], other))
            second = one.yardstick.residuals(one.got, [exact[i]], self.which, wider, None if over else [other])
            self._replace(first, i, second if second.count[0] else None)
        return first

    @staticmethod
    def _replace(residuals: Residuals, i: int, by: Residuals | None) -> None:
        if by is not None:
            residuals.rows[i], residuals.worst[i], residuals.count[i] = by.rows[0], by.worst[0], by.count[0]

    @staticmethod
    def _widened(tolerances: Tolerances, errors: Tolerances) -> Tolerances:
        """At least what such errors need."""
        return {name: max(limit, SAFETY * errors[name]) for name, limit in tolerances.items()}

    def _of_lost_digits(self, one: Evidence, want: Arrays, tolerances: Tolerances) -> Residuals | None:
        """Such a mistake does nothing but rounding: as large in every case."""
        right = one.problem.right
        lost = one.yardstick.largest(want, right)
        if max(lost.values()) > _FAR_OFF:  # the hypothesis does more than lose digits
            return None
        expected = one.yardstick.residuals(want, [right], self.which, tolerances).median[0]
        if one.residual(right, self.which, tolerances).median[0] < expected / 10:
            return None
        return one.residual(want, self.which, self._widened(tolerances, lost))

    def judged(self, candidates: list[Explanation],
               progress: Callable[[int], None] = lambda done: None) -> list[Explanation]:
        """How well they do; of one that does not explain a case, the later cases are not looked at."""
        results = []
        for begin in range(0, len(candidates), _AT_ONCE):
            progress(begin)
            results += self._judged(candidates[begin : begin + _AT_ONCE])
        return results

    def _judged(self, candidates: list[Explanation]) -> list[Explanation]:
        worst, explained, alive = np.zeros(len(candidates)), np.zeros(len(candidates)), list(range(len(candidates)))
        for number, one in enumerate(self.cases):
            if not alive:
                break
            left = self._residuals(number, [candidates[i] for i in alive])
            if number == 0:
                explained[:] = 1 - left.square / max(self.right_squares[0], 1e-300)
            worst[alive] = np.maximum(worst[alive], left.worst)
            if self.spread:
                worst[alive] = np.where(left.median < self._least(one), NO_FIT, worst[alive])
            alive = [i for i in alive if worst[i] <= 1]
        for i in alive:
            if self.right_worst < _NAMED_ABOVE * worst[i]:
                worst[i] = NO_FIT
        return [replace(e, worst=float(w), explained=float(x)) for e, w, x in zip(candidates, worst, explained)]

    def _explained(self, explanation: Explanation) -> float:
        """Over all cases."""
        left = sum(float(self._residuals(number, [explanation]).square[0]) for number in range(len(self.cases)))
        return 1 - left / max(sum(self.right_squares), 1e-300)

    def shows(self, number: int, explanations: list[Explanation]) -> np.ndarray:
        """Do they change the arrays of a case? Number 0 is the one that is looked at first."""
        one = self.cases[number]
        which = [name for name in self.which if name in one.got]
        right, tolerances = [one.problem.right], self._tolerances(one)
        residuals = (one.yardstick.residuals(want, right, which, tolerances) for want in self._exact(one, explanations))
        return np.array([residual.worst[0] > 1 for residual in residuals])

    def explains_first(self, explanations: list[Explanation]) -> np.ndarray:
        """Do they explain the case that is looked at first, whatever they do to the others?"""
        return self._residuals(0, explanations).worst <= 1

    def fitting(self, candidates: list[Explanation]) -> list[Explanation]:
        """The best first, and for each set of mistakes one."""
        best: dict[frozenset, Explanation] = {}
        for one in candidates:
            # What changes nothing explains nothing, even if a wider tolerance lets it fit.
            if not one.fits or not any(self.shows(number, [one])[0] for number in range(len(self.cases))):
                continue
            key = frozenset(one.mistakes)
            best[key] = min(best.get(key, one), one, key=lambda one: one.worst)
        fits = sorted(best.values(), key=lambda one: one.worst)
        if not all(one.any_of("loses_digits") for one in fits):
            fits = [one for one in fits if not one.any_of("loses_digits")]
        return [one for one in fits if one.worst <= max(_ALIKE_BELOW * fits[0].worst, 1 / _ALIKE_BELOW)]

    def nearest(self, candidates: list[Explanation], most: int) -> list[Explanation]:
        """The best that do not fit."""
        near: dict[frozenset, Explanation] = {}
        for one in sorted(candidates, key=lambda one: -one.explained):
            if len(near) == most or not one.explained > 0.5:
                break
            if frozenset(one.mistakes) not in near:
                near[frozenset(one.mistakes)] = replace(one, explained=self._explained(one))
        return sorted((one for one in near.values() if one.explained > 0), key=lambda one: -one.explained)
