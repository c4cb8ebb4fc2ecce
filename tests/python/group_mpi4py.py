"""What each rank of mpi4py does in group_jobs_test.py: `group_mpi4py.py bits FILE`, or a case that goes wrong."""

import json
import os
import sys
import time

from mpi4py import MPI  # isort: skip

import numpy as np
from group_cases import attend, digests

world = MPI.COMM_WORLD
case = sys.argv[1]


def kernel(q, k, v, mask, scale):
    """One rank stops inside a call."""
    if world.rank == 1:
        time.sleep(60)
    return np.zeros_like(q), np.zeros(q.shape[:3])


if case == "bits":
    backwards = world.Split(0, -world.rank)  # a communicator of its own
    with open(f"{sys.argv[2]}.{backwards.rank}", "w", encoding="utf-8") as file:
        json.dump(digests({"group": backwards}), file)
    backwards.Free()
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
