"""Exact attention on NumPy arrays by the C++ library ring_attention: on one process, or on a ring of MPI ranks.

On one process:

    out, lse = ring_attention.attention(q, k, v, causal=True)
    gradients = ring_attention.attention_backward(grad_out, q, k, v, out, lse, causal=True)

On four ranks, `build/release/mpirun -n 4 python3 script.py`, each with its shard of the sequence:

    q, k, v = (ring_attention.scatter(array) for array in arrays)   # from rank 0
    out, lse = ring_attention.ring_attention(q, k, v, seq=1000, causal=True)

Arrays are [S, D], [H, S, D] or [B, H, S, D]: batch, heads, tokens, dim; float64, float32, or float16, which is computed in
float32. k and v may have fewer heads, of which each serves a group of adjacent heads of q, and another length. C-contiguous
float32 and float64 arrays are used as they are; others are copied. Results belong to the caller.

Arrays in the memory of a GPU are taken by DLPack, as of PyTorch, CuPy and JAX: all arrays of a call in that of one GPU, which
is that of the rank's first such call; float32, bfloat16 or float16, and bias, out and lse float32. A tensor of PyTorch
that is not C-contiguous is copied, another array an error. The call enqueues its work on `stream` and returns; a consumer of the results on
another stream waits for it by DLPack. Results are float32: tensors for tensors of PyTorch, otherwise objects for from_dlpack.

The scores are s = scale * q.k + bias. Keywords of all functions that say how they are formed:

    causal    a query sees no later key
    window    (left, right): how many keys before and after its own position a query sees; -1: all
    documents boundaries of packed sequences, 0, ..., S: a query sees keys of its document only
    alibi     the bias -slope * distance, with the slopes of the ALiBi paper
    bias      [Sq, Sk], or with H or 1 and B or 1 in front; -inf hides a key
    scale     default 1 / sqrt(D)
    dropout   the probability that a pair is dropped; seed: which pairs are, on any number of ranks the same
    sink      one logit a query head, which takes part in the softmax and has no value
    q_offset  the key position of the first query; default Sk - Sq, which aligns the ends
    same_bits True, or the tokens of a tile (True: 256): the same bits of all results on any number of ranks and threads, for
              every placement and partition. Ranks then hold whole tiles: give it to positions, scatter and gather, too,
              with the documents, and for queries of another length than the keys with the q_offset. float32 only, on the host
    threads   default 0: the cores of this machine, shared out over its ranks; more threads give the same bits
    check     raise an error for NaN and infinity in the arrays
    stream    of a GPU: DLPack's number of it (1 the default stream, 2 that of the thread, -1 the default stream and all
              arrays are ready), or an object of PyTorch or CuPy; default: PyTorch's current stream for its tensors, else 1

The functions of several ranks take `comm`, a communicator of mpi4py that uses the same MPI: its ranks call together, and
rank and size are those in it. Default: all ranks of the job. The first call with it duplicates it; comm.Free() frees both.

`diagnose` calls an attention of yours on several ranks, on small problems, and names its mistake:

    ring_attention.diagnose(my_ring_attention, ranks=3, only="full,causal").assert_right()

Errors: TypeError and ValueError name the argument; InputError (a ValueError) and Error have the text of the library. On
several ranks all of them raise the same AgreedError (an InputError) for a bad argument of one rank. A rank that does not make
the call is a TimeoutError on the others after RING_ATTENTION_TIMEOUT seconds (environment; default 60). A rank that stops
inside a call ends the job after that time, with one line and an exit code that is not 0.
"""

from __future__ import annotations

import ctypes
import os
import sys

for _nccl in (os.path.join(folder, "nvidia/nccl/lib/libnccl.so.2") for folder in sys.path):
    if os.path.exists(_nccl):  # PyTorch needs the NCCL that was installed with it, and a process has one
        ctypes.CDLL(_nccl)
        break

from . import _core
from ._arrays import Gradients, Result, arrays_of, require_finite, scoring
from ._core import AgreedError, Error, InputError, __version__
from ._diagnose import diagnose
from ._ranks import gather, positions, rank, ring_attention, ring_attention_backward, scatter, size, wait

__all__ = [
    "AgreedError", "Error", "Gradients", "InputError", "Result", "attention", "attention_backward",
    "diagnose", "gather", "positions", "rank", "ring_attention", "ring_attention_backward", "scatter", "size",
    "wait",
]

for _error in (AgreedError, Error, InputError):
    _error.__module__ = __name__


def attention(q, k, v, *, causal=False, window=None, documents=None, alibi=False, bias=None, scale=None, dropout=0.0,
              seed=0, sink=None, q_offset=None, same_bits=False, threads=0, check=False, stream=None) -> Result:
    """out = softmax(scale * q k^T + bias) v on this process.

    q [B, H, Sq, D]; k, v [B, Hkv, Sk, D], where Hkv divides H; B, or B and H, may be left out. The keywords are those
    of the package. Returns (out, lse): out like q, lse [B, H, Sq]. A query that sees no key has out = 0 and lse = -inf,
    or the sink of its head.
    """
    arrays = arrays_of(q, stream)
    k, v = arrays.take("k", k), arrays.take("v", v)
    bias = None if bias is None else arrays.take("bias", bias, (2, 3, 4))
    words = scoring(arrays.heads, arrays.tokens(k), causal=causal, window=window, documents=documents, alibi=alibi,
                    scale=scale, dropout=dropout, seed=seed, sink=sink, q_offset=q_offset, same_bits=same_bits)
    if check:
        require_finite(arrays, q=arrays.q, k=k, v=v, bias=bias)
    return arrays.attention(k, v, bias, words, threads)


def attention_backward(grad_out, q, k, v, out, lse, *, causal=False, window=None, documents=None, alibi=False,
                       bias=None, scale=None, dropout=0.0, seed=0, sink=None, q_offset=None, same_bits=False, threads=0,
                       check=False, stream=None) -> Gradients:
    """The gradients of sum(out * grad_out), on this process.

    grad_out is like q; out and lse are what `attention` returned for the same q, k, v and keywords. Returns (q, k, v,
    bias, sink): like these arguments; None where there was none.
    """
    arrays = arrays_of(q, stream)
    grad_out, k, v, out = (arrays.take(name, array)
                           for name, array in (("grad_out", grad_out), ("k", k), ("v", v), ("out", out)))
    lse = arrays.take_rows("lse", lse)
    dense = None if bias is None else arrays.take("bias", bias, (2, 3, 4))
    words = scoring(arrays.heads, arrays.tokens(k), causal=causal, window=window, documents=documents, alibi=alibi,
                    scale=scale, dropout=dropout, seed=seed, sink=sink, q_offset=q_offset, same_bits=same_bits)
    if check:
        require_finite(arrays, grad_out=grad_out, q=arrays.q, k=k, v=v, bias=dense)
    return arrays.attention_backward(grad_out, k, v, out, lse, dense, words, threads, bias)
