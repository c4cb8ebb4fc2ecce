"""Ranks whose messages MPI does not move: threads, a ProcessGroup of PyTorch, a communicator of any mpi4py.

The peers of a group have rank, size and, for the extension module (peers.hpp), send, receive, wait and unite. To begin a call,
they also have put(to, text) and take(source, seconds), which returns None when no text of `source` has come; withdraw(), after
which is_withdrawn() is true on all ranks; and fail(error), which ends what a rank has waited for in vain.
"""

from __future__ import annotations

import datetime
import os
import socket
import sys
import time
import zlib

import numpy as np

from . import _core
from ._exchange import run_ranks

_TAG = 0x5241  # of the messages of the package, if others travel in the same group
_ARRAYS, _TEXTS = 3, 4  # tags behind those of the library


def limit():
    """How many seconds a rank waits for the others."""
    text = os.environ.get("RING_ATTENTION_TIMEOUT", "60")
    try:
        seconds = float(text)
    except ValueError:
        seconds = float("nan")
    if not 0 < seconds < 1e9:
        raise ValueError(f"RING_ATTENTION_TIMEOUT is {text!r}: it must be a number of seconds above 0")
    return seconds


class GroupRanks(_core.Group):
    """The ranks of a group: the methods of _core.Ranks."""

    are_all = False

    def __init__(self, peers):
        super().__init__(peers)
        self._peers, self._begun = peers, False

    def begin(self, call, problem, news, timeout):
        """Returns what rank 0 announces, when all ranks make the same call and none has a problem; see Rendezvous of C++."""
        if self.is_apart:
            raise _core.Error(f"{call}: an earlier call failed on this rank, and the other ranks may still be in it. No further "
                              "call of all ranks is possible")
        try:
            verdict = (self._decide if self.rank == 0 else self._ask)(call, f"{call}\n{problem}", news, timeout)
        except BaseException:
            self.is_apart = True
            raise
        kind, text = verdict[0], verdict[1:]
        if kind == "r":
            raise _core.AgreedError(text)
        if kind == "l":
            self.is_apart = True
            raise TimeoutError(text)
        if not self._begun:
            self._begun = True
            self._share_cores()
        return text

    def _decide(self, call, mine, news, timeout):
        end, told = time.monotonic() + timeout, self.size == 1
        texts = [mine] + [None] * (self.size - 1)
        for wait_for in (min(timeout / 4, 0.05), timeout):
            for other in range(1, self.size):
                if texts[other] is None:
                    texts[other] = self._peers.take(other, min(wait_for, max(0.0, end - time.monotonic())))
            if None in texts and not told:
                told = True
                self._tell("h")  # rank 0 is here: the others wait for its verdict
        missing = [other for other, text in enumerate(texts) if text is None]
        if self._peers.is_withdrawn():
            missing = [0]
        verdict = "g" + news
        if missing:
            verdict = _late(call, missing, timeout)
        else:
            arrivals = [text.split("\n", 1) for text in texts]
            hindered = [(rank, problem) for rank, (_, problem) in enumerate(arrivals) if problem]
            other = [(rank, one) for rank, (one, _) in enumerate(arrivals) if one != call]
            if hindered:
                verdict = "rrank %d: %s" % hindered[0]
            elif other:
                verdict = f"rthe ranks disagree on the call: rank 0 has {call}, rank {other[0][0]} has {other[0][1]}"
        self._tell(verdict)
        return verdict

    def _tell(self, text):
        for other in range(1, self.size):
            self._peers.put(other, text)

    def _ask(self, call, mine, news, timeout):
        self._peers.put(0, mine)
        answer = self._peers.take(0, timeout)
        if answer == "h":
            answer = self._peers.take(0, timeout + 1)  # rank 0 gives up before this rank does
        if answer is None:
            self._peers.withdraw()
        return answer or _late(call, [0], timeout)

    def _share_cores(self):
        """The cores of this machine are shared out over its ranks."""
        hosts = np.zeros(self.size, np.uint32)
        hosts[self.rank] = zlib.crc32(socket.gethostname().encode()) or 1
        self._peers.unite(memoryview(hosts).cast("B"))
        self.share_cores(int((hosts == hosts[self.rank]).sum()))

    def _transfer(self, begin, array, other):
        try:
            self._peers.wait(begin(memoryview(array.reshape(-1).view(np.uint8)), other, _ARRAYS))
        except BaseException:
            self.is_apart = True
            raise

    def send(self, array, to):
        self._transfer(self._peers.send, array, to)

    def receive(self, array, source):
        self._transfer(self._peers.receive, array, source)

    def wait(self):
        """Nothing: arrays are in the memory of the host."""

    def trace(self, file):
        raise _core.AgreedError("trace: group= has none; mpirun and comm= have")


