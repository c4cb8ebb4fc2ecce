"""A solution of the capstone in Python, from its page alone: one rank of a ring, over sockets."""

import socket
import sys
import threading
import time

import numpy as np

folder, out = sys.argv[3], sys.argv[4]
case = dict(line.split(maxsplit=1) for line in open(f"{folder}/case.txt", encoding="utf-8"))
rank, ranks, port = int(case["rank"]), int(case["ranks"]), int(case["port"])
scale, causal = float(case["scale"]), case["causal"].strip() == "1"
positions = [np.array(case[f"positions_{of}"].split(), int) for of in range(ranks)]
group = int(case["heads"]) // int(case["kv_heads"])


class Ring:
    """A connection to the next rank, and one from the rank before."""

    def __init__(self):
        with socket.socket() as door:
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            door.bind(("127.0.0.1", port + rank))
            door.listen()
            self.next = self.connected(port + (rank + 1) % ranks)
            self.previous = door.accept()[0]

    @staticmethod
    def connected(there):
        while True:
            try:
                return socket.create_connection(("127.0.0.1", there))
            except ConnectionRefusedError:  # it does not listen yet
                time.sleep(0.01)

    def shift(self, array, tokens):
        """Sends an array to the next rank, and returns the one of the rank before, which has so many tokens."""
        sender = threading.Thread(target=self.next.sendall, args=(np.ascontiguousarray(array).tobytes(),))
        sender.start()
        shape = (*array.shape[:-2], tokens, array.shape[-1])
        size, bytes_read = int(np.prod(shape)) * array.itemsize, b""
        while len(bytes_read) < size:
            some = self.previous.recv(size - len(bytes_read))
            if not some:
                raise ConnectionError("the rank before has ended")
            bytes_read += some
        sender.join()
        return np.frombuffer(bytes_read, array.dtype).reshape(shape)


def of_query_heads(x):
    """[heads, ...] of [kv_heads, ...]"""
    return np.repeat(x, group, axis=0)


def over_groups(x):
    """The sum over the query heads that share a KV head."""
    return x.reshape(-1, group, *x.shape[1:]).sum(1)


def scores_of(q, k, owner):
    scores = scale * q @ of_query_heads(k).swapaxes(1, 2)
    if causal:
        scores = np.where(positions[owner] <= positions[rank][:, None], scores, -np.inf)
    return scores


def forward(ring, q, kv):
    o, l = np.zeros_like(q), np.zeros_like(q[..., :1])
    m = np.full_like(l, -np.inf)
    for step in range(ranks):
        owner = (rank - step) % ranks
        scores = scores_of(q, kv[0], owner)
        new_m = np.maximum(m, scores.max(2, keepdims=True))
        finite = np.where(np.isfinite(new_m), new_m, 0)
        p, old = np.exp(scores - finite), np.exp(m - finite)
        o, l, m = old * o + p @ of_query_heads(kv[1]), old * l + p.sum(2, keepdims=True), new_m
        if step + 1 < ranks:
            kv = ring.shift(kv, len(positions[(owner - 1) % ranks]))
    return o / l, m + np.log(l)


def backward(ring, q, kv, o, lse, dout):
    dq, dkv, delta = np.zeros_like(q), np.zeros_like(kv), (dout * o).sum(2, keepdims=True)
    for step in range(ranks):
        owner = (rank - step) % ranks
        p = np.exp(scores_of(q, kv[0], owner) - lse)
        ds = p * (dout @ of_query_heads(kv[1]).swapaxes(1, 2) - delta)
        dq = dq + scale * ds @ of_query_heads(kv[0])
        dkv = dkv + np.stack([over_groups(scale * ds.swapaxes(1, 2) @ q), over_groups(p.swapaxes(1, 2) @ dout)])
        before = len(positions[(owner - 1) % ranks])
        dkv = ring.shift(dkv, before)  # N hops: the last one is back to the owner
        if step + 1 < ranks:
            kv = ring.shift(kv, before)
    return dq, dkv[0], dkv[1]


def main():
    ring = Ring()
    q, k, v = (np.load(f"{folder}/{name}.npy").astype(np.float64) for name in "qkv")
    kv = np.stack([k, v])
    o, lse = forward(ring, q, kv)
    results = {"out": o, "lse": lse[..., 0]}
    if case["gradients"].strip() == "1":
        dout = np.load(f"{folder}/dout.npy").astype(np.float64)
        results.update(zip(("dq", "dk", "dv"), backward(ring, q, kv, o, lse, dout)))
    for name, array in results.items():
        np.save(f"{out}/{name}.npy", array.astype(np.float32))


main()
