"""Rings that diagnose_test.py diagnoses. Processes of ranks import this file."""

import functools

import numpy as np


def numpy_ring(q, k, v, case, wrong=()):
    """Forward; `wrong`: ids of mistakes (src/python/ring_attention_diagnose/mistakes.tsv)."""
    rank, ranks = case.rank, case.ranks
    here, owner = np.array(case.positions), rank
    o, l = np.zeros_like(q), np.zeros_like(q[..., :1])
    m = l - np.inf
    scale = 1 if "no-scale" in wrong else case.scale
    for _ in range(ranks):
        there = np.array(case.tokens_of_rank[owner])
        scores = scale * q @ np.repeat(k, case.heads // case.kv_heads, 1).swapaxes(2, 3)
        if case.causal:
            seen = here[:, np.newaxis] >= there
            if "mask-local" in wrong:
                seen = np.arange(len(here))[:, np.newaxis] >= np.arange(len(there))
            scores = np.where(seen, scores, -np.inf)
        new_m = np.maximum(m, scores.max(3, keepdims=True))
        p, old = np.exp(scores - new_m), np.exp(m - new_m)
        o, l, m = old * o + p @ np.repeat(v, case.heads // case.kv_heads, 1), old * l + p.sum(3, keepdims=True), new_m
        before = (rank - 1) % ranks
        k, v = case.comm.sendrecv((k, v), (rank + 1) % ranks, rank, source=before, recvtag=before)
        owner = (owner - 1) % ranks
    return o / l, (m + np.log(l))[..., 0]


def gathered(q, k, v, case):
    """All results with their gradients in NumPy, from all arrays: out in another order of the axes."""
    q, k, v, dout = (np.concatenate(case.comm.allgather(array), 2).astype(np.float64) for array in (q, k, v, case.dout))
    positions = np.concatenate(case.tokens_of_rank)
    scores = case.scale * q @ k.swapaxes(2, 3)
    if case.causal:
        scores = np.where(positions[:, np.newaxis] >= positions, scores, -np.inf)
    lse = np.log(np.exp(scores).sum(3, keepdims=True))
    p = np.exp(scores - lse)
    out, dp = p @ v, dout @ v.swapaxes(2, 3)
    ds = case.scale * p * (dp - (dout * out).sum(3, keepdims=True))
    whole = {"out": out, "lse": lse, "dq": ds @ k, "dk": ds.swapaxes(2, 3) @ q, "dv": p.swapaxes(2, 3) @ dout}
    results = {name: array[:, :, np.isin(positions, case.positions)] for name, array in whole.items()}
    return results | {"out": results["out"].transpose(0, 2, 1, 3)}


def decoding(q, k, v, case, wrong=()):
    """One query against the keys of all ranks: each rank merges the results of all."""
    assert q.shape[2] == 1 and case.dout is None and case.query_position == case.tokens - 1
    k, v = (np.repeat(array, case.heads // case.kv_heads, 1) for array in (k, v))
    scores = case.scale * q @ k.swapaxes(2, 3)
    lse = np.log(np.exp(scores).sum(3, keepdims=True))
    outs, lses = (np.stack(arrays) for arrays in zip(*case.comm.allgather((np.exp(scores - lse) @ v, lse))))
    whole = np.log(np.exp(lses).sum(0))
    weights = 1 / case.ranks if "average" in wrong else np.exp(lses - whole)
    return (weights * outs).sum(0), whole[..., 0]


def broken(_q, k, _v, case):
    """Fails on rank 1, while the others wait for it."""
    if case.rank == 1 and case.name == "causal":
        raise ValueError("this rank is broken")
    return k if case.name == "full" else case.comm.recv(source=1)


def torch_attention(q, k, v, case, wrong=(), order=(0, 1, 2, 3)):
    """All-gather of K,V, with autograd. `order` of the axes of out."""
    import torch

    gather = functools.partial(_gather_class().apply, case.comm, "dkdv-own-only" in wrong)
    k, v = (gather(array).flatten(0, 1).permute(1, 2, 0, 3) for array in (k, v))
    keys = torch.tensor([token for tokens in case.tokens_of_rank for token in tokens])
    scores = case.scale * q @ k.mT
    if case.causal and "no-mask" not in wrong:
        scores = scores.masked_fill(torch.tensor(case.positions)[:, None] < keys, -torch.inf)
    return (scores.softmax(3) @ v).permute(order).contiguous(), scores.float().logsumexp(3)


def _gather_class():
    """[1, heads, tokens of a rank, dim] -> [ranks, tokens of a rank, 1, heads, dim]"""
    import torch
    import torch.distributed as dist

    class Gather(torch.autograd.Function):
        @staticmethod
        def forward(context, group, is_wrong, array):
            context.group, context.is_wrong = group, is_wrong
            mine = array.permute(2, 0, 1, 3).contiguous()
            parts = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
            dist.all_gather(parts, mine, group=group)
            return torch.stack(parts)

        @staticmethod
        def backward(context, gradient):
            gradient = gradient.contiguous()
            if not context.is_wrong:
                dist.all_reduce(gradient, group=context.group)
            return None, None, gradient[dist.get_rank(context.group)].permute(1, 2, 0, 3)

    return Gather


def torch_broken(q, k, v, case):
    if case.rank == 1:
        raise ValueError("this rank is broken")
    return torch_attention(q, k, v, case)


def torch_exits(q, k, v, case):
    import os

    os._exit(case.rank)


def torch_hangs(q, k, v, case):
    import time

    time.sleep(60 * case.rank)
    return torch_attention(q, k, v, case)


def one_fails(q, _k, _v, case):
    if case.rank == 1:
        raise ValueError("this rank is broken")
    return q


class OwnJob:
    """What the ranks of a job of the user's own call: diagnose with their group."""

    def __init__(self, *functions):
        self._functions = functions

    def __call__(self, _rank, group):
        import ring_attention as ra

        for function in self._functions:
            try:
                yield ra.diagnose(function, group=group, only="full,causal")
            except RuntimeError as error:
                yield str(error)
