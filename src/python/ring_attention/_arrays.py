"""Converts a user's arrays to the four-dimensional ones of the extension module, and its results back."""

from __future__ import annotations

import inspect
import sys
from typing import NamedTuple

import numpy as np

from . import _core
from ._masks import FARTHEST, are_positions, documents_of, integer, refuse_several_intervals, set_intervals, window_of


class Result(NamedTuple):
    """What attention returns."""

    out: np.ndarray  #: like q, with the last dimension of v
    lse: np.ndarray  #: like q without its last dimension: the natural logarithm of sum e^s


class Gradients(NamedTuple):
    """The gradients of sum(out * grad_out) + sum(lse * grad_lse)."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    bias: np.ndarray | None  #: like the bias
    sink: np.ndarray | None  #: one number per query head, float64


def _gradients_of_numbers(numbers):
    """The gradients of numbers; None without such a term."""
    return {name: np.array(x) if x else None for name, x in numbers.items()}


def arrays_of(q, stream):
    """The Arrays or GpuArrays of a call whose first array is q."""
    return GpuArrays(q, stream) if _is_on_gpu(q) else Arrays(q, stream)


def _is_on_gpu(array):
    device = getattr(array, "__dlpack_device__", None)
    return device is not None and int(device()[0]) in (2, 13)  # kDLCUDA, kDLCUDAManaged


def _require_dimensions(name, dimensions, like_q, allowed):
    """`allowed`: the possible numbers of dimensions; None: only that of q."""
    if dimensions not in (allowed or (like_q,)) or not 2 <= dimensions <= 4:
        raise ValueError(f"{name} has {dimensions} dimensions: " +
                         ("2, 3 or 4 are possible" if allowed else
                          "all arrays are [S, D], or all [H, S, D], or all [B, H, S, D]"))


class Arrays:
    """The arrays of one call, in the memory of the host: one type, one number of dimensions."""

    transports = ("overlapped",)
    takes_kernels = takes_positions = True

    def __init__(self, q, stream=None):
        if stream is not None:
            raise ValueError("stream is given, and q is in the memory of the host")
        self._double = np.asarray(q).dtype.itemsize == 8
        self._type = np.dtype(np.float64 if self._double else np.float32)
        self._dimensions = np.ndim(q)
        self.q = self.as_array("q", q)

    def as_array(self, name, array, dimensions=None):
        """The array as [batch, heads, seq, dim], C-contiguous. It is copied if it is not C-contiguous, or is float16.

        `dimensions`: the numbers of dimensions that it may have (default: only that of q).
        """
        if _is_on_gpu(array):
            raise ValueError(f"{name} is in the memory of a GPU, and q is not")
        array = np.asarray(array)
        if array.dtype.kind != "f" or array.dtype.itemsize > 8:
            raise TypeError(f"{name} is {array.dtype}: it must be float16, float32 or float64")
        if (array.dtype.itemsize == 8) != self._double:
            raise TypeError(f"{name} is {array.dtype} where q is {'float64' if self._double else 'not'}: "
                            "give all arrays in one type")
        _require_dimensions(name, array.ndim, self._dimensions, dimensions)
        if array.dtype != self._type or not array.flags.carray:
            array = np.require(array, self._type, "CA")
        return array.reshape((1,) * (4 - array.ndim) + array.shape)

    def as_rows(self, name, array):
        """An array with one number per query, such as lse, as as_array gives it."""
        return self.as_array(name, np.asarray(array)[..., np.newaxis])

    @staticmethod
    def tokens(array):
        return array.shape[2]

    @staticmethod
    def on_host(array):
        return array

    def attention(self, k, v, bias, scoring, threads):
        return self._result(*_core.attention(self.q, k, v, scoring, bias, threads))

    def attention_backward(self, grad_out, k, v, out, lse, bias, scoring, threads, like_bias, grad_lse):
        return self._gradients(*_core.attention_backward(grad_out, self.q, k, v, out, lse, scoring, bias, threads, grad_lse),
                               like_bias)

    def ring(self, k, v, bias, division, scoring, kernel):
        return self._result(*_core.ring_forward(self.q, k, v, division, scoring, bias, kernel))

    def ring_backward(self, grad_out, k, v, out, lse, bias, division, scoring, like_bias, grad_lse):
        return self._gradients(*_core.ring_backward(grad_out, self.q, k, v, out, lse, division, scoring, bias, grad_lse),
                               like_bias)

    def _give(self, array):
        """A result, with as many dimensions as q."""
        array = np.asarray(array)
        return array.reshape(array.shape[4 - self._dimensions:])

    def _result(self, out, lse):
        return Result(self._give(out), self._give(lse)[..., 0])

    def _gradients(self, q, k, v, bias, numbers, like_bias):
        """`like_bias`: the bias of the caller, or None."""
        bias = None if like_bias is None else np.asarray(bias).reshape(np.shape(like_bias))
        return Gradients(self._give(q), self._give(k), self._give(v), bias, **_gradients_of_numbers(numbers))


class GpuArrays:
    """The arrays of one call, in the memory of a GPU, by DLPack.

    Results are float32, and PyTorch tensors if q is one.
    """

    transports = ("overlapped", "nccl", "staged")
    takes_kernels = takes_positions = False

    def __init__(self, q, stream):
        if not _core.has_gpu:
            raise ValueError("q is in the memory of a GPU, and this build of ring_attention has no GPU parts: build it where "
                             "nvcc is, with -DRING_ATTENTION_CUDA=ON")
        torch = sys.modules.get("torch")
        self._torch = torch if torch is not None and isinstance(q, torch.Tensor) else None
        if isinstance(stream, int) and (stream == 0 or stream < -1):
            raise ValueError(f"stream is {stream}: DLPack has 1 for the default stream, 2 for a thread's default stream")
        if self._torch is not None:
            stream = self._stream_of_torch(q, stream)
        self._stream, self._number = stream, self._number_of(stream)
        self.q = None
        self.q = self.as_array("q", q, (2, 3, 4))

    def _stream_of_torch(self, q, stream):
        """The stream as an object of PyTorch, which allocates the results on it."""
        cuda = self._torch.cuda
        if stream is None:
            return cuda.current_stream(q.device)
        if not isinstance(stream, int):
            return stream if isinstance(stream, cuda.Stream) else cuda.ExternalStream(stream.ptr, q.device)
        return cuda.ExternalStream(stream, q.device) if stream > 2 else cuda.default_stream(q.device)

    @staticmethod
    def _number_of(stream):
        """DLPack's number of a stream, which is given as a number or as an object of PyTorch or CuPy."""
        if stream is None:
            return 1
        return int(getattr(stream, "cuda_stream", getattr(stream, "ptr", stream))) or 1

    def as_array(self, name, array, dimensions=None):
        """Like Arrays.as_array. A PyTorch tensor that is not C-contiguous is copied."""
        if not _is_on_gpu(array):
            raise ValueError(f"{name} is in the memory of the host, and q is in that of a GPU")
        if self._torch is not None and isinstance(array, self._torch.Tensor):
            with self._torch.cuda.device(array.device), self._torch.cuda.stream(self._stream):
                taken = _core.GpuArray(name, array.detach().contiguous(), self._number)
        else:
            taken = _core.GpuArray(name, array, self._number)
        if not taken.is_contiguous:
            raise ValueError(f"{name} is not C-contiguous: give a copy that is")
        like = taken if self.q is None else self.q
        due = "float32" if name in ("bias", "out", "lse") else like.type
        if taken.type != due:
            raise TypeError(f"{name} is {taken.type} where {due} is due")
        if taken.device != like.device:
            raise ValueError(f"{name} is in the memory of GPU {taken.device}, and q is in that of GPU {like.device}")
        _require_dimensions(name, len(taken.shape) + (name == "lse"), len(like.shape), dimensions)
        return taken

    def as_rows(self, name, array):
        if name == "grad_lse":
            raise ValueError("grad_lse: lse has no gradient in the memory of a GPU: give arrays of the host")
        return self.as_array(name, array)

    @staticmethod
    def tokens(array):
        return array.extents[2]

    @staticmethod
    def on_host(array):
        return np.asarray(array.on_host())

    def attention(self, k, v, bias, scoring, _threads):
        return self._attended(_core.gpu_attention, (scoring,), k, v, bias)

    def attention_backward(self, grad_out, k, v, out, lse, bias, scoring, _threads, _like_bias, _grad_lse):
        return self._differentiated(_core.gpu_attention_backward, (scoring,), grad_out, k, v, out, lse, bias)

    def ring(self, k, v, bias, division, scoring, _kernel):
        return self._attended(_core.gpu_ring_forward, (division, scoring), k, v, bias)

    def ring_backward(self, grad_out, k, v, out, lse, bias, division, scoring, _like_bias, _grad_lse):
        return self._differentiated(_core.gpu_ring_backward, (division, scoring), grad_out, k, v, out, lse, bias)

    def _attended(self, function, how, k, v, bias):
        out, lse = self._new((*self.q.shape[:-1], v.shape[-1])), self._new(self.q.shape[:-1])
        function(*how, self._number, self.q, k, v, bias, self._as_gpu_array(out), self._as_gpu_array(lse))
        return Result(out, lse)

    def _differentiated(self, function, how, grad_out, k, v, out, lse, bias):
        new = [self._new(array.shape) for array in (self.q, k, v)] + [None if bias is None else self._new(bias.shape)]
        numbers = function(*how, self._number, grad_out, self.q, k, v, out, lse, bias, *map(self._as_gpu_array, new))
        return Gradients(*new, **_gradients_of_numbers(numbers))

    def _new(self, shape):
        """An array for a result."""
        if self._torch is None:
            return _core.GpuArray(shape, self.q.device, self._number)
        with self._torch.cuda.stream(self._stream):
            return self._torch.empty(shape, dtype=self._torch.float32, device=f"cuda:{self.q.device}")

    def _as_gpu_array(self, result):
        return result if result is None or self._torch is None else _core.GpuArray("a result", result, self._number)


