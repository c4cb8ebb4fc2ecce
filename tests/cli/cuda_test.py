"""`ring-attention run --device cuda`: cuda_test.py [EMULATED], the same program over an emulated GPU."""

import json
import os
import sys
import unittest
from concurrent.futures import ThreadPoolExecutor

import harness
import numpy as np
from reference import random_values

SINKS = [0.5, -1.0, 0.0, 2.0]
EMULATED = sys.argv.pop(1) if len(sys.argv) > 1 else None


class WithoutGpuTest(harness.CommandTest):
    """The program as it is built: without CUDA, or on a machine that may have no GPU."""

    def test_it_says_what_is_missing(self):
        for ranks in (1, 3):
            for command in ("run --random 1,1,64,8", "bench --seq 64"):
                result = self.run_ranks(ranks, *command.split(), "--device", "cuda")
                if result.code == 0:
                    self.skipTest("this machine has a GPU")
                self.assert_refused(result, "--device cuda")

    def test_no_flag_of_a_feature_is_refused_for_the_gpu(self):
        """What is missing is CUDA or a GPU, not a kernel."""
        self.save(sink=np.zeros(1, "<f4"), bias=np.zeros((64, 64), "<f4"))
        for words in ("--dropout 0.5", "--sink sink.npy", "--bias bias.npy"):
            with self.subTest(words=words):
                result = self.run_ranks(1, *"run --random 1,1,64,8 --device cuda".split(), *words.split())
                if result.code == 0:
                    self.skipTest("this machine has a GPU")
                self.assert_refused(result, "--device cuda")
                self.assertNotIn("kernel", result.err)

    def test_flags_go_with_their_device(self):
        for words in (
            "--dtype bf16",
            "--kernel tiled",
            "--backward-kernel tiled",
            "--transport staged",
            "--share-gpu",
            "--device cuda --engine fast",
            "--device cuda --threads 2",
            "--device cuda --tile 32",
            "--device cuda --transport odd-even",
            "--transport nccl",
            "--device cuda --transport overlapped",
            "--device cuda --kv-dtype bf16",
        ):
            with self.subTest(words=words):
                result = self.run_ranks(2, *"run --random 1,1,64,8".split(), *words.split())
                self.assert_refused(result, "goes with --device")


