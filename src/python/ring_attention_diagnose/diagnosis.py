"""`diagnose`: the examination of all cases, with conventions in which right results may be written. They are translated
and said, not called wrong."""

from __future__ import annotations

import dataclasses
from typing import Callable

import numpy as np

from .candidates import Simulations
from .examination import Examination, Options, Pass, not_tested_by
from .mistakes import Mistake
from .pass_edits import LN2
from .problem import ARRAYS, BACKWARD, Problem
from .residual import precision_of
from .ring import Arrays
from .rounding import coarser
from .search import Evidence, Simulate

Translate = Callable[[Arrays], Arrays]


@dataclasses.dataclass
class Diagnosis:
    """What is wrong, and which mistakes explain it."""

    forward: Pass
    backward: Pass
    #: Where no mistake explains all cases: the wrong pass of each case that one explains. Codes often take one wrong way
    #: for several masks.
    alone: dict[str, Pass] = dataclasses.field(default_factory=dict)
    conventions: list[str] = dataclasses.field(default_factory=list)  #: translated, one sentence each
    not_tested: list[Mistake] = dataclasses.field(default_factory=list)  #: mistakes that these arrays would not show

    @property
    def right(self) -> bool:
        return not (self.forward.wrong or self.backward.wrong)

    @property
    def explained(self) -> bool:
        return "unknown" not in (self.forward.state, self.backward.state)


def _times(which: tuple[str, ...], factor: float) -> Translate:
    return lambda arrays: {name: array * factor if name in which else array for name, array in arrays.items()}


def _from_rank_order(problem: Problem) -> Translate:
    """Row i is the token of position order[i]: each to its position."""
    order = [token for rank in range(problem.job.ranks) for token in problem.job.tokens_of(rank, problem.case.tokens)]
    return lambda arrays: {name: array[:, np.argsort(order)] for name, array in arrays.items()}


def _conventions_for(problem: Problem) -> list[tuple[str, Callable[[Problem], Translate]]]:
    """Those that may hide under a mistake."""
    base_2 = [("lse is in base 2", lambda problem: _times(("lse",), LN2))]
    if problem.job.ranks == 1 or problem.job.placement == "contiguous":
        return base_2
    return [("tokens are in the order of the ranks, not in that of positions", _from_rank_order), *base_2]


def _right_after(cases: list[Evidence], which: tuple[str, ...], translate: Translate) -> bool:
    """Are these arrays right in all cases? In float at least: who saves products of floats may save them in double."""
    some = [one for one in cases if one.has_any(which)]
    for one in some:
        tolerances = one.yardstick.tolerances(coarser(precision_of(one.got, which), "float32"))
        residual = one.yardstick.residuals(translate(one.got), [one.problem.right], which, tolerances)
        if not residual.worst[0] <= 1:
            return False
    return bool(some)


def _in_right_units(cases: list[Evidence], said: list[str]) -> list[Evidence]:
    """Undoes units in which right lse and right gradients may be. Only where the array is right then."""
    problem = cases[0].problem
    ranks, scale = problem.job.ranks, problem.case.scale
    gradients = "dq, dk and dv are the gradients of sum(out * dout) "
    for which, units in (
        (("lse",), (("lse is in base 2", LN2), ("lse is divided by the scale", scale),
                    ("lse is multiplied by the scale", 1 / scale))),
        (BACKWARD, ((f"{gradients}times {ranks}, the number of ranks", 1 / ranks),
                    (f"{gradients}by {ranks}, the number of ranks", ranks)) if ranks > 1 else ()),
    ):
        if _right_after(cases, which, _times(which, 1)):
            continue
        for says, factor in units:
            if _right_after(cases, which, _times(which, factor)):
                cases = [Evidence(one.problem, _times(which, factor)(one.got), one) for one in cases]
                said.append(says)
                break
    return cases


def _cases_alone(cases: list[Evidence], options: Options, simulate: Simulate) -> dict[str, Pass]:
    """The cases that are wrong and can be explained by themselves."""
    found = {}
    for one in cases:
        both = Examination([one], options, simulate, with_pairs=False)
        states = both.forward.state, both.backward.state
        if "named" in states and "unknown" not in states:
            found[one.problem.case.name] = both.forward if both.forward.state == "named" else both.backward
    return found


def diagnose(answers: list[tuple[Problem, Arrays]], options: Options | None = None) -> Diagnosis:
    """:param answers: what a code returned for each of at least one case: at least one array"""
    options = options or Options()
    known, simulate = [Evidence(problem, arrays) for problem, arrays in answers], Simulations().arrays

    def attempt(convention=None, with_pairs: bool = False) -> Diagnosis:
        cases, said = known, []
        if convention:
            said.append(convention[0])
            cases = [Evidence(one.problem, convention[1](one.problem)(one.got), one) for one in cases]
        cases = _in_right_units(cases, said)
        both = Examination(cases, options, simulate, with_pairs)
        found = Diagnosis(both.forward, both.backward, conventions=said)
        if not found.explained:
            found.alone = _cases_alone(cases, options, simulate)
        if found.right and options.lists_not_tested:
            found.not_tested = not_tested_by(cases, options, coarser(both.forward.returned, both.backward.returned))
        return found

    with np.errstate(all="ignore"):
        plain = attempt()
        if plain.explained:
            return plain
        for convention in _conventions_for(known[0].problem):
            found = attempt(convention)
            if found.explained:
                return found
        return attempt(with_pairs=True) if options.pairs else plain


def largest_errors(one: Evidence) -> dict[str, float]:
    """The largest error of each array that a code returned."""
    with np.errstate(all="ignore"):
        largest = one.yardstick.largest(one.got, one.problem.right)
    return {name: float(largest[name]) for name in ARRAYS if name in one.got}
