"""`ring-attention run --parallel` and `bench --parallel`: the bits of the ring, what moves, what is refused.

With the argument `long` more placements, masks and numbers of ranks.
"""

import json
import re
import shutil

import harness
import numpy as np
import pytest
from conftest import QKV
from reference import random_values

FORWARD = ("out", "lse", "dq")
ALL = (*FORWARD, "dk", "dv")
Q, KV = (2, 12, 13, 4), (2, 4, 17, 4)


def results_of(program, ranks, *words):
    """The report, and the bits of the arrays."""
    shutil.rmtree(program.path("results"), ignore_errors=True)  # a run leaves the files of another one there
    program.run_well(ranks, "run", *QKV, "--out", "results", "--dout", "dout.npy", *words)
    return program.report(), program.bits()


def same_bits(program, ranks, words, ring_ranks, names=ALL, common=""):
    """`run words` on some ranks gives the files of a ring of `ring_ranks`. Returns the report."""
    _, ring = results_of(program, ring_ranks, *common.split())
    report, found = results_of(program, ranks, "--parallel", *words.split(), *common.split(), "--check")
    assert report["ok"] is True
    assert sorted(ring) == sorted(found)
    assert [name for name in names if ring[name] != found[name]] == []
    return report


def report_of(program, ranks, *words, **job_words):
    return json.loads(program.run_well(ranks, *words, "--json", **job_words).out)


# ---- balanced placements


@pytest.mark.parametrize("ranks, words", harness.first(
    4, (3, ""), (4, "--parallel hybrid --ulysses 2"), (5, "--parallel all-gather"), (2, "--same-bits --tile 16"),
    (3, "--transport odd-even")))
def test_balanced_documents_in_every_partition(program, ranks, words):
    """Many ranges a shard, against the dense reference; the files do not depend on the ranks' order of tokens."""
    program.save(cu=np.array([0, 100, 450, 640, 700]))
    report = report_of(program, ranks, *"run --random 1,4,700,8 --backward --check --causal --documents cu.npy".split(),
                       "--placement", "balanced", *words.split())
    assert (report["ok"], report["placement"]) == (True, "balanced")
    balance, rings = report["balance"], ranks // report["ulysses"]
    assert balance["tiles"] / rings <= balance["bound"] <= balance["busiest"] <= balance["finish"]
    tokens = [rank["tokens"] for rank in report["per_rank"]]
    assert sum(tokens) == 700
    assert words or max(tokens) - min(tokens) <= 64


def test_the_balance_of_a_report_is_that_of_plan(program):
    mask = ("--window", "100,-1")
    balance = report_of(program, 8, "run", "--random", "1,1,700,8", "--placement", "balanced", *mask)["balance"]
    plan = report_of(program, 1, "plan", "placements", "--seq", 700, "--ranks", 8, *mask, launcher=False)
    planned, share = plan["placements"]["balanced"], balance["tiles"] / 8
    assert (balance["tiles"], balance["ranges"]) == (plan["tiles"], planned["ranges"])
    for field, due in (("busiest", planned["busiest"]), ("finish", planned["finish"]), ("bound", plan["bound"])):
        assert balance[field] / share == pytest.approx(due, abs=1e-7), field
    assert balance["hop_tokens"] / (700 * 7) == pytest.approx(planned["hops"], abs=1e-7)
    assert balance["busiest"] < balance["finish"]


@pytest.mark.parametrize("ranks, placement, chosen", (
    (4, "auto", "zigzag"), (1, "auto", "contiguous"), (2, "balanced", "balanced"), (2, "zigzag", "")))
def test_the_balance_that_is_expected(program, ranks, placement, chosen):
    out = program.run_well(ranks, *"run --random 1,1,2048,8 --causal --check --placement".split(), placement).out
    assert f"  ring    {chosen or placement} placement" in out
    line = (r"\n  balance busiest rank \d\.\d\d, finish \d\.\d\d of an equal share, and "
            r"no deal is below 1\.\d\d; at most \d+ ranges? a rank\n")
    assert re.search(line, out) if chosen else "  balance " not in out, out


