"""docs/symptoms.md: what each mistake of mistakes.tsv does to results, found by running it.

symptoms.py           writes the page
symptoms.py --check   writes nothing; fails when the page is out of date
"""

import collections
import functools
import importlib.util
import itertools
import sys
import textwrap

if importlib.util.find_spec("numpy") is None:
    print(f"skipped: {sys.executable} has no NumPy")
    sys.exit(77)

import numpy as np
import tables
import trials
from ring_attention_diagnose.mistakes import MISTAKES
from ring_attention_diagnose.placement import Job
from ring_attention_diagnose.problem import Problem, every_case
from ring_attention_diagnose.residual import Yardstick
from ring_attention_diagnose.ring import backwards, forwards, in_groups
from ring_attention_diagnose.rules import Rules

PAGE = tables.SOURCE / "docs/symptoms.md"
JOBS = (Job(3, "contiguous"), Job(3, "zigzag"), Job(3, "striped"), Job(6, "zigzag", 2))
CASES = [case.name for case in every_case(JOBS[0]) if not case.decodes]
USUAL = [case.name for case in every_case(JOBS[0]) if not case.by_name_only]  #: which most attentions can compute
SMALL = 0.03  # of a row: less is rounding that grows
INTRODUCTION = """# From the symptom to the cause

Compare your results with dense attention, rank by rank, and find the symptom below. Under it are the mistakes that
cause it: `python3 tests/diagnose/symptoms.py` runs [each mistake of the list](diagnose.md#all-mistakes) and writes this
page.

Every mistake was run on 3 ranks, contiguous. Where that does not show it: zigzag, striped, or 6 ranks of which 2 share
the heads. *From* is the first [case](diagnose.md#the-cases) that shows it: the cases before that one are right, and the
symptom is that of this case. A mistake of both passes is described by its forward; its gradients are wrong as well.
*Then run* names the case that tells most of the causes apart, and what it shows of each.
[`ring-attention diagnose`](diagnose.md) compares all numbers, not only their places, and needs no table.
"""

EVERY_OTHER = """## Every other rank

A wrong parcel travels on, so on many ranks most mistakes of a ring reach all of them. What is wrong on every other rank
only stays where it arises, or there are few ranks:

"""
EVERY_OTHER_ROWS = (
    ("one buffer in an odd/even hop",
     "odd ranks receive before they have sent, and pass on what has just arrived. Without a mask ranks 0 and 2 of 3 are wrong, "
     "and rank 0 of 2; from 4 ranks on, all", "a second buffer, and the swap after the hop", "05"),
    ("one branch of an odd/even hop",
     "the branch of the odd (or of the even) ranks lacks the swap or the wait, or names the wrong neighbour",
     "both branches, on 3 ranks and on 4", "05"),
    ("an axis of 2 ranks: Ulysses or tensor parallel",
     "even ranks have the first half of the heads and of a shard's tokens, odd ranks the second: positions of the shard instead "
     "of the slice, heads that are not returned",
     "the same with 3 or 4 ranks on this axis: do the wrong ranks change?", "10"),
    ("two ranks on a machine or a device", "they share a device, or only one of two devices gets its inputs",
     "the same ranks in another order", "05"))

NOT_IN_RESULTS = """## What the results of attention do not show

Attention is right, or there is no result. [The second list](diagnose.md#all-mistakes) has all of these mistakes:

"""
NOT_IN_RESULTS_ROWS = (
    ("the ranks wait for ever", ("sends-first", "neighbours-by-group"),
     "print which rank waits for which: ranks of another ring, or all in their send?"),
    ("other numbers in each run", ("race-in-a-tile", "credit-missing", "side-stream"), "run each case twice: `cases --repeat 2`"),
    ("wrong with dropout only", ("dropout-by-place", "dropout-of-scores"), "with the identity as V, out is P after dropout"),
    ("the loss is NaN, for some batches", ("no-labels",), "count the labels of each rank; `losses`"),
    ("the loss is near the right one, and not the same", ("loss-by-local-tokens", "labels-of-shard", "labels-rolled"), "`losses`"),
    ("the loss is right, but its gradient is that of another", ("gradient-of-means",), "`losses` with `gradient=`"),
    ("the norm of the gradients is too large", ("norm-of-copies",), "`norms`"),
    ("the first loss is right, later ones are not",
     ("data-ranks-only", "norm-twice", "stale-weights", "dbias-not-summed", "dsinks-not-summed"),
     "compare the gradient of each parameter after one step: `record` and `judge_model`"),
    ("the ring is right, the model is wrong", ("tokens-of-shard", "local-rotary"), "`record` and `judge_model`"),
    ("right, but slow or out of memory", ("wrong-partner", "hop-too-many", "one-keeper"),
     "count the pairs, the messages and the tokens of each rank"),
    ("right, but the last bits depend on the number of ranks", ("rounding-by-rank",), "the order of each sum"),
)


