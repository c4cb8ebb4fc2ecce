"""`diagnose`: what is wrong with a user's own attention over several ranks."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools

import numpy as np
import ring_attention_diagnose

from . import _core, _exchange, _own_job, _rank_processes
from ._ranks import _PARALLEL, _PLACEMENTS, _require_word

RESULTS = ("out", "lse", "dq", "dk", "dv")
MORE_RESULTS = ("dbias", "dsinks")  # of the cases with a bias, or with sinks


@dataclasses.dataclass(frozen=True)
class Case:
    """A small problem, as the function gets it on one rank. The names are those of cases.json (docs/diagnose.md).

    Arrays are like q: NumPy or PyTorch, and of its type.
    """

    name: str
    tests: str  #: what it adds to the cases before it
    heads: int
    kv_heads: int  #: a query of head h uses the K,V of head h // (heads // kv_heads)
    tokens: int  #: on all ranks together
    dim: int  #: of q and k; `value_dim` is that of v
    scale: float
    causal: bool
    tokens_of_rank: list[list[int]]  #: positions, in the order of the rank's memory
    rank: int
    ranks: int
    positions: list[int]  #: tokens_of_rank[rank]: the positions of this rank's q, k, v and dout
    dout: object  #: like q: the gradients are those of sum(out * dout) over all ranks; None of decoding
    comm: object  #: `group`, or the communicator of the ranks that were started; None for whole arrays
    queries: int = 0  #: where there are more keys than queries: all queries, the first of which is at `first_query`
    first_query: int = 0
    queries_of_rank: list[list[int]] | None = None  #: of each rank's q: places among the queries, from 0
    batch: int = 1
    value_dim: int = 0  #: columns of v and of out; 0: dim
    window: int | None = None  #: how many keys a query sees: its own and the ones before it
    block: list[int] | None = None  #: begin and end of tokens that see each other, also those after their own position
    sink_tokens: int = 0  #: how many keys at the start later queries see also behind the window
    cu_seqlens: list[int] | None = None  #: where packed documents begin, and where the last one ends
    hidden_keys: int = 0  #: how many keys at the start are padding that no query sees
    alibi_slopes: object = None  #: one per head; the bias is -slope |position of the key - position of the query|
    softcap: float = 0  #: a product x = scale q.k becomes softcap * tanh(x / softcap), before the bias; 0: it stays
    bias: object = None  #: [1, heads, tokens of this rank, tokens]: a row for each query here, a column for each key
    query_position: int | None = None  #: of decoding: q is one query, the same on every rank, at this position
    sinks: object = None  #: one logit per head, which takes part in the softmax and has no value


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What `diagnose` found."""

    right: bool  #: up to the rounding of the type of the numbers
    report: str  #: the text of `ring-attention diagnose`
    json: dict  #: the object of `ring-attention diagnose --json`

    def __bool__(self):
        return self.right

    def __str__(self):
        return self.report

    def assert_right(self) -> None:
        """Raises AssertionError with the report unless the results are right."""
        __tracebackhide__ = True  # pytest shows the caller
        if not self.right:
            raise AssertionError("\n" + self.report)


class _NumPy:
    """NumPy arrays, which have no gradients of their own."""

    def __init__(self, dtype):
        self._dtype = np.dtype(dtype)

    def array(self, array, requires_grad=False):
        return np.ascontiguousarray(array, self._dtype)

    def gradients(self, named, inputs, dout):
        return {}

    @staticmethod
    def on_host(array):
        return np.array(array, np.float64, order="C")  # a copy: the function may use its buffers again


class _Torch:
    """PyTorch tensors."""

    def __init__(self, dtype, device):
        import torch

        self._torch = torch
        self._dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
        self._device = device

    def array(self, array, requires_grad=False):
        tensor = self._torch.from_numpy(np.ascontiguousarray(array)).to(self._device, self._dtype)
        return tensor.requires_grad_(requires_grad)

    def gradients(self, named, inputs, dout):
        """The gradients by autograd, if out has a graph. They are zero for an input on which out does not depend."""
        out = named.get("out")
        if out is None or not out.requires_grad:
            return {}
        found = self._torch.autograd.grad(out, inputs, _in_order_of(dout, out.shape).to(out.dtype), allow_unused=True)
        return {name: self._torch.zeros_like(of) if gradient is None else gradient
                for name, of, gradient in zip(("dq", "dk", "dv"), inputs, found)}

    def on_host(self, tensor):
        return _NumPy.on_host(self._torch.as_tensor(tensor).detach().to("cpu", self._torch.float64).numpy())


