"""Ranks that are processes of this machine, with torch.distributed: to try out a ring in PyTorch."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import tempfile
import traceback
from multiprocessing import connection

from ._meeting import limit as _timeout


def _serve(work, rank, size, folder, pipe, environment):
    """The process of a rank. It sends (number of the case, its results) for each case, or an error."""
    os.environ.update(environment)
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # gloo looks up the name of the host, which may have no address
    try:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(max(1, (os.cpu_count() or 1) // size))
        dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
        for number, result in enumerate(work(rank, dist.group.WORLD)):
            pipe.send((number, result))
        dist.barrier()  # a rank that leaves breaks the connections of the others
        dist.destroy_process_group()
    except BaseException as error:
        pipe.send((str(error), traceback.format_exc()))
        pipe.poll(None)  # until this process is ended: if it left, the others would fail as well, and hide this error


def _next_message(pipes, results, names):
    """Returns (rank, what it sent)."""
    limit = _timeout()
    ready = connection.wait(list(pipes.values()), limit)
    late = ", ".join(f"rank {rank} in the case {names[len(results[rank])]}" for rank in pipes)
    if not ready:
        raise TimeoutError(f"no rank did anything for {limit:g} s (RING_ATTENTION_TIMEOUT): {late}")
    rank = next(rank for rank, pipe in pipes.items() if pipe is ready[0])
    try:
        return rank, ready[0].recv()
    except EOFError:
        hint = "" if any(results) else '; a script needs if __name__ == "__main__": around what starts ranks'
        raise RuntimeError(f"the process of rank {rank} ended in the case {names[len(results[rank])]}{hint}") from None


def run_ranks(size, work, names):
    """Calls work(rank, group), which yields a result for each of the cases, in one process per rank.

    Returns for each rank the list of its results. An error on one rank ends all of them.
    """
    try:
        pickle.dumps(work)
    except Exception as error:
        raise TypeError("the function cannot be sent to other processes: define it at the top level of a module, "
                        f"not in a function and not as a lambda ({error})") from None
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", __package__])  # once for all ranks and calls
    results = [[] for _ in range(size)]
    pipes, processes = {}, []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for rank in range(size):
                pipes[rank], theirs = context.Pipe()
                processes.append(context.Process(target=_serve, daemon=True,
                                                 args=(work, rank, size, folder, theirs, dict(os.environ))))
                processes[-1].start()
                theirs.close()
            while pipes:
                rank, (first, second) = _next_message(pipes, results, names)
                if isinstance(first, str):
                    raise RuntimeError(first) from RuntimeError(second)
                results[rank].append(second)
                if len(results[rank]) == len(names):
                    del pipes[rank]
            for process in processes:
                process.join(_timeout())
        finally:
            for process in processes:
                if process.is_alive():
                    process.terminate()
    return results
