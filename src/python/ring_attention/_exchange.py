"""Ranks that are threads of this process, and their messages: to try out a ring in NumPy without MPI."""

from __future__ import annotations

import copy
import threading
from collections import defaultdict, deque


class StoppedError(RuntimeError):
    """Another rank failed while this one waited for it."""


class Exchange:
    """The messages of all ranks. A wait that no rank can end raises an error at once."""

    def __init__(self, size):
        self.size = size
        self._changed = threading.Condition()
        self._mail = defaultdict(deque)  # by (source, dest, tag)
        self._waits = {}  # for which of these a rank waits
        self._ended = set()
        self._stopped = False

    def send(self, message, source, dest, tag):
        for name, rank in (("source", source), ("dest", dest)):
            if not 0 <= rank < self.size:
                raise ValueError(f"{name} is {rank}: ranks are 0 to {self.size - 1}")
        with self._changed:
            self._mail[source, dest, tag].append(copy.deepcopy(message))
            self._changed.notify_all()

    def receive(self, source, dest, tag):
        if not 0 <= source < self.size:
            raise ValueError(f"source is {source}: ranks are 0 to {self.size - 1}")
        key = source, dest, tag
        with self._changed:
            self._waits[dest] = key
            try:
                while not self._mail[key]:
                    if self._stopped:
                        raise StoppedError("another rank failed")
                    if self._is_stuck():
                        raise RuntimeError(f"deadlock: rank {dest} waits for a message of rank {source}"
                                           f"{f' with tag {tag}' if tag else ''}, and " + self._what_others_do(dest))
                    self._changed.wait()
                return self._mail[key].popleft()
            finally:
                del self._waits[dest]

    def poll(self, source, dest, tag, seconds):
        """A message, or None if none has come after that time, or `source` has returned."""
        with self._changed:
            mail = self._mail[source, dest, tag]
            self._changed.wait_for(lambda: mail or source in self._ended or self._stopped, seconds)
            if self._stopped:
                raise StoppedError("another rank failed")
            return mail.popleft() if mail else None

    def end(self, rank):
        """The function of this rank has returned."""
        with self._changed:
            self._ended.add(rank)
            self._changed.notify_all()

    def stop(self):
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _is_stuck(self):
        return (len(self._waits) + len(self._ended) == self.size and
                not any(self._mail[key] for key in self._waits.values()))

    def _what_others_do(self, rank):
        others = [f"rank {other} for one of rank {key[0]}" for other, key in sorted(self._waits.items()) if other != rank]
        others += [f"rank {other} has returned" for other in sorted(self._ended)]
        return ", ".join(others) or "there is no other rank"


class Comm:
    """One rank's end of an Exchange: some methods of mpi4py's communicators, for objects of any kind.

    A message is a copy; `send` does not wait for its receiver.
    """

    def __init__(self, exchange, rank):
        self._exchange, self.rank, self.size = exchange, rank, exchange.size

    def Get_rank(self):
        return self.rank

    def Get_size(self):
        return self.size

    def send(self, obj, dest, tag=0):
        self._exchange.send(obj, self.rank, dest, tag)

    def recv(self, *, source, tag=0):
        return self._exchange.receive(source, self.rank, tag)

    def poll(self, source, tag, seconds):
        return self._exchange.poll(source, self.rank, tag, seconds)

    def sendrecv(self, sendobj, dest, sendtag=0, *, source, recvtag=0):
        self.send(sendobj, dest, sendtag)
        return self.recv(source=source, tag=recvtag)

    def alltoall(self, sendobj):
        """sendobj: a list with one object for each rank. Returns one object from each rank."""
        for rank, one in enumerate(sendobj):
            self.send(one, rank, "alltoall")
        return [self.recv(source=rank, tag="alltoall") for rank in range(self.size)]

    def allgather(self, sendobj):
        return self.alltoall([sendobj] * self.size)

    def bcast(self, obj, root=0):
        return self.allgather(obj)[root]

    def barrier(self):
        self.allgather(None)


def run_ranks(size, work):
    """Calls work(rank, comm) for each rank, in threads; returns what they return, or raises the first error."""
    exchange = Exchange(size)
    results, errors = [None] * size, []

    def run(rank):
        try:
            results[rank] = work(rank, Comm(exchange, rank))
        except BaseException as error:
            errors.append(error)
            exchange.stop()
        finally:
            exchange.end(rank)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            while thread.is_alive():
                thread.join(0.1)  # Ctrl-C gets in between
    except BaseException:
        exchange.stop()
        raise
    if errors:
        raise errors[0]
    return results
