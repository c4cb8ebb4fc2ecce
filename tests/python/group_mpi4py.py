"""What each rank of mpi4py does in group_jobs_test.py: `group_mpi4py.py bits FILE`, or a case that goes wrong."""

import json
import os
import signal
import sys
import time

from mpi4py import MPI  # isort: skip

import numpy as np
import ring_attention as ra
from group_cases import attend, digests, traces

world = MPI.COMM_WORLD
case = sys.argv[1]


def kernel(q, k, v, mask, scale):
    """One rank stops inside a call, or is interrupted there."""
    if world.rank == 1 and case == "interrupted":
        os.kill(os.getpid(), signal.SIGINT)
    elif world.rank == 1:
        time.sleep(60)
    return np.zeros_like(q), np.zeros(q.shape[:3])


if case == "bits":
    backwards = world.Split(0, -world.rank)  # a communicator of its own
    with open(f"{sys.argv[2]}.{backwards.rank}", "w", encoding="utf-8") as file:
        json.dump(digests({"group": backwards}), file)
    backwards.Free()
elif case == "traced":
    traces(sys.argv[2], group=world)
elif case == "library":
    print(MPI.Get_library_version(), flush=True)
elif case == "missing":
    attend(world)
    if world.rank == 2:
        time.sleep(2.5 * float(os.environ["RING_ATTENTION_TIMEOUT"]))
    try:
        attend(world)
    except TimeoutError as error:
        print(error, flush=True)
    time.sleep(0.5)  # the launcher may lose what it has not read
    MPI.COMM_WORLD.Abort(1)
elif case == "stopped":
    attend(world, kernel=kernel)
elif case == "frozen":  # between two calls
    attend(world)
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    attend(world)
elif case == "interrupted":
    try:
        attend(world, kernel=kernel)
    except KeyboardInterrupt:
        print("goes on, while MPI uses its memory", flush=True)
elif case == "many":  # MPICH has about 2000 communicators at a time
    for _ in range(2500):
        comm = world.Dup()
        ra.size(group=comm)
        comm.Free()
    print("many", flush=True)
