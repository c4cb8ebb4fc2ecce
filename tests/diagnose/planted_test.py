"""Mistakes of public projects, planted in a ring that is no part of the simulator (planted.py), are named."""

import contextlib
import io
import itertools
import json
import tempfile
import unittest

import planted
import trials  # noqa: F401: the path of the package
import numpy as np
from ring_attention_diagnose import ARRAYS, InputError, assert_right, judged, problems_of
from ring_attention_diagnose.__main__ import main
from ring_attention_diagnose.diagnosis import diagnose
from ring_attention_diagnose.examination import Options
from ring_attention_diagnose.layout import submission_of
from ring_attention_diagnose.picture import picture_of
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
    ("query-offset", BOTH, 3, "zigzag", "causal,more-keys"),
    ("kv-transposed-twice", BACKWARD, 3, "contiguous", "full,causal,gqa"),
    ("lse-scaled-backward", BACKWARD, 3, "contiguous", "full,causal"),
    ("dv-without-l", BACKWARD, 3, "zigzag", "full,gqa,empty-rows"),
    ("saved-lse-overwritten", BACKWARD, 3, "zigzag", "causal,gqa"),
    ("delta-of-step saved-lse-overwritten", BACKWARD, 4, "zigzag", "causal,gqa"),
    ("saved-lse-overwritten", BACKWARD, 3, "contiguous", "full,causal"),
    ("dkdv-wrong-way", BACKWARD, 4, "contiguous", "full"),
    ("dkdv-wrong-way", BACKWARD, 3, "zigzag", "causal,gqa"),
    ("dq-one-buffer", BACKWARD, 3, "contiguous", "full,causal,window"),
    ("dq-one-buffer", BACKWARD, 4, "zigzag", "causal,gqa"),
    ("slots-of-whole-cache", FORWARD, 3, "striped", "decode"),
    ("query-zero-without-keys", FORWARD, 3, "contiguous", "decode,decode-few"),
)


def by_document(words):
    """Each document in zigzag by itself."""
    ends = words.get("cu_seqlens", [0, words["tokens"]])
    parts = [np.split(np.arange(*ends[d : d + 2]), 2 * words["ranks"]) for d in range(len(ends) - 1)]
    return [np.concatenate([[*p[rank], *p[-1 - rank]] for p in parts]) for rank in range(words["ranks"])]


