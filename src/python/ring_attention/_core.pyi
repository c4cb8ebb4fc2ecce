"""The extension module: arrays have four dimensions, are C-contiguous and of one type, float32 or float64."""

from collections.abc import Buffer, Callable, Sequence
from typing import overload

__version__: str
default_tile: int
handle_bytes: int  #: the size of an MPI_Comm

class Error(RuntimeError): ...
class InputError(ValueError): ...
class AgreedError(InputError): ...

class Array(Buffer):
    """A result: numpy.asarray takes it without a copy."""

class GpuArray:
    """An array in the memory of a GPU. `stream`: DLPack's number of the call's stream."""

    @overload
    def __init__(self, name: str, array: object, stream: int, /) -> None: ...
    @overload
    def __init__(self, shape: Sequence[int], device: int, stream: int, /) -> None: ...
    shape: tuple[int, ...]
    extents: tuple[int, int, int, int]
    type: str
    device: int
    is_contiguous: bool
    def on_host(self) -> Array: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(self, *, stream: int | None = None, **versions: object) -> object: ...

class Scoring:
    """The keywords that `_arrays.scoring` takes, as attributes; positions (of queries, of keys) on one process."""

    def __setattr__(self, word: str, value: object, /) -> None: ...

class Placement:
    """Which tokens each rank holds, as ranges: what balanced() returns."""

    seq: int
    ranks: int
    pieces: int  # of the sequence, of which each rank has whole ones: tokens, or the tiles of the same bits
    def __init__(self, shards: Sequence[Sequence[tuple[int, int]]], pieces: int = 0) -> None: ...
    def ranges(self, rank: int, /) -> list[tuple[int, int]]: ...

def balanced(seq: int, ranks: int, scoring: Scoring, /) -> Placement: ...

class Caller:
    """The ranks that make a call."""

    rank: int
    size: int

    def token_ranges(self, seq: int, placement: str | Placement, parallel: str, ulysses: int, rank: int, tile: int,
                     documents: list[int] | None, offset: int, /) -> list[tuple[int, int, int]]: ...
    def trace(self, file: str, /) -> None: ...
    def end_trace(self, /) -> None: ...
    def drop_trace(self, /) -> None: ...

class Group(Caller):
    """Ranks whose messages an object moves: send, receive, wait and unite of _peers.py."""

    is_apart: bool  #: a call has ended on this rank and perhaps not on another

    def __init__(self, peers: object, /) -> None: ...
    def share_cores(self, ranks: int, /) -> None: ...

class Ranks(Caller):
    """The ranks of the communicator whose handle is at `address`; None: all ranks of the job."""

    are_all: bool

    def __init__(self, address: int | None, /) -> None: ...
    def begin(self, call: str, problem: str, news: str, timeout: float, /) -> str:
        """Returns the news of rank 0. Raises AgreedError, or TimeoutError if a rank is missing after `timeout` seconds."""
    def send(self, array: Buffer, to: int, /) -> None: ...
    def receive(self, array: Buffer, source: int, /) -> None: ...
    def wait(self, /) -> None: ...

class Division:
    """How the ranks divide a sequence of `queries` tokens and one of `keys` tokens."""

    def __init__(self, ranks: Caller, queries: int, keys: int, placement: str | Placement, parallel: str, ulysses: int,
                 transport: str, threads: int, timeout: float, scoring: Scoring, sum_numbers: bool, /) -> None: ...

_Kernel = Callable[[Array, Array, Array, Array | None, float], tuple[Buffer, Buffer]]
_Numbers = dict[str, list[float]]  #: the gradients of numbers
_Gradients = tuple[Array, Array, Array, Array, _Numbers]

def attention(q: Buffer, k: Buffer, v: Buffer, scoring: Scoring, bias: Buffer | None, threads: int,
              /) -> tuple[Array, Array]: ...
def attention_backward(grad_out: Buffer, q: Buffer, k: Buffer, v: Buffer, out: Buffer, lse: Buffer, scoring: Scoring,
                       bias: Buffer | None, threads: int, grad_lse: Buffer | None, /) -> _Gradients: ...
# For arrays of a GPU, only where has_gpu. The results are written to arrays that the caller passes.
has_gpu: bool
_Maybe = GpuArray | None
def gpu_attention(scoring: Scoring, stream: int, q: GpuArray, k: GpuArray, v: GpuArray, bias: _Maybe, out: GpuArray,
                  lse: GpuArray, /) -> None: ...
def gpu_attention_backward(scoring: Scoring, stream: int, grad_out: GpuArray, q: GpuArray, k: GpuArray, v: GpuArray,
                           out: GpuArray, lse: GpuArray, bias: _Maybe, grad_q: GpuArray, grad_k: GpuArray,
                           grad_v: GpuArray, grad_bias: _Maybe, /) -> _Numbers: ...
def gpu_ring_forward(division: Division, scoring: Scoring, stream: int, q: GpuArray, k: GpuArray, v: GpuArray,
                     bias: _Maybe, out: GpuArray, lse: GpuArray, /) -> None: ...
def gpu_ring_backward(division: Division, scoring: Scoring, stream: int, grad_out: GpuArray, q: GpuArray, k: GpuArray,
                      v: GpuArray, out: GpuArray, lse: GpuArray, bias: _Maybe, grad_q: GpuArray, grad_k: GpuArray,
                      grad_v: GpuArray, grad_bias: _Maybe, /) -> _Numbers: ...

def start(timeout: float, /) -> None: ...
def meet(timeout: float, /) -> None:
    """All ranks of the job wait for each other."""
def finish() -> None: ...
def is_apart() -> bool: ...
def abort(code: int, /) -> None: ...
def ring_forward(q: Buffer, k: Buffer, v: Buffer, division: Division, scoring: Scoring, bias: Buffer | None,
                 kernel: _Kernel | None, /) -> tuple[Array, Array]: ...
def ring_backward(grad_out: Buffer, q: Buffer, k: Buffer, v: Buffer, out: Buffer, lse: Buffer, division: Division,
                  scoring: Scoring, bias: Buffer | None, grad_lse: Buffer | None, /) -> _Gradients: ...
