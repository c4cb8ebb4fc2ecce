"""ring_attention.transformers: eight kinds of models on 1, 2 and 3 ranks of gloo, against one process, and what is refused."""

import itertools
import os
import sys
import unittest

import harness

harness.use_python_with("transformers")
harness.require("numpy", "torch", "transformers", "ring_attention")

import transformers_program

os.environ.setdefault("RING_ATTENTION_TIMEOUT", "240")  # to import transformers takes long
from ring_attention import _rank_processes
from transformers_guards import Guards  # noqa: F401


def on_ranks(size, case):
    return [first for first, in _rank_processes.run_ranks(size, getattr(transformers_program, case), [case])]


class Transformers(unittest.TestCase):
    def test_models_are_those_of_one_process(self):
        """Logits and gradients, also of packed documents."""
        for size in (1, 2, 3):
            for rank in on_ranks(size, "models"):
                for case, (logits, gradients) in rank.items():
                    with self.subTest(size=size, case=case):
                        self.assertLessEqual(logits, 1e-5)
                        self.assertLessEqual(gradients, 2e-5)

    def test_dropout_does_not_depend_on_the_ranks(self):
        """A seed for each layer and step, the same on all ranks, and no dropout in evaluation."""
        whole = on_ranks(1, "dropouts")[0][1]
        self.assertEqual([calls for _, calls in whole], [[(0.3, 7), (0.3, 8)], [(0.3, 8), (0.3, 9)], [(0.0, 7), (0.0, 8)]])
        for one, other in itertools.combinations([logits for logits, _ in whole], 2):
            self.assertGreater(abs(one - other).max(), 1e-3)
        for positions, found in on_ranks(3, "dropouts"):
            for (logits, _), (due, _) in zip(found, whole):
                self.assertLessEqual(abs(logits - due[:, positions]).max(), 1e-5)

    def test_generate_goes_on_as_one_process(self):
        """Tokens, logits, and their bits on all ranks: greedy, drawn, of beams and cropped, in two turns."""
        for size in (1, 2, 3):
            first, *others = on_ranks(size, "generations")
            for case, (same, difference, logits) in first.items():
                with self.subTest(size=size, case=case):
                    self.assertTrue(same)
                    self.assertLessEqual(difference, 1e-5)
                    for other in others:
                        self.assertEqual(other[case][2].tobytes(), logits.tobytes())

    def test_program_of_the_page(self):
        for tokens, due in on_ranks(2, "page"):
            self.assertEqual(tokens, due)

    def test_what_a_ring_cannot_do_is_named(self):
        for texts in on_ranks(2, "refusals"):
            due = ("asks for window_of_tomorrow", "padding: give documents",
                   "not the one that its attention asks for by sliding_window", "counts the tokens of all documents",
                   "neither causal nor a sliding window nor chunks", "neither causal nor a sliding window nor chunks",
                   "first call shard", "1 tokens leave a rank without any",
                   "filled once, and without documents", "filled once, and without documents",
                   "goes on where it ends", "goes on where it ends", "neither dropout nor gradients",
                   "uses the keys of another one")
            self.assertEqual(len(texts), len(due))
            for text, part in zip(texts, due):
                self.assertIn(part, text)


if __name__ == "__main__":
    unittest.main(argv=[word for word in sys.argv if word != "long"], verbosity=2)
