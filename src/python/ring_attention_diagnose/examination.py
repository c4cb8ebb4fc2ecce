"""`diagnose`: what is wrong with the results of a ring, and which mistake explains it.

1. The arrays are compared with the right ones. What differs by a convention only is translated, and said.
2. Forward and backward are judged one after the other: the backward of a wrong forward may be right for what that
forward returned.
3. Each mistake is simulated. One that explains all rows of all cases up to rounding is named; where several do, all of
them are. Then pairs of mistakes.
4. Where none does, the mistakes that explain most are given, with how much.
"""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Callable

import numpy as np

from .candidates import Simulations, is_derivative, pairs, singles
from .mistakes import MISTAKES, Mistake
from .problem import ARRAYS, BACKWARD, FORWARD
from .residual import precision_of
from .ring import Arrays
from .rounding import PRECISIONS, coarser
from .search import Evidence, Explanation, Search, Simulate

_NEAR_ONES = 3
_FORWARDS_TO_TRY = 6  # that cannot be told apart, and may be by their gradients


@dataclasses.dataclass
class Pass:
    """What is known of one pass."""

    state: str = "absent"  #: or right, named, unknown
    precision: str = "float32"  #: in which it is right, or explained
    returned: str = "float32"  #: that of its numbers
    #: Of a named one: all that fit, the best first.
    explanations: list[Explanation] = dataclasses.field(default_factory=list)
    #: Of an unknown one: those that explain most.
    near: list[Explanation] = dataclasses.field(default_factory=list)
    right_worst: float = 0  #: the largest error against right results, in tolerances

    def named(self, explanations: list[Explanation]) -> bool:
        if explanations:
            self.state, self.explanations = "named", explanations
        return bool(explanations)

    @property
    def wrong(self) -> bool:
        return self.state in ("named", "unknown")


@dataclasses.dataclass(frozen=True)
class Unequal:
    """An array that a code did not return twice for the same inputs."""

    case: str
    array: str
    tokens: tuple[int, ...]  #: positions of the rows that differ
    ranks: tuple[int, ...]  #: that have them


def unequal(first: Evidence, again: Arrays) -> list[Unequal]:
    """The arrays whose rows differ by more than rounding."""
    precision, found = coarser("float32", precision_of(first.got, ARRAYS)), []
    for name, limit in first.yardstick.tolerances(precision).items():
        if name in first.got and name in again:
            rows = np.flatnonzero(~(first.yardstick.row_errors(name, again[name], first.got[name]) <= limit).all(0))
            job, case = first.problem.job, first.problem.case
            ranks = [rank for rank in range(job.ranks) if np.isin(job.tokens_of(rank, case.rows_of(name)), rows).any()]
            if len(rows):
                found.append(Unequal(case.name, name, tuple(rows.tolist()), tuple(ranks)))
    return found


@dataclasses.dataclass
class Options:
    """How to search."""

    mistakes: list[Mistake] = dataclasses.field(default_factory=lambda: list(MISTAKES.values()))
    pairs: bool = True
    lists_not_tested: bool = True
    type_of_q: str = ""  #: in which a code got it, where that is known
    progress: Callable[[str], None] = lambda line: None
    unexplained: Callable[[], None] = lambda: None  #: called where no mistake explains the results, before the long search


def _backwards_after(forward: Explanation) -> list[Explanation]:
    """Backwards without a mistake of their own: right, or with the mistakes of the forward."""
    right = Explanation(forward=forward)
    same = replace(right, mistakes=tuple(m for m in forward.mistakes if m.in_backward), direction=forward.direction)
    return [right, *(replace(same, follows_content=follows, given_own=own)
                     for own in (True, False) for follows in (False, True) if same.mistakes)]


