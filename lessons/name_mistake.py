"""Names the mistake in the arrays of an exercise, which its program wrote with --save.

name_mistake.py FOLDER     one line, if `ring_attention_diagnose` knows the mistake; exercise.sh calls it
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src/python"))

from ring_attention_diagnose.diagnosis import diagnose
from ring_attention_diagnose.examination import Options
from ring_attention_diagnose.files import read_results
from ring_attention_diagnose.layout import submission_of
from ring_attention_diagnose.report import sentence


def answers_in(folder):
    """[[(problem, results)]]: of the folder, or of each folder in it, for there is one for each way to share the ranks"""
    for file in sorted(Path(folder).rglob("cases.json")):
        yield submission_of(*read_results(str(file.parent))).answers


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
    print(*[line for line in map(line_of, answers_in(sys.argv[1])) if line][:1])
