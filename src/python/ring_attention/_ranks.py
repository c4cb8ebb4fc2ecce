"""The functions that all ranks of a job, or of a communicator, call together."""

from __future__ import annotations

import contextlib
import json
import os

import numpy as np

from . import _core
from ._arrays import Gradients, Result, arrays_of, require_finite, scoring, takes_scoring, tile_of
from ._attention import attention, merge
from ._job import calling, prepare_together, ranks_of
from ._masks import FARTHEST, MOST, OF_SEVERAL_INTERVALS, boundaries, integer, refuse_several_intervals
from ._meeting import limit

_PLACEMENTS = ("contiguous", "striped", "zigzag")
_OF_KERNELS = {"causal", "window", "documents", *OF_SEVERAL_INTERVALS, "scale", "seed", "sink", "q_offset", "same_bits"}
_SINK_GRADIENTS = ("share", "sum")
_PARALLEL = ("ring", "ulysses", "hybrid", "all-gather")


def _require_word(name, word, words):
    if word not in words:
        raise ValueError(f"{name} is {word!r}: it must be {', '.join(words[:-1])} or {words[-1]}")


def _require_place(placement, parallel):
    if placement == "balanced":
        raise ValueError("placement is 'balanced': give the value of balanced(), which needs the mask")
    if not isinstance(placement, _core.Placement):
        _require_word("placement", placement, _PLACEMENTS)
    _require_word("parallel", parallel, _PARALLEL)


class _Ring:
    """The arguments of a call of the ring."""

    def __init__(self, ranks, q, k, v, seq, placement, parallel, ulysses, transport, threads, bias, check, stream,
                 sink_gradient="share", **words):
        self.arrays = arrays_of(q, stream)
        self.k, self.v = self.arrays.as_array("k", k), self.arrays.as_array("v", v)
        self.bias = None if bias is None else self.arrays.as_array("bias", bias, (2, 3, 4))
        queries, keys = (integer("seq", tokens, 0) for tokens in (seq if hasattr(seq, "__len__") else (seq, seq)))
        _require_place(placement, parallel)
        _require_word("transport", transport, self.arrays.transports)
        if "nccl" in self.arrays.transports and getattr(ranks, "are_threads", False):
            if transport == "nccl":
                raise ValueError("transport is 'nccl', which needs ranks that are processes: threads have 'staged'")
            transport = "staged"
        _require_word("sink_gradient", sink_gradient, _SINK_GRADIENTS)
        self.scoring = scoring(keys, **words)
        self.division = _core.Division(ranks, queries, keys, placement, parallel, integer("ulysses", ulysses, 1, MOST),
                                       transport, integer("threads", threads, 0, MOST), limit(), self.scoring,
                                       sink_gradient == "sum")
        if check:
            require_finite(self.arrays, q=self.arrays.q, k=self.k, v=self.v, bias=self.bias)


@takes_scoring
def ring_attention(q_shard, k_shard, v_shard, *, seq, placement="zigzag", parallel="ring", ulysses=1,
                   transport="overlapped", bias=None, threads=0, check=False, stream=None, kernel=None, comm=None, group=None,
                   **words) -> Result:
    """Attention over a sequence of which each rank holds a shard. Returns the rows of this rank's queries. Collective.

    q_shard, k_shard, v_shard: the tokens at `positions(seq, ...)`, in this order, as `scatter` distributes them.
    seq        tokens on all ranks together, or (queries, keys) if k and v are another sequence
    placement  "contiguous", "striped" or "zigzag", or the value of `balanced`
    parallel   how the ranks divide the work: "ring", "ulysses", "hybrid" (of `ulysses` ranks that share heads) or
               "all-gather"
    transport  of arrays of a GPU: "nccl", or "staged", through the memory of the host, or "overlapped", which is "nccl" if
               the build has it and the ranks are processes, otherwise "staged"; all give the same bits
    bias       a row for each query of this rank, a column for each key of the sequence
    kernel     None: the library's. Otherwise kernel(q, k, v, mask, scale) -> (out, lse) computes the attention of this rank's
               queries over the keys of one rank: q [B, H, Sq, D]; k [B, Hkv, Sk, D]; v [B, Hkv, Sk, Dv]; mask None or bool
               [Sq, Sk], True where a query sees a key; out [B, H, Sq, Dv]; lse [B, H, Sq]. Rows of a query that sees none of
               these keys may hold anything. This function merges the results. Not with bias, alibi or dropout; no backward.
    comm       a communicator of mpi4py, whose ranks call together and share the sequence; None: all ranks of the job
    group      instead of comm: a ProcessGroup of PyTorch, a communicator of any mpi4py, or a rank of threads()
    The package's docstring describes the other keywords, which must be the same on all ranks. An exception on one rank only,
    for example in a kernel, ends the job if nothing catches it, and so does Ctrl-C. A rank waits RING_ATTENTION_TIMEOUT
    seconds (environment variable; default 60) for the others: then it raises TimeoutError if one has not made this call, and
    the job ends if one has stopped inside it.
    """

    def prepare():
        ring = _Ring(ranks, q_shard, k_shard, v_shard, seq, placement, parallel, ulysses, transport, threads, bias, check,
                     stream, **words)
        if kernel is not None and (bias is not None or any(words[word] for word in words.keys() - _OF_KERNELS)):
            raise ValueError("kernel: it gets a mask only, so of the keywords of a score only "
                             f"{', '.join(sorted(_OF_KERNELS))} are possible")
        if kernel is not None and not ring.arrays.takes_kernels:
            raise ValueError("kernel: it gets arrays of NumPy, and q is in the memory of a GPU")
        return ring

    with calling(comm, group) as ranks:
        ring, _ = prepare_together(ranks, "ring_attention", prepare)
        return ring.arrays.ring(ring.k, ring.v, ring.bias, ring.division, ring.scoring, _wrapped(kernel))


