"""`ring-attention bench`: what it prints holds together; the times themselves decide nothing."""

import json
import re

import pytest


def bench(program, ranks, *words):
    return json.loads(program.run_well(ranks, "bench", "--repetitions", "1", "--json", *words).out)


def text_of(program, ranks, *words):
    return program.run_well(ranks, "bench", "--seq", 64, "--repetitions", 1, *words).out


def flop(row):
    return row["flops_per_second"] * row["compute_seconds"]


def moved(row):
    """Bytes."""
    return row["bytes_per_second"] * row["messages_seconds"]


@pytest.mark.parametrize("ranks, seq", ((1, 100), (2, 101), (3, 2), (5, 64)))
def test_any_number_of_ranks_and_tokens(program, ranks, seq):
    report = bench(program, ranks, "--seq", seq, "--heads", 2, "--dim", 16)
    shard = -(-seq // ranks)
    assert (report["ranks"], report["hop_bytes"]) == (ranks, 2 * 4 * 2 * shard * 16)
    (row,) = report["placements"]
    assert row["placement"] == "contiguous"
    assert min(value for name, value in row.items() if name.endswith("_seconds")) >= 0
    assert flop(row) == pytest.approx(4 * shard * seq * 16 * 2, 1e-7)
    assert row["flops_per_second"] * row["ideal_seconds"] == pytest.approx(4 * seq * seq * 16 * 2 / ranks, 1e-7)
    assert moved(row) == pytest.approx((ranks - 1) * report["hop_bytes"], 1e-6)


def test_a_causal_mask_is_measured_in_two_placements(program):
    report = bench(program, 2, "--seq", 256, "--heads", 4, "--kv-heads", 2, "--dim", 32, "--causal")
    assert [row["placement"] for row in report["placements"]] == ["contiguous", "zigzag"]
    assert report["kv_shape"] == [1, 2, 256, 32]
    # Contiguous: rank 1 computes its triangle and a square; zigzag: both ranks the same.
    assert [*map(flop, report["placements"])] == pytest.approx(
        [4 * 32 * 4 * (128 * 129 / 2 + 128 * 128), 4 * 32 * 4 * 256 * 257 / 4], 1e-12)


@pytest.mark.parametrize("ranks, words", ((1, ()), (3, ("--transport", "odd-even")), (2, ("--causal", "--dtype", "float64"))))
def test_the_backward(program, ranks, words):
    """Five products instead of two; K,V make N - 1 hops and dK,dV N."""
    report = bench(program, ranks, "--seq", 96, "--heads", 4, "--kv-heads", 2, "--dim", 16, "--backward", *words)
    passes = [(row["placement"], row["pass"]) for row in report["placements"]]
    placements = ("contiguous", "zigzag") if "--causal" in words else ("contiguous",)
    assert passes == [(kind, way) for kind in placements for way in ("forward", "backward")]
    for forward, backward in zip(report["placements"][::2], report["placements"][1::2]):
        assert flop(backward) / flop(forward) == pytest.approx(2.5, 1e-7)
        if ranks > 1:
            assert moved(backward) == pytest.approx((2 * ranks - 1) * report["hop_bytes"], 1e-7)
            for row in (forward, backward):
                both = row["compute_seconds"] + row["messages_seconds"]
                assert row["in_turn_model_seconds"] == pytest.approx(both, 1e-7)


@pytest.mark.parametrize("dim, words, tile", (
    (128, "--backward", "96 queries of 12 panels: 240.0 KiB of 512.0 KiB"),
    (512, "--backward", "48 queries of 6 panels: 480.0 KiB of 512.0 KiB"),
    (128, "--backward --dtype float64", "96 queries of 24 panels: 480.0 KiB of 512.0 KiB"),
    (64, "", None),
))
def test_the_tile_of_the_backward(program, dim, words, tile):
    """q, dO, their transposes and dQ of all queries stay in the cache; with longer rows there are fewer queries."""
    out = text_of(program, 1, "--isa", "x86-64", "--dim", dim, *words.split())
    assert f"  tile    {tile}, in the backward\n" in out if tile else "  tile " not in out


@pytest.mark.parametrize("dtype, size", (("float32", 4), ("float64", 8)))
def test_in_double(program, dtype, size):
    words = ("--heads", 2, "--dim", 16, "--dtype", dtype)
    report = bench(program, 2, "--seq", 64, *words)
    assert (report["kv_dtype"], report["hop_bytes"]) == (dtype, 2 * size * 2 * 32 * 16)
    assert f"travel in {dtype}" in text_of(program, 1, *words)


def test_the_smallest_shard(program):
    numbers = r"  F +(\S+) .*  beta +(\S+) .*  c\* +(\S+) tokens: shards of 32 are (\w+ \w+) for a hop"
    flops, beta, least, words = re.search(numbers, text_of(program, 2, "--kv-heads", 2), re.S).groups()
    assert float(least) == pytest.approx(4 * float(flops) / (2 * 4 * float(beta)), 2e-3)  # e F / (2 g beta)
    assert words == ("long enough" if 32 >= float(least) else "too short")