def _late(call, missing, timeout):
    return (f"l{call}: waited {timeout:g} s for rank {', '.join(map(str, missing))}, which did not make this call. All ranks make "
            "the same calls; a rank that needs longer needs a longer RING_ATTENTION_TIMEOUT")


def _stopped(peer, cause=""):
    return _core.Error(f"nothing came from rank {peer} for {limit():g} s: it has stopped, or is slower than "
                       f"RING_ATTENTION_TIMEOUT{cause and ': '}{cause}")


# ---- threads ---------------------------------------------------------------------------------------------------


class threads:
    """Ranks that are threads of this process, to try out a ring in a notebook: no MPI, no launcher.

        def work(group):  # group.rank, group.size
            mine = [x[:, ring_attention.positions(1000, group=group)] for x in (q, k, v)]
            return ring_attention.ring_attention(*mine, seq=1000, causal=True, group=group)

        results = ring_attention.threads(4).run(work)  # one for each rank
    """

    def __init__(self, size: int):
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"threads: the number of ranks is {size!r}: it must be at least 1")
        self.size = size

    def run(self, work):
        """Calls work(group) on each rank; returns what they return. The first error ends all of them, and is raised here."""
        return run_ranks(self.size, lambda rank, comm: work(ThreadPeers(comm)))


class ThreadPeers:
    """One of the threads. A message is a copy."""

    def __init__(self, comm):
        self._comm, self.rank, self.size = comm, comm.rank, comm.size
        self.group_ranks = None

    def send(self, memory, to, tag):
        self._comm.send(bytes(memory), to, tag)

    def receive(self, memory, source, tag):
        return memory, source, tag

    def wait(self, request):
        if request is not None:
            memory, source, tag = request
            message = self._comm.take(source, tag, limit())
            if message is None:
                raise _stopped(source)
            memory[:] = message

    def unite(self, memory):
        memory[:] = np.bitwise_or.reduce([np.frombuffer(one, np.uint8) for one in self._comm.allgather(bytes(memory))]).tobytes()

    def put(self, to, text):
        self._comm.send(text, to, _TEXTS)

    def take(self, source, seconds):
        return self._comm.take(source, _TEXTS, seconds)

    def withdraw(self):
        self._comm.send(True, 0, "withdrawn")

    def is_withdrawn(self):
        return any(self._comm.take(other, "withdrawn", 0) for other in range(self.size))


# ---- PyTorch ---------------------------------------------------------------------------------------------------


class TorchPeers:
    """The ranks of a ProcessGroup. Messages travel in a group of gloo of its own, apart from the user's."""

    def __init__(self, group):
        import torch
        import torch.distributed as dist

        self._torch, self._dist = torch, dist
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self._ranks = dist.get_process_group_ranks(group)
        self._group = dist.new_group(self._ranks, backend="gloo", use_local_synchronization=True,
                                     timeout=datetime.timedelta(seconds=limit()))
        self._store = dist.distributed_c10d._get_process_group_store(self._group)
        self._put, self._taken = [0] * self.size, [0] * self.size

    def _tensor(self, memory):
        return self._torch.frombuffer(memory, dtype=self._torch.uint8)

    def send(self, memory, to, tag):
        return to, self._dist.isend(self._tensor(memory), self._ranks[to], self._group, tag)

    def receive(self, memory, source, tag):
        return source, self._dist.irecv(self._tensor(memory), self._ranks[source], self._group, tag)

    def wait(self, request):
        peer, work = request
        try:
            work.wait(datetime.timedelta(seconds=limit()))
        except RuntimeError as error:
            raise _stopped(peer, str(error)) from None

    def unite(self, memory):
        tensor = self._tensor(memory)
        work = self._dist.all_reduce(tensor, self._dist.ReduceOp.BOR, self._group, async_op=True)
        self.wait(("of the group", work))

    def put(self, to, text):
        self._put[to] += 1
        self._store.set(f"{self.rank}>{to}:{self._put[to]}", text)

    def take(self, source, seconds):
        key = f"{source}>{self.rank}:{self._taken[source] + 1}"
        try:
            self._store.wait([key], datetime.timedelta(seconds=max(seconds, 0.001)))
        except RuntimeError:  # DistStoreError is one
            return None
        self._taken[source] += 1
        text = self._store.get(key).decode()
        self._store.delete_key(key)
        return text

    def withdraw(self):
        self._store.set("withdrawn", "1")

    def is_withdrawn(self):
        return self._store.check(["withdrawn"])