def _in_order_of(dout, shape):
    """dout [1, H, S, D] with its axes in the order of an out of this shape."""
    extents = [extent for extent in shape if extent != 1]
    for order in itertools.permutations(range(4)):
        turned = dout.permute(order)
        if [extent for extent in turned.shape if extent != 1] == extents:
            return turned.reshape(shape)
    by_token = dout.transpose(1, 2).flatten(2)
    if extents == [extent for extent in by_token.shape if extent != 1]:
        return by_token.reshape(shape)
    raise ValueError(f"out is {list(shape)}: it must have the axes of {list(dout.shape)}, in any order")


def _named(returned):
    """What the function returned, by name."""
    if not isinstance(returned, (dict, tuple, list)):
        returned = (returned,)
    if not isinstance(returned, dict):
        if len(returned) not in (1, 2, 5):
            raise ValueError(f"the function returned {len(returned)} things: it must return out, or (out, lse), or "
                             "(out, lse, dq, dk, dv), or a dict with these names")
        returned = dict(zip(RESULTS, returned))
    unknown = set(returned) - {*RESULTS, *MORE_RESULTS}
    if unknown:
        raise ValueError(f"the function returned {', '.join(sorted(map(str, unknown)))}: the names are {', '.join(RESULTS)}")
    return {name: array for name, array in returned.items() if array is not None}


@contextlib.contextmanager
def _input_errors():
    """One type for all errors of this package."""
    try:
        yield
    except ring_attention_diagnose.InputError as error:
        raise _core.InputError(str(error)) from None


@functools.lru_cache(maxsize=1)
def _problems(job):
    with _input_errors():
        return ring_attention_diagnose.problems_of(*job)


@dataclasses.dataclass(frozen=True)
class _Work:
    """The work of every rank. It is sent to ranks that are processes."""

    function: object
    job: tuple  # the arguments of problems_of
    library: str  # "numpy" or "torch"
    dtype: object
    device: object
    gradients: bool

    def names(self):
        return [problem.case.name for problem in _problems(self.job)]

    def __call__(self, rank, comm):
        """Yields the results for each case."""
        for number, _ in enumerate(self.names()):
            yield self.results(number, rank, comm)

    def results(self, number, rank, comm):
        """{"out": float64 array, ...} of one rank for one case."""
        problem = _problems(self.job)[number]
        words = {**problem.description(), "name": problem.case.name}
        try:
            return self._run(words, problem.inputs(), rank, comm)
        except _exchange.StoppedError:
            raise
        except (Exception, SystemExit) as error:
            raise RuntimeError(f"rank {rank} failed in the case {words['name']}: {type(error).__name__}: {error}") from error

    def _run(self, words, arrays, rank, comm):
        kind = _Torch(self.dtype, self.device) if self.library == "torch" else _NumPy(self.dtype)
        here = list(range(words["tokens"])) if comm is None else words["tokens_of_rank"][rank]
        for name in ("alibi_slopes", "sinks"):
            if name in words:
                words[name] = kind.array(np.array(words[name]))
        if "bias" in arrays:
            words["bias"] = kind.array(arrays["bias"][:, :, here])
        decodes = "query_position" in words
        rows = [0] if decodes else here
        if "queries" in words:
            rows = list(range(words["queries"])) if comm is None else words["queries_of_rank"][rank]
        inputs = [kind.array(arrays[name][:, :, rows if name == "q" else here], self.gradients and not decodes) for name in "qkv"]
        dout = None if decodes else kind.array(arrays["dout"][:, :, rows])
        case = Case(rank=rank, ranks=len(words["tokens_of_rank"]), positions=here, dout=dout, comm=comm, **words)
        named = _named(self.function(*inputs, case))
        if self.gradients and not decodes and not {"dq", "dk", "dv"} & set(named):
            named.update(kind.gradients(named, inputs, dout))
        return {name: kind.on_host(array) for name, array in named.items()}

    def _type_of_q(self):
        return self.dtype if isinstance(self.dtype, str) or self.library == "torch" else np.dtype(self.dtype).name

    def judged(self, of_ranks):
        """The Diagnosis of the results of each rank for each case."""
        given = []
        for number, name in enumerate(self.names()):
            pieces = {}
            for array in RESULTS + MORE_RESULTS:
                have = [rank for rank, results in enumerate(of_ranks) if array in results[number]]
                if have and len(have) < len(of_ranks):
                    without = next(rank for rank in range(len(of_ranks)) if rank not in have)
                    raise ValueError(f"rank {without} returned no {array} in the case {name}, and rank {have[0]} did")
                if have:
                    pieces[array] = [(f"{array} of rank {rank} in the case {name}", results[number][array])
                                     for rank, results in enumerate(of_ranks)]
            given.append(pieces)
        with _input_errors():
            return Diagnosis(*ring_attention_diagnose.judged(_problems(self.job), given, dtype=self._type_of_q()))


