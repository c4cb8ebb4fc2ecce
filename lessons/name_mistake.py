"""Names the mistake in the arrays of an exercise, which its program handed over (common/hand_over.hpp).

name_mistake.py FOLDER     one line, if `ring_attention_diagnose` knows the mistake; exercise.sh calls it
"""

import dataclasses
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src/python"))

import numpy as np
from ring_attention_diagnose.diagnosis import diagnose
from ring_attention_diagnose.examination import Options
from ring_attention_diagnose.placement import Job
from ring_attention_diagnose.problem import ARRAYS, Problem, every_case
from ring_attention_diagnose.report import sentence


def arrays_of(lines):
    """{name: [heads, tokens, dim]}"""
    for line in lines:
        name, *shape = line.split()[:4]
        numbers = np.array([float.fromhex(word) for word in line.split()[4:]])
        yield name, numbers.reshape([int(extent) for extent in shape])


def answer_of(words, of_ranks):
    """(problem, results) of one case, from the arrays of its ranks, or from the whole arrays of one program."""
    job = Job(int(words[1]), words[2], int(words[3]))
    tokens = sum(arrays["q"].shape[1] for arrays in of_ranks)
    ranks = range(job.ranks) if len(of_ranks) > 1 else ()
    place = np.argsort(sum((job.tokens_of(rank, tokens) for rank in ranks), []) or range(tokens))
    whole = {name: np.concatenate([arrays[name] for arrays in of_ranks], axis=1)[:, place]
             for name in of_ranks[0] if of_ranks[0][name].size and name != "sinks"}
    case = next(case for case in every_case(job) if case.name == words[0])
    case = dataclasses.replace(case, tokens=tokens, heads=len(whole["q"]), kv_heads=len(whole["k"]),
                               dim=whole["q"].shape[2], documents=case.documents and (*case.documents[:-1], tokens))
    problem = Problem(case, job, 1)
    given = {name: array for name, array in whole.items() if name in "qkv" or name == "dout"}
    if case.bias:
        given["bias"] = np.broadcast_to(whole["bias"], problem.bias.shape)
    if case.sinks:
        given["sinks"] = of_ranks[0]["sinks"].ravel()
    return problem.given(given), {name: whole[name] for name in ARRAYS if name in whole}


def answers_in(folder):
    """{ranks of Ulysses: [(problem, results)]}"""
    cases, found = {}, {}
    for file in sorted(folder.iterdir()):
        first, *lines = file.read_text(encoding="utf-8").splitlines()
        cases.setdefault(first, []).append(dict(arrays_of(lines)))
    for first, of_ranks in cases.items():
        found.setdefault(first.split()[3], []).append(answer_of(first.split(), of_ranks))
    return found


def line_of(answers):
    """"your dQ, dK, dV match a ring with this mistake: ..."; empty if no mistake of the list explains them."""
    found = diagnose(answers, Options(pairs=False, lists_not_tested=False))
    for names, which in (("out and lse", found.forward), ("dQ, dK, dV", found.backward)):
        mistakes = [one for one in which.explanations if one.mistakes]
        if which.state == "unknown":  # what comes after it says nothing
            return ""
        if which.wrong and mistakes:
            looks = dict.fromkeys(mistake.look for one in mistakes for mistake in one.mistakes)
            says = "; or ".join(map(sentence, mistakes))
            return f"your {names} match a ring with this mistake: {says}. Look at: {'; '.join(looks)}"
    return ""


if __name__ == "__main__":
    print(*[line for line in map(line_of, answers_in(Path(sys.argv[1])).values()) if line][:1])