def require_finite(arrays, **named):
    """Raises ValueError for NaN and infinity, except -inf in a bias. `named`: some of `arrays`."""
    for name, array in named.items():
        if array is None:
            continue
        array = arrays.on_host(array)
        wrong = ~np.isfinite(array)
        if name == "bias":
            wrong &= array != -np.inf
        if wrong.any():
            first = ", ".join(str(index) for index in np.argwhere(wrong)[0])
            raise ValueError(f"{name} has {np.count_nonzero(wrong)} elements that are NaN or infinite, "
                             f"the first at [{first}] of [B, H, S, D]")


def tile_of(same_bits):
    """The tokens per tile for the keyword `same_bits`; 0: no tiles."""
    if same_bits is False:
        return 0
    return _core.default_tile if same_bits is True else integer("same_bits", same_bits, 0, also=", the tokens of a tile, or True")


def scoring(keys, *, causal=False, window=None, documents=None, prefix=None, blocks=None, sink_tokens=None,
            global_tokens=None, chunk=None, intervals=None, alibi=False, scale=None, softcap=None,
            dropout=0.0, seed=0, sink=None, q_offset=None, same_bits=False):
    """The keywords of a call, checked, but for numbers that the call checks. `keys`: of the whole sequence, or None."""
    if softcap is not None and not 0 < softcap < np.inf:
        raise ValueError(f"softcap is {softcap}: it must be positive and finite, or None")
    made = _core.Scoring()
    made.causal, made.window, made.documents = bool(causal), window_of(window), documents_of(documents, keys)
    made.alibi = bool(alibi)
    made.scale, made.dropout = None if scale is None else float(scale), float(dropout)
    made.sink = [] if sink is None else np.asarray(sink, np.float64).tolist()
    made.seed = integer("seed", seed, 0, (1 << 64) - 1)
    set_intervals(made, prefix, blocks, sink_tokens, global_tokens, chunk, intervals)
    made.softcap, made.same_bits = softcap, tile_of(same_bits)
    made.q_offset = None if q_offset is None else integer("q_offset", q_offset, -FARTHEST, also=", or None")
    return made


