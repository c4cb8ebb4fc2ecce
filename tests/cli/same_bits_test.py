"""--same-bits: the files are the same bytes for every number of ranks, placement, partition, transport and number of threads."""

import harness
import numpy as np
import pytest
from conftest import QKV
from reference import random_values

TILE = ("--same-bits", "--tile", "16")


def bits_of(program, ranks, *words):
    """The arrays that a job writes."""
    program.run_well(ranks, *words, "--out", "results")
    return program.bits()


def test_run(program):
    problem = ("run", "--random", "1,4,300,8", "--kv-heads", "2", "--causal", "--backward")
    one = bits_of(program, 1, *problem, *TILE, "--check")
    for ranks, *team in harness.first(
        6,
        (3, "--placement", "zigzag", "--threads", "2"),
        (3, "--trace", "trace.json"),
        (4, "--parallel", "ulysses"),  # two ranks have one K,V head
        (2, "--placement", "striped", "--transport", "odd-even"),
        (4, "--parallel", "hybrid", "--ulysses", "2", "--placement", "zigzag"),
        (3, "--parallel", "all-gather"),
        *((ranks, "--placement", "zigzag") for ranks in (5, 6, 7, 8, 11, 13)),
    ):
        assert bits_of(program, ranks, *problem, *TILE, *team) == one, (ranks, team)
    assert bits_of(program, 2, *problem) != bits_of(program, 3, *problem)


def test_scores(program):
    program.save(sink=random_values((4,), 1, "<f4"), bias=random_values((4, 90, 90), 2, "<f4"))
    problem = ("run", "--random", "2,4,90,8", "--kv-heads", "2", "--backward", "--sink", "sink.npy", "--bias", "bias.npy",
               "--dropout", "0.2", "--alibi", *TILE)
    one = bits_of(program, 1, *problem, "--check")
    for ranks, *team in harness.first(2, (3, "--placement", "zigzag"), (4, "--parallel", "ulysses"), (5, "--placement", "striped")):
        assert bits_of(program, ranks, *problem, *team) == one, (ranks, team)


def test_a_decoded_row_is_the_row_of_a_forward(program):
    problem = ("--random", "1,4,150,8", "--kv-heads", "2", "--window", "60,0", *TILE)
    one = bits_of(program, 2, "run", *problem)
    for ranks, placement in harness.first(2, (3, "zigzag"), (2, "striped"), (1, "contiguous"), (4, "striped")):
        words = ("--placement", placement, "--prompt", "40")
        assert bits_of(program, ranks, "decode", *problem, *words) == one


@pytest.mark.parametrize("name, place, value, row", (
    ("q", (0, 30, 0), np.nan, 30), ("k", (0, 16, 0), np.nan, 16), ("v", (0, 20, 1), np.inf, 20)))
def test_nan_is_nan_on_any_number_of_ranks(program, name, place, value, row):
    arrays = {each: random_values((1, 60, 4), seed, "<f4") for seed, each in enumerate("qkv")}
    arrays[name][place] = value
    program.save(**arrays)
    words = ("run", *QKV, "--causal", *TILE)
    assert bits_of(program, 3, *words) == bits_of(program, 1, *words)
    assert np.isnan(program.array("results/out.npy")[0, row]).all()


def test_training_ends_with_the_same_weights(program):
    """After 50 steps in the long test, and the curve of the loss, which has all its digits in the checkpoint."""
    steps = 50 if harness.LONG else 12
    model = ("--task", "bandit", "--seq", 128, "--steps", steps, "--width", 16, "--heads", 2, "--kv-heads", 1, "--dim", 8,
             "--ffn", 24, "--evaluation-tokens", 128)

    def train(ranks, *words, same_bits=("--same-bits", "--tile", 16)):
        name = f"{ranks} " + " ".join(map(str, words))
        program.run_well(ranks, "train", *model, *words, *same_bits, "--checkpoint", name)
        return program.bits(f"{name}/step_{steps}"), program.json(f"{name}/step_{steps}/checkpoint.json")["curve"]

    one = train(1)
    assert train(3, "--trace", "trace.json") == one
    for words in (("--same-bits", "--tile", 8), ()):
        program.refuse(1, ("train", *model, *words, "--checkpoint", "1 "), ("is of another training: same_bits is 16 there",))
    for ranks, *words in harness.first(3, (2,), (3, "--threads", 2), (4, "--ring", 2), (4,), (2, "--ring", 1)):
        assert train(ranks, *words) == one, (ranks, words)
    assert train(2, "--threads", 1, same_bits=())[0] != train(3, "--threads", 1, same_bits=())[0]


def test_the_report_says_it(program):
    result = program.run_well(2, "run", "--random", "1,2,40,8", "--check", *TILE)
    assert "the same bits on any number of ranks (tile: 16 tokens)" in result.out
    program.run_well(2, *"run --random 1,2,200,8 --placement auto --out results".split(), *TILE)
    assert [rank["tokens"] for rank in program.report()["per_rank"]] == [112, 88]  # whole tiles of 16
    assert "(tile: 256 tokens)" in program.run_well(1, *"run --random 1,2,40,8 --check --same-bits".split(), launcher=False).out


@pytest.mark.parametrize("words, said", (
    (("run", *QKV), "goes with float32"),
    (("decode", *QKV), "goes with float32"),
    (("bench", "--seq", "64", "--dtype", "float64"), "goes with float32"),
    (("train", "--dtype", "float64"), "goes with float32"),
    (("train", "--tensor", "2"), "use ranks along ring and data only"),
    (("train", "--fsdp"), "without --fsdp"),
    (("run", "--random", "1,1,8,4", "--check", "--engine", "readable"), "the readable engines have no exact"),
    (("run", "--random", "1,2,8,4", "--backward", "--check", "--parallel", "ulysses", "--bias", "bias.npy"), "broadcasts over heads"),
))
def test_refused(program, words, said):
    program.write_problem((1, 8, 4))
    program.save(bias=random_values((8, 8), 1, "<f4"))
    out = ("--out", "results") if "--q" in words else ()
    program.refuse(2, (*words, "--same-bits", *out), (said,))