def _wrapped(kernel):
    """A user's kernel in the form that the extension module calls."""
    if kernel is None:
        return None

    def call(q, k, v, mask, scale):
        q, k, v = np.asarray(q), np.asarray(k), np.asarray(v)
        mask = None if mask is None else np.asarray(mask)[0, 0]
        out, lse = kernel(q, k, v, mask, scale)
        lse = np.array(lse, q.dtype, order="C").reshape(q.shape[:3])
        if mask is not None:
            lse[:, :, ~mask.any(axis=1)] = -np.inf
        return np.require(out, q.dtype, "CA").reshape(*q.shape[:3], v.shape[3]), lse[..., np.newaxis]

    return call


@takes_scoring
def ring_attention_backward(grad_out, q_shard, k_shard, v_shard, out, lse, *, seq, placement="zigzag", parallel="ring",
                            ulysses=1, transport="overlapped", grad_lse=None, bias=None, threads=0, check=False,
                            stream=None, sink_gradient="share", comm=None, group=None, **words) -> Gradients:
    """The gradients of sum(out * grad_out) + sum(lse * grad_lse), summed over all ranks, for this rank's q, k and v. Collective.

    out and lse are what `ring_attention` returned on this rank for the same arguments; grad_out is like out, and grad_lse,
    which all ranks pass or none, like lse. Returns (q, k, v, bias, sink). A sink belongs to all ranks: its gradient is this
    rank's share, whose sum over the ranks is the whole; sink_gradient="sum": that sum, on every rank (for one release).
    """

    def prepare():
        ring = _Ring(ranks, q_shard, k_shard, v_shard, seq, placement, parallel, ulysses, transport, threads, bias, check,
                     stream, sink_gradient, **words)
        grad = ring.arrays.as_array("grad_out", grad_out)
        grad_rows = None if grad_lse is None else ring.arrays.as_rows("grad_lse", grad_lse)
        if check:
            require_finite(ring.arrays, grad_out=grad, grad_lse=grad_rows)
        return ring, grad, ring.arrays.as_array("out", out), ring.arrays.as_rows("lse", lse), grad_rows

    with calling(comm, group) as ranks:
        (ring, grad, result, statistic, grad_rows), _ = prepare_together(ranks, "ring_attention_backward", prepare)
        return ring.arrays.ring_backward(grad, ring.k, ring.v, result, statistic, ring.bias, ring.division, ring.scoring,
                                         bias, grad_rows)


def wait(comm=None, group=None) -> None:
    """Returns when this rank's calls on a GPU, with all ranks, `comm` or `group`, have finished their work. Not collective.

    Raises Error if a kernel has failed, or a message has not come within RING_ATTENTION_TIMEOUT seconds. A synchronisation of
    the stream by another package has no such limit: it waits for ever for a lost rank.
    """
    ranks = ranks_of(comm, group)
    ranks.wait()