def balanced(words):
    """Chunks of tokens, dealt by a rule of one's own; of other lengths for each rank."""
    chunks = np.array_split(np.arange(words["tokens"]), 4 * words["ranks"])
    dealt = [[] for _ in range(words["ranks"])]
    for number, chunk in enumerate(chunks):
        dealt[number * number % words["ranks"] if number % 2 else number // 2 % words["ranks"]] += chunk.tolist()
    return dealt


def given_of(problem, wrong, dtype=np.float32):
    """What the planted ring hands back for a case."""
    words = {**problem.description(), "zigzag": problem.job.placement == "zigzag", "ulysses": problem.job.ulysses}
    if problem.case.decodes:
        found = dict(zip(("out", "lse"), zip(*planted.decoded(words, problem.inputs(), wrong))))
    else:
        found = planted.ring(words, problem.inputs(), wrong, dtype)
        if wrong.startswith("joined-as-"):
            found = {name: [planted.joined(found[name], wrong[10:])] for name in ARRAYS}
    return {name: [(f"{name}.{rank}", array) for rank, array in enumerate(arrays)] for name, arrays in found.items()}


def smallest(wrong, most):
    """On how few ranks a mistake shows, and the first array, and case, that show it."""
    for ranks in range(1, most + 1):
        problems = problems_of(ranks) + problems_of(ranks, only=["decode", "decode-few", "more-keys"])
        found = [Evidence(*one) for one in submission_of(problems, [given_of(p, wrong) for p in problems]).answers]
        shown = [(array, one.problem.case.name) for array in ARRAYS for one in found
                 if array in one.got and not one.is_right((array,), "float32")]
        if shown:
            return str(ranks), "; ".join(shown[0])
    return "-", "none of these"


def verdict(wrong, *job, **words):
    """What is said of the planted ring, for a job as problems_of takes it: right, the report, and the object of --json."""
    problems = problems_of(*job, **words)
    return judged(problems, [given_of(problem, wrong) for problem in problems], lists_not_tested=False)


def named(words, phase="forward"):
    return [one["mistakes"] for one in words[phase]["explanations"]]


class Planted(unittest.TestCase):
    def test_the_right_ring_is_right(self):
        for placement in ("contiguous", "zigzag"):
            right, report, _ = verdict("", 4, placement)
            self.assertTrue(right, report)

    def test_right_rings_are_right(self):
        """Every partition and placement, layouts of one's own, two sequences, a wide V, blocks; simulated for a hybrid."""
        placements = ("contiguous", "striped", "zigzag", by_document, balanced)
        rings = [(ranks, placement, {}) for ranks, placement in itertools.product((2, 3, 5), placements)]
        rings += [(3, "zigzag", {"block": 8, "dim": 32}), (2, "contiguous", {"tokens": 32, "heads": 6})]
        for ranks, placement, sizes in rings:
            problems = problems_of(ranks, placement, only=["causal", "gqa", "documents", "batch", "wide-v"], **sizes)
            problems += [] if callable(placement) else problems_of(ranks, placement, only=["more-keys"], **sizes)
            answers = submission_of(problems, [given_of(problem, "") for problem in problems]).answers
            self.assertTrue(diagnose(answers, Options(lists_not_tested=False)).right, f"{ranks} {placement} {sizes}")
        for parallel in ("ulysses", "hybrid", "all-gather"):
            right, report, _ = verdict("", 4, "contiguous" if parallel == "ulysses" else "zigzag", parallel, 2, ["causal", "batch"])
            self.assertTrue(right, f"{parallel} {report}")

    def test_mistakes_of_a_hybrid_are_named(self):
        for wrong, ranks, ulysses in (("world-placement", 4, 2), ("swapped-axes", 6, 3)):
            right, report, words = verdict(wrong, ranks, "zigzag", "hybrid", ulysses, ["causal"], tokens=48, heads=12)
            for which in BOTH:
                self.assertEqual(named(words, which), [[wrong]], report)
            self.assertFalse(right, report)

    def test_mistakes_are_named_in_a_layout_of_ones_own(self):
        for layout, wrong, only in ((by_document, "mask-local", "causal"), (balanced, "keys-in-rank-order", "causal"),
                                    (balanced, "lse-other-layout", "causal,batch"), (by_document, "", "causal,documents")):
            right, report, words = verdict(wrong, 3, layout, only=only.split(","))
            self.assertEqual((right, named(words)), (not wrong, [[wrong]] * bool(wrong)), report)

    def test_layouts_and_sizes_are_written_and_read(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as out:
            with open(f"{folder}/own.json", "w", encoding="utf-8") as file:
                json.dump({"causal": balanced({"tokens": 96, "ranks": 3})}, file)
            words = f"cases --tokens-of-rank {folder}/own.json --block 16 --tokens 96 --dim 64 --heads 2 --out {folder}/mine".split()
            self.assertEqual(main(words), 0)
            (problem,) = problems_of(3, balanced, only=["causal"], tokens=96, block=16, dim=64, heads=2)
            for rank, (_, array) in enumerate(given_of(problem, "")["out"]):
                np.save(f"{folder}/mine/causal/out.{rank}.npy", array)
            self.assertEqual(main([f"{folder}/mine"]), 0, out.getvalue())

    def test_bad_layouts_and_sizes_are_refused(self):
        for words, says in (({"placement": lambda case: [[0]]}, "1 lists for 3 ranks"), ({"block": 129}, "block is 129"),
                            ({"placement": lambda case: 3 * [[0]]}, "do not have each of the 24 tokens once"),
                            ({"placement": lambda case: 3}, "not lists of positions"), ({"tokens": 25}, "a multiple of 6"),
                            ({"heads": 3}, "3 heads"), ({"dim": 0}, "dim is 0"), ({"tokens": 4092}, "too many")):
            with self.assertRaisesRegex(InputError, says):
                problems_of(3, only=["causal"], **words)

    def test_mistakes_are_named(self):
        for wrong, passes, ranks, placement, only in TRIALS:
            with self.subTest(wrong=wrong, placement=placement):
                right, report, words = verdict(wrong, ranks, placement, only=only.split(","))
                for phase in passes:
                    self.assertEqual(named(words, phase), [wrong.split()], report)
                self.assertEqual((right, words["forward"]["state"]), (False, "wrong" if FORWARD[0] in passes else "right"))

    def test_a_race_is_a_verdict_of_its_own(self):
        job = {"ranks": 3, "only": ["full", "causal"], "repeat": 2}
        self.assertEqual([problem.case.folder for problem in problems_of(**job)], ["full", "full.2", "causal", "causal.2"])
        right, report, words = verdict("race", **job)
        self.assertEqual((right, words["forward"]["state"], words["backward"]["state"]), (False, "absent", "absent"))
        self.assertIn("WRONG: not the same twice: rows 8 to 15 of out, on rank 1, in the case full\n", report)
        self.assertEqual({(one["case"], *one["ranks"]) for one in words["not_the_same_twice"] if one["array"] == "out"},
                         {("full", 1), ("causal", 1)})
        self.assertTrue(verdict("", **job)[0])

    def test_gradients_of_fewer_digits_than_q_are_not_right(self):
        def rounded(array, bits):
            return np.float32(array).view(np.uint32) + np.uint32(1 << bits - 1) >> bits << bits

        def to(bits, pieces):
            return [(name, rounded(array, bits).view(np.float32)) for name, array in pieces]

        problems = problems_of(3, only=["full", "gqa"])
        for of_all, names, dtype, says in ((0, ("dq",), "", {"dq": "bf16"}), (13, ("dk", "dv"), "", {"dk": "bf16", "dv": "bf16"}),
                                           (0, ("dq",), "float32", {"dq": "bf16"}), (0, ("dq", "dk", "dv"), "torch.bfloat16", {}),
                                           (16, ("dq",), "", {}), (13, (), "float16", {})):
            given = [given_of(problem, "") for problem in problems]
            given = [{name: to(16 if name in names else of_all, pieces) if of_all or name in names else pieces
                      for name, pieces in of_case.items()} for of_case in given]
            right, report, words = judged(problems, given, dtype=dtype, lists_not_tested=False)
            self.assertEqual((right, words["rounded_gradients"]), (not says, says), report)
            self.assertEqual("gradients   WRONG: " + ", ".join(says) + ": rounded to bf16" in report, bool(says))

    def test_gradients_of_bias_and_sinks(self):
        problems = problems_of(3, "zigzag", only=["bias", "sinks"])
        right = [given_of(problem, "") for problem in problems]
        for change, says in ((lambda pieces: pieces, ""), (lambda pieces: [(n, a / 4) for n, a in pieces], "multiplied by the scale"),
                             (lambda pieces: [(n, 3 * a) for n, a in pieces], "counts N times"),
                             (lambda pieces: [(n, a + 1) for n, a in pieces], "no rule that is known"),
                             (lambda pieces: [(n, a * np.nan) for n, a in pieces], "no rule that is known")):
            given = [{**one, **{name: change(one[name]) for name in ("dbias", "dsinks") if name in one}} for one in right]
            good, report, words = judged(problems, given, lists_not_tested=False)
            self.assertEqual(good, not says, report)
            self.assertEqual(set(words["more_gradients"]), {"dbias", "dsinks"})
            self.assertTrue(all(says in one for one in words["more_gradients"].values()), report)
        for name, case in (("dbias", 0), ("dsinks", 1)):  # of rank 1, where all ranks should have the sum
            array = right[case][name][1][1]
            if name == "dbias":
                array = np.zeros((1, 4, 24, 24), np.float32)
                array[:, :, problems[0].job.tokens_of(1, 24)] = right[case][name][1][1]
            _, report, _ = judged([problems[case]], [{**right[case], name: [(name, array)]}])
            self.assertIn(f"{name:<12}WRONG: it is that of the queries of rank 1 alone, and not summed", report)
        with self.assertRaisesRegex(InputError, "mine: sinks has no such input"):
            judged(problems[1:], [{**right[1], "dbias": [("mine", np.zeros((4, 24, 24)))]}])

    def test_says_how_often_parts_count(self):
        (problem,) = problems_of(3, "zigzag", only=["full"])
        here, there = (problem.job.tokens_of(rank, 24) for rank in (0, 1))
        for array, given in (("out", "v"), ("dk", "dout")):  # rank 0 counts twice what it has of rank 1
            of_rank_1, got = np.zeros_like(getattr(problem, given)), problem.right[array].copy()
            of_rank_1[:, there] = getattr(problem, given)[:, there]
            got[:, here] += problem.given({given: of_rank_1}).right[array][:, here]
            self.assertIn(f"  {array} counts the parts that ranks contribute with these factors (right: 1):\n"
                          "    rank 0:  1.00  2.00  1.00\n    rank 1:  1.00  1.00  1.00\n",
                          picture_of(Evidence(problem, {array: got}), "float32"))

    def test_in_the_ci_of_another_project(self):
        page = (trials.Path(__file__).resolve().parents[2] / "docs/diagnose.md").read_text(encoding="utf-8")
        code = page.split("## In your CI")[1].split("```py\n")[1].split("```\n")[0]
        names = {}
        exec(code, names)
        names["test_my_ring"]()
        exec(code.replace("keys <= queries", "keys - 1 <= queries"), names)
        with self.assertRaisesRegex(AssertionError, "forward     WRONG: a query sees one key after its own"):
            names["test_my_ring"]()

        def by_rank(q, k, v, case):
            self.assertEqual(case["ranks"], len(case["tokens_of_rank"]))
            return {name: arrays for name, arrays in planted.ring({**case, "zigzag": True}, {"q": q, "k": k, "v": v, **case},
                                                                  "dv-without-l").items() if name in ARRAYS}

        with self.assertRaisesRegex(AssertionError, "backward    WRONG: P in dV is not divided by l"):
            assert_right(by_rank, ranks=3, placement="zigzag", only=["causal", "gqa"])

    def test_runs_are_written_and_read(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as out:
            self.assertEqual(main(["cases", "--only", "full", "--repeat", "2", "--out", folder]), 0)
            with open(f"{folder}/cases.json", encoding="utf-8") as file:
                names = [case["name"] for case in json.load(file)["cases"]]
            for name, problem in zip(names, problems_of(3, only=["full"], repeat=2)):
                self.assertTrue(np.array_equal(np.load(f"{folder}/{name}/q.npy"), problem.q[None]))
                np.save(f"{folder}/{name}/out.npy", np.asfortranarray(problem.right["out"], ">f4"))  # in Fortran's order, big-endian
            self.assertEqual(main([folder]), 0, out.getvalue())
            np.save(f"{folder}/full.2/out.npy", -problem.right["out"][None].astype(np.float32))
            self.assertEqual(main([folder]), 1)
        self.assertIn("not the same twice: rows 0 to 23 of out, on ranks 0, 1, 2, in the case full", out.getvalue())
