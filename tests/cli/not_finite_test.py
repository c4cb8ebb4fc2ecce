"""NaN and infinities in the input: always counted and the first one named; an error only with --check."""

import json

import harness
import numpy as np
import pytest
from conftest import QKV
from reference import random_values

SHAPE = (2, 3, 6, 4)
RUN = ("run", *QKV, "--out", "results")


def write(program, dtype="<f8", **spoilt):
    """q, k and v; `spoilt` says {place: value} for some of them."""
    for name in "qkv":
        array = random_values(SHAPE, 1, dtype)
        for place, value in spoilt.get(name, {}).items():
            array[place] = value
        program.save(**{name: array})


@pytest.mark.parametrize("ranks, name, value", [
    ((3, 4, 3, 1)[i % 4], *case) for i, case in enumerate((n, x) for n in "qkv" for x in (np.nan, np.inf, -np.inf))])
def test_counted_and_the_first_named(program, ranks, name, value):
    # Not the first in any rank's own memory: the last tokens belong to the last rank.
    write(program, **{name: {(1, 0, 0, 0): value, (0, 2, 5, 1): value, (1, 2, 5, 3): value}})
    assert program.run_well(ranks, *RUN).err == (
        f"warning: {name}.npy: 3 elements are NaN or infinite, the first at [0, 2, 5, 1] of [B, H, S, D]\n")
    assert program.files_in("results") == sorted(harness.OUTPUTS)
    assert len(program.report()["warnings"]) == 1


def test_all_three_files(program):
    write(program, q={(0, 0, 0, 0): np.nan}, k={(0, 0, 3, 2): np.inf}, v={(0, 0, 0, 2): -np.inf})
    result = program.run_well(4, *RUN, "--json")
    assert len(result.err.splitlines()) == 3
    assert [line[:5] for line in json.loads(result.out)["warnings"]] == ["q.npy", "k.npy", "v.npy"]
    assert "k.npy: 1 element is NaN or infinite, the first at [0, 0, 3, 2]" in result.err


def test_a_new_token_counts_once(program):
    """Each rank of `decode` reads it."""
    write(program, v={(0, 0, 5, 1): np.nan})
    assert "v.npy: 1 element is NaN or infinite, the first at [0, 0, 5, 1]" in program.run_well(3, "decode", *RUN[1:]).err


def test_a_bias_whose_heads_are_shared(program):
    write(program)
    bias = np.zeros((2, 3, 6, 6))
    bias[1, 1, 0, 0] = np.nan
    program.save(bias=bias)
    assert program.run_well(3, *RUN, "--bias", "bias.npy", "--parallel", "ulysses").err == (
        "warning: bias.npy: 1 element is NaN or infinite, the first at [1, 1, 0, 0] of [B, H, Sq, Sk]\n")


def test_only_rows_that_see_it_are_spoilt(program):
    write(program, v={(0, 0, 5, 1): np.nan})
    program.run_well(4, *RUN, "--causal")
    assert np.argwhere(~np.isfinite(program.array("results/out.npy"))).tolist() == [[0, 0, 5, 1]]


@pytest.mark.parametrize("ranks", (1, 4))
def test_check_refuses(program, ranks):
    write(program, v={(0, 1, 2, 3): np.nan})
    program.refuse(ranks, (*RUN, "--check"), ("v.npy", "1 element", "[0, 1, 2, 3]", "--check"))


@pytest.mark.parametrize("dtype", ("<f2", "<f4", "<f8"))
def test_every_element_type(program, dtype):
    write(program, dtype, k={(0, 0, 1, 1): np.inf})
    assert "k.npy: 1 element is" in program.run_well(3, *RUN).err


@pytest.mark.parametrize("words, values, wrong", (
    ((), {"q": 3e38, "k": 3e38, "v": 3e38}, {"out", "lse"}),
    (("--dout", "dout.npy"), {"q": 0.5, "k": 0.5, "v": 2, "dout": 3e38}, {"dq", "dk"}),  # the gradients alone
))
def test_results_that_overflow_are_found_by_the_check(program, words, values, wrong):
    """Finite input, results that are not: the check fails, and says so."""
    program.save(**{name: np.full((6, 4), value, "<f4") for name, value in values.items()})
    result = program.run_ranks(3, *RUN, *words, "--check", "--json")
    assert result.code == 1, str(result)
    for rank in json.loads(result.out)["per_rank"]:
        assert {name for name in ("out", "lse", "dq", "dk") if name in rank and not rank[name]["ok"]} == wrong
    assert "error: the check failed; nothing was written" in result.err
    assert program.files_in("results") == []
