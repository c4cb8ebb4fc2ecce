"""Calls of ranks whose messages MPI does not move."""

from __future__ import annotations

import atexit
import contextlib
import operator
import socket
import sys
import threading
import zlib

import numpy as np

from . import _core
from ._exchange import run_ranks
from ._meeting import Meeting
from ._peers import ARRAYS, MpiPeers, ThreadPeers, TorchPeers


class GroupRanks(Meeting, _core.PeerRanks):
    """The ranks of a group: the methods of MpiRanks."""

    are_all = False

    def __init__(self, peers):
        super().__init__(peers)
        self._peers, self._begun, self.one_call = peers, False, threading.Lock()
        self.are_threads = getattr(peers, "are_threads", False)
        self.send_text, self.receive_text = peers.send_text, peers.receive_text
        self.withdraw, self.is_withdrawn = peers.withdraw, peers.is_withdrawn

    def begun(self):
        if not self._begun:
            self._begun = True
            self._share_cores()

    def _share_cores(self):
        """The cores of this machine are shared out over its ranks."""
        hosts = np.zeros(self.size, np.uint32)
        hosts[self.rank] = zlib.crc32(socket.gethostname().encode()) or 1
        self._peers.unite(memoryview(hosts).cast("B"))
        self.share_cores(int((hosts == hosts[self.rank]).sum()))

    def _transfer(self, begin, array, other):
        if array.size == 0:
            return
        try:
            self._peers.wait(begin(memoryview(array.reshape(-1).view(np.uint8)), other, ARRAYS))
        except BaseException:
            self.set_apart()
            raise

    def send(self, array, to):
        self._transfer(self._peers.send, array, to)

    def receive(self, array, source):
        self._transfer(self._peers.receive, array, source)

    def free(self):
        """The user has freed the communicator."""
        if not self.is_apart:  # apart: a message may still be under way
            _of_mpi.discard(self)
            self._peers.free()


class threads:
    """Ranks that are threads of this process, to try out a ring in a notebook: no MPI, no launcher.

        def work(group):  # group.rank, group.size
            mine = [x[:, ring_attention.positions(1000, group=group)] for x in (q, k, v)]
            return ring_attention.ring_attention(*mine, seq=1000, causal=True, group=group)

        results = ring_attention.threads(4).run(work)  # one for each rank
    """

    def __init__(self, size: int):
        self.size = operator.index(size)
        if self.size < 1:
            raise ValueError(f"threads: the number of ranks is {size!r}: it must be at least 1")

    def run(self, work):
        """Calls work(group) on each rank; returns what they return. The first error ends all, and is raised here."""

        def of_rank(_, comm):
            peers = ThreadPeers(comm)
            peers.group_ranks = GroupRanks(peers)  # before a second thread could
            try:
                return work(peers)
            finally:
                peers.group_ranks = None  # else they keep each other

        return run_ranks(self.size, of_rank)


_known = {}  # of PyTorch's groups
_making = {}
_of_mpi = set()  # the GroupRanks of communicators of mpi4py


@contextlib.contextmanager
def _one_makes(group):
    """One thread makes the ranks of a group: all ranks make them together."""
    mark = object()
    if _making.setdefault(id(group), mark) is not mark:
        raise two_threads()
    try:
        yield
    finally:
        del _making[id(group)]


def two_threads():
    return _core.Error("another thread of this rank is in a call of these ranks. All ranks make the same calls in the same order: "
                       "make them in one thread, or give each thread a group of its own")


def ranks_of(group):
    """The GroupRanks of what a user gives as group=. The first call makes them, which is collective."""
    if isinstance(group, ThreadPeers):
        group.group_ranks = group.group_ranks or GroupRanks(group)
        return group.group_ranks
    torch, mpi = sys.modules.get("torch"), sys.modules.get("mpi4py.MPI")
    if torch is not None and torch.distributed.is_available():
        mesh = getattr(torch.distributed, "DeviceMesh", None)  # since PyTorch 2.2
        if mesh is not None and isinstance(group, mesh):
            if group.ndim != 1:
                raise TypeError(f"group is a DeviceMesh of {group.ndim} dimensions: give one of them, as mesh[\"cp\"]")
            group = group.get_group()
        if isinstance(group, torch.distributed.ProcessGroup):
            ranks = _known.get(group)
            if ranks is None:
                with _one_makes(group):
                    ranks = _known[group] = _known.get(group) or GroupRanks(TorchPeers(group))
            return ranks
    if mpi is not None and isinstance(group, mpi.Intracomm):
        return _attached(group, mpi)
    raise TypeError(f"group is {type(group).__name__}: it must be a ProcessGroup or a dimension of a DeviceMesh of "
                    "torch.distributed, an intracommunicator of mpi4py, or what ring_attention.threads() gives a rank")


def _attached(comm, mpi):
    """comm.Free() frees them."""
    if mpi not in _known:
        _known[mpi] = mpi.Comm.Create_keyval(delete_fn=lambda _comm, _key, ranks: ranks.free())
        atexit.register(_leave, mpi)
        mpi.COMM_SELF.Set_attr(mpi.Comm.Create_keyval(delete_fn=lambda *_: _leave(mpi)), True)  # a user's own MPI.Finalize()
    ranks = comm.Get_attr(_known[mpi])
    if ranks is None:
        with _one_makes(comm):
            ranks = GroupRanks(MpiPeers(comm))
            comm.Set_attr(_known[mpi], ranks)
            _of_mpi.add(ranks)
    return ranks


def _leave(mpi):
    """After a call that has failed on this rank, MPI_Finalize may wait without end for a rank that has stopped."""
    if (MpiPeers.kept or any(ranks.is_apart for ranks in _of_mpi)) and not mpi.Is_finalized():
        MpiPeers.end_job(mpi.COMM_WORLD.rank, "a call failed on this rank and perhaps not on the others: this ends all ranks")
