"""`losses` names how a job adds its losses; and a cache that ranks share is decoded, right and wrong."""

import contextlib
import io
import tempfile
import unittest

import trials  # noqa: F401: the path of the package
import numpy as np
from ring_attention_diagnose import InputError, judged, losses, norms, problems_of
from ring_attention_diagnose.__main__ import main

SHARDS = [list(range(0, 11)), list(range(11, 16)), list(range(16, 24))]
OF_TOKENS = np.random.default_rng(1).uniform(0.5, 6, 24)
OF_TOKENS[[3, 12, 23]] = np.nan  # two tokens of a prompt, and the last one


def job(shifts=False, divides="all"):
    """What each rank reports; a sum over ranks is a loop here, as messages would be."""
    kept = [OF_TOKENS[shard[:-1] if shifts else shard] for shard in SHARDS]
    sums, counts = ([f(x) for x in kept] for f in (np.nansum, lambda x: np.isfinite(x).sum()))
    if divides == "all":
        return [sum(sums) / sum(counts)] * 3
    own = [s / c for s, c in zip(sums, counts)]
    return {"own, averaged": [sum(own) / 3] * 3, "own": own, "share": [s / sum(counts) for s in sums]}[divides]


class Losses(unittest.TestCase):
    def test_names_the_rule(self):
        for reported, *words in (
            (job(divides="own, averaged"), "a rank divides by its own labels, and the ranks average"),
            (job(divides="own"), "mean over its own tokens"), (job(divides="share"), "reports its share"),
            (job(divides="own")[1], "mean over its own tokens (of rank 1 alone)"),
            (job(divides="share")[0], "its share", "(of rank 0 alone)"), (job(shifts=True), "shifted inside a shard"),
            (job(shifts=True, divides="own, averaged"), "shifted inside a shard", "and a rank divides by its own"),
            (job(shifts=True, divides="own"), "shifted inside a shard", "mean over its own tokens"),
            (3 * job()[0], "multiplied by the ranks"), (job()[0] / 3, "divided by the ranks"),
            (np.nansum(OF_TOKENS), "not divided"),
        ):
            found = losses(reported, OF_TOKENS, SHARDS)
            self.assertEqual((found.right, len(found.says)), (False, 1), found.report)
            for word in words:
                self.assertIn(word, found.report)
        for right in (job(), job()[0], np.float32(job())):
            self.assertTrue(losses(right, OF_TOKENS, SHARDS).right)
            self.assertTrue(losses(1.001 * np.array(right), OF_TOKENS, SHARDS, 0.002).right)

    def test_does_not_name_another_rule(self):
        found = losses(1.5 * job()[0], OF_TOKENS, SHARDS)
        self.assertEqual((found.right, found.says), (False, ()))
        self.assertIn("1.5 times", found.report)
        self.assertFalse(losses(np.nan, OF_TOKENS, SHARDS).right)

    def test_a_rank_without_labels(self):
        """Plants no-labels: a prompt fills the shard of rank 0."""
        loss = np.where(np.arange(24) < 11, np.nan, OF_TOKENS)  # a prompt fills rank 0
        means = [np.nan, *(np.nanmean(loss[shard]) for shard in SHARDS[1:])]
        self.assertIn("divides 0 by 0, and reports its own mean", losses(means, loss, SHARDS).report)
        self.assertIn("divides 0 by 0, and the ranks average", losses(np.nan, loss, SHARDS).report)
        self.assertNotIn("0 by 0", losses(np.nan, OF_TOKENS, SHARDS).report)

    def test_labels_rolled_over_documents_and_padding(self):
        """Plants labels-rolled: the mean over all tokens but the last ones of the row."""
        documents, everything = [0, 9, 20, 24], np.random.default_rng(2).uniform(0.5, 6, 24)  # the last one is padding
        for depth in (1, 2):
            kept = [t for begin, end in zip(documents, documents[1:]) for t in range(begin, end - depth)]
            words = {"documents": documents, "depth": depth}
            self.assertTrue(losses(everything[kept].mean(), everything, SHARDS, **words).right)
            found = losses(everything.mean(), everything, SHARDS, **words)
            self.assertEqual((found.right, len(found.says)), (False, 1), found.report)
            self.assertIn("rolled over the end of a document", found.report)
            kept = [t for shard in SHARDS for t in shard[:-depth] if np.isfinite(OF_TOKENS[t])]
            self.assertIn("are shifted inside a shard", losses(OF_TOKENS[kept].mean(), OF_TOKENS, SHARDS, depth=depth).report)

    def test_a_gradient_that_is_not_that_of_the_loss(self):
        """Plants gradient-of-means: the loss is right, and its gradient is that of a mean of means."""
        def of(weigh):  # by differences, of a job's own loss
            gradient = np.zeros(24)
            for token in range(24):
                for side in (-0.5, 0.5):
                    loss = OF_TOKENS + side * (np.arange(24) == token)
                    gradient[token] += np.sign(side) * weigh([loss[shard] for shard in SHARDS])
            return gradient

        right = of(lambda of_ranks: np.nanmean(np.concatenate(of_ranks)))
        of_means = of(lambda of_ranks: np.mean([np.nanmean(x) for x in of_ranks]))
        self.assertTrue(losses(job(), OF_TOKENS, SHARDS, gradient=right).right)
        for gradient, word in ((of_means, "divides by its own labels, and the ranks average"),
                               (3 * right, "or a factor for data parallelism"), (right**2, "no rule that is known")):
            found = losses(job(), OF_TOKENS, SHARDS, gradient=gradient)
            self.assertFalse(found.right)
            self.assertRegex(found.report, f"right: the sum.*\n(.*\n)*gradient   WRONG: .*{word}")

    def test_the_norm_of_gradients(self):
        """Plants norm-of-copies: each rank adds the squares of all that it has."""
        of_parameters, copies = [3.0, 2.0, 1.5], [1, 4, 4]  # two norms that four tensor ranks have
        shards = [[3.0 / 2] * 4, [2.0] * 4, [1.5] * 4]  # what each rank has
        twice = np.sqrt(sum(x * x for some in shards for x in some))
        self.assertTrue(norms(np.sqrt(9 + 4 + 2.25), of_parameters, copies).right)
        self.assertIn("counts once for each of them", norms(twice, of_parameters, copies).report)
        self.assertIn("left out", norms(3.0, of_parameters, copies).report)
        self.assertIn("1.5 times as much", norms(1.5 * np.sqrt(15.25), of_parameters, copies).report)
        for norm, says in ((8.5**0.5, "averaged"), (15.25, "root is not"), (244**0.5, "multiplied"), (0.953125**0.5, "divided")):
            self.assertIn(says, norms(norm, of_parameters, copies).report)
        with self.assertRaisesRegex(InputError, "two arrays of one length"):
            norms(1.0, [1.0], [1, 2])

    def test_says_what_equal_shards_hide(self):
        equal = [list(range(r, 24, 3)) for r in range(3)]
        found = losses(2.0, np.full(24, 2.0), equal)
        self.assertTrue(found.right)
        self.assertIn("a rank divides by its own labels, and the ranks average", found.hidden)

    def test_does_what_its_page_says(self):
        page = (trials.Path(__file__).resolve().parents[2] / "docs/diagnose.md").read_text(encoding="utf-8")
        code, report = page.split("## Losses")[1].split("```py\n")[1].split("```\n\n```\n")[:2]
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(code, {})
        self.assertEqual(out.getvalue().rstrip(), report.split("\n```")[0])

    def test_refuses_in_one_line(self):
        for given, says in (((1.0, OF_TOKENS, []), "no rank"), ((1.0, [[1.0]], [[0]]), "one axis"),
                            (([1.0, 2.0], OF_TOKENS, SHARDS), "2 losses for 3 ranks"), (("x", [1.0], [[0]]), "numbers"),
                            ((1.0, OF_TOKENS, SHARDS[:2]), "each of the 24 tokens once"),
                            ((1.0, [np.nan], [[0]]), "no token has a loss"), ((1.0, [1.0], [0.5, "a"]), "numbers"),
                            ((1.0, [1.0, 2.0], [[0, -1]]), "each of the 2 tokens once")):
            with self.assertRaises(InputError) as caught:
                losses(*given)
            self.assertIn(says, str(caught.exception))
            self.assertNotIn("\n", str(caught.exception))


