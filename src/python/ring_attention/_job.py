"""The job that the ranks are in: its begin, its end, and what all ranks agree on before a call."""

from __future__ import annotations

import atexit
import sys
import threading
import time

from . import _core, _groups
from ._masks import with_keywords
from ._meeting import Meeting, limit

_started = False
_met = False  # have all ranks of the job?
_prints = True  # does this rank print an error that all ranks of its latest call have?


class MpiRanks(_core.MpiRanks, Meeting):
    """The ranks of the communicator whose handle is at an address; None: all ranks of the job."""

    one_call = threading.Lock()  # GroupRanks have one each: MPI takes calls of one thread


def _start():
    """Starts MPI at the first call that needs it; it ends with the process."""
    global _started
    if _started:
        return
    _core.start(limit())
    _started = True
    atexit.register(_finish)
    if MpiRanks(None).size > 1:
        before = sys.excepthook
        sys.excepthook = lambda kind, value, trace: _end_job(before, kind, value, trace)


def _finish():
    """Ends MPI. If a call has failed on this rank alone, ends all ranks, because MPI would wait for them."""
    if _core.is_apart():
        print(f"[rank {rank()}] error: a call failed on this rank and perhaps not on the others: this ends all ranks",
              file=sys.stderr)
        _abort()
    _core.finish()


def _abort():
    sys.stdout.flush()
    sys.stderr.flush()
    time.sleep(0.2)  # the launcher may lose what it has not read
    _core.abort(1)


def _end_job(before, kind, value, trace):
    """An exception that nothing catches ends all ranks: the others would wait for this one."""
    if not issubclass(kind, _core.AgreedError) or _prints:
        before(kind, value, trace)
    _abort()


def _address_of(comm):
    """The address of the MPI_Comm of a communicator of mpi4py."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not isinstance(comm, mpi.Comm) or mpi._sizeof(comm) != _core.handle_bytes:
        raise TypeError(f"comm is {type(comm).__name__}: it must be a communicator of an mpi4py that uses the MPI of "
                        "ring_attention")
    return mpi._addressof(comm)


def ranks_of(comm, group=None):
    """The ranks of the job, of a communicator of mpi4py, or of a group. Starts MPI, except for a group.

    The first call for the ranks of the job waits until all of them make it.
    """
    global _met
    if group is not None:
        if comm is not None:
            raise TypeError("comm and group: give one of them")
        return _groups.ranks_of(group)
    _start()
    ranks = MpiRanks(None if comm is None else _address_of(comm))
    if ranks.are_all and not _met:
        _core.meet(limit())
        _met = True
    return ranks


def _require_no_group():
    """The ranks of the job are those of MPI: a job of torch.distributed has its ranks by group= only."""
    torch = sys.modules.get("torch.distributed")
    if torch is not None and torch.is_available() and torch.is_initialized() and torch.get_world_size() > 1:
        raise ValueError(f"group: it is missing: torch.distributed has {torch.get_world_size()} ranks and MPI has 1. Give "
                         "group=torch.distributed.group.WORLD, or another group of this rank")


class calling:
    """The ranks of a call, for a `with` block that is the whole call."""

    __slots__ = ("_ranks",)

    def __init__(self, comm, group):
        self._ranks = ranks_of(comm, group)
        if comm is group is None and self._ranks.size == 1:
            _require_no_group()

    def __enter__(self):
        if not self._ranks.one_call.acquire(blocking=False):
            raise _groups.two_threads()
        return self._ranks

    def __exit__(self, kind, error, _trace):
        self._ranks.one_call.release()
        if kind is _core.AgreedError and "mask." in str(error):
            raise kind(with_keywords(str(error))) from None


def rank(comm=None, group=None) -> int:
    """The number of this rank, 0 .. size() - 1, in the job, in `comm` or in `group`. Starts MPI, except with `group`."""
    return ranks_of(comm, group).rank


def size(comm=None, group=None) -> int:
    """The number of ranks of the job, 1 without a launcher, of `comm` or of `group`. Starts MPI, except with `group`."""
    return ranks_of(comm, group).size


def prepare_together(ranks, call, prepare, news=lambda prepared: ""):
    """Returns prepare(), and news(prepare()) of rank 0. If prepare fails on one rank, or the ranks make different calls, all
    raise AgreedError.

    Raises TimeoutError if a rank does not make a call.
    """
    global _prints
    _prints = ranks.rank == 0 or isinstance(ranks, _groups.GroupRanks)
    prepared, problem, announced, timeout = None, "", "", 60.0
    try:
        timeout = limit()
        prepared = prepare()
        announced = news(prepared)
    except Exception as error:  # also those of another package's __dlpack__
        problem = str(error) or type(error).__name__
    return prepared, ranks.begin(call, problem, announced, timeout)
