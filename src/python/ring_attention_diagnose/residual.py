"""How far arrays are from those of a hypothesis, and whether rounding alone could do it.

A row is one token of one head. Its error is the root mean square of the differences, in units of the size of its head,
or of the row where that is larger. So a wrong row shows whatever the others are.
"""

from __future__ import annotations

from typing import Iterable

import numpy as np

from .problem import ARRAYS, INF, Problem
from .ring import Arrays, simulated
from .rounding import PRECISIONS, coarser, rounded
from .rules import Rules, weights_by_lse

#: Errors of right codes differ by what they sum in which order: a margin over the one that is simulated here.
SAFETY = 6
BEYOND_FLOAT = 1e300  #: no code in float returns such a number: a row that should have one is not compared
_HUGE = 1e25  # float is about to overflow, and every code makes something else of it
_UNSTABLE = 0.03  # a row of a wrong result that rounding moves further than this says nothing
_FLOORS = {"float64": 1e-12, "float32": 2e-6, "fp16": 1e-3, "bf16": 8e-3}  # the least errors
_ENOUGH = 16  # of a few numbers many a type is the type by chance

Tolerances = dict  #: one number for each array


def widened(tolerances: Tolerances, errors: Tolerances) -> Tolerances:
    """At least what such errors need."""
    return {name: max(limit, SAFETY * errors[name]) for name, limit in tolerances.items()}


class Residuals:
    """Errors of all rows of some arrays against B hypotheses: [B, rows], NaN where nothing can be said."""

    def __init__(self, rows: np.ndarray, worst: np.ndarray):
        self.rows = rows
        self.worst = worst  #: the largest error, in tolerances; at most 1: only rounding is left
        self.count = (~np.isnan(rows)).sum(1)

    @property
    def square(self) -> np.ndarray:
        """The means of the squared errors, each at most 1."""
        return np.nansum(np.minimum(self.rows**2, 1), axis=1) / np.maximum(self.count, 1)

    def most_above(self, error: float) -> np.ndarray:
        """Is the error that half of the rows stay below larger?"""
        return ((self.rows <= error).sum(1) <= (0.5 * np.maximum(self.count - 1, 0)).astype(int)) & (self.count > 0)

    @property
    def median(self) -> np.ndarray:
        """The errors that half of the rows stay below."""
        ordered = np.sort(self.rows, axis=1)
        at = (0.5 * np.maximum(self.count - 1, 0)).astype(int)
        return np.where(self.count > 0, ordered[np.arange(len(ordered)), at], 0.0)


class Yardstick:
    """What errors are measured in: sizes of the right arrays, and what rounding does to right results."""

    def __init__(self, problem: Problem):
        self.problem, self._known = problem, {}
        self.sizes = {name: self._sizes(x) for name, x in problem.right.items()}

    @staticmethod
    def _sizes(right: np.ndarray) -> np.ndarray:
        """[heads, 1]: the root mean square of the finite elements."""
        finite = np.isfinite(right)
        mean = (np.where(finite, right, 0) ** 2).sum((1, 2)) / np.maximum(finite.sum((1, 2)), 1)
        return np.where(mean > 0, np.sqrt(mean), 1)[:, None]

    def row_errors(self, name: str, got: np.ndarray, want: np.ndarray) -> np.ndarray:
        """[..., heads, tokens]. Infinite where one is finite and the other is not; NaN where `want` cannot be had in
        float, so that nothing can be said."""
        error = np.sqrt(((got - want) ** 2).mean(-1)) / np.maximum(self.sizes[name], np.sqrt((want**2).mean(-1)))
        if np.isfinite(error).all() and (abs(want) <= _HUGE).all():
            return error
        error = np.where(np.isfinite(got).all(-1), error, INF)
        finite = np.isfinite(want)
        fits = (~np.isfinite(got) | (abs(got) > _HUGE)).any(-1) | (np.isnan(want).any(-1) & (got == 0).all(-1))
        error = np.where(finite.all(-1), error, np.where(fits, 0, INF))
        error = np.where((finite & (abs(want) > _HUGE)).any(-1), np.nan, error)
        if name == "lse":  # of no key: -inf, or a number that stands for it
            error = np.where(want[..., 0] < -1e20, np.where(got[..., 0] < -1e20, 0, INF), error)
        return error

    def residuals(self, got: Arrays, wants: list[Arrays], which: Iterable[str], tolerances: Tolerances,
                  rounded_wants: list[Arrays] | None = None) -> Residuals:
        """The errors of `got` against each of `wants`, in the arrays that both have.

        rounded_wants: the same as wants, computed in the type of the code: rows that rounding moves far, or that
        overflow only there, say nothing
        """
        rows, worst = [np.zeros((len(wants), 0))], np.zeros(len(wants))
        for name in (name for name in which if name in got and name in wants[0]):
            want = np.stack([arrays[name] for arrays in wants])
            error = self.row_errors(name, got[name], want)
            if rounded_wants is not None:
                moved = self.row_errors(name, np.stack([arrays[name] for arrays in rounded_wants]), want)
                error = np.where(moved <= _UNSTABLE, error, np.nan)
            rows.append(error.reshape(len(wants), -1))
            worst = np.maximum(worst, np.where(np.isnan(rows[-1]), 0, rows[-1]).max(1, initial=0) / tolerances[name])
        return Residuals(np.concatenate(rows, axis=1), worst)

    def largest(self, got: Arrays, want: Arrays, rounded_want: Arrays | None = None) -> Tolerances:
        """The largest row error of each array."""
        moved = None if rounded_want is None else [rounded_want]
        return {name: self.residuals(got, [want], (name,), {name: 1}, moved).worst[0] for name in ARRAYS}

    def tolerances(self, precision: str, states_only: bool = False) -> Tolerances:
        """The largest error that a row of a right result in that type may have, whether steps are merged as states or
        as normalised results; or as states, as simulated rings do."""
        if (precision, states_only) not in self._known:
            least = dict.fromkeys(ARRAYS, SAFETY * _FLOORS[precision])
            if precision in ("fp16", "bf16"):
                least["lse"] /= 2  # it does not pass through a product
            forward, least = (Rules(), least) if states_only else (Rules(weights=weights_by_lse), self.tolerances(precision, True))
            errors = self.largest(simulated(self.problem, precision, forward, Rules()), self.problem.right)
            self._known[precision, states_only] = widened(least, errors)
        return self._known[precision, states_only]


def precision_of(arrays: Arrays, which: Iterable[str]) -> str:
    """The coarsest of the types that hold every element of these arrays exactly: the type a code returned."""
    coarsest = "float64"
    for name in which:
        x = arrays[name][np.isfinite(arrays[name])] if name in arrays else np.zeros(0)
        if np.count_nonzero(x) >= _ENOUGH:
            coarsest = coarser(coarsest, *(p for p in PRECISIONS if (rounded(x, p) == x).all()))
    return coarsest