def diagnose(function, *, ranks=None, placement="contiguous", parallel="ring", ulysses=1, group=None, backend=None,
             whole=False, only=None, dtype="float32", device=None, gradients=True, seed=1, tokens=0, heads=0, dim=16,
             block=1) -> Diagnosis:
    """What is wrong with an attention that several ranks share: runs it on small problems and names its mistake.

    function(q, k, v, case) is called once per rank for each case, with the rank's tokens: q [batch, heads, tokens, dim],
    k and v [batch, kv_heads, tokens, dim]; batch is 1 but in the case of that name. `case`, a Case, has the mask, the
    scale, the positions, and `comm` for the messages.
    The function returns out, or (out, lse), or (out, lse, dq, dk, dv), or a dict with these names, for this rank's
    tokens and with the axes in any order; a dict may have dbias and dsinks as well. If out is a tensor that
    requires grad, autograd computes the gradients of q, k and v.

    ranks      how many; default 3, or the number of ranks in the group
    placement  which tokens a rank holds: "contiguous", "striped" or "zigzag"; or a function of your own, which takes a dict
               with name, ranks, tokens and, of packed documents, cu_seqlens, and returns the positions of each rank's tokens
    parallel   how the ranks divide the work: "ring", "ulysses", "hybrid" (of `ulysses` ranks that share heads) or
               "all-gather"
    backend    None: the ranks are threads of this process, with NumPy arrays; case.comm has send, recv, sendrecv, alltoall,
               allgather, bcast and barrier, with arguments as in mpi4py. "gloo": the ranks are processes with
               torch.distributed and tensors, and case.comm is the ProcessGroup. The function must then be defined at the
               top level of a module, and a script needs if __name__ == "__main__":
    group      the ranks of your own job instead: a ProcessGroup of torch.distributed, or a communicator of mpi4py, whose
               ranks all make this call. case.comm is the group. Each rank gets the same result
    whole      True: one process computes for all ranks, as JAX does with several devices. The function is called once for
               each case, with whole NumPy arrays in the order of positions, and returns whole arrays
    only       the names of the cases that the function supports, "full,causal" or a list; default all but decode
    dtype      of q, k, v: "float32", "float64", "float16", "bfloat16" (of PyTorch), or a type of NumPy or PyTorch
    device     of tensors; default the CPU
    gradients  False: the forward alone
    seed       of the arrays
    tokens, heads, dim   of the cases; 0: as few as show the mistakes
    block      divides the tokens of a rank, and of half a rank: for kernels that take whole blocks

    The first case of each pass is run twice: results that differ are a race, and a verdict of their own.

    If the function fails on one rank, diagnose raises a RuntimeError that names the rank and the case, and ranks that it
    started end. In a job of your own the other ranks get the same error; if they wait for a message from the rank that
    failed, the job ends after RING_ATTENTION_TIMEOUT seconds (environment variable; default 60).
    """
    if not callable(placement):
        _require_word("placement", placement, _PLACEMENTS)
    _require_word("parallel", parallel, _PARALLEL)
    if (group is not None) + (backend is not None) + bool(whole) > 1:
        raise ValueError("group, backend and whole are three ways to run the ranks: give one of them")
    if backend not in (None, "gloo"):
        raise ValueError(f"backend is {backend!r}: only \"gloo\" is started; for others give the group of your own job")
    if ranks is not None and ranks < 1:
        raise ValueError(f"ranks is {ranks}: it must be at least 1")
    own = None if group is None else _own_job.group_of(group)
    try:
        if ranks is None:
            ranks = 3 if own is None else own.size
        names = only if isinstance(only, str) else tuple(only or ())
        library = own.library if own else "torch" if backend else "numpy"
        work = _Work(function, (int(ranks), placement, parallel, int(ulysses), names, int(seed), None, int(tokens),
                                int(heads), int(dim), int(block)), library, dtype,
                     device or "cpu", bool(gradients))
        if own is not None:
            return _own_job.run(work, own, group)
        if backend is not None:
            return work.judged(_rank_processes.run_ranks(ranks, work, work.names()))
        if whole:
            return work.judged([list(work(0, None))])
        by_case = [_exchange.run_ranks(ranks, functools.partial(work.results, number)) for number, _ in enumerate(work.names())]
        return work.judged(list(zip(*by_case)))
    finally:
        if own is not None:
            own.free()
