"""`ring-attention bench`: what it prints holds together; the times themselves decide nothing."""

import json

import harness


class Bench(harness.CommandTest):
    def bench(self, ranks, *words):
        return json.loads(self.run_well(ranks, "bench", "--repetitions", "1", "--json", *words).out)

    def test_any_number_of_ranks_and_tokens(self):
        for ranks, seq in ((1, 100), (2, 101), (3, 2), (5, 64)):
            report = self.bench(ranks, "--seq", seq, "--heads", 2, "--dim", 16)
            with self.subTest(ranks=ranks, seq=seq):
                shard = -(-seq // ranks)
                self.assertEqual((report["ranks"], report["hop_bytes"]), (ranks, 2 * 4 * 2 * shard * 16))
                (row,) = report["placements"]
                self.assertEqual(row["placement"], "contiguous")
                for name, value in row.items():
                    if name.endswith("_seconds"):
                        self.assertGreaterEqual(value, 0, name)
                flop = row["flops_per_second"] * row["compute_seconds"]
                self.assertAlmostEqual(flop / (4 * shard * seq * 16 * 2), 1)
                hops = (ranks - 1) * report["hop_bytes"]
                self.assertAlmostEqual(row["bytes_per_second"] * row["messages_seconds"], hops, delta=1e-6 * hops)

    def test_a_causal_mask_is_measured_in_two_placements(self):
        report = self.bench(2, "--seq", 256, "--heads", 4, "--kv-heads", 2, "--dim", 32, "--causal")
        self.assertEqual([row["placement"] for row in report["placements"]], ["contiguous", "zigzag"])
        self.assertEqual(report["kv_shape"], [1, 2, 256, 32])
        contiguous, zigzag = report["placements"]
        # Contiguous: rank 1 computes its triangle and a square; zigzag: both ranks the same.
        self.assertAlmostEqual(contiguous["flops_per_second"] * contiguous["compute_seconds"],
                               4 * 32 * 4 * (128 * 129 / 2 + 128 * 128))
        self.assertAlmostEqual(zigzag["flops_per_second"] * zigzag["compute_seconds"], 4 * 32 * 4 * 256 * 257 / 4)

    def test_the_backward(self):
        """Five products instead of two; K,V make N - 1 hops and dK,dV N."""
        for ranks, words in ((1, ()), (3, ("--transport", "odd-even")), (2, ("--causal", "--dtype", "float64"))):
            with self.subTest(ranks=ranks, words=words):
                report = self.bench(ranks, "--seq", 96, "--heads", 4, "--kv-heads", 2, "--dim", 16, "--backward", *words)
                passes = [(row["placement"], row["pass"]) for row in report["placements"]]
                placements = ("contiguous", "zigzag") if "--causal" in words else ("contiguous",)
                self.assertEqual(passes, [(kind, way) for kind in placements for way in ("forward", "backward")])
                for forward, backward in zip(report["placements"][::2], report["placements"][1::2]):
                    flop, of_backward = (row["flops_per_second"] * row["compute_seconds"] for row in (forward, backward))
                    self.assertAlmostEqual(of_backward / flop, 2.5)
                    if ranks > 1:
                        moved = backward["bytes_per_second"] * backward["messages_seconds"]
                        self.assertAlmostEqual(moved / ((2 * ranks - 1) * report["hop_bytes"]), 1)
        out = self.run_well(2, *"bench --seq 64 --repetitions 1 --backward".split()).out
        for word in ("forward and backward, on 2 ranks", "contiguous, backward"):
            self.assertIn(word, out)

    def test_the_tile_of_the_backward(self):
        """q, dO, their transposes and dQ of all queries stay in the cache; with longer rows there are fewer queries."""
        words = ("bench", "--seq", 64, "--repetitions", 1, "--isa", "x86-64", "--dim")
        for dim, more, tile in ((128, (), "96 queries of 12 panels: 240.0 KiB of 512.0 KiB"),
                                (512, (), "48 queries of 6 panels: 480.0 KiB of 512.0 KiB"),
                                (128, ("--dtype", "float64"), "96 queries of 24 panels: 480.0 KiB of 512.0 KiB")):
            self.assertIn(f"  tile    {tile}, in the backward\n", self.run_well(1, *words, dim, "--backward", *more).out)
        self.assertNotIn("  tile ", self.run_well(1, *words, 64).out)

    def test_in_double(self):
        words = ("--seq", 64, "--heads", 2, "--dim", 16)
        for dtype, size in (("float32", 4), ("float64", 8)):
            report = self.bench(2, *words, "--dtype", dtype)
            self.assertEqual((report["wire"], report["hop_bytes"]), (dtype, 2 * size * 2 * 32 * 16))
        self.assertIn("travel in float64", self.run_well(1, "bench", *words, "--repetitions", 1, "--dtype", "float64").out)

    def test_the_transport_is_that_of_the_flag(self):
        self.assertEqual(self.bench(2, "--seq", 64)["transport"], "overlapped")
        self.assertEqual(self.bench(2, "--seq", 64, "--transport", "odd-even")["transport"], "odd-even")

    def test_one_placement(self):
        report = self.bench(2, "--seq", 256, "--causal", "--placement", "balanced")
        self.assertEqual([row["placement"] for row in report["placements"]], ["balanced"])
        self.assert_refused(self.run_ranks(2, "bench", "--parallel", "ulysses", "--placement", "striped"), "--placement", "--parallel ring")

    def test_text(self):
        out = self.run_well(2, "bench", "--seq", "64", "--repetitions", "1").out
        for word in ("on 2 ranks", "beta", "c*", "overlapped", "x model", "Medians of 1"):
            self.assertIn(word, out)
        self.assertNotIn("beta", self.run_well(1, "bench", "--seq", "64", "--repetitions", "1").out)

    def test_bad_flags(self):
        for words, says in (
            (("--kv-heads", "3"), ("--kv-heads 3", "--heads, 8")),
            (("--seq", "0"), ("--seq",)),
            (("--seq", str(1 << 52)), ("2^48",)),
            (("--seq", str(1 << 60)), ("--seq", str(1 << 53))),
            (("--seq", str(1 << 38), "--heads", "1", "--dim", "128"), ("memory", "more ranks")),
            (("--expect-ranks", "3"), ("3",)),
            (("--timeout", "0"), ("--timeout",)),
            (("--transport", "nccl"), ("--transport nccl", "--device cuda")),
            (("--device", "cuda", "--dtype", "float64"), ("--dtype", "--device cpu")),
            (("--dtype", "float16"), ("--dtype",)),
        ):
            with self.subTest(words=words):
                self.assert_refused(self.run_ranks(2, "bench", *words), *says)
