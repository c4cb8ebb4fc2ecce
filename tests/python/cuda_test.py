"""The package with tensors of PyTorch, and arrays of CuPy and JAX, on a real GPU. Skipped without one."""

import os
import tempfile
import unittest

import harness

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX would take most of the memory
harness.use_python_with("torch")
harness.require("numpy", "torch", "ring_attention")

import ring_attention as ra
import torch


class Cuda(harness.Jobs):
    PROGRAM = "cuda_program.py"

    def well(self, ranks, *cases):
        super().well(ranks, *cases, limit=120)

    def test_one_process(self):
        self.well(1, "one", "readme")

    def test_cupy_and_jax(self):
        self.well(1, "dlpack")

    def test_rings(self):
        for ranks in (1, 2, 3):
            with self.subTest(ranks=ranks):
                self.well(ranks, "ring", "readme")

    def test_groups(self):
        for ranks in (1, 2, 3):
            with self.subTest(ranks=ranks), tempfile.TemporaryDirectory() as folder:
                self.well(ranks, f"group:{folder}")


if __name__ == "__main__":
    if not torch.cuda.is_available():
        harness.skip("PyTorch sees no GPU")
    if not ra._core.has_gpu:
        harness.skip("the package was built without the GPU parts")
    unittest.main()
