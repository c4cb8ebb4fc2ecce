"""Exact attention on NumPy arrays by the C++ library ring_attention: on one process, or on a ring of MPI ranks.

On one process:

    out, lse = ring_attention.attention(q, k, v, causal=True)
    gradients = ring_attention.attention_backward(grad_out, q, k, v, out, lse, causal=True)

On four ranks, `build/release/mpirun -n 4 python3 script.py`, each with its shard of the sequence:

    q, k, v = (ring_attention.scatter(array) for array in arrays)   # from rank 0
    out, lse = ring_attention.ring_attention(q, k, v, seq=1000, causal=True)

Arrays are [S, D], [H, S, D] or [B, H, S, D]: batch, heads, tokens, dim; float64, float32, or float16, which is computed in
float32. k and v may have fewer heads than q, each of which serves a group of adjacent heads of q, and a different length. v
may have another dim than q and k (on the CPU); the result has that of v.
C-contiguous float32 and float64 arrays are used in place; others are copied. Results belong to the caller.

Arrays in the memory of a GPU are passed by DLPack, for example from PyTorch, CuPy or JAX. All arrays of a call are on one
GPU, the GPU of the rank's first such call. They are float32, bfloat16 or float16; bias, out and lse are float32. A PyTorch
tensor that is not C-contiguous is copied; any other such array is an error. The call enqueues its work on `stream` and
returns; a consumer of the results on another stream waits for the work by DLPack. Results are float32: PyTorch tensors for
PyTorch tensors, otherwise objects for from_dlpack.

The scores are s = scale * q.k + bias. All functions that compute with them take these keywords:

    causal    a query sees no later key
    window    (left, right): how many keys before and after its own position a query sees; -1: all
    documents boundaries of packed sequences, (0,) ..., S: a query sees only keys of its document
    prefix    with causal: the first keys, so many, see each other in both directions (prefix LM, PaliGemma)
    blocks    [(begin, end), ...] with causal: tokens of a block see each other in both directions (images of Gemma 3)
    sink_tokens    with window: a query also sees the first keys of its document, so many (StreamingLLM)
    global_tokens  [(begin, end), ...] with window: these tokens see all and are seen by all, with causal nothing later than
              the query (Longformer); at most two runs
    chunk     a query sees only keys of its own chunk of so many tokens of its document (Llama 4)
    intervals any other mask: integers [Sq, m, 2], for each query of the whole sequence begin and end of m <= 4 intervals of keys,
              which ascend; begin = end is an empty one. With causal, window and documents a query sees what both allow
    alibi     adds the bias -slope * distance, with the slopes of the ALiBi paper
    bias      [Sq, Sk], [H or 1, Sq, Sk] or [B or 1, H or 1, Sq, Sk]; -inf hides a key
    scale     default 1 / sqrt(D)
    softcap   a product x = scale * q.k becomes softcap * tanh(x / softcap), before a bias is added (Gemma 2)
    dropout   the probability that a pair is dropped; seed decides which pairs, the same on any number of ranks
    sink      one logit per query head, which takes part in the softmax and has no value
    q_offset  the key position of the first query; default Sk - Sq, which aligns the ends
    same_bits True, or the tokens per tile (True: 256): all results have the same bits for any number of ranks and threads and
              for every placement and partition. Ranks then hold whole tiles, so also pass it to positions, scatter and
              gather, with the documents, and for queries of a different length than the keys with the q_offset. float32
              only, on the host
    threads   default 0: the cores of this machine, divided among its ranks; the number does not change the bits
    check     raise an error for NaN and infinity in the arrays
    stream    of a GPU: its DLPack number (1 the default stream, 2 the thread's default stream, -1 the default stream with
              all arrays ready), or a PyTorch or CuPy object; default: PyTorch's current stream for its tensors, otherwise 1

The functions for several ranks take `comm`, a communicator of an mpi4py that uses the same MPI. Its ranks call together, and
rank and size are those in it. The default is all ranks of the job. The first call with a communicator duplicates it;
comm.Free() frees both.

They also take `group`: a ProcessGroup of PyTorch or a dimension of a DeviceMesh, a communicator of any mpi4py, or what
`ring_attention.threads(n).run(work)` gives each rank. Messages then travel without the package's MPI; results are the same.

`with ring_attention.trace("ring.json"):` writes what each rank does in the calls of the block, for Perfetto and Chrome.

`diagnose` runs an attention of your own on several ranks, on small problems, and names its mistake:

    ring_attention.diagnose(my_ring_attention, ranks=3, only="full,causal").assert_right()

Errors: TypeError and ValueError name the argument; InputError (a ValueError) and Error have the text of the library. If one
of several ranks has a bad argument, all of them raise the same AgreedError (an InputError). If a rank does not make the call,
the others raise TimeoutError after RING_ATTENTION_TIMEOUT seconds (environment variable; default 60). If a rank stops inside
a call, the job ends after that time, with one line and an exit code that is not 0.
"""

from __future__ import annotations

import ctypes
import os
import sys

for _nccl in (os.path.join(folder, "nvidia/nccl/lib/libnccl.so.2") for folder in sys.path):
    if os.path.exists(_nccl):  # PyTorch needs the NCCL that was installed with it, and a process has one
        ctypes.CDLL(_nccl)
        break

_flags = sys.getdlopenflags()
sys.setdlopenflags(os.RTLD_LAZY)  # the functions of MPI are undefined until a call loads it
from . import _core

sys.setdlopenflags(_flags)
from ._arrays import Gradients, Result
from ._attention import attention, attention_backward, merge
from ._core import AgreedError, Error, InputError, __version__
from ._diagnose import diagnose
from ._groups import threads
from ._job import rank, size
from ._ranks import (all_reduce, balanced, decode, gather, positions, ring_attention, ring_attention_backward, scatter, trace,
                     wait)

__all__ = [
    "AgreedError", "Error", "Gradients", "InputError", "Result", "all_reduce", "attention",
    "attention_backward", "balanced", "decode", "diagnose", "gather", "merge", "positions", "rank", "ring_attention",
    "ring_attention_backward", "scatter", "size", "threads", "trace", "wait",
]

for _error in (AgreedError, Error, InputError):
    _error.__module__ = __name__