def scoring_here(arrays, k, bias, positions, words):
    """The keywords of a call on one process, checked. positions: None, or (of the queries, of the keys)."""
    if positions is None:
        return scoring(arrays.tokens(k), **words)
    refuse_several_intervals(words, "attention with positions=")
    how = scoring(None, **words)
    both = [np.asarray(part) for part in positions]
    if not arrays.takes_positions or bias is not None or how.same_bits:
        raise ValueError("positions: they go neither with a bias, nor with same_bits, nor with arrays of a GPU")
    if [part.shape for part in both] != [(arrays.tokens(arrays.q),), (arrays.tokens(k),)] or any(
            part.size and not (are_positions(part) and part.min() >= 0) for part in both):
        raise ValueError("positions: give (of the queries, of the keys), one whole number from 0 on for each token of q and of k")
    how.positions, how.q_offset = tuple(part.tolist() for part in both), how.q_offset or 0
    return how


def takes_scoring(function):
    """The function, whose **words are keywords of `scoring`, with these in the signature that help() shows."""
    def keywords_of(kind):
        return [word for word in inspect.signature(kind).parameters.values() if word.kind is not word.VAR_KEYWORD]

    words = [word for word in keywords_of(scoring) if word.kind is word.KEYWORD_ONLY]
    function.__signature__ = inspect.signature(function).replace(parameters=keywords_of(function) + words)
    return function
