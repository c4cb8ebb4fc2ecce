"""A user's arrays as the four-dimensional ones of the extension module, and its results back."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from . import _core


class Result(NamedTuple):
    """What attention returns."""

    out: np.ndarray  #: like q
    lse: np.ndarray  #: like q without its last dimension: the natural logarithm of sum e^s


class Gradients(NamedTuple):
    """Of sum(out * grad_out)."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    bias: np.ndarray | None  #: like the bias
    sink: np.ndarray | None  #: one number a query head, float64


class Arrays:
    """The arrays of one call: one type, one number of dimensions."""

    def __init__(self, q):
        self._double = np.asarray(q).dtype.itemsize == 8
        self.dimensions = np.ndim(q)
        self.q = self.take("q", q)

    def take(self, name, array, dimensions=None):
        """[batch, heads, seq, dim], C-contiguous. Copied where it is not C-contiguous, or float16.

        `dimensions`: how many it has to have (default: as many as q).
        """
        array = np.asarray(array)
        if array.dtype.kind != "f" or array.dtype.itemsize > 8:
            raise TypeError(f"{name} is {array.dtype}: it must be float16, float32 or float64")
        if (array.dtype.itemsize == 8) != self._double:
            raise TypeError(f"{name} is {array.dtype} where q is {'float64' if self._double else 'not'}: "
                            "give all arrays in one type")
        if array.ndim not in (dimensions or (self.dimensions,)) or not 2 <= array.ndim <= 4:
            raise ValueError(f"{name} has {array.ndim} dimensions: " +
                             ("2, 3 or 4 are possible" if dimensions else
                              "all arrays are [S, D], or all [H, S, D], or all [B, H, S, D]"))
        array = np.require(array, np.float64 if self._double else np.float32, "CA")
        return array.reshape((1,) * (4 - array.ndim) + array.shape)

    def take_rows(self, name, array):
        """The same of an array with one number a query, such as lse."""
        return self.take(name, np.asarray(array)[..., np.newaxis])

    def give(self, array):
        """A result, with as many dimensions as q."""
        array = np.asarray(array)
        return array.reshape(array.shape[4 - self.dimensions:])

    def result(self, out, lse):
        return Result(self.give(out), self.give(lse)[..., 0])

    def gradients(self, q, k, v, bias, sink, like_bias):
        """`like_bias`: the bias of the caller, or None."""
        bias = None if like_bias is None else np.asarray(bias).reshape(np.shape(like_bias))
        return Gradients(self.give(q), self.give(k), self.give(v), bias, np.array(sink) if sink else None)


def require_finite(**arrays):
    """Raises ValueError for NaN and infinity, except -inf in a bias."""
    for name, array in arrays.items():
        if array is None:
            continue
        wrong = ~np.isfinite(array)
        if name == "bias":
            wrong &= array != -np.inf
        if wrong.any():
            first = ", ".join(str(index) for index in np.argwhere(wrong)[0])
            raise ValueError(f"{name} has {np.count_nonzero(wrong)} elements that are NaN or infinite, "
                             f"the first at [{first}] of [B, H, S, D]")


def scoring(heads, keys, *, causal, window, documents, alibi, scale, dropout, seed, sink, q_offset):
    """The keywords of a call, checked. `heads`: of q; `keys`: of the whole sequence."""
    if window is not None:
        window = tuple(int(side) for side in window)
        if len(window) != 2 or min(window) < -1:
            raise ValueError("window is (left, right): each side a number of keys, or -1 for all")
    if documents is not None:
        documents = [int(boundary) for boundary in documents]
        if not documents or documents[0] != 0 or documents[-1] != keys or sorted(documents) != documents:
            raise ValueError("documents are boundaries: they start with 0, never decrease, and end with "
                             f"{keys}, the number of keys")
    sink = [] if sink is None else np.asarray(sink, np.float64).tolist()
    if sink and len(sink) != heads:
        raise ValueError(f"sink has {len(sink)} numbers for {heads} query heads")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout is {dropout}: it must be from 0 to below 1")
    if seed < 0:
        raise ValueError("seed is negative")
    return _core.Scoring(causal=bool(causal), window=window, documents=documents, alibi=bool(alibi), scale=scale,
                         dropout=float(dropout), seed=int(seed), sink=sink, q_offset=q_offset)
