"""`ring-attention decode`: a prompt and its next tokens are one causal forward; `bench decode` holds together."""

import json

import harness
import numpy as np
import pytest
from conftest import QKV

PLACEMENTS, TRANSPORTS = ("contiguous", "striped", "zigzag"), ("overlapped", "odd-even") * 2
SINKS = [0.5, -1.0]
DECODE = ("decode", *QKV, "--out", "results")


def case(ranks, q, words="", kv=None, dtype="<f8", value_dim=None, **terms):
    return pytest.param(ranks, q, words, kv, dtype, value_dim, terms, id=f"{ranks} ranks, {dtype} {q} {words}")


@pytest.mark.parametrize("ranks, q, words, kv, dtype, value_dim, terms", (
    *harness.first(3, *[case(3, (2, 14, 4), f"--placement {placement} --transport {transport}") for placement, transport in
                        (*zip(PLACEMENTS, TRANSPORTS), *zip(PLACEMENTS, TRANSPORTS[1:]))]),
    *harness.first(2, *[case(2, (2, 4, 11, 8), f"--engine {engine} --threads 2", (2, 2, 11, 8), dtype) for dtype, engine in
                        (("<f4", "fast"), ("<f8", "readable"), ("<f4", "readable"), ("<f8", "fast"))]),
    case(3, (4, 11, 8), "", (2, 11, 8), value_dim=3),
    case(3, (4, 11, 8), "--alibi", (2, 11, 8), value_dim=11, alibi=True),
    case(3, (4, 11, 8), "--engine readable", (2, 11, 8), value_dim=1),
    case(3, (2, 13, 4), "--window 2,0", window=(2, 0)),
    case(3, (2, 13, 4), "--scale 0.3", scale=0.3),
    case(3, (2, 13, 4), "--softcap 0.8", softcap=0.8),
    case(3, (2, 13, 4), "--sink sink.npy", sink=SINKS),
))
def test_is_one_causal_forward(program, ranks, q, words, kv, dtype, value_dim, terms):
    program.write_problem(q, kv, dtype, value_dim, sink=SINKS)
    program.run_well(ranks, *DECODE, "--check", *words.split())
    program.assert_results(dtype, causal=True, **terms)


@pytest.mark.parametrize("ranks, prompt", harness.first(4, (1, 0), (3, 12), (4, 6), (7, 2), (2, 1), (5, 3)))
def test_any_number_of_ranks_and_any_prompt(program, ranks, prompt):
    program.write_problem((2, 13, 4))
    program.run_well(ranks, *DECODE, "--check", "--prompt", prompt)
    program.assert_results(causal=True)
    report = program.report()
    assert (report["prompt"], report["decoded"]) == (prompt, 13 - prompt)
    assert sum(rank["tokens"] for rank in report["per_rank"]) == 13


def test_random_values_of_another_width(program):
    program.run_well(3, "decode", "--random", "1,4,40,12", "--kv-heads", "2", "--value-dim", "7", "--same-bits", "--check")


def test_it_is_what_run_writes(program):
    program.write_problem((2, 40, 8), (1, 40, 8))
    program.run_well(1, "decode", *QKV, "--out", "one", "--prompt", 25)
    program.run_well(1, "run", *QKV, "--out", "whole", "--causal")
    assert program.bits("one")["out"] == program.bits("whole")["out"]


def test_messages_do_not_grow_with_the_cache(program):
    for tokens in (21, 201):
        out = program.run_well(2, "decode", "--random", f"1,4,{tokens},16", "--kv-heads", 2, "--prompt", tokens - 4,
                               "--check", "--json").out
        report = json.loads(out)
        assert report["bytes_per_token"] == 4 * 2 * (18 + 17)
        assert report["cache_bytes"] == 2 * 2 * (tokens // 2 + 1) * 16 * 4
        assert report["ring_bytes_per_token"] == report["cache_bytes"]  # from the rank with fewer tokens
        assert report["tokens_per_second"] * report["decode_seconds"] == pytest.approx(4)
        assert 0 < report["exchange_seconds"] < report["decode_seconds"]


def of_kv(name):
    return ("decode", "--q", "q.npy", "--k", name, "--v", name, "--out", "results")


@pytest.mark.parametrize("words, said", (
    ((*DECODE, "--prompt", "13"), ("--prompt 13", "no token", "at most 12")),
    ((*DECODE, "--prompt", "14"), ("--prompt 14", "at most 12")),
    (of_kv("long.npy"), ("13 tokens", "long.npy", "14")),
    (("decode", "--random", f"1,8,{1 << 36},64"), ("memory", "more ranks")),
    (("decode", *QKV), ("--out", "--check")),
    (("decode", "--random", "1,2,8,4", "--causal"), ("--causal", "decode --help")),
    (("bench", "--seq", "5", "decode"), ("decode excludes --seq", "bench decode")),
    (("bench", "decode", "--causal"), ("--causal", "bench decode --help")),
    (("bench", "decode", "--kv-heads", "3"), ("--kv-heads 3", "--heads, 32")),
    (("bench", "decode", "--seq", str(1 << 52)), ("2^48",)),
    (("bench", "decode", "--seq", str(1 << 34)), ("memory", "more ranks")),
))
def test_refuses(program, words, said):
    program.write_problem((2, 13, 4))
    program.save(long=np.zeros((2, 14, 4)))
    program.refuse(2, words, said)


@pytest.mark.parametrize("ranks", harness.first(2, 1, 3, 2))
def test_bench(program, ranks):
    words = "bench decode --repetitions 1 --json --seq 640 --heads 6 --kv-heads 2 --dim 16".split()
    rows = json.loads(program.run_well(ranks, *words).out)["lengths"]
    assert [row["tokens"] for row in rows] == [10, 80, 640]
    for row in rows:
        assert row["cache_bytes"] == 2 * 2 * -(-row["tokens"] // ranks) * 16 * 4
        assert row["sent_bytes"] == 4 * 6 * (ranks - 1) // ranks * (18 + 17)
        assert row["ring_bytes"] == 2 * 2 * (row["tokens"] - row["tokens"] // ranks) * 16 * 4
        assert row["read_bytes_per_second"] * row["attend_seconds"] == pytest.approx(row["cache_bytes"])
        assert row["plain_bytes_per_second"] * row["plain_read_seconds"] == pytest.approx(row["cache_bytes"])
    assert "plain read" in program.run_well(1, "bench", "decode", "--seq", "64", "--repetitions", "1").out
