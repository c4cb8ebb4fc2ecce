"""What a test of the command line is given by pytest."""

import harness
import numpy as np
import pytest
import reference

QKV = ("--q", "q.npy", "--k", "k.npy", "--v", "v.npy")


def four(array):
    """[B, H, S, D]"""
    return array.reshape((1,) * (4 - array.ndim) + array.shape)


class Program(harness.Command):
    """The program in a folder, with arrays in files."""

    tolerance = {"<f8": 1e-13, "<f4": 8e-6}

    def write_problem(self, q_shape, kv_shape=None, dtype="<f8", value_dim=None, **more):
        """Writes q, k, v and dout.npy, and the arrays of `more`."""
        kv_shape = kv_shape or q_shape
        shapes = q_shape, kv_shape, (*kv_shape[:-1], value_dim or kv_shape[-1]), (*q_shape[:-1], value_dim or q_shape[-1])
        self.arrays = [reference.random_values(shape, seed) for seed, shape in enumerate(shapes)]
        self.save(**{name: array.astype(dtype) for name, array in zip(("q", "k", "v", "dout"), self.arrays)})
        self.save(**{name: np.asarray(array, dtype) for name, array in more.items()})

    def assert_results(self, dtype="<f8", gradients=False, also=(), **terms):
        """The files in results/ are those of dense attention with these terms, in `dtype` and the input's dimensions."""
        q, k, v, grad_out = map(four, self.arrays)
        less = 4 - self.arrays[0].ndim
        want = dict(zip(("out", "lse"), reference.attention(q, k, v, **terms)))
        if gradients:
            want.update(zip(("dq", "dk", "dv", "dbias", "dsink"), reference.gradients(grad_out, q, k, v, **terms)))
        want = {name: array for name, array in want.items() if array is not None}
        for name, due in want.items():
            got = self.array(f"results/{name}.npy")
            due = due if name in ("dbias", "dsink") else due.reshape(due.shape[less:])
            assert (got.dtype, got.shape) == (np.dtype(dtype), due.shape), name
            assert reference.largest_difference(got, due) <= self.tolerance[dtype], name
        assert self.files_in("results") == sorted([*(f"{name}.npy" for name in want), "report.json", *also])


@pytest.fixture
def program(tmp_path):
    return Program(tmp_path)