# ---- mpi4py ----------------------------------------------------------------------------------------------------


class MpiPeers:
    """The ranks of a communicator of mpi4py, of any MPI: messages are mpi4py's own calls."""

    def __init__(self, comm):
        self._mpi = sys.modules["mpi4py.MPI"]
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self._comm, request = comm.Idup()
        self._sent = []
        if not self._poll(request.Test, limit()):
            raise TimeoutError(f"waited {limit():g} s for all ranks of group, whose first call this is: at least one is missing")

    @staticmethod
    def _poll(done, seconds):
        end, calls = time.monotonic() + seconds, 0
        while not done():
            calls += 1
            if calls > 100:
                time.sleep(2e-5)
            if time.monotonic() > end:
                return False
        return True

    def send(self, memory, to, tag):
        return to, self._comm.Isend([memory, self._mpi.BYTE], to, tag)

    def receive(self, memory, source, tag):
        return source, self._comm.Irecv([memory, self._mpi.BYTE], source, tag)

    def wait(self, request):
        peer, message = request
        if self._poll(message.Test, limit()):
            return
        # MPI still uses the memory of this call, which cannot be left.
        print(f"[rank {self.rank}] error: {_stopped(peer)}", file=sys.stderr, flush=True)
        time.sleep(0.2)
        self._mpi.COMM_WORLD.Abort(3)  # MPICH 4.0 hangs in that of a duplicate

    def unite(self, memory):
        self.wait(("of the group", self._comm.Iallreduce(self._mpi.IN_PLACE, [memory, self._mpi.BYTE], self._mpi.BOR)))

    def put(self, to, text):
        self._sent = [one for one in self._sent if not one.Test()]
        self._sent.append(self._comm.isend(text, to, _TEXTS))

    def take(self, source, seconds):
        if not self._poll(lambda: self._comm.iprobe(source, _TEXTS), seconds):
            return None
        return self._comm.recv(source=source, tag=_TEXTS)

    def withdraw(self):
        self._sent.append(self._comm.isend("withdrawn", 0, _TEXTS + 1))

    def is_withdrawn(self):
        return self._comm.iprobe(tag=_TEXTS + 1)


_known = {}  # of PyTorch's groups


def ranks_of(group):
    """The GroupRanks of what a user gives as group=. The first call makes them, which is collective."""
    if isinstance(group, ThreadPeers):
        group.group_ranks = group.group_ranks or GroupRanks(group)
        return group.group_ranks
    torch, mpi = sys.modules.get("torch"), sys.modules.get("mpi4py.MPI")
    if torch is not None and torch.distributed.is_available():
        if isinstance(group, torch.distributed.DeviceMesh):
            if group.ndim != 1:
                raise TypeError(f"group is a DeviceMesh of {group.ndim} dimensions: give one of them, as mesh[\"cp\"]")
            group = group.get_group()
        if isinstance(group, torch.distributed.ProcessGroup):
            if group not in _known:
                _known[group] = GroupRanks(TorchPeers(group))
            return _known[group]
    if mpi is not None and isinstance(group, mpi.Intracomm):
        return _attached(group, mpi)
    raise TypeError(f"group is {type(group).__name__}: it must be a ProcessGroup or a dimension of a DeviceMesh of "
                    "torch.distributed, an intracommunicator of mpi4py, or what ring_attention.threads() gives a rank")


def _attached(comm, mpi):
    """comm.Free() forgets them."""
    if mpi not in _known:
        _known[mpi] = mpi.Comm.Create_keyval()
    ranks = comm.Get_attr(_known[mpi])
    if ranks is None:
        ranks = GroupRanks(MpiPeers(comm))
        comm.Set_attr(_known[mpi], ranks)
    return ranks
