"""`ring-attention run --parallel` and `bench --parallel`: the bits of the ring, what moves, what is refused.

With the argument `long` more placements, masks and numbers of ranks.
"""

import json
import shutil

import harness
import numpy as np
from reference import random_values

FILES = ("--q", "q.npy", "--k", "k.npy", "--v", "v.npy")
FORWARD = ("out", "lse", "dq")
ALL = (*FORWARD, "dk", "dv")
Q, KV = (2, 12, 13, 4), (2, 4, 17, 4)


class ParallelTest(harness.CommandTest):
    def write_problem(self, q_shape=Q, kv_shape=KV, dtype="<f8"):
        for seed, (name, shape) in enumerate((("q", q_shape), ("k", kv_shape), ("v", kv_shape), ("dout", q_shape))):
            self.save(**{name: random_values(shape, seed, dtype)})

    def results_of(self, ranks, *words, gradients=True):
        """The report; the files are in self.arrays."""
        words = ("--dout", "dout.npy", *words) if gradients else words
        shutil.rmtree(self.path("results"), ignore_errors=True)  # a run leaves the files of another one there
        self.run_well(ranks, "run", *FILES, "--out", "results", *words)
        self.arrays = self.bits()
        return self.report()

    def assert_same_bits(self, ranks, words, ring_ranks, names=ALL, common=()):
        """`run words` on some ranks gives the files of a ring of `ring_ranks`."""
        with self.subTest(ranks=ranks, words=words, common=common):
            self.results_of(ring_ranks, *common)
            ring = self.arrays
            report = self.results_of(ranks, *words, *common, "--check")
            self.assertIs(report["ok"], True)
            self.assertEqual(sorted(ring), sorted(self.arrays))
            for name in names:
                self.assertEqual(ring[name], self.arrays[name], name)
        return report

    # ---- balanced placements

    def test_balanced_documents_in_every_partition(self):
        """Many ranges a shard, against the dense reference; the files do not depend on the ranks' order of tokens."""
        self.save(cu=np.array([0, 100, 450, 640, 700]))
        common = ("run", "--random", "1,4,700,8", "--backward", "--check", "--json", "--causal", "--documents", "cu.npy")
        for ranks, *words in harness.first(4, (3,), (4, "--parallel", "hybrid", "--ulysses", "2"), (5, "--parallel", "all-gather"),
                                           (2, "--same-bits", "--tile", "16"), (3, "--transport", "odd-even")):
            report = json.loads(self.run_well(ranks, *common, "--placement", "balanced", *words).out)
            self.assertEqual((report["ok"], report["placement"]), (True, "balanced"))
            balance, rings = report["balance"], ranks // report["ulysses"]
            self.assertLessEqual(balance["tiles"] / rings, balance["bound"])
            self.assertLessEqual(balance["bound"], balance["busiest"])
            self.assertLessEqual(balance["busiest"], balance["finish"])
            tokens = [rank["tokens"] for rank in report["per_rank"]]
            self.assertEqual(sum(tokens), 700)
            if not words:
                self.assertLessEqual(max(tokens) - min(tokens), 64)

    def test_the_balance_of_a_report_is_that_of_plan(self):
        mask = ("--window", "100,-1")
        balance = json.loads(self.run_well(8, "run", "--random", "1,1,700,8", "--placement", "balanced", "--json", *mask).out)["balance"]
        plan = json.loads(self.run_well(1, "plan", "placements", "--seq", 700, "--ranks", 8, "--json", *mask, launcher=False).out)
        planned, share = plan["placements"]["balanced"], balance["tiles"] / 8
        self.assertEqual((balance["tiles"], balance["ranges"]), (plan["tiles"], planned["ranges"]))
        for field, due in (("busiest", planned["busiest"]), ("finish", planned["finish"]), ("bound", plan["bound"])):
            self.assertAlmostEqual(balance[field] / share, due, msg=field)
        self.assertAlmostEqual(balance["hop_tokens"] / (700 * 7), planned["hops"])
        self.assertLess(balance["busiest"], balance["finish"])

    def test_the_balance_that_is_expected(self):
        words = ("run", "--random", "1,1,2048,8", "--causal", "--placement")
        for ranks, placement, chosen in ((4, "auto", "zigzag"), (1, "auto", "contiguous"), (2, "balanced", "balanced")):
            out = self.run_well(ranks, *words, placement, "--check").out
            self.assertIn(f"  ring    {chosen} placement", out)
            self.assertRegex(out, r"\n  balance busiest rank \d\.\d\d, finish \d\.\d\d of an equal share, and "
                                  r"no deal is below 1\.\d\d; at most \d+ ranges? a rank\n")
        self.assertNotIn("  balance ", self.run_well(2, *words, "zigzag", "--check").out)

    def test_balanced_is_of_one_sequence(self):
        self.write_problem((1, 2, 20, 8), (1, 2, 30, 8))
        files = ("run", *FILES, "--check", "--placement")
        self.assert_refused(self.run_ranks(2, *files, "balanced"), "--placement balanced needs as many queries as keys", "20", "30")
        self.assertIn("contiguous placement", self.run_well(2, *files, "auto").out)
        self.assert_refused(self.run_ranks(2, "run", "--random", "1,2,64,8", "--parallel", "ulysses", "--placement", "balanced",
                                           "--check"), "--placement", "--parallel ring")
        self.assert_refused(self.run_ranks(1, "decode", "--random", "1,2,64,8", "--placement", "balanced"), "--placement", "balanced")

    # ---- what it writes

    def test_fewer_tokens_than_ranks_with_and_without_a_bias(self):
        """A rank without queries has a bias of no elements, which is not the same as no bias. One key."""
        for ranks, words, queries, heads in harness.first(
            1,
            (4, "--parallel hybrid --ulysses 2", 1, 2),
            (9, "--parallel hybrid --ulysses 3", 2, 3),
            (3, "--parallel ulysses", 2, 3),
            (6, "--parallel hybrid --ulysses 3", 1, 3),
            (7, "--parallel all-gather", 2, 3),
            (5, "", 2, 3),
        ):
            self.write_problem((1, heads, queries, 8), (1, heads, 1, 8))
            for bias in harness.first(1, (heads, queries, 1), (queries, 1), None):
                with self.subTest(ranks=ranks, words=words, bias=bias):
                    more = ("--bias", "bias.npy") if bias else ()
                    if bias:
                        self.save(bias=random_values(bias, 4))
                    report = self.results_of(ranks, *words.split(), *more, "--check")
                    self.assertIs(report["ok"], True)
                    self.assertEqual("dbias" in self.arrays, bias is not None)

    def test_ulysses_has_the_bits_of_one_rank(self):
        self.write_problem()
        for ranks in (1, 4):
            self.assert_same_bits(ranks, ("--parallel", "ulysses"), 1, common=("--causal",))

    def test_ranks_that_share_a_kv_head(self):
        """dk and dv are sums in the order of the ranks: --check compares them."""
        self.write_problem((2, 8, 13, 4), (2, 2, 17, 4), "<f4")
        self.assert_same_bits(4, ("--parallel", "ulysses"), 1, FORWARD, ("--window", "3,2"))
        self.assert_same_bits(8, ("--parallel", "hybrid", "--ulysses", "4"), 2, FORWARD)

    def test_a_hybrid_has_the_bits_of_a_ring_of_its_size(self):
        for (ulysses, ring), dtype, words in harness.first(
            2,
            ((2, 2), "<f8", "--causal --placement zigzag --transport odd-even"),
            ((2, 3), "<f4", "--placement striped --alibi --engine readable"),
            ((4, 2), "<f4", "--window 3,2 --placement zigzag --engine readable"),
            ((1, 3), "<f8", "--transport odd-even"),
        ):
            self.write_problem(dtype=dtype)
            hybrid = ("--parallel", "hybrid", "--ulysses", str(ulysses))
            report = self.assert_same_bits(ulysses * ring, hybrid, ring, common=words.split())
            self.assertEqual((report["parallel"], report["ulysses"]), ("hybrid", ulysses))

    def test_all_gather_has_the_bits_of_the_ring(self):
        for ranks, dtype, words in harness.first(2, (3, "<f8", "--placement striped"),
                                                 (3, "<f4", "--kv-dtype bf16 --engine readable"),
                                                 (4, "<f4", "--causal --placement zigzag"), (3, "<f4", "--kv-dtype bf16")):
            self.write_problem(dtype=dtype)
            self.assert_same_bits(ranks, ("--parallel", "all-gather"), ranks, common=words.split())

    def test_fewer_tokens_than_ranks(self):
        self.write_problem((4, 2, 4), (4, 2, 4))
        self.assert_same_bits(6, ("--parallel", "hybrid", "--ulysses", "2"), 3, common=("--placement", "zigzag"))
        self.assert_same_bits(7, ("--parallel", "all-gather"), 7)

    def test_documents(self):
        self.write_problem()
        self.save(boundaries=np.array([0, 5, 9, 17]))
        words = "--documents boundaries.npy --causal --placement zigzag".split()
        self.assert_same_bits(6, ("--parallel", "hybrid", "--ulysses", "2"), 3, common=words)

    def test_bf16_on_the_rings_of_a_hybrid(self):
        self.write_problem(dtype="<f4")
        self.assert_same_bits(4, ("--parallel", "hybrid", "--ulysses", "2"), 2, common=("--kv-dtype", "bf16"))

    def test_bias_dropout_and_sinks_are_those_of_the_heads_of_the_layer(self):
        self.write_problem()
        self.save(sink=0.3 * np.arange(12) - 1)
        for bias, placement, ranks, partition, ring in harness.first(
            2,
            ((2, 12, 13, 17), "zigzag", 4, "hybrid --ulysses 2", 2),
            ((1, 13, 17), "zigzag", 3, "all-gather", 3),
            ((12, 13, 17), "striped", 6, "hybrid --ulysses 2", 3),
            ((1, 12, 13, 17), "contiguous", 4, "ulysses", 1),
        ):
            values = random_values(bias, 4)
            self.save(bias=np.where(values > 1.8, -np.inf, values))
            common = "--bias bias.npy --sink sink.npy --dropout 0.25 --dropout-seed 7 --alibi --softcap 0.9 --placement".split()
            self.assert_same_bits(ranks, ("--parallel", *partition.split()), ring, (*ALL, "dbias"), (*common, placement))

    def test_a_bias_that_all_heads_share(self):
        """dbias is a sum over the ranks of Ulysses: --check compares it."""
        self.write_problem()
        for i, bias in enumerate(((13, 17), (2, 1, 13, 17))):
            self.save(bias=random_values(bias, 4))
            common = ("--bias", "bias.npy", "--placement", ("zigzag", "striped")[i])
            report = self.assert_same_bits(4, ("--parallel", "hybrid", "--ulysses", "2"), 2, ALL, common)
            for rank in report["per_rank"]:
                self.assertIs(rank["dbias"]["ok"], True)

    def test_nan_in_a_bias_is_found_once(self):
        self.write_problem()
        for bias in ((13, 17), (12, 13, 17)):
            values = np.zeros(bias)
            values.flat[-3] = np.nan
            self.save(bias=values)
            place = "[0, 0, 12, 14]" if len(bias) == 2 else "[0, 11, 12, 14]"
            for words in ("--parallel ulysses", "--parallel hybrid --ulysses 2 --placement striped"):
                result = self.run_well(4, "run", *FILES, "--out", "results", "--bias", "bias.npy", *words.split())
                self.assertEqual(result.err, "warning: bias.npy: 1 element is NaN or infinite, the first at "
                                             f"{place} of [B, H, Sq, Sk]\n")

    # ---- what it says

    def test_bytes_by_the_formula(self):
        batch, heads, kv_heads, seq, dim, size = 2, 12, 4, 48, 4, 4
        words = f"run --random {batch},{heads},{seq},{dim} --kv-heads {kv_heads} --backward --json".split()
        for ranks, ulysses in ((4, 4), (6, 2), (3, 1)):
            report = json.loads(self.run_well(ranks, *words, "--parallel", "hybrid", "--ulysses", ulysses).out)
            unit = batch * (seq // ranks) * size * (ulysses - 1) // ulysses  # a head, one number a token
            lse, pairs = heads * unit, 2 * heads + 2 * max(kv_heads, ulysses)
            each = 2 * pairs * dim * unit + lse  # q, k, v, out; dO, dQ, dK, dV
            rings = ranks // ulysses
            hop = 2 * batch * max(kv_heads // ulysses, 1) * (seq // rings) * dim * size
            hops = 3 * rings - 2 if rings > 1 else 0
            self.assertEqual(report["hops"], hops)
            for rank in report["per_rank"]:
                self.assertEqual(rank["all_to_all_bytes"], each)
                self.assertEqual(rank["bytes_sent"], each + hops * hop)
            self.assertEqual(report["all_to_all_bytes"], ranks * each)

    def test_keys_that_no_query_sees_do_not_travel(self):
        """Causal, contiguous: on a ring of three, 3 of 6 hops of K,V, twice, and all 9 of dK,dV."""
        words = "run --random 1,4,48,4 --causal --backward --json --parallel hybrid --ulysses 2".split()
        report = json.loads(self.run_well(6, *words).out)
        hop = 2 * 2 * 16 * 4 * 4
        self.assertEqual(report["bytes_moved"] - report["all_to_all_bytes"], 2 * (3 + 3 + 9) * hop)

    def test_bytes_of_an_all_gather(self):
        report = json.loads(self.run_well(
            4, *"run --random 1,2,48,8 --backward --json --parallel all-gather".split()).out)
        shard = 2 * 2 * 12 * 8 * 4  # K,V forward and backward, dK,dV: to three ranks each
        for rank in report["per_rank"]:
            self.assertEqual((rank["all_to_all_bytes"], rank["bytes_sent"]), (9 * shard, 9 * shard))
        self.assertEqual(report["hops"], 0)

    def test_auto_says_what_it_takes(self):
        """The choice of `plan`: the fewest bytes among the numbers of ranks that can share the heads."""
        words = "run --json --random".split()
        for ranks, flags, taken in (
            (4, "1,4,2048,32", ("ulysses", 4)),    # 3/4 * 16 arrays of one head; a ring sends 3 * 8
            (4, "1,4,2048,32 --kv-heads 1", ("ring", 1)),    # 3 * 2; Ulysses 3/4 * 16
            (8, "1,8,2048,32 --kv-heads 2", ("hybrid", 2)),    # 1/2 * 20 + 3 * 4; a ring 7 * 4, Ulysses 7/8 * 32
            (3, "1,4,2048,32", ("ring", 1)),    # three ranks cannot share four heads
            (1, "1,4,2048,32", ("ring", 1)),
        ):
            report = json.loads(self.run_well(ranks, *words, *flags.split(), "--parallel", "auto").out)
            with self.subTest(ranks=ranks, flags=flags):
                self.assertEqual((report["parallel"], report["ulysses"]), taken)
                self.assertTrue(report["auto"].startswith(taken[0]), report["auto"])
        text = self.run_well(4, *"run --random 1,4,2048,32 --parallel auto".split()).out
        self.assertIn("  auto    ulysses: a rank sends 768.0 KiB forward, in a ring 1.5 MiB", text)
        text = self.run_well(4, *"bench --seq 96 --heads 4 --dim 8 --repetitions 1 --parallel auto".split()).out
        self.assertIn("  auto    ulysses: a rank sends ", text)

    # ---- bench

    def test_bench(self):
        """Five products backward, two forward; q, k, v, out there and dO, dQ, dK, dV back, or one gather and two."""
        words = "bench --seq 96 --heads 4 --kv-heads 2 --dim 8 --repetitions 1".split()
        for ranks, flags, bytes_of_heads in (
            (2, "ulysses", (12 / 2, 12 / 2)),
            (4, "hybrid --ulysses 2 --dtype float64", (12 / 2, 12 / 2)),
            (3, "all-gather", (2 * 2 * 2, 2 * 2 * 2 * 2)),
            (2, "hybrid --ulysses 1", ()),
        ):
            report = json.loads(
                self.run_well(ranks, *words, "--causal", "--backward", "--json", "--parallel", *flags.split()).out)
            with self.subTest(flags=flags):
                self.assertEqual(report["parallel"], flags.split()[0])
                placements = ("contiguous",) if flags == "ulysses" else ("contiguous", "zigzag")
                passes = [(row["placement"], row["pass"]) for row in report["placements"]]
                self.assertEqual(passes, [(kind, way) for kind in placements for way in ("forward", "backward")])
                for rows in zip(report["placements"][::2], report["placements"][1::2]):
                    flop, more = (row["flops_per_second"] * row["compute_seconds"] for row in rows)
                    self.assertAlmostEqual(more / flop, 2.5)
                    if flags.endswith("1"):
                        self.assertNotIn("whole_seconds", rows[0])
                        continue
                    for row, heads in zip(rows, bytes_of_heads):
                        self.assertGreater(row["whole_seconds"], 0)
                        number = 8 if "float64" in flags else 4
                        self.assertEqual(row["all_to_all_bytes"], heads * (96 // ranks) * 8 * number)
        for ranks, flags, line in (
            (2, "ulysses --backward", "Ulysses, forward and backward, on 2 ranks"),
            (4, "hybrid --ulysses 2", "Heads over 2 ranks, rings of 2, forward, on 4 ranks"),
            (3, "all-gather", "All-gather of K,V, forward, on 3 ranks"),
            (2, "hybrid --ulysses 1", "Ring attention, forward, on 2 ranks"),
        ):
            out = self.run_well(ranks, *words, "--parallel", *flags.split()).out
            self.assertIn(line, out)
            self.assertEqual("contiguous, backward  " in out, "--backward" in flags)

    # ---- what is refused

    def test_refusals(self):
        """What needs the number of ranks, or of heads. (Flags alone: bad_flags_test.py, tests/program.)"""
        run, bench = "run --random 1,4,12,4", "bench --seq 12 --heads 4 --dim 4"
        for command, ranks, words, said in (
            (run, 3, "hybrid --ulysses 2", ("Ulysses over 2 ranks", "the job has 3", "use a number that divides it")),
            (run, 3, "ulysses", ("Ulysses over 3 ranks", "3 does not divide 4 query heads", "use 1, 2 or 4")),
            (run, 6, "hybrid --ulysses 6", ("more than 4 query heads", "use 1, 2 or 4")),
            (run, 4, "ulysses --kv-heads 1 --expect-ranks 3", ("--expect-ranks 3", "4 ranks")),
            (bench, 4, "hybrid --ulysses 3", ("Ulysses over 3 ranks", "the job has 4")),
            ("run --random 1,6,12,4", 4, "hybrid --ulysses 2 --kv-heads 3",
             ("2 neither divides nor is a multiple of 3 KV heads", "use 1, 3 or 6")),
            ("bench --seq 12 --heads 6 --dim 4", 4, "hybrid --ulysses 2 --kv-heads 3", ("3 KV heads", "use 1, 3 or 6")),
        ):
            with self.subTest(command=command, words=words):
                self.refuse(ranks, (*command.split(), "--parallel", *words.split()), said)

    def test_refused_files_leave_nothing(self):
        self.write_problem((6, 13, 4), (3, 13, 4))
        self.refuse(2, ("run", *FILES, "--out", "results", "--parallel", "ulysses"), ("3 KV heads", "use 1, 3 or 6"))
