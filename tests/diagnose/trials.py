"""Wrong results to be diagnosed: every mistake, in both passes or in one; pairs; and thirty mistakes that are not in
the list. One part of tests/diagnose/verdicts.tsv is the trials of one kind for one job."""

import dataclasses
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src/python"))

import numpy as np
from ring_attention_diagnose.diagnosis import diagnose
from ring_attention_diagnose.examination import Options
from ring_attention_diagnose.mistakes import MISTAKES, Mistake
from ring_attention_diagnose.placement import Job
from ring_attention_diagnose.problem import Problem, ladder
from ring_attention_diagnose.ring import simulated
from ring_attention_diagnose.rules import NO_RANK, to_common_maximum
from ring_attention_diagnose.search import Explanation

SOME = ("full", "causal", "gqa", "window", "sinks")
CASES = {"known": (), "pairs": ("full", "causal", "gqa"), "new": ("full", "causal", "gqa", "sinks"), "unlisted": SOME}


@dataclasses.dataclass(frozen=True)
class Trial:
    """A ring with these mistakes."""

    name: str
    forward: tuple
    backward: tuple


def trials_of(mistakes):
    """Each mistake; those of both passes also in one alone."""
    for mistake in mistakes:
        one = (mistake,)
        if mistake.phase != "both":
            yield Trial(mistake.id, one if mistake.in_forward else (), one if mistake.in_backward else ())
            continue
        yield Trial(mistake.id, one, one)
        yield Trial(f"{mistake.id} (forward only)", one, ())
        yield Trial(f"{mistake.id} (backward only)", (), one)


def pair_named(name):
    """Two mistakes at a time: "no-mask + no-scale"."""
    both = [MISTAKES[one] for one in name.split(" + ")]
    return Trial(name, *(tuple(m for m in both if getattr(m, phase)) for phase in ("in_forward", "in_backward")))


def trials_of_part(part, names):
    kind = part.split()[0]
    if kind == "pairs":
        return [*map(pair_named, names)]
    if kind == "new":
        return [Trial(m.id, (m,) if m.in_forward else (), (m,) if m.in_backward else ()) for m in NEW_MISTAKES]
    return list(trials_of(MISTAKES.values()))


def problems_of_part(part):
    kind, ranks, placement, _, ulysses = part.split()
    job = Job(int(ranks), placement, int(ulysses))
    return [Problem(case, job, 1) for case in ladder(job, CASES[kind])]


def diagnosis_of(part, trial, problems):
    """What the package says of the trial."""
    kind, precision = part.split()[0], part.split()[3]
    rules = Explanation(trial.forward).rules(), Explanation(trial.backward).rules()
    answers = [(problem, simulated(problem, precision, *rules)) for problem in problems]
    options = Options(pairs=kind == "pairs", lists_not_tested=False)
    if kind == "unlisted":
        options.mistakes = [m for m in options.mistakes if m not in trial.forward + trial.backward]
    return diagnose(answers, options)


def explanation_text(one):
    ids = " + ".join(mistake.id for mistake in one.mistakes)
    if one.is_derivative:
        return "(derivative)" + ids
    return ids or ("(follows)" if one.given_own else "(right out)")


def pass_text(found):
    """"gqa-modulo | gqa-first-kv", or the state."""
    return " | ".join(map(explanation_text, found.explanations)) or found.state


def margins_text(found):
    """"3000:0.5,0.7": the distance from right results, and that of each explanation, in tolerances."""
    return f"{found.right_worst:.3g}" + ",".join(
        f"{'' if i else ':'}{one.worst:.3g}" for i, one in enumerate(found.explanations))


# ---- thirty mistakes that are not in the list, written when the classifier was done ----------------------------------


def _edits(**rules):
    return lambda r: r.__dict__.update(rules)


def _causal(rule):
    return _edits(causal=lambda c, p: rule(p))


def _seen(p):
    return p.key.position <= p.query.position


def _tables(change):
    def edit(steps):
        tables = change(steps, np.arange(steps.count))
        steps.__dict__.update({name: table + 0 * steps.k for name, table in tables.items()})

    return lambda r: setattr(r, "schedule", (*r.schedule, edit))


def _last_key_is_lost(slots, pair):
    pair.content.position = np.where(pair.content.slot + 1 == slots.count, slots.tokens, pair.content.position)


def _last_rank_repeats(steps, number):
    columns = np.where((steps.rank == steps.ranks - 1) & (number == steps.count - 1), steps.count - 2, number)
    return {name: np.take_along_axis(getattr(steps, name), columns, 1) for name in steps.TABLES}


def _factors(change):
    return _edits(factors=lambda m, n, to: change(*to_common_maximum(m, n, to), n))


def _dout(change):
    return _edits(dout=lambda slots, problem: change(problem.shards("dout")))


def _new_unscaled(o, l, new_o, new_l, m_new):
    return o, l, np.where(m_new == -np.inf, 0.0, 1.0), np.where(m_new == -np.inf, 0.0, 1.0)