class Examination:
    """The forward of some cases, then their backward, against right results, single mistakes and, if asked for,
    pairs."""

    def __init__(self, cases: list[Evidence], options: Options, simulate: Simulate, with_pairs: bool):
        self.cases, self.options, self.simulate, self.with_pairs = cases, options, simulate, with_pairs
        self.forward = Pass(returned=coarser("float32", *(precision_of(one.got, FORWARD) for one in cases)))
        self.backward = Pass(returned=coarser("float32", *(precision_of(one.got, ARRAYS) for one in cases)))
        for found, which, is_named in ((self.forward, FORWARD, self._forward_is_named),
                                       (self.backward, BACKWARD, self._backward_is_named)):
            if any(one.has_any(which) for one in cases):
                self._examine(found, which, is_named)

    def _examine(self, found: Pass, which: tuple[str, ...], is_named: Callable[[Search], bool]) -> None:
        """In the finest type first, until one explains the pass."""
        for precision in PRECISIONS[PRECISIONS.index(found.returned) :]:
            search = Search(self.cases, which, precision, precision != found.returned, self.simulate)
            found.precision, found.right_worst = precision, search.right_worst
            if search.right:
                found.state = "right"
            if search.right or is_named(search):
                return
        found.precision, found.state = found.returned, "unknown"

    def _is_named(self, found: Pass, search: Search, bases: list[Explanation]) -> bool:
        """Does one mistake more than those of a base explain the pass, or do two?"""
        mistakes, ring, say = self.options.mistakes, self.cases[0].problem.job.ring, self.options.progress
        judged = search.judged([one for base in bases for one in singles(mistakes, ring, base)
                                if not (self.forward.wrong and one.any_of("loses_digits"))])
        named = found.named(search.fitting(judged))
        if named or search.spread:
            return named
        found.near = found.near or search.nearest(judged, _NEAR_ONES)
        if not self.with_pairs:
            return False
        tried, what = pairs(singles(mistakes, ring, bases[0]), search), "backward" if bases[0].forward else "forward"
        return found.named(search.fitting(search.judged(
            tried, lambda done: say(f"{what}: {done} of {len(tried)} pairs of mistakes"))))

    def _forward_is_named(self, search: Search) -> bool:
        return self._is_named(self.forward, search, [Explanation()])

    def _backward_is_named(self, search: Search) -> bool:
        """The gradients also decide between forwards that out and lse could not tell apart."""
        forwards = self.forward.explanations[:_FORWARDS_TO_TRY]
        bases = [_backwards_after(forward) for forward in forwards or [Explanation()]]
        # Is it right for what a wrong forward returned, or wrong by the same mistake? The first that fits: without a
        # mistake, if possible.
        found = [next((one for one in search.judged(of_one) if one.fits), None) for of_one in bases]
        found = [one for one in found if one] or [
            Explanation(forward=forward, is_derivative=True, explained=1) for forward in forwards
            if is_derivative(self.cases, forward, search.precision)][:1]
        if not self.backward.named(found[:1]):
            if not any(self._is_named(self.backward, search, of_one) for of_one in bases):
                return False
            # The other forwards after which the same mistake explains the gradients.
            found = search.judged([replace(one, forward=forward) for forward in forwards for one in self.backward.explanations])
        self.forward.explanations = [one for one in forwards if any(two.fits and two.forward == one for two in found)]
        return True


def not_tested_by(cases: list[Evidence], options: Options, precision: str) -> list[Mistake]:
    """The mistakes that none of these arrays would show."""
    simulate, ring = Simulations().arrays, cases[0].problem.job.ring
    shown: set[Mistake] = set()
    for which, base in ((FORWARD, Explanation()), (BACKWARD, Explanation(forward=Explanation()))):
        for one in (one for one in cases if one.has_any(which)):
            candidates = [e for e in singles(options.mistakes, ring, base) if e.mistakes[0] not in shown]
            shows = Search([one], which, precision, False, simulate).shows(0, candidates)
            shown.update(e.mistakes[0] for e, is_shown in zip(candidates, shows) if is_shown)
    return [mistake for mistake in options.mistakes if mistake not in shown]