def listed(words):
    words = [word.replace("q", "Q").replace("k", "K").replace("v", "V") if word[0] == "d" else word for word in words]
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def factor_of(got, want, job, case):
    """"3 times too large": all elements are right but for one factor."""
    some = np.isfinite(want) & (abs(want) > 1e-12)
    ratios = got[some] / want[some]
    if not ratios.size or not np.isfinite(ratios).all() or np.ptp(ratios) > 1e-6 * abs(ratios.mean()):
        return ""
    ratio = ratios.mean()
    if abs(ratio - 1) < 1e-6:  # what is wrong has no right number to be compared with
        return ""
    known = {"N, the number of ranks": job.ranks, "√D": 1 / case.scale, "g, the query heads per KV head": case.group}
    for word, number in known.items():
        for factor, side in ((number, "large"), (1 / number, "small")):
            if number != 1 and abs(ratio / factor - 1) < 1e-6:
                return f"too {side} by a factor of {word}"
    return f"times {ratio:.3g}"


def moved(got, want, job):
    """Right rows in a wrong place: of other ranks, of other heads."""
    shards = [job.shard(rank, want.shape[1]) for rank in range(job.ring)]
    same = lambda a, b: a.shape == b.shape and ((a == b) | (abs(a - b) <= 1e-9 + 1e-6 * abs(b))).all()  # noqa: E731
    from_rank = [next((o for o, there in enumerate(shards) if same(got[:, here], want[:, there])), None)
                 for here in shards]
    if None not in from_rank and from_rank != list(range(job.ring)):
        return "right, but on another rank"
    from_head = [next((o for o in range(len(want)) if same(got[h], want[o])), None) for h in range(len(got))]
    return "right, but in another head" if None not in from_head and from_head != list(range(len(got))) else ""


def place_of(wrong, job):
    """Where [heads, tokens] are wrong."""
    tokens = wrong.any(0)
    shards = [np.array(job.tokens_of(rank, len(tokens))) for rank in range(job.ranks)]
    ranks = [rank for rank, here in enumerate(shards) if tokens[here].any()]
    names = {tuple(range(job.ranks)): "on every rank", tuple(range(1, job.ranks)): "on every rank but 0",
             tuple(range(job.ranks - 1)): "on every rank but the last", (job.ranks - 1,): "on the last rank only"}
    for first in (0, 1) if job.ranks > 3 else ():
        names[tuple(range(first, job.ranks, 2))] = f"on every other rank, from rank {first} on"
    where = names.get(tuple(ranks), "on some ranks")
    rows = np.concatenate([tokens[shards[rank]] for rank in ranks])
    if rows.all():
        where += ", all rows"
    elif tokens[tokens.argmax():].all():
        first = tokens.argmax()
        where += ", all rows but the first" if first == 1 else f", the last rows only, from position {first} on"
    elif not tokens[1:].all() and all(not tokens[shards[rank]][0] for rank in ranks):
        where += ", not in the first row of a shard"
    else:
        where += ", some rows"
    heads = wrong.any(1)
    return where + ("" if heads.all() else ", some heads" if heads[0] else ", not in head 0")


def array_symptom(problem, yardstick, name, got):
    """What is wrong with one array; empty if nothing is."""
    want, job = problem.right[name], problem.job
    errors = yardstick.row_errors(name, got, want)
    wrong = ~(errors <= 1e-6)
    if not wrong.any():
        return ""
    lost = ~np.isfinite(got) & np.isfinite(want) | np.isnan(got)
    if lost.any():
        return "NaN or infinite " + place_of(lost.any(2), job)
    if np.nanmax(errors) < SMALL:
        return "wrong in the last digits"
    return factor_of(got, want, job, problem.case) or moved(got, want, job) or "wrong " + place_of(wrong, job)


def results_of(mistakes, problem):
    """What each mistake makes of the forward, or of the backward after a right forward."""
    def run(key, some):
        is_backward, precision = key
        rules = [trials.Explanation((mistake,)).rules() for mistake in some]
        if not is_backward:
            return [found.arrays for found in forwards(problem, rules, precision)]
        (right,) = forwards(problem, [Rules()], precision)
        return backwards(problem, rules, right, precision)

    return in_groups(mistakes, lambda m: (m.phase == "backward", "float32" if m.in_float else "float64"), run)