def test_balanced_is_of_one_sequence(program):
    program.write_problem((1, 2, 20, 8), (1, 2, 30, 8))
    assert "contiguous placement" in program.run_well(2, "run", *QKV, "--check", "--placement", "auto").out
    for words, said in (
        (("run", *QKV, "--check"), ("--placement balanced needs as many queries as keys", "20", "30")),
        (("run", "--random", "1,2,64,8", "--parallel", "ulysses", "--check"), ("--placement", "--parallel ring")),
        (("decode", "--random", "1,2,64,8"), ("--placement", "balanced")),
    ):
        program.refuse(2, (*words, "--placement", "balanced"), said)


# ---- what it writes


@pytest.mark.parametrize("ranks, words, queries, heads", harness.first(
    1,
    (4, "--parallel hybrid --ulysses 2", 1, 2),
    (9, "--parallel hybrid --ulysses 3", 2, 3),
    (3, "--parallel ulysses", 2, 3),
    (6, "--parallel hybrid --ulysses 3", 1, 3),
    (7, "--parallel all-gather", 2, 3),
    (5, "", 2, 3),
))
def test_fewer_tokens_than_ranks_with_and_without_a_bias(program, ranks, words, queries, heads):
    """A rank without queries has a bias of no elements, which is not the same as no bias. One key."""
    program.write_problem((1, heads, queries, 8), (1, heads, 1, 8))
    for bias in harness.first(1, (heads, queries, 1), (queries, 1), None):
        if bias:
            program.save(bias=random_values(bias, 4))
        report, found = results_of(program, ranks, *words.split(), *(("--bias", "bias.npy") if bias else ()), "--check")
        assert (report["ok"], "dbias" in found) == (True, bias is not None), bias


