"""The simulated ring: with right rules it agrees with dense attention, in every case, placement and direction."""

import unittest

import trials  # noqa: F401: the path of the package
import numpy as np
from ring_attention_diagnose.candidates import Simulations
from ring_attention_diagnose.mistakes import MISTAKES
from ring_attention_diagnose.placement import PLACEMENTS, Job
from ring_attention_diagnose.problem import Problem, every_case, ladder
from ring_attention_diagnose.residual import Yardstick
from ring_attention_diagnose.ring import simulated
from ring_attention_diagnose.rules import Rules
from ring_attention_diagnose.search import Evidence, Explanation

np.seterr(all="ignore")
JOBS = ((1, 1), (2, 1), (3, 1), (4, 1), (4, 2), (3, 3), (6, 2))


class Ring(unittest.TestCase):
    def test_right_rules_agree_with_dense_attention(self):
        for placement in PLACEMENTS:
            for ranks, ulysses in JOBS:
                job = Job(ranks, placement, ulysses)
                for case in ladder(job) + [case for case in every_case(job) if case.by_name_only]:
                    problem = Problem(case, job, 1)
                    for direction in (1, -1):
                        rules = Rules(direction=direction)
                        for name, array in simulated(problem, "float64", rules, rules).items():
                            size = 1e4 if name == "lse" else 100
                            np.testing.assert_allclose(array, problem.right[name], rtol=1e-10, atol=1e-13 * size,
                                                       err_msg=f"{job}, {case.name}, {name}")


class Mistakes(unittest.TestCase):
    def test_depend_on_the_direction_only_where_they_say_so(self):
        """The others are tried in one direction only."""
        job = Job(4, "zigzag")
        for case in (case for case in ladder(job) if not case.large_scores):
            problem = Problem(case, job, 1)
            yardstick = Yardstick(problem)
            for mistake in (mistake for mistake in MISTAKES.values() if not mistake.directed):
                forth, back = (Explanation((mistake,), direction).rules() for direction in (1, -1))
                errors = yardstick.largest(simulated(problem, "float64", forth, forth),
                                           simulated(problem, "float64", back, back))
                self.assertLess(max(errors.values()), 1e-6, f"{mistake.id}, {case.name}")

    def test_that_move_content_have_two_backwards(self):
        """The gradients go to the rank whose K,V were used, or to the one whose K,V were due: two simulations."""
        problem = Problem(ladder(Job(3, "contiguous"), ("full",))[0], Job(3, "contiguous"), 1)
        one, moving = Evidence(problem, problem.right), [mistake for mistake in MISTAKES.values() if mistake.moves_content]
        self.assertGreater(len(moving), 3)
        for mistake in moving:
            backwards = [Explanation((mistake,), forward=Explanation(), follows_content=follows) for follows in (False, True)]
            due, follows = Simulations().arrays(one, backwards, "float64")
            self.assertGreater(max(abs(due[name] - follows[name]).max() for name in ("dk", "dv")), 1e-3, mistake.id)

    def test_have_a_sentence_each(self):
        self.assertGreaterEqual(len(MISTAKES), 100)
        self.assertEqual(len({mistake.says for mistake in MISTAKES.values()}), len(MISTAKES))
