"""Attention on one process."""

from __future__ import annotations

import numpy as np

from ._arrays import Gradients, Result, arrays_of, require_finite, scoring_here, takes_scoring
from ._masks import MOST, integer


@takes_scoring
def attention(q, k, v, *, bias=None, positions=None, threads=0, check=False, stream=None, **words) -> Result:
    """out = softmax(scale * q k^T + bias) v on this process.

    q [B, H, Sq, D]; k [B, Hkv, Sk, D]; v [B, Hkv, Sk, Dv], where Hkv divides H; B, or B and H, may be left out. The package's
    docstring describes the keywords. positions: (of the queries, of the keys) in a longer sequence, of which q, k and v hold
    some tokens, and to which documents and q_offset (default then 0) belong; default: 0, 1, .... Returns (out, lse): out
    [B, H, Sq, Dv], lse [B, H, Sq]. A query that sees no key has out = 0 and lse = -inf, or the sink of its head.
    """
    arrays = arrays_of(q, stream)
    k, v = arrays.as_array("k", k), arrays.as_array("v", v)
    bias = None if bias is None else arrays.as_array("bias", bias, (2, 3, 4))
    how = scoring_here(arrays, k, bias, positions, words)
    if check:
        require_finite(arrays, q=arrays.q, k=k, v=v, bias=bias)
    return arrays.attention(k, v, bias, how, integer("threads", threads, 0, MOST))


def merge(*parts) -> Result:
    """The attention over the keys of all parts: (out, lse) of the same queries, each over other keys. NumPy arrays.

    With it, a ring of your own can use `attention` for the keys of one step. A sink belongs to one part, because each
    `attention` with sink= adds it.
    """
    if not parts:
        raise ValueError("merge: give at least one (out, lse)")
    largest = np.max([lse for _, lse in parts], axis=0)
    largest = np.where(np.isneginf(largest), 0, largest)  # a query that sees no key
    weights = [np.exp(lse - largest)[..., np.newaxis] for _, lse in parts]
    total = sum(weights)
    with np.errstate(divide="ignore"):
        lse = np.log(total)[..., 0] + largest
    return Result(sum(weight * out for weight, (out, _) in zip(weights, parts)) / np.where(total > 0, total, 1), lse)


@takes_scoring
def attention_backward(grad_out, q, k, v, out, lse, *, grad_lse=None, bias=None, positions=None, threads=0, check=False,
                       stream=None, **words) -> Gradients:
    """The gradients of sum(out * grad_out) + sum(lse * grad_lse), on this process.

    grad_out is like out and grad_lse like lse (None: 0); out and lse are what `attention` returned for the same q, k, v and
    keywords. Returns (q, k, v, bias, sink), each like the argument of this name, or None if that was not given.
    """
    arrays = arrays_of(q, stream)
    grad_out, k, v, out = (arrays.as_array(name, array)
                           for name, array in (("grad_out", grad_out), ("k", k), ("v", v), ("out", out)))
    lse = arrays.as_rows("lse", lse)
    grad_lse = None if grad_lse is None else arrays.as_rows("grad_lse", grad_lse)
    dense = None if bias is None else arrays.as_array("bias", bias, (2, 3, 4))
    how = scoring_here(arrays, k, dense, positions, words)
    if check:
        require_finite(arrays, grad_out=grad_out, grad_lse=grad_lse, q=arrays.q, k=k, v=v, bias=dense)
    return arrays.attention_backward(grad_out, k, v, out, lse, dense, how, integer("threads", threads, 0, MOST), bias, grad_lse)
