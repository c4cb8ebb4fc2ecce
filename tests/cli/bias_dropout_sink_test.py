"""`ring-attention run` with --bias, --dropout and --sink: what it writes, and what it refuses."""

import json

import numpy as np
import pytest
from conftest import QKV
from reference import kept_by_dropout, random_values

Q, KV = (2, 4, 7, 3), (2, 2, 9, 3)
SINKS = [0.5, -1.0, 0.25, 2.0]
RUN = ("run", *QKV, "--out", "results")


def kept(probability, seed):
    return kept_by_dropout((*Q[:3], KV[2]), probability, seed)


@pytest.fixture
def problem(program):
    """Files of q, k, v, dout and sink.npy."""
    program.tolerance = {"<f8": 1e-13, "<f4": 2e-5}
    program.write_problem(Q, KV, sink=SINKS)
    return program


def biased(shape):
    bias = random_values(shape, 4)
    return np.where(bias > 1.8, -np.inf, bias)


def run(program, ranks, *words):
    return program.run_well(ranks, *RUN, "--dout", "dout.npy", "--check", *words)


# ---- what it writes


@pytest.mark.parametrize("ranks, placement, shape", (
    (1, "contiguous", (7, 9)), (3, "striped", (4, 7, 9)), (4, "zigzag", (1, 7, 9)),
    (1, "contiguous", (1, 4, 7, 9)), (3, "striped", (2, 1, 7, 9)), (4, "zigzag", (2, 4, 7, 9)),
))
def test_every_shape_of_bias(problem, ranks, placement, shape):
    bias = biased(shape)
    problem.save(bias=bias)
    result = run(problem, ranks, "--bias", "bias.npy", "--causal", "--placement", placement)
    problem.assert_results(gradients=True, causal=True, bias=bias)
    assert "bias.npy" in result.out and "dbias" in result.out


@pytest.mark.parametrize("ranks, placement", ((1, "contiguous"), (3, "striped"), (5, "zigzag")))
def test_dropout(problem, ranks, placement):
    run(problem, ranks, "--dropout", "0.3", "--dropout-seed", "11", "--placement", placement)
    problem.assert_results(gradients=True, kept=kept(0.3, 11))


def test_no_dropout_has_the_same_bits_as_a_probability_of_0(problem):
    run(problem, 3)
    without = problem.bits()
    run(problem, 3, "--dropout", "0")
    assert problem.bits() == without


@pytest.mark.parametrize("ranks", (1, 4))
def test_sinks(problem, ranks):
    run(problem, ranks, "--sink", "sink.npy", "--causal", "--window=-1,-1", "--q-offset=-2")
    problem.assert_results(gradients=True, causal=True, q_offset=-2, sink=SINKS)
    assert (problem.array("results/lse.npy")[0, :, 0] == SINKS).all()  # the first query sees no key


@pytest.mark.parametrize("ranks, dtype", ((3, "<f4"), (2, "<f8"), (1, "<f4")))
def test_all_at_once_in_every_type(problem, ranks, dtype):
    bias = biased((4, 7, 9))
    problem.write_problem(Q, KV, dtype, bias=bias, sink=SINKS)
    run(problem, ranks, *"--bias bias.npy --sink sink.npy --dropout 0.25".split())
    problem.assert_results(dtype, gradients=True, bias=bias, sink=SINKS, kept=kept(0.25, 1))


def test_the_report(problem):
    problem.write_problem(Q, KV, "<f4", bias=biased((4, 7, 9)), sink=SINKS)
    words = "--bias bias.npy --sink sink.npy --dropout 0.25 --dropout-seed 3".split()
    report = json.loads(run(problem, 2, *words, "--json").out)
    assert (report["dropout"], report["dropout_seed"]) == (0.25, 3)
    assert report["bias_bytes"] == 2 * 4 * 4 * 4 * 9  # with its gradient: 4 heads, 4 of 7 rows, 9 keys
    assert (report["files"]["bias"], report["files"]["sink"]) == ("bias.npy", "sink.npy")
    assert all(rank["dbias"]["ok"] and rank["dsink"]["ok"] for rank in report["per_rank"])
    text = run(problem, 2, *words).out
    for line in ("bias    [1, 4, 7, 9]  bias.npy, ", "sinks of sink.npy", "dropout 0.25 of seed 3"):
        assert line in text


