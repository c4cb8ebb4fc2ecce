"""What is wrong with the results of a ring attention, and which mistake explains it: the program
`ring-attention-diagnose`.

It needs NumPy alone. `python3 -m ring_attention_diagnose cases --out DIR` writes small problems, and
`python3 -m ring_attention_diagnose DIR` judges what a code returned for them (docs/diagnose.md of the project). From
Python:

    problems = problems_of(ranks=3, only=["full", "causal"])
    given = [{"out": [("mine", my_attention(**problem.inputs()))]} for problem in problems]
    right, report, as_dict = judged(problems, given)

`losses` does the same for the loss that a job reports, `norms` for the norm of its gradients, and `judge_model` for the
layers of a model in PyTorch of which `record` has written what they take and return.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Callable, Iterable

try:
    import numpy
except ImportError as error:
    _says = "NumPy is missing: `apt-get install python3-numpy`, or `python3 -m pip install numpy`"
    if os.path.basename(sys.argv[0]) in ("-m", "ring-attention-diagnose"):  # a program says it in one line
        print("error:", _says, file=sys.stderr)
        sys.exit(2)
    raise ImportError(_says) from error

from .diagnosis import diagnose
from .examination import Options
from .layout import Given, submission_of
from .losses import losses, norms
from .placement import InputError, Job, job_of
from .problem import ARRAYS, Problem, ladder, problem_of, runs_of
from .report import to_dict, to_text
from .rounding import PRECISION_OF

__version__ = "1.0.0"
__all__ = ["ARRAYS", "InputError", "Job", "Problem", "assert_right", "judge_model", "judged", "losses", "norms",
           "problems_of", "record"]


def __getattr__(name: str):
    """Loaded when they are used: the program starts faster without them."""
    modules = {"judge_model": ".model", "record": ".recording"}
    if name not in modules:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(modules[name], __name__), name)


def problems_of(ranks: int = 3, placement: str | Callable[[dict], list] = "contiguous", parallel: str = "ring",
                ulysses: int = 1, only: str | Iterable[str] = (), seed: int = 1, repeat: int | None = 1, tokens: int = 0,
                heads: int = 0, dim: int = 16, block: int = 1) -> list[Problem]:
    """The cases for the ranks of a code, the simplest first; all, or those with these names, as "full,causal" or a list.

    :param placement: a word, or a function of one's own that returns the positions of each rank's tokens. It takes a dict
    with name, ranks, tokens and, of packed documents, cu_seqlens
    :param tokens, heads, dim: of the cases; 0: as few as show the mistakes
    :param block: divides the tokens of a rank, and of half a rank
    :param repeat: how often each case is run; None: the first case of each pass twice, the others once
    :raises InputError: for ranks that cannot be divided so, and for a name that no case has
    """
    layout = placement if callable(placement) else None
    word = "own" if layout else placement
    job = job_of(ranks, word, parallel, ulysses, tokens=tokens, heads=heads, dim=dim, block=block)
    cases = ladder(job, only.split(",") if only and isinstance(only, str) else list(only))
    first = cases[:1] + [case for case in cases if not case.decodes][:1]
    return [problem_of(one, job, seed, layout) for case in cases
            for one in runs_of(case, 1 + (case in first) if repeat is None else repeat)]


def judged(problems: list[Problem], given: list[Given],
           progress: Callable[[str], None] = lambda line: None, dtype: str = "",
           lists_not_tested: bool = True) -> tuple[bool, str, dict]:
    """Right up to rounding?, the report, and the object of --json.

    :param given: for each problem, by the names of ARRAYS: one whole array or one of each rank, as (name in errors,
    array)
    :param dtype: in which the code got q: float64, float32, float16 or bfloat16. If it is not known, out tells
    :param lists_not_tested: of right results, the mistakes that these cases would not show: most of the time
    :raises InputError: one line: for a shape that does not fit, results of another case or of another seed
    """
    submission = submission_of(problems, given)
    if not submission.answers:
        raise InputError("diagnose", "the function returned nothing for any case", "return out, or (out, lse)")
    found = diagnose(submission.answers, Options(progress=progress, type_of_q=PRECISION_OF.get(str(dtype).rpartition(".")[2], ""),
                                                 lists_not_tested=lists_not_tested, unexplained=submission.check_origins))
    return found.right, to_text(found, submission), to_dict(found, submission)


def assert_right(run: Callable, ranks: int = 3, **words) -> None:
    """For a test of one's own: the failure's message is the report.

    :param run: run(q, k, v, case), with whole arrays [batch, heads, tokens, dim] in the order of positions, and a dict with
    ranks, the words of cases.json, dout and, of that case, bias. It returns out, (out, lse), (out, lse, dq, dk, dv) or a dict:
    each a whole array, or a list with the rows of each rank
    :param words: of problems_of
    :raises AssertionError: unless the results are right
    """
    __tracebackhide__ = True  # pytest shows the caller
    problems, given = problems_of(ranks, **{"repeat": None, **words}), []
    for problem in problems:
        arrays = problem.inputs()
        q, k, v = (arrays.pop(name) for name in "qkv")
        found = run(q, k, v, {**problem.description(), **arrays, "name": problem.case.name, "ranks": ranks})
        if not isinstance(found, dict):
            found = dict(zip(ARRAYS, found if isinstance(found, tuple) else (found,)))
        given.append({name: [(f"{name} in the case {problem.case.name}", numpy.asarray(piece, float))
                             for piece in (of_ranks if isinstance(of_ranks, list) else [of_ranks])]
                      for name, of_ranks in found.items() if of_ranks is not None})
    right, report, _ = judged(problems, given, lists_not_tested=False)
    if not right:
        raise AssertionError("\n" + report)
