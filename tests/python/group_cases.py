"""Calls of several ranks, the same over MPI and over every group: digests of what a rank gets.

`group_cases.py FILE` runs them on the ranks of MPI and writes each rank's digests to FILE.RANK.
"""

import collections
import hashlib
import itertools
import json
import os
import sys

import numpy as np
import ring_attention as ra

SEQ = 45
# Masks, documents and terms, in turn with partitions and placements.
WORDS = ({"causal": True}, {"window": (7, 2), "sink": [0.5, -1.0, 0.25, 2.0]},
         {"causal": True, "documents": [0, 20, 21, SEQ]},
         {"window": (3, 0), "sink_tokens": 2, "global_tokens": [(9, 11)], "blocks": [(20, 30)]},
         {"causal": True, "intervals": np.arange(4).reshape(2, 2) * 3 + np.arange(SEQ).reshape(SEQ, 1, 1) // 2},
         {"bias": True, "alibi": True, "softcap": 1.5}, {"causal": True, "dropout": 0.3, "seed": 5, "scale": 0.7},
         {"causal": True, "same_bits": 8, "sink": [0.5, -1.0, 0.25, 2.0]}, {"q_offset": 3, "causal": True})


def ways(size):
    """How `size` ranks can share 4 heads."""
    partitions = [{"parallel": "ring"}, {"parallel": "all-gather"}]
    partitions += [{"parallel": "ulysses"}] * (4 % size == 0) + [{"parallel": "hybrid", "ulysses": 2}] * (size % 2 == 0)
    for turn, (placement, partition) in enumerate(itertools.product(("zigzag", "striped", "contiguous"), partitions)):
        for words in WORDS[turn % size::size]:  # ranks that share cores wait
            yield {"placement": placement, **partition}, words


def digests(ra_words):
    """{case: digest} of this rank. `ra_words`: {} or {"group": ...}."""
    rng = np.random.default_rng(0)
    whole = [rng.standard_normal((1, heads, SEQ, 8)) for heads in (4, 2, 2, 4)]
    dense = rng.standard_normal((1, 4, SEQ, SEQ))
    found = {}
    for number, (way, words) in enumerate(ways(ra.size(**ra_words))):
        kind = np.float64 if number % 2 and "same_bits" not in words else np.float32
        tile = {"same_bits": words["same_bits"]} if "same_bits" in words else {}
        mine = ra.positions(SEQ, **way, **tile, **ra_words)
        q, k, v, grad = (array[:, :, mine].astype(kind) for array in whole)
        own = dict(words, **way, seq=SEQ, threads=1, **ra_words)
        if "bias" in words:
            own["bias"] = dense[:, :, mine].astype(kind)
        result = ra.ring_attention(q, k, v, **own)
        gradients = ra.ring_attention_backward(grad, q, k, v, *result, **own)
        text = hashlib.sha256()
        for array in (*result, *gradients):
            text.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
        found[f"{number}: {way} {words}"] = text.hexdigest()
    mine = rng.standard_normal((ra.size(**ra_words), 3, 5))[ra.rank(**ra_words)]
    found["all_reduce"] = ra.all_reduce(mine, **ra_words).tolist()
    return found


def attend(group, **words):
    """A small call."""
    q, k, v = np.random.default_rng(0).standard_normal((3, 2, 11, 8))
    mine = ra.positions(11, group=group)
    return ra.ring_attention(q[:, mine], k[:, mine], v[:, mine], seq=11, group=group, **words)


def traces(folder, **group):
    """A trace has every rank's steps, hops and waits, and changes no bit; a file that cannot be is an error of all ranks."""
    rank, size = ra.rank(**group), ra.size(**group)
    words = {"seq": (48, 80), "placement": "contiguous", **group}
    shards = [np.random.default_rng(3).standard_normal((2, seq, 8))[:, ra.positions(seq, placement="contiguous", **group)]
              for seq in (48, 80, 80)]
    plain = ra.ring_attention(*shards, **words)
    for _ in range(2):  # the second one replaces the first one's file
        with ra.trace(f"{folder}/ring.json", **group):
            traced = ra.ring_attention(*shards, **words)
    assert all((one == other).all() for one, other in zip(plain, traced)), "a trace changes bits"
    ra.ring_attention(*shards, **words)  # not in it
    if rank == 0:
        with open(f"{folder}/ring.json", encoding="utf-8") as file:
            events = json.load(file)
        begun = collections.Counter((event["pid"], event["name"]) for event in events if event["ph"] == "B")
        for other in range(size):
            steps = [(f"K,V of {owner}", 1) for owner in range(size)]
            for name, times in (("hop", size - 1), ("wait", size - 1), *steps):
                assert begun[other, name] == times, (other, name, begun)
        whole = [event["args"] for event in events if event.get("name") == "attention"]
        said = [[one[name] for name in ("queries", "query_cell", "keys", "key_cell", "ranks")] for one in whole]
        assert said == [[48, 2, 80, 3, size]] * size, whole
    own = f"{folder}/left.json.rank{rank}"
    try:
        with ra.trace(f"{folder}/left.json", **group):
            raise KeyError("of the block")
    except KeyError:
        written = os.path.getsize(own)
    ra.ring_attention(*shards, **words)
    assert os.path.getsize(own) == written, "a call after the block is traced"
    os.remove(own)
    try:
        with ra.trace(f"{folder}/missing/ring.json", **group):
            raise RuntimeError("the trace has no directory")
    except ra.AgreedError as error:
        assert "missing/ring.json" in str(error), error
    return True


if __name__ == "__main__":
    with open(f"{sys.argv[1]}.{ra.rank()}", "w", encoding="utf-8") as file:
        json.dump(digests({}), file)