@contextlib.contextmanager
def trace(file, *, comm=None, group=None):
    """Writes what each rank does in the calls of a `with` block, and when, to one file for Perfetto and Chrome. Collective.

    `with ring_attention.trace("ring.json"): ...` has the same format as `ring-attention run --trace`. The calls of the block
    that have this `comm` or `group` are written. Each rank writes to FILE.rankN until the block ends; if it ends with an exception,
    these files remain.
    """
    def prepare():
        return os.fspath(file)

    call = calling(comm, group)
    with call as ranks:
        path, _ = prepare_together(ranks, "trace", prepare)
        ranks.trace(path)
    try:
        yield
    except BaseException:
        ranks.drop_trace()
        raise
    with call:
        prepare_together(ranks, "the end of a trace", lambda: None)
        ranks.end_trace()


def _held(ranks, seq, placement, parallel, ulysses, rank, same_bits, documents, q_offset):
    _require_place(placement, parallel)
    ranges = ranks.token_ranges(integer("seq", seq, 0), placement, parallel, integer("ulysses", ulysses, 1, MOST), rank,
                                tile_of(same_bits), boundaries(documents), integer("q_offset", q_offset, -FARTHEST))
    return np.concatenate([begin + stride * np.arange(count) for begin, stride, count in ranges] or
                          [np.arange(0)]).astype(np.int64)


@takes_scoring
def balanced(seq: int, ranks=None, *, ulysses=1, comm=None, group=None, **words) -> _core.Placement:
    """A placement that balances the mask of a call, to pass as its `placement` and to scatter, positions and gather.

    seq      tokens of queries and of keys: the same
    ranks    of a ring; default: the ranks of the job, of `comm` or of `group`, divided by `ulysses`
    words    of the call; those of its mask decide, with q_offset and same_bits

    Not collective: all ranks find the same placement, and a call compares a hash of it. `p.ranges(rank)` are the (begin, end) of
    a rank's tokens. It takes about a second for 1,048,576 tokens on 64 ranks; keep the value while the mask stays the same.
    """
    if ranks is None:
        ranks = ranks_of(comm, group).size // ulysses
    words.pop("sink", None)
    return _core.balanced(integer("seq", seq, 0), integer("ranks", ranks, 1, MOST), scoring(seq, **words))


def positions(seq: int, *, placement="zigzag", parallel="ring", ulysses=1, rank=None, same_bits=False, documents=None, q_offset=0,
              comm=None, group=None) -> np.ndarray:
    """The positions of the tokens that a rank holds, in the order of its shard. Default: this rank."""
    ranks = ranks_of(comm, group)
    return _held(ranks, seq, placement, parallel, ulysses, ranks.rank if rank is None else integer("rank", rank, 0, ranks.size - 1),
                 same_bits, documents, q_offset)


def scatter(array, *, placement="zigzag", parallel="ring", ulysses=1, axis=-2, same_bits=False, documents=None, q_offset=0,
            comm=None, group=None) -> np.ndarray:
    """This rank's shard of an array on rank 0; the other ranks pass None. `axis`: the axis of the tokens. Collective.

    For trying things out: rank 0 holds the whole array and sends one shard after the other. The whole call must end within
    RING_ATTENTION_TIMEOUT seconds (environment variable; default 60), because the last rank waits that long for its shard.
    """
    def prepare():
        _require_place(placement, parallel)
        if ranks.rank != 0:
            return None
        whole = np.asarray(array)
        if whole.dtype.hasobject or not -whole.ndim <= axis < whole.ndim:
            raise ValueError(f"array is {whole.dtype} with {whole.ndim} dimensions: it has no axis {axis} of numbers")
        return whole

    def form(whole):
        return "" if whole is None else json.dumps([whole.dtype.str, whole.shape])

    def held(seq, of_rank):
        return _held(ranks, seq, placement, parallel, ulysses, of_rank, same_bits, documents, q_offset)

    with calling(comm, group) as ranks:
        whole, whole_form = prepare_together(ranks, "scatter", prepare, form)
        if ranks.rank == 0:
            for other in range(1, ranks.size):
                ranks.send(np.ascontiguousarray(whole.take(held(whole.shape[axis], other), axis)), other)
            return np.ascontiguousarray(whole.take(held(whole.shape[axis], 0), axis))
        dtype, shape = json.loads(whole_form)
        shape[axis] = len(held(shape[axis], ranks.rank))
        shard = np.empty(shape, dtype)
        ranks.receive(shard, 0)
        return shard


