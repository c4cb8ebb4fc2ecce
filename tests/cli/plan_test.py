"""`ring-attention plan`: its accounts add up, names and numbers that cannot be get one line, and it is quick."""

import json
import math
import resource
import tempfile

import harness
import numpy as np


class Plan(harness.CommandTest):
    def plan(self, *words):
        return json.loads(self.run_well(1, "plan", "--json", *words, launcher=False).out)

    def check_account(self, mesh, ranks):
        sizes = mesh["mesh"]
        self.assertEqual(math.prod(sizes.values()), ranks)
        self.assertAlmostEqual(sum(mesh["memory"].values()) / mesh["memory_bytes"], 1)
        self.assertAlmostEqual(sum(mesh["time"].values()) / mesh["seconds"], 1)
        exposed = sum(mesh["time"].get(part, 0) for part in ("tensor", "all-to-all", "ring", "weights", "stages"))
        self.assertAlmostEqual(exposed, mesh["exposed_seconds"])

    def test_the_accounts_add_up(self):
        for phase in ("training", "prefill", "decode"):
            for model in ("llama-3-8b", "llama-65b"):
                for machine in ("8xa100", "tpu-v4"):
                    with self.subTest(phase=phase, model=model, machine=machine):
                        report = self.plan("--phase", phase, "--model", model, "--machine", machine, "--ranks", 64)
                        self.check_account(report["best"], 64)
                        for mesh in report["neighbours"]:
                            self.check_account(mesh, 64)
                            if report["best"]["fits"] and mesh["fits"]:
                                self.assertGreaterEqual(mesh["seconds"], report["best"]["seconds"])

    def test_the_longest_context_fits_and_the_next_does_not(self):
        words = ("--model", "llama-3-70b", "--ranks", 128)
        report = self.plan(*words)
        tokens = int(report["longest_context"])
        self.assertTrue(self.plan(*words, "--context", tokens)["best"]["fits"])
        beyond = self.plan(*words, "--context", tokens + 1)
        self.assertFalse(beyond["best"]["fits"])
        self.assertEqual(beyond["enough_ranks"], 256)

    def test_numbers_replace_those_of_a_name(self):
        shape = "--layers 32 --hidden 4096 --heads 32 --kv-heads 8 --ffn 14336 --vocab 128256".split()
        named, given = self.plan("--model", "llama-3-8b"), self.plan("--model", "llama-7b", *shape)
        self.assertEqual(named["parameters"], given["parameters"])
        self.assertEqual(named["best"], given["best"])
        slow = self.plan("--flops", 100)
        self.assertGreater(slow["best"]["time"]["attention"], 6 * named["best"]["time"]["attention"])

    def test_a_configuration_of_hugging_face(self):
        config = {"model_type": "own", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
                  "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "sliding_window": 4096,
                  "head_dim": 256}
        with tempfile.TemporaryDirectory() as folder:
            file = f"{folder}/config.json"
            for written in (config, {"text_config": config}):
                with open(file, "w", encoding="utf-8") as out:
                    json.dump(written, out)
                report = self.plan("--config", file)
                self.assertEqual(report["best"], self.plan("--model", "llama-3-8b")["best"])
                self.assertIn("own, not counted: head_dim 256, not counted: sliding_window 4096", json.dumps(report))
            self.assert_refused(self.run_ranks(1, "plan", "--config", file, "--model", "llama-7b", launcher=False), "--model")
            for text, says in (("{}", "no integer num_hidden_layers"), ("[", "is not a JSON object")):
                with open(file, "w", encoding="utf-8") as out:
                    out.write(text)
                self.assert_refused(self.run_ranks(1, "plan", "--config", file, launcher=False), "--config", says)

    def test_the_simulation_is_near_the_closed_form(self):
        best = self.plan("--model", "llama-3-70b", "--context", 1 << 20, "--ranks", 256)["best"]
        self.assertAlmostEqual(best["simulated_seconds"] / best["seconds"], 1, delta=0.02)

    def test_a_pipeline(self):
        words = ("--model", "llama-3-405b", "--context", 8192, "--batch", 2048, "--ranks", 16384, "--tensor", 8)
        report = self.plan(*words, "--pipeline", 16, "--chunks", 8, "--keep-activations")
        self.check_account(report["best"], 16384)
        self.assertEqual(report["best"]["mesh"]["pipeline"], 16)
        time = report["best"]["time"]
        busy = report["best"]["seconds"] - time["bubble"] - time["weights"]
        micro_batches = 2048 / report["best"]["mesh"]["data"]
        self.assertAlmostEqual(time["bubble"] / busy, 15 / (8 * micro_batches))
        self.assertTrue(0.4 < report["utilisation"] < 0.5)  # 41 % in arXiv 2407.21783, table 4
        out = self.run_well(1, "plan", *words, "--pipeline", 16, "--data", 128, launcher=False).out
        self.assertIn("16 micro-batches, at most 16.0 in flight, a bubble of 93.8 %", out)
        self.assertIn("model FLOP utilisation", out)

    def test_text(self):
        out = self.run_well(1, "plan", "--ranks", 64, "--context", 1 << 20, launcher=False).out
        for word in ("It fits", "memory of a rank", "checkpoints", "time of a step", "exposed communication",
                     "Why this mesh", "of which", "The longest context on these ranks"):
            self.assertIn(word, out)
        out = self.run_well(1, "plan", "--model", "llama-3-405b", launcher=False).out
        self.assertIn("It does not fit", out)
        self.assertIn("128 ranks would do", out)

    def test_ten_thousand_ranks_take_two_seconds(self):
        """Ranks 8192 and 10000; the second has a ring of all of them."""
        for words in (("--ranks", 8192), ("--ranks", 10000, "--tensor", 1, "--ulysses", 1, "--batch", 2)):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            self.plan("--model", "llama-3-405b", "--context", 100_000_000, *words)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            # The processor's time: the machine may have other work.
            seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            self.assertLess(seconds, 2 * harness.SLOWNESS)

    def test_placements(self):
        """A short window is contiguous; documents are within 8 % of the bound, and no worse than the others."""
        self.save(cu=np.array([0, 4915, 8192, 14745, 16384]))
        for words in (("--causal", "--documents", "cu.npy"), ("--window", "511,0"), ("--causal",),
                      ("--causal", "--prefix", "8192"), ("--window", "1023,0", "--sink-tokens", "4")):
            json_words = ("plan", "placements", "--json", *words)
            report = json.loads(self.run_well(1, *json_words, launcher=False).out)
            rows = report["placements"]
            self.assertEqual(sorted(rows), ["balanced", "contiguous", "striped", "zigzag"])
            self.assertLessEqual(rows["balanced"]["finish"], 1.08 * report["bound"])
            for row in rows.values():
                self.assertLessEqual(row["busiest"], row["finish"])
                self.assertLessEqual(rows["balanced"]["finish"], 1.03 * row["finish"] + 1e-9)
            if "511,0" in words:
                self.assertEqual(rows["balanced"], rows["contiguous"])
        out = self.run_well(1, "plan", "placements", "--seq", "1000", "--ranks", "3", launcher=False).out
        self.assertRegex(out, r"balanced: chunks of 64 tokens, found in .*; no deal of them is below 1\.\d\d\n")
        self.assertEqual(self.run_well(1, "plan", "placements", "--seq", "1", "--ranks", "2048", launcher=False).err, "")
        self.assert_refused(self.run_ranks(1, "plan", "placements", "--ranks", "2049", launcher=False), "--ranks", "2048")
        self.assert_refused(self.run_ranks(1, "plan", "placements", "--prefix", "16385", "--causal", launcher=False),
                            "0:16385", "16384 keys")
        self.assert_refused(self.run_ranks(1, "plan", "placements", "--documents", "cu.npy", "--seq", "9", launcher=False),
                            "cu.npy", "9, the number of keys")

    def test_under_mpirun_it_is_printed_once(self):
        self.assertEqual(self.run_well(3, "plan").out.count("Why this mesh"), 1)

    def test_bad_input(self):
        for words, says in (
            (("--model", "llama-9b"), ("--model", "llama-3-8b", "llama-9b")),
            (("--machine", "9xh100"), ("--machine", "8xh200", "tpu-v4")),
            (("--phase", "sleep"), ("--phase", "prefill")),
            (("--ulysses", "64", "--ranks", "64"), ("64 ranks of Ulysses", "32 heads", "use 1, 2, 4, 8, 16, 32")),
            (("--tensor", "3", "--ranks", "9"), ("3 tensor ranks", "use 1, 2, 4, 8")),
            (("--ring", "3", "--ranks", "8"), ("8 ranks", "3", "divide")),
            (("--data", "2"), ("2 replicas", "batch")),
            (("--phase", "decode", "--ulysses", "2"), ("decode",)),
            (("--ranks", "0"), ("--ranks", "from 1")),
            (("--context", "0"), ("--context", "from 1")),
            (("--context", "4", "--ranks", "7"), ("7 ranks", "longer context")),
            (("--link", "-3"), ("--link", "above 0")),
            (("--nic", "0"), ("--nic", "above 0")),
            (("--flops", "nan"), ("--flops", "finite")),
            (("--memory", "-80"), ("--memory", "above 0")),
            (("--heads", "5"), ("hidden", "5 heads")),
            (("--kv-heads", "5"), ("5 KV heads", "32 heads")),
            (("--pipeline", "3", "--ranks", "8"), ("8 ranks", "divide")),
            (("--pipeline", "8", "--chunks", "8"), ("8 stages", "use at most 4 stages of 8 chunks")),
            (("--pipeline", "8", "--phase", "prefill"), ("a pipeline is for training",)),
            (("--pipeline", "2", "--batch", "3", "--micro-batch", "2"), ("larger batch",)),
            (("--flops", "1e-308"), ("infinite",)),
            (("--bogus",), ("--bogus", "plan --help")),
        ):
            with self.subTest(words=words):
                self.assert_refused(self.run_ranks(1, "plan", *words, launcher=False), *says)
