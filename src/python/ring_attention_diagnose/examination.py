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

from .candidates import Simulations, is_derivative, pairs, singles
from .mistakes import MISTAKES, Mistake
from .problem import ARRAYS, BACKWARD, FORWARD
from .residual import precision_of
from .rounding import PRECISIONS, coarser
from .search import Evidence, Explanation, Search

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


@dataclasses.dataclass
class Options:
    """How to search."""

    mistakes: list[Mistake] = dataclasses.field(default_factory=lambda: list(MISTAKES.values()))
    pairs: bool = True
    lists_not_tested: bool = True
    progress: Callable[[str], None] = lambda line: None


def _with_the_same_mistakes(forward: Explanation) -> list[Explanation]:
    """Backwards of a wrong forward without a mistake of their own."""
    same = Explanation(tuple(m for m in forward.mistakes if m.in_backward), forward.direction)
    return [Explanation(), *(replace(same, follows_content=follows, given_own=own)
                             for own in (True, False) for follows in (False, True) if same.mistakes)]


class Examination:
    """The forward of some cases, then their backward, against right results, single mistakes and, if asked for,
    pairs."""

    def __init__(self, cases: list[Evidence], options: Options, simulations: Simulations, with_pairs: bool):
        self.cases, self.options, self.simulations, self.with_pairs = cases, options, simulations, with_pairs
        self.ring = cases[0].problem.job.ring
        self.forward = Pass(returned=coarser("float32", *(precision_of(one.got, FORWARD) for one in cases)))
        self.backward = Pass(returned=coarser("float32", *(precision_of(one.got, ARRAYS) for one in cases)))
        for found, which, attempt in ((self.forward, FORWARD, self._examine_forward),
                                      (self.backward, BACKWARD, self._examine_backward)):
            if any(one.has_any(which) for one in cases):
                self._for_precisions(found, attempt)

    def _for_precisions(self, found: Pass, attempt: Callable[[str, bool], bool]) -> None:
        """The finest first, until one explains the pass."""
        for precision in PRECISIONS[PRECISIONS.index(found.returned) :]:
            found.precision = precision
            if attempt(precision, precision != found.returned):
                return
        found.precision, found.state = found.returned, "unknown"

    def _judged_pairs(self, search: Search, candidates: list[Explanation], what: str) -> list[Explanation]:
        tried, say = pairs(candidates, search), self.options.progress
        return search.judged(tried, lambda done: say(f"{what}: {done} of {len(tried)} pairs of mistakes"))

    def _examine_forward(self, precision: str, spread: bool) -> bool:
        found = self.forward
        search = Search(self.cases, FORWARD, precision, spread, self.simulations.forward())
        found.right_worst = search.right_worst
        if search.right:
            found.state = "right"
            return True
        everything = search.judged(singles(self.options.mistakes, False, self.ring))
        if found.named(search.fitting(everything)):
            return True
        if spread:
            return False
        found.near = search.nearest(everything, _NEAR_ONES)
        return self.with_pairs and found.named(search.fitting(self._judged_pairs(search, everything, "forward")))

    def _examine_backward(self, precision: str, spread: bool) -> bool:
        search = self._search_of(Explanation(), precision, spread)
        self.backward.right_worst = search.right_worst
        if search.right:
            self.backward.state = "right"
            return True
        tried = (self.forward.explanations or [Explanation()])[:_FORWARDS_TO_TRY]
        return self._follows(tried, precision, spread) or self._has_its_own(tried, precision, spread)

    def _search_of(self, forward: Explanation, precision: str, spread: bool) -> Search:
        return Search(self.cases, BACKWARD, precision, spread, self.simulations.backward(forward))

    def _follows(self, tried: list[Explanation], precision: str, spread: bool) -> bool:
        """Is the backward right for what a wrong forward returned, or wrong by the same mistake?"""
        settled = []
        for forward in tried:
            search = self._search_of(forward, precision, spread)
            # The first that fits: without a mistake, if possible.
            fit = next((one for one in search.judged(_with_the_same_mistakes(forward)) if one.fits), None)
            settled += [(forward, fit)] if fit else []
        if not settled and self.forward.state == "named":
            settled = [(forward, Explanation(is_derivative=True, explained=1)) for forward in tried
                       if is_derivative(self.cases, forward, precision)][:1]
        if settled and self.forward.state == "named":
            self.forward.explanations = [forward for forward, _ in settled]
        return bool(settled) and self.backward.named([settled[0][1]])

    def _has_its_own(self, tried: list[Explanation], precision: str, spread: bool) -> bool:
        """Has it one mistake more, or two?"""
        for forward in tried:
            search = self._search_of(forward, precision, spread)
            everything = search.judged(self._singles_after(forward))
            done = self.backward.named(search.fitting(everything))
            if not done and not spread:
                self.backward.near = self.backward.near or search.nearest(everything, _NEAR_ONES)
                if self.with_pairs:
                    plain = singles(self.options.mistakes, True, self.ring)
                    done = self.backward.named(search.fitting(self._judged_pairs(search, plain, "backward")))
            # The gradients decide between forwards that out and lse could not tell apart.
            if done and self.forward.state == "named":
                self.forward.explanations = [forward]
            if done:
                return True
        return False

    def _singles_after(self, forward: Explanation) -> list[Explanation]:
        """Single mistakes of the backward; of a wrong forward, also on top of its own."""
        if not self.forward.wrong:
            return singles(self.options.mistakes, True, self.ring)
        return [one for base in _with_the_same_mistakes(forward)
                for one in singles(self.options.mistakes, True, self.ring, base) if not one.any_of("loses_digits")]


def not_tested_by(cases: list[Evidence], options: Options, precision: str) -> list[Mistake]:
    """The mistakes that none of these arrays would show."""
    simulations, ring = Simulations(), cases[0].problem.job.ring
    shown: set[Mistake] = set()
    for backward, which in ((False, FORWARD), (True, BACKWARD)):
        for one in cases:
            candidates = [e for e in singles(options.mistakes, backward, ring) if e.mistakes[0] not in shown]
            if one.has_any(which) and candidates:
                simulate = simulations.backward(Explanation()) if backward else simulations.forward()
                shows = Search([one], which, precision, False, simulate).shows(0, candidates)
                shown.update(e.mistakes[0] for e, is_shown in zip(candidates, shows) if is_shown)
    return [mistake for mistake in options.mistakes if mistake not in shown]
