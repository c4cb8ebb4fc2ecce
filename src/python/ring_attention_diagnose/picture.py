"""Where results are wrong that no known mistake explains, and what they are made of: in characters."""

from __future__ import annotations

import numpy as np

from .problem import ARRAYS, BACKWARD
from .ring import Arrays, backwards
from .rules import Rules, rescale
from .search import Evidence

_SMALL = 1e-2


def _tokens_line(one: Evidence, array: str, tolerance: float) -> str:
    """'.' right in all heads, 'x' wrong in all heads, 'o' wrong in some; a space between the tokens of two ranks."""
    errors = one.yardstick.row_errors(array, one.got[array], one.problem.right[array])
    wrong = errors > tolerance
    marks = np.where(wrong.all(0), "x", np.where(wrong.any(0), "o", "."))
    job, tokens = one.problem.job, one.problem.case.rows_of(array)
    return " ".join("".join(marks[job.tokens_of(rank, tokens)]) for rank in range(job.ranks))


def _by_step(one: Evidence) -> list[Arrays]:
    """What a right ring computes at one step alone: arrays whose sum is right."""
    problem, steps = one.problem, []
    lse = problem.slots.shards(one.right.arrays["lse"])
    for step in range(problem.job.ring):
        only = lambda total, part, number: total + part * (number == step)  # noqa: B023, E731
        (arrays,) = backwards(problem, [Rules(add_dq=only, add_dkdv=only)], one.right)
        out = rescale(one.right.piece_lse[:, step, ..., None], lse) * one.right.piece_out[:, step]
        steps.append({**arrays, "out": problem.slots.joined(out)})
    return steps


def parts_of(one: Evidence, array: str) -> tuple[np.ndarray, float]:
    """How often an array counts the part that each pair of ranks contributes. Row r of it is the sum over ranks o of
    factor[r, o] times the part that the pair (r, o) contributes to right results: for out and dq of the queries of r
    and the keys of o, for dk and dv the other way round. A factor is NaN where the pair contributes nothing. The second
    number is what no factors explain: the norm of the rest over the norm of the array."""
    job, ring, steps = one.problem.job, one.problem.job.ring, _by_step(one)
    factors, rest, everything = np.full((ring, ring), np.nan), 0.0, 0.0
    for rank in range(ring):
        here = job.shard(rank, one.problem.case.rows_of(array))
        got = one.got[array][:, here].ravel()
        basis = np.stack([arrays[array][:, here].ravel() for arrays in steps], axis=1)
        solved = np.linalg.lstsq(basis, got, rcond=None)[0]
        # At a step a rank's queries meet the keys of the owner; its keys meet the queries of the rank that many hops on.
        there = np.flatnonzero(basis.any(0))
        factors[rank, (rank - there if array in ("out", "dq") else rank + there) % ring] = solved[there]
        rest += ((basis @ solved - got) ** 2).sum()
        everything += (got**2).sum()
    return factors, float(np.sqrt(rest / everything)) if everything > 0 else 1.0


def _parts_lines(one: Evidence, array: str) -> list[str]:
    factors, left = parts_of(one, array)
    if not left <= _SMALL or (np.isnan(factors) | (abs(factors - 1) < _SMALL)).all():
        return []
    row = lambda numbers: "".join("     ." if np.isnan(x) else f" {x:5.2f}" for x in numbers)  # noqa: E731
    return [f"  {array} counts the parts that ranks contribute with these factors (right: 1):",
            *(f"    rank {rank}:{row(numbers)}" for rank, numbers in enumerate(factors))]


def picture_of(one: Evidence, precision: str) -> str:
    """For each array a character a token, and what the array is made of, by ranks."""
    tolerances = one.yardstick.tolerances(precision)
    marks = "a character a token, rank by rank; . right, x wrong, o wrong in some heads"
    lines = [f"Where, in the case {one.problem.case.name} ({marks}):"]
    lines += [f"  {array:<3}  {_tokens_line(one, array, tolerances[array])}" for array in ARRAYS if array in one.got]
    for array in ("out", *BACKWARD):
        if array in one.got and one.problem.job.ring > 1 and np.isfinite(one.got[array]).all():
            lines += _parts_lines(one, array)
    return "\n".join(lines) + "\n"
