"""`Submission`: what a code handed back for some cases, with its axes in any order, whole or one array a rank."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np

from .placement import InputError
from .problem import ARRAYS, BACKWARD, MORE, Case, Problem
from .residual import Yardstick
from .ring import Arrays

#: For one case, by array: the whole array, or one a rank, each with its name in errors, a file or "dq of rank 1".
Given = "dict[str, list[tuple[str, np.ndarray]]]"


def shape_text(extents) -> str:
    return "[" + ", ".join(str(extent) for extent in extents) + "]"


def _order_of(extents: list[int], wanted: dict[str, int], slack: int) -> tuple[int, ...] | None:
    """Where `wanted` are among `extents`: an order of the axes, the present one first. The axis S, the tokens, may be
    longer by fewer than `slack`."""
    for order in itertools.permutations(range(len(wanted))) if len(extents) == len(wanted) else ():
        extra = [extents[at] - want for at, want in zip(order, wanted.values())]
        if all(0 <= more < (slack if axis == "S" else 1) for axis, more in zip(wanted, extra)):
            return order
    return None


def _attempt(case: Case, array: str, tokens: int, raw: np.ndarray, heads: int) -> tuple[np.ndarray, str] | None:
    """The axes are found by their extents; those of extent 1 do not count."""
    raw = raw.reshape([extent for extent in raw.shape if extent != 1])
    dim = case.extents_of(array, tokens)[-1]
    axes = {"B": case.batch, "H": heads // case.batch, "S": tokens, "D": 1 if array == "lse" else dim}
    wanted = {axis: extent for axis, extent in axes.items() if extent != 1}
    for slack in (1, tokens if tokens < case.rows_of(array) else tokens // 2):  # padding to equal shards
        order = _order_of(list(raw.shape), wanted, slack)
        if order:
            says = []
            if order != tuple(sorted(order)):
                says.append("axes are " + shape_text(list(wanted)[order.index(at)] for at in range(len(order))))
            if slack > 1:
                says.append("rows behind the last token are cut off")
            found = raw.transpose(order)[tuple(map(slice, wanted.values()))]
            return found.reshape(heads, tokens, -1), ", ".join(says)
    return None


def arranged(case: Case, array: str, tokens: int, raw: np.ndarray) -> tuple[np.ndarray, str] | None:
    """One array in the order [heads, tokens, dim], and what had to be done to it: one sentence, or none. dk and dv of
    all query heads are summed over the groups. None when the shape does not fit.

    :param tokens: those that it should hold: all, or those of a rank
    """
    heads = case.kv_heads if array in ("dk", "dv") else case.heads
    found = _attempt(case, array, tokens, raw, heads)
    if found:
        return found
    *extents, last = [extent for extent in raw.shape if extent != 1] or [1]
    columns = case.extents_of(array, tokens)[-1]
    if array != "lse" and len(extents) == 1 + (case.batch > 1) and last == heads // case.batch * columns != extents[-1]:
        found = _attempt(case, array, tokens, raw.reshape(*extents, -1, columns), heads)  # [S, H D]
        if found:
            return found[0], "heads and columns are in one axis"
    found = _attempt(case, array, tokens, raw, case.heads) if array in ("dk", "dv") else None
    if not found:
        return None
    sums = found[0].reshape(case.kv_heads, case.group, tokens, -1).sum(1)
    return sums, ", ".join(filter(None, (found[1], "of every query head: summed over each group")))


@dataclass
class Submission:
    """The cases that have results."""

    answers: list[tuple[Problem, Arrays]] = field(default_factory=list)
    layouts: list[str] = field(default_factory=list)  #: "out: axes are [S, H, D]": what was rearranged
    without: list[str] = field(default_factory=list)  #: names of the cases without results

    def check_origins(self) -> None:
        """:raises InputError: one line, for results of another case or of another seed"""
        with np.errstate(all="ignore"):
            for problem, arrays in self.answers:
                _check_origin(problem, arrays, [other for other, _ in self.answers])

    def _arranged(self, problem: Problem, array: str, tokens: int, name: str, raw: np.ndarray) -> np.ndarray:
        rows = 1 if problem.case.decodes else tokens
        found = arranged(problem.case, array, rows, raw)
        if found is None:
            wanted = shape_text(problem.case.extents_of(array, rows))
            raise InputError(name, f"the shape {shape_text(raw.shape)} is not {wanted} in some order of the axes",
                             "reshape the array before it is handed back")
        line = f"{array}: {found[1]}"
        if found[1] and line not in self.layouts:
            self.layouts.append(line)
        return found[0].astype(np.float64).repeat(tokens // rows, axis=1)  # of one query: as a rank with copies of it

    def _arrays(self, problem: Problem, given: Given) -> Arrays:
        arrays = {}
        for array in (name for name in ARRAYS if given.get(name)):
            pieces, tokens = given[array], problem.case.rows_of(array)
            if problem.case.decodes and array in BACKWARD:
                raise InputError(pieces[0][0], f"{problem.case.name} has no gradients", "leave it out")
            shards = [problem.job.tokens_of(rank, tokens) for rank in range(problem.job.ranks)]
            if len(pieces) == 1:
                shards = [list(range(tokens))]
            if len(pieces) != len(shards):
                raise InputError(pieces[0][0], f"{len(pieces)} arrays for {problem.job.ranks} ranks",
                                 "give one whole array, or one of each rank")
            parts = [self._arranged(problem, array, len(here), *piece) for here, piece in zip(shards, pieces)]
            arrays[array] = np.concatenate(parts, axis=1)[:, np.argsort(sum(shards, []))]
        return {**arrays, **{array: self._whole(problem, array, given[array]) for array in MORE if given.get(array)}}

    def _whole(self, problem: Problem, array: str, pieces: list[tuple[str, np.ndarray]]) -> np.ndarray:
        """The gradient of a bias, [heads, tokens, tokens], or of sinks, [heads, 1, 1]: of all queries."""
        heads, tokens, job = problem.case.heads, problem.case.tokens, problem.job
        if array not in problem.parts:
            raise InputError(pieces[0][0], f"{problem.case.name} has no such input", "leave it out")
        shape = (heads, tokens, tokens) if array == "dbias" else (heads, 1, 1)
        rows = [(heads, len(job.tokens_of(rank, tokens)), tokens) for rank in range(job.ranks)]
        whole = [raw.size == np.prod(shape) for _, raw in pieces]
        if len(pieces) in (1, job.ranks) and all(whole):
            arrays = [raw.reshape(shape).astype(np.float64) for _, raw in pieces]
            if all(np.allclose(arrays[0], other, rtol=1e-3) for other in arrays):
                return arrays[0]
            self.layouts.append(f"{array}: of the queries of each rank: summed over the ranks")
            return np.sum(arrays, axis=0)
        if array == "dsinks" or [raw.size for _, raw in pieces] != [np.prod(of_rank) for of_rank in rows]:
            wanted = shape_text(shape if array == "dbias" else shape[:1])
            raise InputError(pieces[0][0], f"the shape {shape_text(pieces[0][1].shape)} is not {wanted}",
                             "hand it back like the input, or the rows of each rank's queries")
        order = [token for rank in range(job.ranks) for token in job.tokens_of(rank, tokens)]
        joined = np.concatenate([raw.reshape(of_rank) for (_, raw), of_rank in zip(pieces, rows)], axis=1)
        return joined[:, np.argsort(order)].astype(np.float64)


def _check_origin(problem: Problem, arrays: Arrays, problems: list[Problem]) -> None:
    """Is the output that of another case, or of the case with the arrays of another seed?"""
    if "out" not in arrays:
        return
    yardstick, name = Yardstick(problem), problem.case.folder
    tolerances = yardstick.tolerances("bf16")

    def fits(right: Arrays) -> bool:
        return (right["out"].shape == arrays["out"].shape
                and yardstick.residuals(arrays, [right], ("out",), tolerances).worst[0] <= 1)

    if fits(problem.right):
        return
    for other in problems:
        if fits(other.right):
            raise InputError(f"results of {name}", f"are those of the case {other.case.folder}",
                             "hand them back for that case")
    for seed in range(100):  # those that users take
        if fits(Problem(problem.case, problem.job, seed).right):
            raise InputError(f"results of {name}", f"are those for the arrays of seed {seed}",
                             f"these cases have seed {problem.seed}: compute them again")


def submission_of(problems: list[Problem], given: list[Given]) -> Submission:
    """:raises InputError: one line, for a shape that does not fit"""
    if len(given) != len(problems):
        raise InputError("diagnose", f"there are results for {len(given)} of {len(problems)} cases",
                         "give a dictionary for each case, empty without results")
    found = Submission()
    for problem, of_case in zip(problems, given):
        arrays = found._arrays(problem, of_case)
        if any(name in arrays for name in ARRAYS):
            found.answers.append((problem, arrays))
        else:
            found.without.append(problem.case.folder)
    return found