@pytest.mark.parametrize("ranks, words, ring, q, kv, dtype, common, names", (
    *[(ranks, "ulysses", 1, Q, KV, "<f8", "--causal", ALL) for ranks in (1, 4)],
    # Ranks that share a KV head: dk and dv are sums in the order of the ranks, which --check compares.
    (4, "ulysses", 1, (2, 8, 13, 4), (2, 2, 17, 4), "<f4", "--window 3,2", FORWARD),
    (8, "hybrid --ulysses 4", 2, (2, 8, 13, 4), (2, 2, 17, 4), "<f4", "", FORWARD),
    *harness.first(2,
                   (4, "hybrid --ulysses 2", 2, Q, KV, "<f8", "--causal --placement zigzag --transport odd-even", ALL),
                   (6, "hybrid --ulysses 2", 3, Q, KV, "<f4", "--placement striped --alibi --engine readable", ALL),
                   (8, "hybrid --ulysses 4", 2, Q, KV, "<f4", "--window 3,2 --placement zigzag --engine readable", ALL),
                   (3, "hybrid --ulysses 1", 3, Q, KV, "<f8", "--transport odd-even", ALL)),
    *harness.first(2,
                   (3, "all-gather", 3, Q, KV, "<f8", "--placement striped", ALL),
                   (3, "all-gather", 3, Q, KV, "<f4", "--kv-dtype bf16 --engine readable", ALL),
                   (4, "all-gather", 4, Q, KV, "<f4", "--causal --placement zigzag", ALL),
                   (3, "all-gather", 3, Q, KV, "<f4", "--kv-dtype bf16", ALL)),
    # fewer tokens than ranks
    (6, "hybrid --ulysses 2", 3, (4, 2, 4), (4, 2, 4), "<f8", "--placement zigzag", ALL),
    (7, "all-gather", 7, (4, 2, 4), (4, 2, 4), "<f8", "", ALL),
    (6, "hybrid --ulysses 2", 3, Q, KV, "<f8", "--documents boundaries.npy --causal --placement zigzag", ALL),
    (4, "hybrid --ulysses 2", 2, Q, KV, "<f4", "--kv-dtype bf16", ALL),
))
def test_has_the_bits_of_a_ring(program, ranks, words, ring, q, kv, dtype, common, names):
    """Ulysses those of one rank, a hybrid those of a ring of its size, an all-gather those of a ring of all ranks."""
    program.write_problem(q, kv, dtype)
    program.save(boundaries=np.array([0, 5, 9, 17]))
    report = same_bits(program, ranks, words, ring, names, common)
    assert (report["parallel"], report["ulysses"]) == (words.split()[0], ranks // ring)


@pytest.mark.parametrize("bias, placement, ranks, partition, ring", harness.first(
    2,
    ((2, 12, 13, 17), "zigzag", 4, "hybrid --ulysses 2", 2),
    ((1, 13, 17), "zigzag", 3, "all-gather", 3),
    ((12, 13, 17), "striped", 6, "hybrid --ulysses 2", 3),
    ((1, 12, 13, 17), "contiguous", 4, "ulysses", 1),
))
def test_bias_dropout_and_sinks_are_those_of_the_heads_of_the_layer(program, bias, placement, ranks, partition, ring):
    program.write_problem(Q, KV)
    values = random_values(bias, 4)
    program.save(sink=0.3 * np.arange(12) - 1, bias=np.where(values > 1.8, -np.inf, values))
    common = f"--bias bias.npy --sink sink.npy --dropout 0.25 --dropout-seed 7 --alibi --softcap 0.9 --placement {placement}"
    same_bits(program, ranks, partition, ring, (*ALL, "dbias"), common)


@pytest.mark.parametrize("bias, placement", (((13, 17), "zigzag"), ((2, 1, 13, 17), "striped")))
def test_a_bias_that_all_heads_share(program, bias, placement):
    """dbias is a sum over the ranks of Ulysses: --check compares it."""
    program.write_problem(Q, KV)
    program.save(bias=random_values(bias, 4))
    report = same_bits(program, 4, "hybrid --ulysses 2", 2, ALL, f"--bias bias.npy --placement {placement}")
    assert all(rank["dbias"]["ok"] for rank in report["per_rank"])


@pytest.mark.parametrize("bias, place", (((13, 17), "[0, 0, 12, 14]"), ((12, 13, 17), "[0, 11, 12, 14]")))
@pytest.mark.parametrize("words", ("ulysses", "hybrid --ulysses 2 --placement striped"))
def test_nan_in_a_bias_is_found_once(program, bias, place, words):
    program.write_problem(Q, KV)
    values = np.zeros(bias)
    values.flat[-3] = np.nan
    program.save(bias=values)
    result = program.run_well(4, "run", *QKV, "--out", "results", "--bias", "bias.npy", "--parallel", *words.split())
    assert result.err == f"warning: bias.npy: 1 element is NaN or infinite, the first at {place} of [B, H, Sq, Sk]\n"


# ---- what it says


@pytest.mark.parametrize("ranks, ulysses", ((4, 4), (6, 2), (3, 1)))
def test_bytes_by_the_formula(program, ranks, ulysses):
    batch, heads, kv_heads, seq, dim, size = 2, 12, 4, 48, 4, 4
    words = f"run --random {batch},{heads},{seq},{dim} --kv-heads {kv_heads} --backward --parallel hybrid --ulysses".split()
    report = report_of(program, ranks, *words, ulysses)
    unit = batch * (seq // ranks) * size * (ulysses - 1) // ulysses  # a head, one number a token
    lse, pairs = heads * unit, 2 * heads + 2 * max(kv_heads, ulysses)
    each = 2 * pairs * dim * unit + lse  # q, k, v, out; dO, dQ, dK, dV
    rings = ranks // ulysses
    hop = 2 * batch * max(kv_heads // ulysses, 1) * (seq // rings) * dim * size
    hops = 3 * rings - 2 if rings > 1 else 0
    assert (report["hops"], report["all_to_all_bytes"]) == (hops, ranks * each)
    for rank in report["per_rank"]:
        assert (rank["all_to_all_bytes"], rank["bytes_sent"]) == (each, each + hops * hop)


def test_keys_that_no_query_sees_do_not_travel(program):
    """Causal, contiguous: on a ring of three, 3 of 6 hops of K,V, twice, and all 9 of dK,dV."""
    report = report_of(program, 6, *"run --random 1,4,48,4 --causal --backward --parallel hybrid --ulysses 2".split())
    hop = 2 * 2 * 16 * 4 * 4
    assert report["bytes_moved"] - report["all_to_all_bytes"] == 2 * (3 + 3 + 9) * hop


def test_bytes_of_an_all_gather(program):
    report = report_of(program, 4, *"run --random 1,2,48,8 --backward --parallel all-gather".split())
    shard = 2 * 2 * 12 * 8 * 4  # K,V forward and backward, dK,dV: to three ranks each
    for rank in report["per_rank"]:
        assert (rank["all_to_all_bytes"], rank["bytes_sent"]) == (9 * shard, 9 * shard)
    assert report["hops"] == 0


@pytest.mark.parametrize("ranks, flags, taken", (
    (4, "1,4,2048,32", ("ulysses", 4)),    # 3/4 * 16 arrays of one head; a ring sends 3 * 8
    (4, "1,4,2048,32 --kv-heads 1", ("ring", 1)),    # 3 * 2; Ulysses 3/4 * 16
    (8, "1,8,2048,32 --kv-heads 2", ("hybrid", 2)),    # 1/2 * 20 + 3 * 4; a ring 7 * 4, Ulysses 7/8 * 32
    (3, "1,4,2048,32", ("ring", 1)),    # three ranks cannot share four heads
    (1, "1,4,2048,32", ("ring", 1)),
))
def test_auto_says_what_it_takes(program, ranks, flags, taken):
    """The choice of `plan`: the fewest bytes among the numbers of ranks that can share the heads."""
    report = report_of(program, ranks, "run", "--random", *flags.split(), "--parallel", "auto")
    assert (report["parallel"], report["ulysses"]) == taken
    assert report["auto"].startswith(taken[0])


# ---- bench

BENCH = "bench --seq 96 --heads 4 --kv-heads 2 --dim 8 --repetitions 1".split()


@pytest.mark.parametrize("ranks, flags, bytes_of_heads", (
    (2, "ulysses", (12 / 2, 12 / 2)),
    (4, "hybrid --ulysses 2 --dtype float64", (12 / 2, 12 / 2)),
    (3, "all-gather", (2 * 2 * 2, 2 * 2 * 2 * 2)),
    (2, "hybrid --ulysses 1", ()),
))
def test_bench(program, ranks, flags, bytes_of_heads):
    """Five products backward, two forward; q, k, v, out there and dO, dQ, dK, dV back, or one gather and two."""
    report = report_of(program, ranks, *BENCH, "--causal", "--backward", "--parallel", *flags.split())
    assert report["parallel"] == flags.split()[0]
    placements = ("contiguous",) if flags == "ulysses" else ("contiguous", "zigzag")
    passes = [(row["placement"], row["pass"]) for row in report["placements"]]
    assert passes == [(kind, way) for kind in placements for way in ("forward", "backward")]
    for rows in zip(report["placements"][::2], report["placements"][1::2]):
        flop, more = (row["flops_per_second"] * row["compute_seconds"] for row in rows)
        assert more / flop == pytest.approx(2.5, 1e-7)
        assert ("whole_seconds" in rows[0]) == bool(bytes_of_heads)
        for row, heads in zip(rows, bytes_of_heads):
            assert row["whole_seconds"] > 0
            assert row["all_to_all_bytes"] == heads * (96 // ranks) * 8 * (8 if "float64" in flags else 4)


# ---- what is refused


def test_refused_files_leave_nothing(program):
    program.write_problem((6, 13, 4), (3, 13, 4))
    program.refuse(2, ("run", *QKV, "--out", "results", "--parallel", "ulysses"), ("3 KV heads", "use 1, 3 or 6"))