def gather(shard, *, seq, placement="zigzag", parallel="ring", ulysses=1, axis=-2, same_bits=False, documents=None, q_offset=0,
           comm=None, group=None) -> np.ndarray | None:
    """The whole array on rank 0, None on the other ranks: the inverse of `scatter`. Collective.

    `seq`: tokens on all ranks together. lse has its tokens on axis -1. The time limit is the same as for `scatter`.
    """
    def held(of_rank):
        return _held(ranks, seq, placement, parallel, ulysses, of_rank, same_bits, documents, q_offset)

    def prepare():
        part, due = np.ascontiguousarray(shard), len(held(ranks.rank))
        if part.dtype.hasobject or not -part.ndim <= axis < part.ndim or part.shape[axis] != due:
            raise ValueError(f"shard is {part.dtype} {list(part.shape)} where {due} tokens on axis {axis} are due")
        return part

    with calling(comm, group) as ranks:
        part, _ = prepare_together(ranks, "gather", prepare)
        rest = list(part.shape)
        rest[axis] = seq
        ranks.begin(f"gather of {part.dtype} {rest}", "", "", limit())
        if ranks.rank != 0:
            ranks.send(part, 0)
            return None
        whole = np.empty(rest, part.dtype)
        by_token = np.moveaxis(whole, axis, 0)
        by_token[held(0)] = np.moveaxis(part, axis, 0)
        for other in range(1, ranks.size):
            rest[axis] = len(held(other))
            piece = np.empty(rest, part.dtype)
            ranks.receive(piece, other)
            by_token[held(other)] = np.moveaxis(piece, axis, 0)
        return whole


def decode(q, k_shard, v_shard, *, positions=None, sink=None, comm=None, group=None, **words) -> Result:
    """Attention of queries that all ranks have, such as the newest token's, over keys of which each has some. Collective.

    The state of the queries travels and not the keys: each rank attends to its own, and the results merge, in the order of
    the ranks. A rank may have no keys. The keywords are those of `attention`: a mask needs positions=(of the queries, of this
    rank's keys), and is one of causal, window and documents. Returns (out, lse), the same on every rank. The time limit is
    the same as for `scatter`.
    """
    def prepare():
        refuse_several_intervals(words, "decode")
        return attention(q, k_shard, v_shard, positions=positions, sink=sink if ranks.rank == 0 else None, **words)

    with calling(comm, group) as ranks:
        mine, _ = prepare_together(ranks, "decode", prepare)
        ranks.begin(f"decode of {mine.out.dtype} {list(mine.out.shape)}", "", "", limit())
        packed = np.concatenate([mine.out, mine.lse[..., np.newaxis]], -1)
        if ranks.rank == 0:
            parts = [mine]
            for other in range(1, ranks.size):
                part = np.empty_like(packed)
                ranks.receive(part, other)
                parts.append((part[..., :-1], part[..., -1]))
            whole = merge(*parts)
            packed = np.concatenate([whole.out, whole.lse[..., np.newaxis]], -1)
            for other in range(1, ranks.size):
                ranks.send(packed, other)
        else:
            ranks.send(packed, 0)
            ranks.receive(packed, 0)
        return Result(packed[..., :-1].copy(), packed[..., -1].copy())


def all_reduce(array, *, comm=None, group=None) -> np.ndarray:
    """The sum of the arrays of all ranks, on every rank, added in the order of the ranks. Collective.

    For what is small, such as gradients of a small model: rank 0 adds, and sends the sum to each rank. The time limit
    is the same as for `scatter`.
    """
    def prepare():
        mine = np.array(array, order="C")
        if mine.dtype.kind not in "iuf":
            raise TypeError(f"array is {mine.dtype}: it must hold numbers")
        return mine

    with calling(comm, group) as ranks:
        total, _ = prepare_together(ranks, "all_reduce", prepare)
        ranks.begin(f"all_reduce of {total.dtype} {list(total.shape)}", "", "", limit())
        if ranks.rank != 0:
            ranks.send(total, 0)
            ranks.receive(total, 0)
            return total
        other = np.empty_like(total)
        for rank in range(1, ranks.size):
            ranks.receive(other, rank)
            total += other
        for rank in range(1, ranks.size):
            ranks.send(total, rank)
        return total