def symptom_of(arrays, problem, yardstick):
    """"out and lse: wrong on every rank, all rows"; empty if nothing is wrong."""
    found = {}
    for name in arrays:
        text = array_symptom(problem, yardstick, name, arrays[name])
        if text:
            found.setdefault(text, []).append(name)
    return "; ".join(f"{listed(names)} {'is' if len(names) == 1 else 'are'} {text}" for text, names in found.items())


def all_symptoms():
    """{mistake: {case: symptom}} under the first job that shows it, and that job."""
    symptoms, jobs = {}, {}
    for job in JOBS:
        problems = [Problem(case, job, 1) for case in every_case(job) if not case.decodes]
        rest = [mistake for mistake in MISTAKES.values() if mistake not in symptoms]
        for problem in problems:
            yardstick = Yardstick(problem)
            for mistake, arrays in zip(rest, results_of(rest, problem)):
                text = symptom_of(arrays, problem, yardstick)
                if text:
                    jobs[mistake] = job
                    symptoms.setdefault(mistake, {})[problem.case.name] = text
    return symptoms, jobs


def job_text(job):
    if job == JOBS[0]:
        return ""
    return f", {job.ranks} ranks, {job.placement}" + (f", U = {job.ulysses}" if job.ulysses > 1 else "")


def next_lines(mistakes, symptoms):
    """The case that tells most of them apart, and what it shows of which."""
    by_case = {case: collections.defaultdict(list) for case in USUAL}
    for case, mistake in itertools.product(USUAL, mistakes):
        by_case[case][symptoms[mistake].get(case, "nothing is wrong")].append(f"`{mistake.id}`")
    best = max(USUAL, key=lambda case: len(by_case[case]))
    if len(mistakes) == 1:
        return []
    wrapped = functools.partial(textwrap.fill, width=120, subsequent_indent="  ", break_on_hyphens=False)
    if len(by_case[best]) == 1:
        return ["No case tells them apart by where it is wrong; the numbers do.", ""]
    lines = [wrapped(f"- {text}: {', '.join(ids)}") for text, ids in by_case[best].items()]
    return [f"Then run `{best}`:", "", *lines, ""]


def section(symptom, mistakes, symptoms, jobs):
    rows = ((f"`{m.id}`", m.says, next(iter(symptoms[m])) + job_text(jobs[m]), m.look, tables.lesson_link(m.lesson))
            for m in mistakes)
    heading = ("cause", "what is wrong", "from", "look at", "lesson")
    lines = [f"### {'O' if symptom[0] == 'o' else symptom[0]}{symptom[1:]}", "", tables.table(heading, rows), ""]
    return lines + next_lines(mistakes, symptoms)


def not_in_results():
    rows = {row["id"]: row for row in tables.mistakes(unseen=True)}

    def cell(ids, name, of=str):
        return ", ".join(dict.fromkeys(filter(None, (of(rows[one][name]) for one in ids))))

    return NOT_IN_RESULTS + tables.table(
        ("symptom", "cause", "what is wrong", "look at", "lesson", "seen in"),
        ((symptom, ", ".join(f"`{one}`" for one in ids), "; or ".join(rows[one]["says"] for one in ids), look,
          cell(ids, "lesson", tables.lesson_link), cell(ids, "source", tables.source_link))
         for symptom, ids, look in NOT_IN_RESULTS_ROWS)) + "\n"


def page():
    np.seterr(all="ignore")
    symptoms, jobs = all_symptoms()
    groups = collections.defaultdict(list)
    for mistake in MISTAKES.values():
        if mistake in symptoms:
            groups[next(iter(symptoms[mistake].values()))].append(mistake)
    order = sorted(groups, key=lambda text: (-len(groups[text]), text))
    lines = [INTRODUCTION]
    for title, backward in (("The forward", False), ("The backward alone", True)):
        lines += [f"## {title}", ""]
        for symptom in order:
            some = [m for m in groups[symptom] if (m.phase == "backward") == backward]
            lines += section(symptom, some, symptoms, jobs) if some else []
    lines.append(EVERY_OTHER + tables.table(("cause", "what is wrong", "look at", "lesson"),
                                            ((*row, tables.lesson_link(lesson)) for *row, lesson in EVERY_OTHER_ROWS)) + "\n")
    lines.append(not_in_results())
    hidden = [f"`{m.id}`" for m in MISTAKES.values() if m not in symptoms]
    if hidden:
        lines += [f"Not shown by these cases in the type of this page: {', '.join(hidden)}.", ""]
    return "\n".join(itertools.chain(lines)).rstrip() + "\n"


def main():
    text = page()
    if sys.argv[1:] != ["--check"]:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    right = PAGE.exists() and PAGE.read_text(encoding="utf-8") == text
    print("as" if right else "python3 tests/diagnose/symptoms.py writes what", "docs/symptoms.md says")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