def test_random_arrays_with_files_of_bias_and_sinks(program):
    program.save(bias=random_values((16, 16), 1, "<f4"), sink=np.array([0.5, 1.0], "<f2"))
    words = "run --random 1,2,16,4 --backward --check --bias bias.npy --sink sink.npy --dropout 0.5"
    program.run_well(3, *words.split())


# ---- what it refuses


@pytest.mark.parametrize("ranks, flag, array, said", (
    *[(1, "--bias", np.zeros(shape), ("[2, 4, 7, 9]", "may also be 1"))
      for shape in ((7, 8), (9, 7), (3, 7, 9), (2, 7, 9), (3, 4, 7, 9), (2, 2, 7, 9))],
    (1, "--bias", np.zeros((7, 9), int), ("integers", "astype")),
    (1, "--bias", np.zeros((7, 9), "<f4"), ("<f4", "float64", "one type")),
    (1, "--bias", np.zeros((7, 9), order="F"), ("Fortran order",)),
    (1, "--bias", np.zeros(63), ("reshape",)),
    (3, "--bias", None, ("No such file",)),
    (1, "--sink", np.zeros(3), ("3 numbers", "4 query heads")),
    (1, "--sink", np.zeros((1, 4)), ("2 dimensions", "reshape")),
    (1, "--sink", np.zeros(4, int), ("integers",)),
    (1, "--sink", np.zeros(4, "<f4"), ("<f4", "one type")),
    *[(3, "--sink", np.array([0, wrong, 0, 0]), ("NaN or +inf",)) for wrong in (np.nan, np.inf)],
))
def test_bad_arrays(problem, ranks, flag, array, said):
    problem.save(wrong=array)
    problem.refuse(ranks, (*RUN, flag, "wrong.npy"), ("wrong.npy", *said))


@pytest.mark.parametrize("words, said", (
    *[((f"--dropout={wrong}",), ("--dropout", "below 1")) for wrong in ("1", "-0.1", "1.5", "0.99999999999")],
    (("--dropout-seed", "3"), ("--dropout-seed", "--dropout")),
    # A GPU computes in float32 at most. (What it can is in cuda_test.py.)
    *[((*words, "--device", "cuda"), ("--device cuda",))
      for words in (("--bias", "bias.npy"), ("--sink", "sink.npy"), ("--dropout", "0.5"))],
))
def test_bad_flags(problem, words, said):
    problem.save(bias=np.zeros((7, 9)))
    problem.refuse(1, (*RUN, *words), said)


@pytest.mark.parametrize("wrong", (np.nan, np.inf))
def test_nan_and_infinity_in_a_bias(problem, wrong):
    said = "1 element is NaN or infinite"
    bias = np.zeros((7, 9))
    bias[0] = -np.inf
    bias[4, 4] = wrong
    problem.save(bias=bias)
    result = problem.run_well(3, *RUN, "--bias", "bias.npy")
    assert result.err == f"warning: bias.npy: {said}, the first at [0, 0, 4, 4] of [B, H, Sq, Sk]\n"
    assert set(np.argwhere(np.isnan(problem.array("results/out.npy")))[:, 2]) == {4}
    problem.refuse(3, (*RUN, "--bias", "bias.npy", "--check"), ("bias.npy", said, "--check"))


def write_sparse(program, shape, dtype):
    """bias.npy: zeros, of which no block is on the disk."""
    try:
        np.lib.format.open_memmap(program.path("bias.npy"), "w+", dtype, shape)
    except OSError:
        pytest.skip("the file system has no sparse files of this size")


def test_a_bias_that_does_not_fit(program):
    length = 1 << 20
    program.save(**{name: np.zeros((length, 1), "<f2") for name in "qkv"})
    write_sparse(program, (length, length), "<f2")
    program.refuse(1, (*RUN, "--bias", "bias.npy"), ("cannot have", "for the bias", "TiB"))


@pytest.mark.parametrize("words, size", (("", "4.0"), ("--backward", "8.0"), ("--backward --check", "40.0"), ("--check", "4.0")))
def test_a_check_of_a_bias_that_does_not_fit(program, words, size):
    """The bias has 4 TiB, its gradient as much. The check has the gradient, a reference, its roundings and sizes in double."""
    shape = (64, 64, 1 << 14, 1 << 14)
    write_sparse(program, shape, "<f2")
    run = f"run --random {','.join(map(str, shape[:3]))},1 --bias bias.npy".split()
    program.refuse(1, (*run, *words.split()), ("cannot have", f"({size} TiB of it for the bias)"))
