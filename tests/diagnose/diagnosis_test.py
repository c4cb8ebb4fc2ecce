"""The diagnosis of right results, of groups, of conventions, of what is not tested; `long`: of 10,000 right results."""

import sys
import unittest

import trials
import numpy as np
from ring_attention_diagnose.diagnosis import diagnose
from ring_attention_diagnose.examination import Options
from ring_attention_diagnose.layout import Submission, arranged
from ring_attention_diagnose.mistakes import MISTAKES
from ring_attention_diagnose.placement import Job
from ring_attention_diagnose.problem import BACKWARD, Problem, ladder
from ring_attention_diagnose.report import to_dict, to_text
from ring_attention_diagnose.ring import simulated
from ring_attention_diagnose.rounding import rounded
from ring_attention_diagnose.rules import Rules
from ring_attention_diagnose.search import Evidence, Explanation

np.seterr(all="ignore")
RIGHT_RESULTS = 10000 if "long" in sys.argv else 60
QUICK = Options(pairs=False, lists_not_tested=False)


def answers(job, only, *ids, change=lambda problem, arrays: arrays):
    rules = Explanation(tuple(MISTAKES[name] for name in ids)).rules()
    problems = [Problem(case, job, 1) for case in ladder(job, only)]
    return [(problem, change(problem, simulated(problem, "float32", rules, rules))) for problem in problems]