def decoded(problem, ranks, mistake):
    """out and lse of each rank: the states of all ranks, merged in the order of a ring."""
    words, arrays, parts = problem.description(), problem.inputs(), []
    q, k, v = (arrays[name][0] for name in "qkv")
    of_head = np.arange(len(q)) % len(k) if mistake == "gqa-modulo" else np.arange(len(q)) // (len(q) // len(k))
    for tokens in words["tokens_of_rank"]:
        scores = words["scale"] * q @ k[of_head][:, tokens].swapaxes(1, 2)
        if mistake == "causal-strict":  # the newest key is not in the cache yet
            scores = np.where(np.array(tokens) < words["query_position"], scores, -np.inf)
        lse = np.log(np.exp(scores).sum(2))
        parts.append((np.exp(scores - lse[..., None]) @ v[of_head][:, tokens], lse))
    for rank in range(ranks):
        some = [parts[rank]] if mistake == "no-ring" else [parts[(rank - step) % ranks] for step in range(ranks)]
        lse = np.logaddexp.reduce([lse for _, lse in some])
        weights = [1 / ranks if mistake == "average" else np.exp(lse_of - lse)[..., None] for _, lse_of in some]
        yield sum(weight * out for weight, (out, _) in zip(weights, some)), lse


class Decoding(unittest.TestCase):
    def test_names_the_mistake(self):
        for ranks, placement in ((3, "striped"), (4, "contiguous")):
            (problem,) = problems_of(ranks, placement, only=["decode"])
            for mistake in ("", "average", "no-ring", "causal-strict", "gqa-modulo"):
                results = list(decoded(problem, ranks, mistake))
                given = {name: [(name, x.astype(np.float32)) for x in of_ranks]
                         for name, of_ranks in zip(("out", "lse"), zip(*results))}
                right, report, words = judged([problem], [given])
                self.assertEqual(right, not mistake, report)
                named = [one["mistakes"] for one in words["forward"]["explanations"]]
                self.assertIn([mistake] if mistake else [], named or [[]])
        one_answer = {name: pieces[:1] for name, pieces in given.items()}  # the same of every rank
        self.assertFalse(judged([problem], [one_answer])[0])

    def test_reads_files(self):
        for mistake, code in (("", 0), ("average", 1)):
            with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as out:
                self.assertEqual(main(["cases", "--only", "full,decode", "--out", folder]), 0)
                (problem,) = problems_of(only=["decode"])
                for rank, (attended, lse) in enumerate(decoded(problem, 3, mistake)):
                    np.save(f"{folder}/decode/out.{rank}.npy", attended[None])
                self.assertEqual(main([folder]), code, out.getvalue())

    def test_is_not_among_the_cases_by_default(self):
        self.assertNotIn("decode", [problem.case.name for problem in problems_of()])

    def test_has_no_gradients(self):
        (problem,) = problems_of(only=["decode"])
        with self.assertRaises(InputError) as caught:
            judged([problem], [{"dq": [("mine/dq.npy", problem.inputs()["q"])]}])
        self.assertEqual(str(caught.exception), "mine/dq.npy: decode has no gradients: leave it out")
