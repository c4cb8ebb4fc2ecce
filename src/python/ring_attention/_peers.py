"""What moves the messages of ranks where MPI does not: threads, a ProcessGroup of PyTorch, a communicator of any mpi4py.

Peers have rank, size and, for the extension module (peers.hpp), send, receive, wait and unite; to begin a call, they also have
send_text, receive_text, withdraw and is_withdrawn (_meeting.py).
"""

from __future__ import annotations

import datetime
import sys
import time

import numpy as np

from . import _core
from ._meeting import limit

ARRAYS, _TEXTS = 3, 4  # tags behind those of the library


def _stopped(whom, cause=""):
    return _core.Error(f"nothing came from {whom}: it has stopped, or is slower than RING_ATTENTION_TIMEOUT "
                       f"({limit():g} s){cause and ': '}{cause}")


class ThreadPeers:
    """One of the threads. A message is a copy."""

    are_threads = True

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
            message = self._comm.poll(source, tag, limit())
            if message is None:
                raise _stopped(f"rank {source}")
            memory[:] = message

    def unite(self, memory):
        others = [rank for rank in range(self.size) if rank != self.rank]
        for rank in others:
            self._comm.send(bytes(memory), rank, "united")
        whole = np.frombuffer(memory, np.uint8)
        for rank in others:
            message = self._comm.poll(rank, "united", limit())
            if message is None:
                raise _stopped(f"rank {rank}")
            np.bitwise_or(whole, np.frombuffer(message, np.uint8), out=whole)

    def send_text(self, to, text):
        self._comm.send(text, to, _TEXTS)

    def receive_text(self, source, seconds):
        return self._comm.poll(source, _TEXTS, seconds)

    def withdraw(self):
        self._comm.send(True, 0, "withdrawn")

    def is_withdrawn(self):
        return any(self._comm.poll(other, "withdrawn", 0) for other in range(self.size))


# ---- PyTorch ---------------------------------------------------------------------------------------------------


class TorchPeers:
    """The ranks of a ProcessGroup. Messages travel in a group of gloo of its own, apart from the user's."""

    def __init__(self, group):
        import torch
        import torch.distributed as dist

        self._torch, self._dist = torch, dist
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        # Not new_group(): its ranks have to agree on how many groups each of them has made before.
        self._store = dist.PrefixStore("ring_attention", dist.distributed_c10d._get_process_group_store(group))
        self._group = dist.ProcessGroupGloo(self._store, self.rank, self.size, datetime.timedelta(seconds=limit()))
        self._texts_sent, self._texts_taken = [0] * self.size, [0] * self.size

    def _tensor(self, memory):
        return self._torch.frombuffer(memory, dtype=self._torch.uint8)

    def send(self, memory, to, tag):
        return f"rank {to}", self._group.send([self._tensor(memory)], to, tag)

    def receive(self, memory, source, tag):
        return f"rank {source}", self._group.recv([self._tensor(memory)], source, tag)

    def wait(self, request):
        whom, work = request
        try:
            work.wait(datetime.timedelta(seconds=limit()))
        except RuntimeError as error:
            raise _stopped(whom, str(error)) from None

    def unite(self, memory):
        bits = self._tensor(memory).clone()  # gloo may write to it after a wait that has failed
        how = self._dist.AllreduceOptions()
        how.reduceOp = self._dist.ReduceOp.BOR
        self.wait(("a rank of the group", self._group.allreduce([bits], how)))
        self._tensor(memory).copy_(bits)

    def send_text(self, to, text):
        self._texts_sent[to] += 1
        self._store.set(f"{self.rank}>{to}:{self._texts_sent[to]}", text)

    def receive_text(self, source, seconds):
        key = f"{source}>{self.rank}:{self._texts_taken[source] + 1}"
        begin = time.monotonic()
        # Not store.wait(), which prints two lines of PyTorch when it ends without the key. This asks, and changes nothing.
        while (text := self._store.compare_set(key, "?", "?")) == b"?":
            waited = time.monotonic() - begin
            if waited > seconds:
                return None
            time.sleep(min(max(waited / 20, 2e-5), 0.01))
        self._texts_taken[source] += 1
        self._store.delete_key(key)
        return text.decode()

    def withdraw(self):
        self._store.set("withdrawn", "1")

    def is_withdrawn(self):
        return self._store.check(["withdrawn"])


# ---- mpi4py ----------------------------------------------------------------------------------------------------


class MpiPeers:
    """The ranks of a communicator of mpi4py, of any MPI: messages are mpi4py's own calls."""

    interrupt_ends = True  # the process: MPI still uses the memory of a call
    kept = []  # what MPI may still read and write after a failure

    def __init__(self, comm):
        self._mpi = sys.modules["mpi4py.MPI"]
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self._comm, request = comm.Idup()
        self._sent = []
        if not self._poll(request.Test, limit()):
            self.kept.append((self._comm, request))
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
        return f"rank {to}", self._comm.Isend([memory, self._mpi.BYTE], to, tag)

    def receive(self, memory, source, tag):
        return f"rank {source}", self._comm.Irecv([memory, self._mpi.BYTE], source, tag)

    def wait(self, request):
        whom, message = request
        try:
            if self._poll(message.Test, limit()):
                return
        except BaseException:
            self.kept.append(message)
            raise
        self.end_job(self.rank, _stopped(whom))  # MPI still uses the memory of this call, which cannot be left

    @staticmethod
    def end_job(rank, error):
        sys.stdout.flush()
        print(f"[rank {rank}] error: {error}", file=sys.stderr, flush=True)
        time.sleep(0.2)
        sys.modules["mpi4py.MPI"].COMM_WORLD.Abort(3)  # MPICH 4.0 hangs in that of a duplicate

    def unite(self, memory):
        self.wait(("a rank of the group", self._comm.Iallreduce(self._mpi.IN_PLACE, [memory, self._mpi.BYTE], self._mpi.BOR)))

    def send_text(self, to, text):
        self._sent = [one for one in self._sent if not one.Test()]
        self._sent.append(self._comm.isend(text, to, _TEXTS))

    def receive_text(self, source, seconds):
        if not self._poll(lambda: self._comm.iprobe(source, _TEXTS), seconds):
            return None
        return self._comm.recv(source=source, tag=_TEXTS)

    def free(self):
        """Collective."""
        self._comm.Free()

    def withdraw(self):
        self._sent.append(self._comm.isend("withdrawn", 0, _TEXTS + 1))

    def is_withdrawn(self):
        return self._comm.iprobe(tag=_TEXTS + 1)
