"""judge_model of recordings that are written by hand, in NumPy alone. tests/python/models_test.py records models of PyTorch."""

import json
import tempfile
import unittest

import trials  # noqa: F401: the path of the package
import numpy as np
from ring_attention_diagnose import judge_model, problems_of

LAYER, GRADIENT = "layers.0.attention", "embedding.weight:gradient"


def verdict_on(spoil=lambda arrays, rank: None, ranks=2):
    """The verdict on a right causal attention, whose shards are striped. `spoil` changes the arrays of a rank."""
    (problem,) = problems_of(ranks, "striped", only=["causal"])
    whole = {f"{LAYER}:{name}": array for name, array in problem.inputs().items()}
    whole.update((f"{LAYER}:{name}", problem.right[name][np.newaxis]) for name in ("out", "dq", "dk", "dv"))
    whole[GRADIENT] = np.arange(1.0, 7)

    def write(name, positions, arrays):
        words = {"positions": positions, "attention": {LAYER: {"causal": True, "type": "float32"}}, "modules": [LAYER],
                 "types": {LAYER: "Attention"}, "loss": 2.5, "of_tokens": None}
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

    def test_gradients_of_parameters(self):
        for shares, says in (((2, 2), "2 times the right ones"), ((0.5, 0.5), "divided by 2"),
                             ((0.25, 0.75), "each rank has its share, and nothing has added them")):
            def spoil(arrays, rank, shares=shares):
                arrays[GRADIENT] = shares[rank] * arrays[GRADIENT]

            found = verdict_on(spoil)
            self.assertFalse(found.right, found.report)
            self.assertIn(says, found.json["gradients"])
