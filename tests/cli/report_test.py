"""What `ring-attention run` says it did: the text, the JSON object and report.json."""

import json
import re

import pytest
from conftest import QKV


def assert_forward_counts(report, q_shape, kv_shape, element_bytes):
    """Messages and bytes are what the ring's formula says: a parcel goes as far as the last rank with a query."""
    batch, kv_heads, keys, dim = kv_shape
    ranks = report["ranks"]
    own = [keys // ranks + (r < keys % ranks) for r in range(ranks)]
    rows = [q_shape[2] // ranks + (r < q_shape[2] % ranks) for r in range(ranks)]
    hops = [max(hop for hop in range(ranks) if hop == 0 or rows[(r + hop) % ranks] > 0) for r in range(ranks)]
    assert report["hops"] == ranks - 1
    for r, rank in enumerate(report["per_rank"]):
        owners = [(r - hop) % ranks for hop in range(ranks - 1)]  # of the parcel that hop 1, 2, ... takes on from here
        sent = [own[owner] for hop, owner in enumerate(owners) if hop < hops[owner] and own[owner] > 0]
        size = 2 * batch * kv_heads * dim * element_bytes * sum(sent)
        assert (rank["messages_sent"], rank["bytes_sent"]) == (len(sent), size), f"rank {r}"
    assert report["messages"] == sum(rank["messages_sent"] for rank in report["per_rank"])
    assert report["bytes_moved"] == sum(rank["bytes_sent"] for rank in report["per_rank"])
    assert sum(rank["tokens"] for rank in report["per_rank"]) == q_shape[2]


@pytest.mark.parametrize("transport", ("overlapped", "odd-even"))
@pytest.mark.parametrize("ranks, q_shape, kv_shape, dtype", (
    (1, (2, 4, 9, 4), (2, 2, 9, 4), "<f4"),
    (3, (2, 4, 10, 4), (2, 2, 10, 4), "<f8"),
    (4, (2, 4, 9, 4), (2, 2, 14, 4), "<f4"),
    (7, (1, 2, 5, 4), (1, 1, 5, 4), "<f2"),
))
def test_messages_and_bytes(program, transport, ranks, q_shape, kv_shape, dtype):
    program.write_problem(q_shape, kv_shape, dtype)
    program.run_well(ranks, "run", *QKV, "--out", "results", "--transport", transport)
    report = program.report()
    assert report["transport"] == transport
    assert (report["q_shape"], report["kv_shape"]) == (list(q_shape), list(kv_shape))
    assert_forward_counts(report, q_shape, kv_shape, 8 if dtype == "<f8" else 4)


@pytest.mark.parametrize("ranks", (1, 3, 4))
def test_messages_and_bytes_with_gradients(program, ranks):
    """K,V make N - 1 hops twice, dK,dV one hop a step more: a parcel passes every link."""
    program.run_well(ranks, *"run --random 1,2,10,4 --backward --out results".split())
    report = program.report()
    hops = 3 * ranks - 2 if ranks > 1 else 0
    parcels = 2 * 2 * 4 * 4 * 10  # all ranks' K,V, or dK,dV, in bytes
    assert (report["hops"], report["messages"]) == (hops, hops * ranks)
    assert report["bytes_moved"] == hops * parcels


@pytest.mark.parametrize("ranks", (1, 4))
def test_json_is_one_object_and_nothing_else(program, ranks):
    words = "run --random 1,2,32,8 --causal --backward --check --json --out results"
    result = program.run_well(ranks, *words.split())
    printed, saved = json.loads(result.out), program.report()
    assert (result.err, printed["ok"], printed["warnings"]) == ("", True, [])
    assert (printed["ranks"], len(printed["per_rank"])) == (ranks, ranks)
    for rank in printed["per_rank"]:
        for name in ("out", "lse", "dq", "dk", "dv"):
            assert (rank[name]["ok"], rank[name]["rows"]) == (True, 32 // ranks)
            assert 0 < rank[name]["max"] < 1e-5
    assert sorted(saved) == sorted(printed)
    assert saved["per_rank"] == printed["per_rank"]
    text = program.run_well(ranks, *words.replace("--json ", "").split()).out
    assert "Wrote out.npy, lse.npy, dq.npy, dk.npy, dv.npy and report.json to results" in text
    assert all(len(line) <= 100 for line in text.splitlines()), text


def test_ranks_share_the_cores(program):
    one, two = (json.loads(program.run_well(ranks, *"run --random 1,2,8,4 --json".split()).out)["threads"] for ranks in (1, 2))
    assert two == max(1, one // 2)


def test_a_long_run_says_first_how_long(program):
    run = program.run_well(2, *"run --random 1,3,32768,64 --causal --placement zigzag --json --progress always".split())
    assert re.match(r"about [\d.]+ (ms|s|min), at the rate of a small part\n", run.err), run.err
    report = json.loads(run.out)
    assert 1 / 20 < report["expected_seconds"] / report["forward_seconds"] < 20  # machines are noisy