_NEW = {
    "both": {
        "a query sees two keys after it": _causal(lambda p: p.key.position <= p.query.position + 2),
        "a query sees no key of its own shard but itself": _causal(
            lambda p: np.where(p.on_one_rank, p.key.position == p.query.position, _seen(p))),
        "remote tiles see every second key": _causal(lambda p: _seen(p) & (p.on_one_rank | (p.key.slot % 2 == 0))),
        "rank 0 has no mask": _causal(lambda p: _seen(p) | (p.query.rank == 0)),
        "the first key of each shard is lost": _edits(
            padding=lambda c, p: (p.content.slot > 0) & (p.content.position < c.tokens)),
        "the last key of each shard is lost": _edits(mask_positions=(_last_key_is_lost,)),
        "the last rank skips its last step": _tables(_last_rank_repeats),
        "K of the owner after next": _tables(lambda s, i: {"k": s.owner(i - 1)}),
        "V comes from the rank before the owner": _tables(lambda s, i: {"v": s.owner(i + 1)}),
        "rank 1 uses its own K,V in every step": _tables(
            lambda s, i: {"k": np.where(s.rank == 1, 1, s.k), "v": np.where(s.rank == 1, 1, s.v)}),
        "the scale is D^(-1/4)": _edits(scale=lambda c: np.sqrt(c.scale)),
        "the scale is 1 / sqrt(2 D)": _edits(scale=lambda c: c.scale / np.sqrt(2)),
        "the scale is 1 / D and scores are in base 2": _edits(scale=lambda c: c.scale * 0.6931),
        "the KV heads of two groups are exchanged": _edits(kv_head=lambda c, h: c.kv_heads - 1 - h // c.group),
        "head 0 has the K,V of head 1": _edits(kv_head=lambda c, h: np.where(h == 0, 1, h // c.group)),
        "sinks count twice": _edits(sink_times=lambda steps, ranks: 2 + 0 * steps),
    },
    "forward": {
        "l of a new step counts twice": _factors(lambda o, l, new_o, new_l, n: (o, l, new_o, 2 * new_l)),
        "o gets the square of its factor": _factors(lambda o, l, new_o, new_l, n: (o * o, l, new_o, new_l)),
        "the new step is not rescaled": _factors(_new_unscaled),
        "lse without m": _edits(returned_lse=lambda m, l, lse: lse - m[0]),
        "lse one too large": _edits(returned_lse=lambda m, l, lse: lse + 1),
    },
    "backward": {
        "dO of half of the columns": _dout(lambda dout: dout * (np.arange(dout.shape[3]) < dout.shape[3] // 2)),
        "dO of another head": _dout(lambda dout: dout[:, ::-1]),
        "dO with its sign changed": _dout(lambda dout: dout * np.where(np.arange(dout.shape[3]) % 2 == 0, -1, 1)),
        "dV goes one rank too far": _tables(lambda s, i: {"dv_to": (s.dv_to + 1) % s.ranks}),
        "dK of the first step is lost": _tables(lambda s, i: {"dk_to": np.where(i == 0, NO_RANK, s.dk_to)}),
        "dK, dV of the last step are lost": _tables(
            lambda s, i: {n: np.where(i + 1 == s.ranks, NO_RANK, getattr(s, n)) for n in ("dk_to", "dv_to")}),
        "dQ without its last step": _edits(add_dq=lambda total, part, step: total + part if step < 2 else total),
        "dK with half the scale": _edits(dk_factor=lambda c: 0.5),
        "dK, dV times the heads of a group": _edits(dkdv_of=lambda c, h: np.full(len(h), float(c.group))),
    },
}
NEW_MISTAKES = [Mistake(name, phase, edit=edit) for phase, of_phase in _NEW.items() for name, edit in of_phase.items()]


def main():
    """How long it takes to tell that nothing explains results: seconds of CPU, for docs/diagnose.md."""
    def seconds_of(work):
        begin = time.process_time()
        result = work()
        return time.process_time() - begin, result

    for ranks, only in ((3, ("full", "causal", "gqa")), (3, ()), (4, ())):
        job, right = Job(ranks, "zigzag"), Explanation().rules()
        spent, results = seconds_of(lambda: [
            (problem, simulated(problem, "float32", right, right))
            for problem in (Problem(case, job, 1) for case in ladder(job, only))])
        wrong = [(problem, {name: -array for name, array in arrays.items()}) for problem, arrays in results]
        singles, pairs = (seconds_of(lambda: diagnose(wrong, Options(pairs=tries_pairs)))[0]  # noqa: B023
                          for tries_pairs in (False, True))
        print(f"{ranks} ranks, {', '.join(only) or 'all'}: right results {spent:.3f}, singles {singles:.1f}, "
              f"with pairs {pairs:.1f}")


if __name__ == "__main__":
    main()
