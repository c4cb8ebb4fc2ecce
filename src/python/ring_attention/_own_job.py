"""The ranks of a user's own job: of a ProcessGroup of torch.distributed, or of a communicator of mpi4py."""

from __future__ import annotations

import dataclasses
import os
import sys
import threading

from ._meeting import limit as _timeout


class _TorchGroup:
    """The ranks of a ProcessGroup, in the user's own job."""

    library = "torch"

    def __init__(self, group):
        import torch.distributed as dist

        self._dist = dist
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        # A group of its own: no message of the function meets one of diagnose, and objects need no GPU.
        self._group = dist.new_group(dist.get_process_group_ranks(group), backend="gloo", use_local_synchronization=True)

    def of_all(self, mine):
        """The objects that the ranks pass, in the order of the ranks. Collective."""
        everything = [None] * self.size
        self._dist.all_gather_object(everything, mine, group=self._group)
        return everything

    def free(self):
        self._dist.destroy_process_group(self._group)

    @staticmethod
    def abort():
        os._exit(1)


class _MpiGroup:
    """The ranks of a communicator of mpi4py, of any MPI, in the user's own job."""

    library = "numpy"

    def __init__(self, comm):
        self._comm = comm.Dup()
        self.rank, self.size = comm.Get_rank(), comm.Get_size()

    def of_all(self, mine):
        return self._comm.allgather(mine)

    def free(self):
        self._comm.Free()

    def abort(self):
        self._comm.Abort(1)


def group_of(group):
    torch, mpi = sys.modules.get("torch"), sys.modules.get("mpi4py.MPI")
    if torch is not None and torch.distributed.is_available() and isinstance(group, torch.distributed.ProcessGroup):
        return _TorchGroup(group)
    if mpi is not None and isinstance(group, mpi.Comm):
        return _MpiGroup(group)
    raise TypeError(f"group is {type(group).__name__}: it must be a ProcessGroup of torch.distributed or a communicator of "
                    "mpi4py")


class _Limit:
    """Other ranks may wait for messages of a rank that failed. Then that rank ends the job after a while."""

    def __init__(self, ranks, failure):
        self._timer = threading.Timer(_timeout(), self._end, (ranks, failure)) if failure else None

    @staticmethod
    def _end(ranks, failure):
        print(f"[rank {ranks.rank}] error: {failure}; the other ranks did not finish the case", file=sys.stderr, flush=True)
        ranks.abort()

    def __enter__(self):
        if self._timer:
            self._timer.start()

    def __exit__(self, *_):
        if self._timer:
            self._timer.cancel()


def run(work, ranks, group):
    """All ranks of the group call it; each gets the same Diagnosis, or the same error."""
    problem = "" if work.job[0] == ranks.size else f"ranks is {work.job[0]} and the group has {ranks.size}"
    try:
        work.names()
    except Exception as error:
        problem = problem or str(error)
    job = tuple(getattr(word, "__qualname__", word) for word in work.job)  # a function's address differs from rank to rank
    asked = ranks.of_all((problem, repr(dataclasses.replace(work, function=None, job=job))))
    for problem, words in asked:
        if problem or words != asked[0][1]:
            raise ValueError(problem or "the ranks gave different arguments to diagnose")
    results, failure, cause = [], "", None
    try:
        results = list(work(ranks.rank, group))
    except Exception as error:
        failure, cause = str(error), error.__cause__
    with _Limit(ranks, failure):
        everything = ranks.of_all((failure, results))
    for text in (text for text, _ in everything if text):
        raise RuntimeError(text) from (cause if text == failure else None)
    answer = None
    if ranks.rank == 0:
        try:
            answer = work.judged([results for _, results in everything])
        except Exception as error:
            answer = error
    answer = ranks.of_all(answer)[0]
    if isinstance(answer, Exception):
        raise answer
    return answer
