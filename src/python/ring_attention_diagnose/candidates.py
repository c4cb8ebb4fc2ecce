"""Which hypotheses are worth trying, and what each of them returns."""

from __future__ import annotations

from dataclasses import replace
from typing import Callable, Iterable

import numpy as np

from .mistakes import Mistake
from .problem import BACKWARD, FORWARD
from .residual import BEYOND_FLOAT, SAFETY
from .ring import Arrays, Forward, backwards, forwards
from .rounding import coarser, random_array
from .search import Evidence, Explanation, Hypothesis, Search, Simulate


def singles(mistakes: Iterable[Mistake], backward: bool, ring: int,
            base: Explanation = Explanation()) -> list[Explanation]:
    """Single mistakes of a pass, in both directions of the ring where that matters, on top of `base`."""
    found = []
    for mistake in mistakes:
        if not (mistake.in_backward if backward else mistake.in_forward) or mistake in base.hypothesis.mistakes:
            continue
        if mistake.loses_digits and base.hypothesis.mistakes:
            continue
        one = replace(base.hypothesis, mistakes=(*base.hypothesis.mistakes, mistake))
        follows = {base.hypothesis.follows_content: 0, **({True: 0} if backward and mistake.moves_content else {})}
        for direction in (1, -1) if ring > 2 and one.directed else (1,):
            found += [replace(base, hypothesis=replace(one, direction=direction, follows_content=f)) for f in follows]
    return found


def pairs(candidates: list[Explanation], search: Search) -> list[Explanation]:
    """All pairs of these that may explain the case which `search` looks at first."""
    some = [one for one in candidates if not one.hypothesis.loses_digits]
    shows = search.shows(0, some)
    explains = shows & search.explains_first(some)
    found = []
    for i, second in enumerate(some):
        for j, first in enumerate(some[:i]):
            # What does not show in the first case leaves it to the other to explain it.
            if (shows[i] and shows[j]) or explains[i] or explains[j]:
                both = _joined(first.hypothesis, second.hypothesis)
                found += [Explanation(both, second.given_own)] if both else []
    return found


def _joined(first: Hypothesis, second: Hypothesis) -> Hypothesis | None:
    """Both mistakes, if one ring can make them."""
    opposed = first.direction != second.direction and first.directed and second.directed
    if opposed or second.mistakes[-1] in first.mistakes:
        return None
    return Hypothesis((*first.mistakes, second.mistakes[-1]), first.direction if first.directed else second.direction,
                      first.follows_content or second.follows_content)


class Simulations:
    """What was simulated once, for one type of numbers, is not simulated again for another. It outlives the
    searches."""

    def __init__(self):
        self._known: dict[tuple, Arrays] = {}

    def _remembering(self, explanations: list[Explanation], key_of: Callable[[Explanation], tuple],
                     simulate: Callable[[list[Explanation]], list[Arrays]]) -> list[Arrays]:
        keys = [key_of(one) for one in explanations]
        missing = list({key: i for i, key in reversed(list(enumerate(keys))) if key not in self._known}.items())
        new = dict(zip((key for key, _ in missing), simulate([explanations[i] for _, i in missing])))
        results = [new[key] if key in new else self._known[key] for key in keys]
        self._known.update((key, new[key]) for key, i in missing if len(explanations[i].hypothesis.mistakes) < 2)
        return results

    def forward(self) -> Simulate:
        """out and lse of forwards."""
        def simulate(one: Evidence, explanations: list[Explanation], precision: str) -> list[Arrays]:
            def run(some: list[Explanation]) -> list[Arrays]:
                by_type: dict[str, list[int]] = {}
                for i, explanation in enumerate(some):
                    by_type.setdefault(_type_of(explanation, precision), []).append(i)
                results: list = [None] * len(some)
                for kind, numbers in by_type.items():
                    rules = [some[i].hypothesis.rules() for i in numbers]
                    for i, result in zip(numbers, forwards(one.problem, rules, kind)):
                        results[i] = result.arrays
                return results

            return self._remembering(explanations, lambda e: (one.problem, precision, e.hypothesis), run)

        return simulate

    def backward(self, of: Explanation) -> Simulate:
        """dq, dk and dv of backwards, whose forward is explained by `of`."""
        own: dict[tuple, Forward] = {}

        def given(one: Evidence, precision: str) -> Forward:
            if (one, precision) not in own:
                own[one, precision] = _own_forward(one, of, precision)
            return own[one, precision]

        def simulate(one: Evidence, explanations: list[Explanation], precision: str) -> list[Arrays]:
            def run(some: list[Explanation]) -> list[Arrays]:
                results: list = [None] * len(some)
                for is_own in (True, False):
                    numbers = [i for i, explanation in enumerate(some) if explanation.given_own == is_own]
                    if numbers:
                        taken = given(one, precision) if is_own else one.right
                        rules = [some[i].hypothesis.rules() for i in numbers]
                        for i, arrays in zip(numbers, backwards(one.problem, rules, taken, precision)):
                            results[i] = _without_nan(arrays) if is_own and _has_nan(taken) else arrays
                return results

            where = one.problem if of.hypothesis.mistakes else one
            key_of = lambda e: (where if e.given_own else one.problem, of.hypothesis, precision,  # noqa: E731
                                e.hypothesis, e.given_own)
            return self._remembering(explanations, key_of, run)

        return simulate


def _type_of(forward: Explanation, precision: str) -> str:
    return coarser(precision, "float32") if forward.hypothesis.in_float else precision


def _own_forward(one: Evidence, forward: Explanation, precision: str) -> Forward:
    """What a wrong forward returned: what the user has, or else what is simulated."""
    (own,) = forwards(one.problem, [forward.hypothesis.rules()], _type_of(forward, precision))
    if not forward.hypothesis.mistakes:
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
                    moved = one.problem.moved(gradient[1], side * direction)
                    out = forwards(moved, [forward.hypothesis.rules()], _type_of(forward, "float64"))[0].arrays["out"]
                    loss.append((out * moved.dout).sum())
                slope = (loss[1] - loss[0]) / (2 * step)
                if not abs((got * direction).sum() - slope) <= tolerance * np.sqrt((got**2).sum()):
                    return False
                looked = True
    return looked
