"""The package with arrays in the memory of a GPU, which is emulated."""

import importlib.util
import os
import sys
import tempfile
import time
import unittest

import harness

LONG = sys.argv[-1] == "long"  # all cases, in `make test-long`
if LONG:
    harness.use_python_with("torch")
harness.require("numpy", "ring_attention")

MPI4PY = [os.environ["MPI4PY_FOLDER"]] if "MPI4PY_FOLDER" in os.environ else []
harness.ENVIRONMENT["PYTHONPATH"] = os.pathsep.join([os.environ["RING_ATTENTION_EMULATED"], str(harness.HERE), *MPI4PY])


class Gpu(harness.Jobs):
    PROGRAM = "gpu_program.py"

    def well(self, ranks, *cases, **variables):
        harness.ENVIRONMENT.update(variables)
        super().well(ranks, *cases, limit=120)

    def test_one_process(self):
        self.well(1, "one_process", "streams", "errors", EMULATED_DEVICES="01")

    def test_rings(self):
        all_rings = ((1, "float32", "overlapped"), (2, "float16", "staged"), (3, "bfloat16", "nccl"), (4, "float32", "nccl"),
                     (1, "float16", "staged"), (3, "float32", "staged"), (4, "bfloat16", "staged"), (2, "float32", "nccl"))
        for ranks, kind, transport in all_rings if LONG else all_rings[:4]:
            with self.subTest(ranks=ranks):
                self.well(ranks, f"ring:{kind}:{transport}")

    def groups(self, ranks, kind, *others):
        with tempfile.TemporaryDirectory() as folder:
            self.well(ranks, ":".join(("groups", kind, folder, *others)), EMULATED_DEVICES="01")

    def test_groups_have_the_bits_of_mpi(self):
        self.groups(2, "float32")

    @unittest.skipUnless(LONG, "in `make test-long`")
    def test_groups_of_every_size(self):
        for ranks, kind in ((1, "float32"), (2, "bfloat16"), (3, "float16"), (4, "float32")):
            self.groups(ranks, kind)

    @unittest.skipUnless(LONG, "in `make test-long`")
    @unittest.skipUnless(importlib.util.find_spec("torch"), "this Python has no PyTorch: TORCH_PYTHON names one that has")
    def test_groups_of_gloo(self):
        for ranks in (1, 2, 3):
            self.groups(ranks, "bfloat16", "torch")

    @unittest.skipUnless(LONG, "in `make test-long`")
    @unittest.skipUnless(MPI4PY, "MPI4PY_FOLDER names no folder with mpi4py")
    def test_groups_of_mpi4py(self):
        for ranks in (1, 2, 3):
            self.groups(ranks, "float16", "mpi4py")

    def test_errors_of_threads(self):
        self.well(1, "errors_of_threads", "stopped", EMULATED_DEVICES="01")

    def test_the_order_of_streams(self):
        for seed in range(1, 6 if LONG else 3):
            self.well(1, "streams", EMULATED_SEED=str(seed))
        del harness.ENVIRONMENT["EMULATED_SEED"]

    def test_errors_of_one_rank(self):
        self.well(3, "errors", EMULATED_DEVICES="01")

    def test_the_call_of_the_readme(self):
        self.well(3, "readme")

    def test_a_lost_rank_ends_the_job(self):
        self.loses_a_rank("lost")

    @unittest.skipUnless(LONG, "in `make test-long`")
    def test_a_lost_rank_of_a_group_ends_the_job(self):
        with tempfile.TemporaryDirectory() as folder:
            self.loses_a_rank(f"lost:{folder}")

    def loses_a_rank(self, case):
        begin = time.monotonic()
        self.set_timeout(2)
        done = harness.run(3, self.PROGRAM, case)
        self.assertNotEqual(done.returncode, 0)
        self.assertLess(time.monotonic() - begin, 30)
        self.assertRegex(done.stderr, "Error: NCCL ring, rank [01]: a message of an enqueued call took more than 2 s")

    def test_has_the_bits_of_the_program(self):
        ways = ("zigzag:hybrid", "zigzag:ring", "contiguous:ulysses", "zigzag:all-gather")
        self.has_the_bits(harness.BUILD / "tests/emulator/ring-attention-emulated", 4, "float16", ways if LONG else ways[:1],
                          "--device=cuda", "--share-gpu", "--dtype=fp16")
