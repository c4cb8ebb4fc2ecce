"""`diagnose`: the examination of all cases, with conventions in which right results may be written. They are translated
and said, not called wrong."""

from __future__ import annotations

import dataclasses
from typing import Callable, Iterable

import numpy as np

from .candidates import Simulations
from .examination import Examination, Options, Pass, Unequal, not_tested_by, unequal
from .mistakes import Mistake
from .pass_edits import LN2
from .placement import Job
from .problem import ARRAYS, BACKWARD, MORE, Problem
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
    cases: list[Evidence]  #: as they were handed back
    #: Where no mistake explains all cases: the wrong pass of each case that one explains. Codes often take one wrong way
    #: for several masks.
    alone: dict[str, Pass] = dataclasses.field(default_factory=dict)
    conventions: list[str] = dataclasses.field(default_factory=list)  #: translated, one sentence each
    unequal: list[Unequal] = dataclasses.field(default_factory=list)  #: not the same in two runs: nothing more is said
    #: Gradients that are right, but have fewer digits than q and out: the type of each.
    rounded: dict[str, str] = dataclasses.field(default_factory=dict)
    #: Of a right code, the gradients of a bias and of sinks that it returned: what is wrong with each; empty: nothing.
    more: dict[str, str] = dataclasses.field(default_factory=dict)
    not_tested: list[Mistake] = dataclasses.field(default_factory=list)  #: mistakes that these arrays would not show

    @property
    def right(self) -> bool:
        return not (self.forward.wrong or self.backward.wrong or self.unequal or self.rounded or any(self.more.values()))

    @property
    def explained(self) -> bool:
        return "unknown" not in (self.forward.state, self.backward.state)


def _times(which: tuple[str, ...], factor: float) -> Translate:
    return lambda arrays: {name: array * factor if name in which else array for name, array in arrays.items()}


def _from_rank_order(job: Job) -> Translate:
    """Row i is the token of position order[i]: each to its position."""
    def turned(array: np.ndarray) -> np.ndarray:
        order = [token for rank in range(job.ranks) for token in job.tokens_of(rank, array.shape[1])]
        return array[:, np.argsort(order)]

    return lambda arrays: {name: turned(array) if name in ARRAYS else array for name, array in arrays.items()}


def _conventions_for(job: Job) -> list[tuple[str, Callable[[Job], Translate]]]:
    """The conventions that may hide under a mistake; a placement of one's own is another in each case."""
    base_2 = [("lse is in base 2", lambda job: _times(("lse",), LN2))]
    if job.ranks == 1 or job.placement == "contiguous":
        return base_2
    return [("tokens are in the order of the ranks, not in that of positions", _from_rank_order), *base_2]


def _in_right_units(cases: list[Evidence], said: list[str]) -> list[Evidence]:
    """Undoes units in which right lse and right gradients may be. Only where the array is right then."""
    ranks, scale = cases[0].problem.job.ranks, cases[0].problem.case.scale
    gradients = "dq, dk and dv are the gradients of sum(out * dout) "
    for which, units in (
        (("lse",), (("lse is in base 2", LN2), ("lse is divided by the scale", scale),
                    ("lse is multiplied by the scale", 1 / scale))),
        (BACKWARD, ((f"{gradients}times {ranks}, the number of ranks", 1 / ranks),
                    (f"{gradients}by {ranks}, the number of ranks", ranks)) if ranks > 1 else ()),
    ):
        # In float at least: who saves products of floats may save them in double.
        some = [(one, coarser(precision_of(one.got, which), "float32")) for one in cases if one.has_any(which)]
        for says, factor in (("", 1), *units) if some else ():
            change = _times((*which, *MORE) if which == BACKWARD else which, factor)
            if all(one.translated(change).is_right(which, precision) for one, precision in some):
                cases = [one.translated(change) for one in cases]
                said += [says] if says else []
                break
    return cases


def _rounded_gradients(cases: list[Evidence], type_of_q: str) -> dict[str, str]:
    """The half type of each gradient that has fewer digits than q and out."""
    def type_of(name: str) -> str:
        arrays = [one.got[name].ravel() for one in cases if name in one.got]
        return precision_of({name: np.concatenate(arrays)} if arrays else {}, (name,))

    finest = coarser(type_of("out"), type_of_q or "float64")
    if not any("out" in one.got for one in cases):
        return {}
    types = {name: type_of(name) for name in BACKWARD}
    return {name: short for name, short in types.items() if short in ("fp16", "bf16") and coarser(short, finest) != finest}


def _more_gradients(cases: list[Evidence], array: str) -> Iterable[str]:
    """What is wrong with the gradient of a bias, or of sinks; empty: nothing."""
    some = [one for one in cases if array in one.got]
    if not some:
        return
    job, scale = some[0].problem.job, some[0].problem.case.scale

    def fits(of: Callable[[Problem], np.ndarray]) -> bool:
        for one in some:
            precision = coarser("float32", precision_of(one.got, ARRAYS), precision_of(one.got, (array,)))
            size = abs(one.problem.part_of(array, list(range(one.problem.case.tokens)))).max()
            if not abs(one.got[array] - of(one.problem)).max() <= 4 * one.yardstick.tolerances(precision)["dk"] * size:
                return False
        return True

    everything = lambda problem: problem.part_of(array, list(range(problem.case.tokens)))  # noqa: E731
    units = {"": 1.0, "it is multiplied by the scale": scale, "it is divided by the scale": 1 / scale,
             "it counts N times": job.ranks, "it is divided by N": 1 / job.ranks, "its sign": -1.0, "it is zero": 0.0}
    rules = {says: lambda problem, factor=factor: factor * everything(problem) for says, factor in units.items()}
    for rank in range(job.ranks):
        rules[f"it is that of the queries of rank {rank} alone, and not summed over the ranks"] = (
            lambda problem, rank=rank: problem.part_of(array, problem.job.tokens_of(rank, problem.case.tokens)))
    yield next((says for says, of in rules.items() if fits(of)), "by no rule that is known here")


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
    first: dict[str, Evidence] = {}
    again = []
    for problem, arrays in answers:
        if problem.case.name in first:
            again.append((first[problem.case.name], arrays))
        else:
            first[problem.case.name] = Evidence(problem, arrays)
    known, simulate = list(first.values()), Simulations().arrays

    def attempt(cases: list[Evidence], said: list[str], with_pairs: bool = False) -> Diagnosis:
        cases = _in_right_units(cases, said)
        both = Examination(cases, options, simulate, with_pairs)
        found = Diagnosis(both.forward, both.backward, known, conventions=said)
        if found.right:
            found.more = {array: says for array in MORE for says in _more_gradients(cases, array)}
            found.rounded = _rounded_gradients(cases, options.type_of_q)
        if found.right and options.lists_not_tested:
            found.not_tested = not_tested_by(cases, options, coarser(both.forward.returned, both.backward.returned))
        return found

    with np.errstate(all="ignore"):
        differ = [array for one, arrays in again for array in unequal(one, arrays)]
        if differ:
            seen = Pass(precision=coarser("float32", *(precision_of(one.got, ARRAYS) for one in known)))
            return Diagnosis(seen, seen, known, unequal=differ)
        plain = attempt(known, [])
        if plain.explained:
            return plain
        options.unexplained()
        for says, translate in _conventions_for(known[0].problem.job):
            found = attempt([one.translated(translate(one.problem.job)) for one in known], [says])
            if found.explained:
                return found
        last = attempt(known, [], with_pairs=True) if options.pairs else plain
        if not last.explained:
            last.alone = _cases_alone(_in_right_units(known, []), options, simulate)
        return last