class Diagnosis(unittest.TestCase):
    def test_groups_what_two_ranks_cannot_tell_apart(self):
        """The same computation on two ranks: three tell them apart."""
        def forward_of(name):
            found = diagnose(answers(Job(2, "zigzag"), ("full", "causal"), name), QUICK)
            return set(trials.pass_text(found.forward).split(" | "))

        for one, other in (("steps-short", "no-ring"), ("not-sent", "step-before"), ("v-stays", "v-step-before")):
            self.assertEqual(forward_of(one), forward_of(other))
        self.assertNotEqual(forward_of("v-stays"), forward_of("k-stays"))

    def test_a_group_of_forwards_stays_where_the_backward_has_a_mistake_of_its_own(self):
        found = diagnose(answers(Job(3, "striped"), ("full", "window"), "unguarded-row"), QUICK)
        self.assertEqual([trials.pass_text(one) for one in (found.forward, found.backward)],
                         ["empty-lse-inf | unguarded | unguarded-row", "unguarded-backward"])

    def test_sums_the_gradients_of_every_query_head(self):
        case = ladder(Job(1, "contiguous"), ("gqa",))[0]
        of_query_heads = np.random.default_rng(1).normal(size=(case.heads, case.tokens, case.dim))
        found, says = arranged(case, "dk", case.tokens, of_query_heads)
        np.testing.assert_array_equal(found[0], of_query_heads[: case.group].sum(0))
        self.assertEqual(says, "of every query head: summed over each group")

    def test_reads_heads_and_columns_in_one_axis_and_padded_shards(self):
        (case,), array = ladder(Job(3, "contiguous"), ("full",)), np.random.default_rng(1).normal(size=(4, 24, 16))
        for tokens, given, due in ((24, array.swapaxes(0, 1).reshape(24, 64), "heads and columns are in one axis"),
                                   (8, array[:, :12], "rows behind the last token are cut off")):
            found, says = arranged(case, "out", tokens, given)
            self.assertEqual((found.tolist(), says), (array[:, :tokens].tolist(), due))

    def test_the_report_marks_errors_and_asks_why_they_are_those_of_another_type(self):
        ((problem, _),) = answers(Job(3, "contiguous"), ("full",))
        out, dk, dv = (factor * problem.right[name] for factor, name in ((1.003, "out"), (4, "dk"), (np.nan, "dv")))
        found = diagnose([(problem, {"out": out})], QUICK)
        found.cases = [Evidence(problem, {"out": out, "dk": dk, "dv": dv})]
        text, as_dict = to_text(found, Submission()), to_dict(found, Submission())
        self.assertRegex(text, r"\n  full  3\.0e-03         -         -   3\.0e\+00\*      NaN\*\n")
        self.assertIn("of fp16, which is more than that of its float32 numbers: is something kept or computed in less?", text)
        self.assertEqual([as_dict["forward"][word] for word in ("numbers", "within_rounding_of")], ["float32", "fp16"])
        self.assertIsNone(as_dict["errors"]["full"]["dv"])
        self.assertNotIn("?", to_text(diagnose([(problem, {"out": problem.right["out"]})], QUICK), Submission()))

    def test_rounds_to_nearest(self):
        for precision, bits in (("float32", 24), ("fp16", 11), ("bf16", 8)):
            last = 2.0 ** (1 - bits)
            for part, want in ((1, 1 + last), (0.6, 1 + last), (0.4, 1)):
                self.assertEqual(rounded(np.array([1 + part * last]), precision)[0], want, precision)

    def test_a_row_may_be_off_by_six_times_the_rounding(self):
        ((problem, _),) = answers(Job(3, "contiguous"), ("full",))
        for precision, least in (("float64", 1e-12), ("float32", 2e-6), ("fp16", 1e-3), ("bf16", 8e-3)):  # those of docs/diagnose.md
            some = [Evidence(problem, {"out": problem.right["out"] * (1 + times * least)}) for times in (5, 7)]
            self.assertEqual([one.is_right(("out",), precision) for one in some], [True, False], precision)

    def test_a_backward_may_be_the_derivative_of_a_wrong_forward(self):
        job = Job(3, "contiguous")
        ((problem, arrays),) = answers(job, ("full",), "average")
        scale, q, dout, arrays["dq"] = problem.case.scale, problem.q, problem.dout / 3, 0
        for keys in (job.tokens_of(rank, problem.case.tokens) for rank in range(3)):  # out is the mean of what the shards give
            k, v = problem.k[:, keys], problem.v[:, keys]
            p = (e := np.exp(scale * q @ k.swapaxes(1, 2))) / e.sum(2, keepdims=True)
            ds = scale * p * (dout @ v.swapaxes(1, 2) - (dout * (p @ v)).sum(2, keepdims=True))
            arrays["dq"], arrays["dk"][:, keys], arrays["dv"][:, keys] = (
                arrays["dq"] + ds @ k, ds.swapaxes(1, 2) @ q, p.swapaxes(1, 2) @ dout)
        found = diagnose([(problem, arrays)], QUICK)
        self.assertEqual((trials.pass_text(found.forward), trials.pass_text(found.backward)), ("average", "(derivative)"))
        self.assertIn("backward    the derivative of this forward, as autograd", to_text(found, Submission([(problem, arrays)])))

    def test_calls_right_results_right(self):
        """Rings of other sizes add in another order."""
        asked = Job(3, "zigzag")
        cases = ladder(asked)
        for i in range(RIGHT_RESULTS):
            case, seed = cases[i % len(cases)], 1000 + i
            job = Job(1 + i % 6, "striped" if i % 2 == 0 else "contiguous")
            precision, rules = ("bf16", "fp16", "float32")[i % 3], Rules(direction=1 if i % 4 < 2 else -1)
            arrays = simulated(Problem(case, job, seed), precision, rules, rules)
            found = diagnose([(Problem(case, asked, seed), arrays)], QUICK)
            self.assertTrue(found.right, f"{case.name} {precision} {i}: {trials.pass_text(found.forward)} / "
                                         f"{trials.pass_text(found.backward)}")

    def test_says_conventions_and_does_not_call_them_wrong(self):
        def to_base_2(problem, arrays):
            return {**arrays, "lse": rounded(arrays["lse"] / np.log(2), "float32")}

        def to_rank_order(problem, arrays):
            order = sum((problem.job.tokens_of(rank, problem.case.tokens) for rank in range(3)), [])
            return {name: array[:, order] for name, array in arrays.items()}

        def times(factor):
            return lambda problem, arrays: {**arrays, **{name: factor * arrays[name] for name in BACKWARD}}

        def lse_times(power):
            return lambda problem, arrays: {**arrays, "lse": arrays["lse"] * problem.case.scale**power}

        job, only = Job(3, "zigzag"), ("full", "causal")
        for word, change in (("base 2", to_base_2), ("order of the ranks", to_rank_order), ("times 3", times(3)),
                             ("by 3", times(1 / 3)), ("lse is divided by the scale", lse_times(-1)),
                             ("lse is multiplied by the scale", lse_times(1))):
            found = diagnose(answers(job, only, change=change), QUICK)
            self.assertTrue(found.right, word)
            self.assertEqual([word in line for line in found.conventions], [True])
        for change in (to_base_2, to_rank_order):
            found = diagnose(answers(job, only, "mask-local", change=change), QUICK)
            self.assertEqual((trials.pass_text(found.forward), len(found.conventions)), ("mask-local", 1))

    def test_names_the_mistakes_of_cases_that_no_mistake_explains_together(self):
        def only_dk_of(problem, arrays):
            return {**problem.right, "dk": arrays["dk"]}

        job, mistakes = Job(3, "zigzag"), {"full": "no-scale", "causal": "causal-reversed", "window": "window-plus-one"}
        given = [one for name, wrong in mistakes.items() for one in answers(job, (name,), wrong)]
        given += answers(job, ("sinks",), "dk-no-scale", change=only_dk_of)
        found = diagnose(given, QUICK)
        self.assertIs(to_dict(found, Submission(given))["explained"], False)
        text = to_text(found, Submission(given))
        for says in ("full alone: no scale", "window alone: the window is one key", "sinks alone: dK without the scale"):
            self.assertIn(f"    {says}", text)
        self.assertIn("If the code is written for half precision, run it so as well", text)

    def test_what_looks_like_a_mistake_that_is_not_listed_comes_in_order(self):
        rest = [mistake for mistake in MISTAKES.values() if mistake.id != "average"]
        options = Options(mistakes=rest, pairs=False, lists_not_tested=False)
        near = diagnose(answers(Job(3, "zigzag"), ("full", "causal", "gqa"), "average"), options).forward.near
        self.assertEqual([[m.id for m in one.mistakes] for one in near], [["average-in-turn"], ["new-not-rescaled"]])
        self.assertGreater(near[0].explained, near[1].explained)

    def test_names_the_mistakes_of_a_softcap(self):
        self.assertNotIn("softcap", [case.name for case in ladder(Job(3, "zigzag"))])
        for name in ("softcap-ignored", "softcap-over-mask", "softcap-before-scale", "softcap-slope-missing"):
            found = diagnose(answers(Job(3, "zigzag"), ("causal", "softcap"), name), Options())
            wrong = found.backward if name == "softcap-slope-missing" else found.forward
            self.assertEqual([[one.id for one in each.mistakes] for each in wrong.explanations], [[name]])

    def test_names_the_mistakes_of_a_mask_of_several_intervals(self):
        for name in ("block-ignored", "block-local", "first-keys-local", "pairs-counted-twice", "window-local"):
            found = diagnose(answers(Job(3, "zigzag"), ("causal", "intervals"), name), Options())
            self.assertEqual([[one.id for one in each.mistakes] for each in found.forward.explanations], [[name]])

    def test_lists_what_the_cases_do_not_test(self):
        found = diagnose(answers(Job(3, "zigzag"), ("full",)), Options())
        ids = {mistake.id for mistake in found.not_tested}
        self.assertLessEqual({"causal-strict", "gqa-modulo", "window-plus-one", "sink-ignored"}, ids)
        self.assertFalse({"steps-short", "no-scale", "no-delta", "average"} & ids)
