"""A diagnosis as text, one screen, and as JSON: what the program prints, and what Python returns."""

from __future__ import annotations

import dataclasses
import math
import textwrap

import numpy as np

from .diagnosis import Diagnosis
from .examination import Pass
from .layout import Submission
from .picture import picture_of
from .problem import ARRAYS
from .rounding import PRECISIONS, coarser
from .search import Evidence, Explanation

_IN_HALF = """If the code is written for half precision, run it so as well: .to(float32) of float32 numbers is no copy, and
two buffers may be one.
"""


def sentence(explanation: Explanation) -> str:
    """What its mistakes are."""
    return "; and ".join(mistake.says for mistake in explanation.mistakes)


def _percent(share: float) -> str:
    return f"{100 * share:.{0 if share > 0.9995 else 1}f} %"


def _counted(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"


def _by_text(pairs) -> dict[str, list[str]]:
    """The first words of pairs, by the second."""
    found: dict[str, list[str]] = {}
    for word, text in pairs:
        found.setdefault(text, []).append(word)
    return found


def _error_table(cases: list[Evidence], precision: str) -> list[str]:
    """The largest row error of each array of each case."""
    rows = [("case", [f"{array} " for array in ARRAYS])]
    for one in cases:
        errors, tolerances = one.largest_errors(), one.yardstick.tolerances(precision)
        cells = ["- " if array not in errors else "NaN*" if np.isnan(one.got[array]).any()
                 else "inf*" if not math.isfinite(errors[array])
                 else f"{errors[array]:.1e}" + (" " if errors[array] <= tolerances[array] else "*") for array in ARRAYS]
        rows.append((one.problem.case.name, cells))
    width = max(len(name) for name, _ in rows)
    return [f"  {name:<{width}}{''.join(f'  {cell:>8}' for cell in cells)}".rstrip() for name, cells in rows]


def _no_mistake_of_its_own(backward: Explanation, forward: Pass) -> str:
    """What such a backward does; empty when it has a mistake, and of a forward."""
    if not backward.forward:
        return ""
    if backward.is_derivative:
        return "the derivative of this forward, as autograd finds it: nothing more is wrong"
    if not backward.mistakes:
        return "right for the out and lse of this forward" if backward.given_own else "right"
    same = any(one.mistakes == backward.mistakes for one in forward.explanations)
    return "the same mistake, and no other" if same else ""


def _explanation_text(one: Explanation, found: Pass) -> str:
    """Mistakes of the forward need not be explained again."""
    said = one.forward.mistakes if one.forward else ()
    sentences = ["the same mistake" if mistake in said else mistake.says for mistake in one.mistakes]
    text = f"WRONG: {'; and '.join(sentences)}\n"
    for mistake in one.mistakes:
        about = (("look at", mistake.look), ("lesson", mistake.lesson), ("also in", mistake.source))
        text += "".join(f"    {word:<13}{what}\n" for word, what in about if what and mistake not in said)
    return text + (f"    explains     {_percent(one.explained)} of the difference, every row within the rounding of "
                   f"{found.precision}\n")


def _pass_text(found: Pass, forward: Pass) -> str:
    if found.state == "right":
        text = f"right, within the rounding of {found.precision}"
        if PRECISIONS.index(found.precision) > PRECISIONS.index(found.returned):
            text += f", which is more than that of its {found.returned} numbers: is something kept or computed in less?"
        return text + "\n"
    if found.state == "unknown":
        return "WRONG, by no mistake that is known here\n" + "".join(
            f"    looks like   {sentence(near)}: explains {_percent(near.explained)} of the difference\n"
            for near in found.near)
    none = _no_mistake_of_its_own(found.explanations[0], forward)
    if none:
        return none + "\n"
    text = "        or  ".join(_explanation_text(one, found) for one in found.explanations)
    if len(found.explanations) > 1:
        text += "    The same numbers in these cases. More cases, or more ranks, may tell them apart.\n"
    return text


def _not_tested_text(diagnosis: Diagnosis) -> str:
    if not diagnosis.not_tested:
        return ""
    ids = ", ".join(mistake.id for mistake in diagnosis.not_tested)
    lines = textwrap.fill(ids, 100, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    return f"{len(diagnosis.not_tested)} known mistakes would not show in them:\n{lines}\n"


def _unequal_text(diagnosis: Diagnosis) -> str:
    """Which rows differ: "rows 8 to 15 of dk, on rank 1, in the case full"."""
    lines = []
    for one in diagnosis.unequal:
        rows = np.split(one.tokens, np.flatnonzero(np.diff(one.tokens) != 1) + 1)
        says = ", ".join(f"{run[0]}" if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in rows)
        ranks = f"on rank{'s' * (len(one.ranks) != 1)} {', '.join(map(str, one.ranks))}"
        lines.append(f"rows {says} of {one.array}, {ranks}, in the case {one.case}")
    return "" if not lines else "WRONG: not the same twice: " + "\n    and  ".join(lines) + (
        "\n    look at      a buffer that is read or sent before it is complete, or overwritten while it is in use: a wait, "
        "or an event of a side stream\n    lesson       06\n")


def _alone_text(diagnosis: Diagnosis) -> str:
    """"causal, gqa, each alone: the mask compares places in the shards\""""
    by_mistake = _by_text((name, sentence(wrong.explanations[0]) + ", or another" * (len(wrong.explanations) > 1))
                          for name, wrong in diagnosis.alone.items())
    return "\nNo mistake explains all wrong cases. Some of them are explained by themselves:\n" + "".join(
        f"    {', '.join(names)}{'' if len(names) == 1 else ', each'} alone: {says}\n"
        for says, names in by_mistake.items())


@np.errstate(all="ignore")
def to_text(diagnosis: Diagnosis, submission: Submission) -> str:
    cases, job = diagnosis.cases, diagnosis.cases[0].problem.job
    precision = coarser(diagnosis.forward.precision, diagnosis.backward.precision)
    what = f"{_counted(len(cases), 'case')} on {_counted(job.ranks, 'rank')}, {job.placement}"
    text = "\n".join((f"Results of {what}; largest error of a row, * for more than rounding:",
                      *_error_table(cases, precision), "", ""))
    read = _by_text(line.split(": ", 1) for line in submission.layouts)
    text += "".join(f"read: {', '.join(arrays)}: {says}\n" for says, arrays in read.items())
    text += "".join(f"read: {line}\n" for line in diagnosis.conventions)
    text += "\n" * bool(submission.layouts or diagnosis.conventions)
    text += _unequal_text(diagnosis)
    for title, found in (("forward", diagnosis.forward), ("backward", diagnosis.backward)):
        text += f"{title:<12}{_pass_text(found, diagnosis.forward)}" if found.state != "absent" else ""
    text += "".join(f"{array:<12}{'WRONG: ' + says if says else 'right'}\n" for array, says in diagnosis.more.items())
    by_type = _by_text((name, short) for name, short in diagnosis.rounded.items())
    text += "".join(f"gradients   WRONG: {', '.join(names)}: rounded to {short}, which has fewer digits than q and out\n"
                    "    look at      a fixed type in the backward: .to(q.dtype) is right\n" for short, names in by_type.items())
    if not diagnosis.explained:
        text += _alone_text(diagnosis) if diagnosis.alone else ""
        simplest = next((one for one in cases if not one.is_right(ARRAYS, precision)), cases[0])
        text += "\n" + picture_of(simplest, precision)
        text += _IN_HALF if precision in ("float64", "float32") else ""
    if diagnosis.right:
        text += "\nRIGHT in these cases. " + _not_tested_text(diagnosis)
    return text


def _explanations_as_dicts(explanations: list[Explanation]) -> list[dict]:
    return [{"mistakes": [mistake.id for mistake in one.mistakes], "sentence": sentence(one),
             "explained": one.explained, "given_own_out_and_lse": one.given_own,
             "is_derivative_of_forward": one.is_derivative} for one in explanations]


def _pass_as_dict(found: Pass) -> dict:
    return {"state": "wrong" if found.state == "named" else found.state, "numbers": found.returned,
            "within_rounding_of": found.precision, "explanations": _explanations_as_dicts(found.explanations),
            "near": _explanations_as_dicts(found.near)}


@np.errstate(all="ignore")
def to_dict(diagnosis: Diagnosis, submission: Submission) -> dict:
    """The object of --json. An error is None where it is not finite."""
    errors = {one.problem.case.name: {name: error if math.isfinite(error) else None
                                      for name, error in one.largest_errors().items()} for one in diagnosis.cases}
    return {"right": diagnosis.right, "explained": diagnosis.explained, "forward": _pass_as_dict(diagnosis.forward),
            "backward": _pass_as_dict(diagnosis.backward),
            "more_gradients": diagnosis.more, "rounded_gradients": diagnosis.rounded,
            "not_the_same_twice": [dataclasses.asdict(one) for one in diagnosis.unequal],
            "conventions": diagnosis.conventions,
            "layouts": submission.layouts, "errors": errors, "cases_without_results": submission.without,
            "not_tested": [mistake.id for mistake in diagnosis.not_tested]}
