"""judge_model of recordings that are written by hand, in NumPy alone. tests/python/models_test.py records models of PyTorch."""

import json
import tempfile
import unittest

import trials  # noqa: F401: the path of the package
import numpy as np
from ring_attention_diagnose import judge_model, problems_of

LAYER, GRADIENT = "layers.0.attention", "embedding.weight:gradient"


def verdict_on(spoil=lambda arrays, rank: None, ranks=2, record=lambda arrays, words: None, placement="striped"):
    """On a right causal attention. `spoil` changes the arrays of a rank, `record` what a file has."""
    (problem,) = problems_of(ranks, placement, only=["causal"])
    whole = {f"{LAYER}:{name}": array for name, array in problem.inputs().items()}
    whole.update((f"{LAYER}:{name}", problem.right[name][np.newaxis]) for name in ("out", "dq", "dk", "dv"))
    whole[GRADIENT] = np.arange(1.0, 7)

    def write(name, positions, arrays):
        words = {"positions": positions, "attention": {LAYER: {"causal": True, "type": "float32"}}, "modules": [LAYER],
                 "types": {LAYER: "Attention", "other": "Other"}, "loss": 2.5, "of_tokens": None}
        arrays = dict(arrays)
        record(arrays, words)
        np.savez(f"{folder}/{name}.npz", words=json.dumps(words), **arrays)

    with tempfile.TemporaryDirectory() as folder:
        write("whole", None, whole)
        for rank in range(ranks):
            mine = problem.job.tokens_of(rank, problem.case.tokens)
            arrays = {name: array if name == GRADIENT else array[:, :, mine].copy() for name, array in whole.items()}
            spoil(arrays, rank)
            write(rank, mine, arrays)
        return judge_model(folder)


class Model(unittest.TestCase):
    def test_right(self):
        for ranks in (1, 2, 3):
            found = verdict_on(ranks=ranks)
            self.assertTrue(found.right, found.report)
            self.assertIn("right in 1 of 1 layers", found.report)
        found = verdict_on(record=lambda arrays, words: words["attention"][LAYER].update(window=24))
        self.assertIn("its window of 24 is not shorter than the 24 tokens", found.report)

        def record(arrays, words):
            words["attention"][LAYER].update(scale=0.5)  # twice the default of 16 columns
            arrays.update({f"{LAYER}:q": arrays[f"{LAYER}:q"] / 2, f"{LAYER}:dq": 2 * arrays[f"{LAYER}:dq"]})

        found = verdict_on(record=record)
        self.assertEqual((found.right, "right in 1 of 1 layers" in found.report), (True, True), found.report)

    def test_wrong_results_of_one_rank(self):
        def spoil(arrays, rank):
            arrays[f"{LAYER}:out"][:, :, -1] += 0.1 * (rank == 1)

        found = verdict_on(spoil)
        self.assertFalse(found.right, found.report)
        self.assertIn(f"{LAYER}: WRONG", found.report)

    def test_an_attention_is_judged_by_what_it_got(self):
        def spoil(arrays, rank):
            for letter in ("q", "dout"):
                arrays[f"{LAYER}:{letter}"] *= 2

        found = verdict_on(spoil)
        self.assertFalse(found.right, found.report)
        self.assertEqual(found.json["hidden_states_differ_from"], LAYER)

    def test_losses_of_ranks(self):
        for of_ranks, says in (((1, 2), "loss: right, as the sum over the ranks"), ((6, 6), "mean is multiplied by the ranks")):
            def record(arrays, words, of_ranks=of_ranks):
                words.update(of_tokens=[*np.linspace(1, 5, 23), None],
                             loss=3.0 if words["positions"] is None else of_ranks[words["positions"][0]])

            found = verdict_on(record=record)
            self.assertIn(says, found.report)
            self.assertEqual([found.right, found.json["loss_is_right"]], ["right" in says] * 2, found.report)

    def test_another_module_is_named(self):
        def record(arrays, words):  # angles are those of the first tokens on each rank
            mine, words["modules"] = words["positions"], ["other", LAYER]
            arrays["other:got.0"] = np.arange(24.0 if mine is None else len(mine))[:, None] * np.ones(3)

        found = verdict_on(record=record)
        self.assertEqual(found.json["first_change"], {"module": "other", "mistake": "local-rotary", "tokens": [*range(1, 24)]})

        def shifted(arrays, words):  # the token before, of which the first one of each rank has none
            before, words["modules"] = np.array(words["positions"] or range(24)) - 1.0, ["other"]
            arrays["other:got.0"] = np.where(before == before[0], -1, before)[:, None]

        found = verdict_on(record=shifted, placement="contiguous")
        self.assertEqual(found.json["first_change"], {"module": "other", "mistake": "tokens-of-shard", "tokens": [12]})

    def test_gradients_of_parameters(self):
        for shares, says in (((2, 2), "2 times the right ones"), ((0.5, 0.5), "divided by 2"),
                             ((0.25, 0.75), "each rank has its share, and nothing has added them"),
                             ((1, 5), "those of 1 of 1 parameters differ: embedding.weight")):
            def spoil(arrays, rank, shares=shares):
                arrays[GRADIENT] = shares[rank] * arrays[GRADIENT]

            found = verdict_on(spoil)
            self.assertFalse(found.right, found.report)
            self.assertIn(says, found.json["gradients"])