@unittest.skipIf(EMULATED is None, "the build has no CUDA, so no emulated GPU")
class EmulatedTest(harness.CommandTest):
    def setUp(self):
        super().setUp()
        self.program, harness.PROGRAM = harness.PROGRAM, EMULATED

    def tearDown(self):
        harness.PROGRAM = self.program
        super().tearDown()

    def test_it_agrees_with_the_reference(self):
        cases = (
            (1, "1,2,40,16 --dtype float32"),
            (2, "1,4,33,64 --kv-heads 2 --dtype bf16 --causal --placement zigzag"),
            (3, "2,2,29,16 --dtype fp16 --causal --placement striped --transport staged"),
            (5, "1,2,7,64 --dtype bf16 --transport staged --window 3,2 --alibi"),
            (3, "1,2,20,5 --dtype float32 --kernel naive --backward-kernel tiled-atomics"),
            (2, "1,4,33,16 --kv-heads 2 --dtype bf16 --causal --parallel ulysses"),
            (4, "1,4,29,16 --dtype float32 --placement zigzag --causal --parallel hybrid --ulysses 2 --transport staged"),
            (3, "1,4,29,16 --kv-heads 2 --dtype bf16 --placement zigzag --causal --parallel all-gather"),
        )
        for ranks, words in cases:
            with self.subTest(ranks=ranks, words=words):
                result = self.run_well(
                    ranks,
                    *"run --backward --check --out results --device cuda --share-gpu --random".split(),
                    *words.split(),
                )
                report = self.report()
                self.assertEqual((report["engine"], report["device"]), ("cuda", "the emulator"))
                self.assertEqual(report["transport"], "staged" if "staged" in words else report["transport"])
                self.assertEqual("correctness only" in result.err, ranks > 1)
                ring = 1 if "all-gather" in words else ranks // report["ulysses"]
                self.assertEqual(report["hops"], 3 * ring - 2 if ring > 1 else 0)
                self.assertEqual(report["all_to_all_bytes"] > 0, "--parallel" in words)
                self.assertIs(report["ok"], True)

    def test_partitions_have_the_bits_of_the_ring(self):
        """As on the CPU: Ulysses those of one rank, a hybrid those of a ring of its size, an all-gather those of the ring."""
        problem = "--random 1,4,29,16 --backward --check --out results --device cuda --share-gpu --causal --alibi".split()
        self.save(sink=np.array(SINKS, "<f4"), bias=random_values((4, 29, 29), 4, "<f4"))

        def arrays(ranks, *words):
            self.run_well(ranks, "run", *problem, *words)
            return {name: content for name, content in self.bits().items() if name != "dsink"}

        for ranks, partition, ring, words in (
            (2, "ulysses", 1, "--dtype float32"),
            (4, "hybrid --ulysses 2", 2, "--placement striped --dtype bf16"),
            (4, "hybrid --ulysses 2", 2, "--placement zigzag --dtype bf16 --transport staged"),
            (4, "ulysses", 1, "--dtype float32 --bias bias.npy --sink sink.npy --dropout 0.25"),
            (3, "all-gather", 3, "--placement zigzag --dtype bf16"),
            (2, "all-gather", 2, "--dtype float32 --transport staged --bias bias.npy --sink sink.npy"),
        ):
            with self.subTest(ranks=ranks, partition=partition, words=words):
                want = arrays(ring, *words.split())
                got = arrays(ranks, *words.split(), "--parallel", *partition.split())
                self.assertEqual(sorted(want), sorted(got))
                for name, content in want.items():
                    self.assertEqual(content, got[name], name)

    def test_values_of_another_width_are_refused(self):
        for ranks in (1, 3):
            result = self.run_ranks(ranks, *self.WITH_GPU, *"--random 1,2,29,16 --value-dim 8 --backward --check".split())
            self.assert_refused(result, "the kernels of the GPU take a V of as many columns as K has: V has 8 and K 16")

    # ---- bias, dropout and sinks

    WITH_GPU = "run --device cuda --share-gpu".split()

    def test_bias_dropout_and_sinks_agree_with_the_reference(self):
        self.save(sink=np.array(SINKS, "<f4"))
        cases = (
            (1, "--dtype bf16", (29, 29), "tiled", "tiled"),
            (2, "--dtype float32 --causal --placement zigzag", (4, 29, 29), "tiled", "tiled"),
            (3, "--dtype fp16 --causal --placement striped --transport staged", (2, 1, 29, 29), "tiled", "tiled"),
            (5, "--kernel naive --backward-kernel tiled-atomics --window 9,4 --alibi", (2, 4, 29, 29), "naive", "tiled-atomics"),
        )
        for ranks, words, shape, forward, backward in cases:
            with self.subTest(ranks=ranks, words=words):
                values = random_values(shape, 4, "<f4")
                self.save(bias=np.where(values > 1.6, np.float32(-np.inf), values))
                self.run_well(ranks, *self.WITH_GPU, *"--random 2,4,29,16 --kv-heads 2 --backward --check".split(),
                              *"--out results --bias bias.npy --sink sink.npy --dropout 0.3".split(), *words.split())
                report = self.report()
                self.assertTrue(report["isa"].endswith(f"forward {forward}, backward {backward}"), report["isa"])
                for rank in report["per_rank"]:
                    self.assertTrue(rank["out"]["ok"] and rank["dbias"]["ok"] and rank["dsink"]["ok"])
                gradient = self.array("results/dbias.npy")
                self.assertEqual((gradient.shape, gradient.dtype), (shape, np.float32))

    def test_sinks_take_every_kernel(self):
        self.save(sink=np.array([0.5, -1.0], "<f4"))
        report = json.loads(self.run_well(2, *self.WITH_GPU, *"--random 1,2,40,64 --dtype bf16 --causal --backward".split(),
                                          *"--check --json --sink sink.npy".split()).out)
        self.assertNotIn("tiled", report["isa"])

    def test_the_dropout_mask_is_that_of_the_cpu(self):
        """Value j is 1 in column j and 0 elsewhere: out shows which pairs are kept."""
        length = 37
        shape = (1, 2, length, length)
        self.save(q=random_values(shape, 0, "<f4"), k=random_values(shape, 1, "<f4"), v=np.tile(np.eye(length, dtype="<f4"), (1, 2, 1, 1)))
        words = "--q q.npy --k k.npy --v v.npy --out results --scale 0.1 --dropout 0.4 --dropout-seed 5".split()

        def kept(ranks, *more):
            self.run_well(ranks, *more, *words)
            return (self.array("results/out.npy") != 0).tolist()

        want = kept(1, "run")
        self.assertAlmostEqual(np.mean(want), 0.6, delta=0.05)
        for ranks, more in ((1, "--kernel naive"), (2, "--dtype bf16"), (3, "--placement striped"), (5, "--placement zigzag")):
            with self.subTest(ranks=ranks, more=more):
                self.assertEqual(kept(ranks, *self.WITH_GPU, *more.split()), want)

    def test_a_kernel_without_bias_and_dropout_is_refused(self):
        for words, said in (
            ("--kernel mma", "--kernel mma: the forward kernel mma does not take bf16 with a head dim of 64 and a bias, "
                             "softcap or dropout"),
            ("--kernel mma", "these do: naive, tiled"),
            ("--backward --backward-kernel mma", "these do: tiled, tiled-atomics"),
        ):
            with self.subTest(words=words):
                self.assert_refused(self.run_ranks(2, *self.WITH_GPU, *"--random 1,1,64,64 --dtype bf16 --dropout 0.5".split(),
                                                   *words.split()), said)

    def test_a_bias_that_does_not_fit_on_the_gpu(self):
        length = 1 << 16
        try:
            np.lib.format.open_memmap(self.path("bias.npy"), "w+", "<f2", (length, length))  # no block of it exists
        except OSError:
            self.skipTest("the file system has no sparse files of this size")
        words = f"--random 1,1,{length},1 --bias bias.npy".split()
        self.assert_refused(self.run_ranks(1, *self.WITH_GPU, *words), "on its GPU (16.0 GiB of it for the bias)")
        self.assert_refused(self.run_ranks(1, *self.WITH_GPU, *words, "--backward"), "on its GPU (32.0 GiB of it for the bias)")

    def test_bench(self):
        for ranks, words in ((1, "--dtype float32"), (2, "--dtype bf16 --transport staged --causal"), (3, "--dtype fp16 --kernel tiled"),
                             (2, "--dtype bf16 --parallel ulysses"), (4, "--dtype float32 --parallel hybrid --ulysses 2"),
                             (2, "--dtype bf16 --causal --parallel all-gather"), (2, "--dtype bf16 --backward")):
            with self.subTest(ranks=ranks, words=words):
                result = self.run_well(ranks, *"bench --device cuda --share-gpu --seq 41 --heads 2 --dim 16".split(),
                                       *"--repetitions 1 --json".split(), *words.split())
                report = json.loads(result.out)
                self.assertIn("the emulator", report["kernel"])
                self.assertEqual("correctness only" in report["kernel"], ranks > 1)
                self.assertEqual(len(report["placements"]), 2 if "causal" in words or "backward" in words else 1)
                if "all-gather" in words:
                    continue  # no hops
                tokens = -(-41 * report["ulysses"] // ranks)
                self.assertEqual(report["hop_bytes"],
                                 2 * 2 // report["ulysses"] * tokens * 16 * (4 if "float32" in words else 2))
        self.assert_refused(self.run_ranks(2, *"bench --device cuda --seq 41".split()), "1 usable GPU visible to this process")
        self.assert_refused(self.run_ranks(1, *"bench --device cuda --heads 16 --seq 350000 --dim 128".split()), "needs")

    def test_gpus_are_told_apart_by_what_they_are(self):
        """A launcher may show every rank a GPU of its own, each as number 0."""
        words = "run --random 1,1,9,8 --device cuda --transport staged".split()
        of_rank = self.path("of_rank.sh")
        with open(of_rank, "w", encoding="utf-8") as script:
            script.write(f"""#!/bin/sh
set -- $GPUS_OF_RANKS -- "$@"
shift "${{PMI_RANK:-${{PMIX_RANK:-$OMPI_COMM_WORLD_RANK}}}}"
export EMULATED_DEVICES="$1"
while [ "$1" != -- ]; do shift; done
shift
exec "{EMULATED}" "$@"
""")
        os.chmod(of_rank, 0o755)
        harness.PROGRAM = of_rank
        for gpus, of_whom in (("0 1 2", None), ("012 012 012", None), ("0 1 0", 0), ("2 01 01", None), ("3 01 1", 1),
                              ("a012 a012 a012", None), ("0a 1a a2", None), ("a01 a01 a01", 0)):  # a is too old
            with self.subTest(gpus=gpus):
                result = self.run_ranks(3, *words, environment={"GPUS_OF_RANKS": gpus})
                if of_whom is None:
                    self.assertEqual(result.code, 0, str(result))
                    self.assertNotIn("correctness only", result.err)
                else:
                    self.assert_refused(result, f"rank {of_whom} would share its GPU", "visible to this process")
                    shared = self.run_well(3, *words, "--share-gpu", environment={"GPUS_OF_RANKS": gpus})
                    self.assertIn("correctness only", shared.err)

    def test_where_all_gpus_are_too_old_the_first_one_is_named(self):
        result = self.run_ranks(2, *"run --random 1,1,9,8 --device cuda --share-gpu".split(), environment={"EMULATED_DEVICES": "ab"})
        self.assert_refused(result, "GPU 0, the emulator, is too old: compute capability 7.0, and 8.0 is the oldest that works")

    def test_a_slow_gpu_is_not_a_dead_one(self):
        """The last step takes longer than the time-out: 64 blocks of the forward, 128 of the backward. Both jobs mostly sleep."""
        def slow(words):
            return self.run_well(1, *words.split(), *"--device cuda --dtype float32 --kernel tiled --timeout 1".split(),
                                 environment={"EMULATED_BLOCKS_PER_SECOND": "50"})
        with ThreadPoolExecutor() as pool:
            jobs = ("run --random 1,64,2,8 --backward", "bench --heads 64 --seq 2 --dim 8 --repetitions 1")
            for result in pool.map(slow, jobs):
                self.assertGreater(result.seconds, 3)

    def test_what_cannot_be_is_refused(self):
        for ranks, words, message in (
            (2, "1,1,64,8", "2 ranks on this machine, 1 usable GPU visible to this process: start fewer, or give --share-gpu"),
            (1, "1,16,350000,128", "needs"),
            (2, "1,1,64,300 --share-gpu --backward", "no backward kernel of the GPU takes fp32"),
            (2, "1,1,64,64 --share-gpu --kernel tield", "--kernel tield: no forward kernel has the name tield"),
            (2, "1,1,64,300 --share-gpu --kernel tiled", "these do: naive"),
        ):
            with self.subTest(words=words):
                result = self.run_ranks(ranks, *"run --device cuda --random".split(), *words.split())
                self.assert_refused(result, message)
