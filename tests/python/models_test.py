"""record and judge_model: models of transformers on 2 and 3 ranks of gloo, by hand, by this project's ring and by ringmaster."""

import os
import sys
import unittest

import harness

harness.use_python_with("transformers")
harness.require("numpy", "torch", "transformers", "ring_attention")

import models_program

if "ringmaster" not in models_program.CASES:
    print("left out: another project's ring (pip install --no-deps axolotl-ringmaster==0.2.7)")
os.environ.setdefault("RING_ATTENTION_TIMEOUT", "600")  # a rank waits while the first one judges
from ring_attention import _rank_processes

#: The mistake of each wrong attention; the first other module that is wrong, and its mistake.
DUE = {
    "no ring": ({"model.layers.1.self_attn": {"no-ring"}}, None),
    "window": ({"model.layers.3.self_attn": {"window-plus-one"}}, None),
    "heads": ({"model.layers.0.self_attn": {"gqa-modulo"}}, None),
    "local rotary": ({}, ("model.rotary_emb", "local-rotary")),
    "convolution": ({}, ("model.layers.1.mlp", "tokens-of-shard")),
    "ringmaster, local rotary": ({}, ("model.rotary_emb", "local-rotary")),
    "loss N times": ({}, None),
    "own, no ring": ({"attention": {"no-ring"}}, None),
}


class Models(unittest.TestCase):
    def test_what_is_wrong_is_named_with_its_layer(self):
        for size in (2, 3):
            cases = _rank_processes.run_ranks(size, models_program.every, ["every case"])[0][0]
            for case, (right, report, found) in cases.items():
                with self.subTest(size=size, case=case, report=report):
                    layers, change = DUE.get(case, ({}, None))
                    self.assertEqual(right, case not in DUE)
                    self.assertEqual("RIGHT in this batch" in report, case not in DUE)
                    self.assertEqual({name for name, one in found["layers"].items() if one["right"] is False}, set(layers))
                    for name, mistakes in layers.items():
                        named = {word for one in found["layers"][name]["forward"]["explanations"] for word in one["mistakes"]}
                        self.assertLessEqual(mistakes, named)
                    first = found["first_change"]
                    self.assertEqual(first and (first["module"], first["mistake"]), change)
                    self.assertEqual(found["gradients_are_right"], case not in DUE)
                    self.assertEqual("compared with one process only" in report, case == "other words")
                    if case == "loss N times":
                        self.assertIn("the mean is multiplied by the ranks", found["loss"])
                        self.assertIn(f"{size} times the right ones", found["gradients"])


if __name__ == "__main__":
    unittest.main(argv=[word for word in sys.argv if word != "long"], verbosity=2)
