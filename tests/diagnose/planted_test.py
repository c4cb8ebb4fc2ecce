"""Mistakes of public projects, planted in a ring that is no part of the simulator (planted.py), are named."""

import importlib.util
import sys
import unittest

if importlib.util.find_spec("numpy") is None:
    print(f"skipped: {sys.executable} has no NumPy")
    sys.exit(77)

import planted
import trials  # noqa: F401: the path of the package
import numpy as np
from ring_attention_diagnose import ARRAYS, judged, problems_of
from ring_attention_diagnose.layout import submission_of
from ring_attention_diagnose.search import Evidence

BOTH, FORWARD, BACKWARD = ("forward", "backward"), ("forward",), ("backward",)
TRIALS = (  # the mistake, the passes that are wrong, and a job that shows it
    ("lse-other-layout", FORWARD, 3, "contiguous", "full,causal,gqa"),
    ("lse-padded-offset", FORWARD, 3, "zigzag", "causal,documents,large"),
    ("length-over-ranks", FORWARD, 3, "zigzag", "full,uneven"),
    ("window-sentinel", FORWARD, 3, "contiguous", "full,causal,window"),
    ("window-local-right", FORWARD, 3, "contiguous", "causal,window"),
    ("joined-as-zigzag", BOTH, 3, "contiguous", "full,causal"),
    ("joined-as-striped", BOTH, 3, "zigzag", "full,causal"),
    ("kv-transposed-twice", BACKWARD, 3, "contiguous", "full,causal,gqa"),
    ("lse-scaled-backward", BACKWARD, 3, "contiguous", "full,causal"),
    ("dv-without-l", BACKWARD, 3, "zigzag", "full,gqa,empty-rows"),
    ("dq-one-buffer", BACKWARD, 3, "contiguous", "full,causal,window"),
    ("dq-one-buffer", BACKWARD, 4, "zigzag", "causal,gqa"),
    ("slots-of-whole-cache", FORWARD, 3, "striped", "decode"),
    ("query-zero-without-keys", FORWARD, 3, "contiguous", "decode,decode-few"),
)


def given_of(problem, wrong, dtype=np.float32):
    """What the planted ring hands back for a case."""
    words = {**problem.description(), "zigzag": problem.job.placement == "zigzag"}
    if problem.case.decodes:
        found = dict(zip(("out", "lse"), zip(*planted.decoded(words, problem.inputs(), wrong))))
    else:
        found = planted.ring(words, problem.inputs(), wrong, dtype)
        if wrong.startswith("joined-as-"):
            found = {name: [planted.joined(words, arrays, wrong[10:])] for name, arrays in found.items()}
    return {name: [(f"{name}.{rank}", array) for rank, array in enumerate(arrays)] for name, arrays in found.items()}


def smallest(wrong, most):
    """On how few ranks a mistake shows, and the first array, and case, that show it."""
    for ranks in range(1, most + 1):
        problems = problems_of(ranks) + problems_of(ranks, only=["decode", "decode-few"])
        found = [Evidence(*one) for one in submission_of(problems, [given_of(p, wrong) for p in problems]).answers]
        shown = [(array, one.problem.case.name) for array in ARRAYS for one in found
                 if array in one.got and not one.is_right((array,), "float32")]
        if shown:
            return str(ranks), "; ".join(shown[0])
    return "-", "none of these"


class Planted(unittest.TestCase):
    def test_the_right_ring_is_right(self):
        for placement in ("contiguous", "zigzag"):
            problems = problems_of(4, placement)
            right, report, _ = judged(problems, [given_of(problem, "") for problem in problems])
            self.assertTrue(right, report)

    def test_mistakes_are_named(self):
        for wrong, passes, ranks, placement, only in TRIALS:
            with self.subTest(wrong=wrong, placement=placement):
                problems = problems_of(ranks, placement, only=only.split(","))
                right, report, words = judged(problems, [given_of(problem, wrong) for problem in problems])
                for phase in passes:
                    self.assertEqual([one["mistakes"] for one in words[phase]["explanations"]], [[wrong]], report)
                self.assertEqual((right, words["forward"]["state"]), (False, "wrong" if FORWARD[0] in passes else "right"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
