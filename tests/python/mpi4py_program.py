"""What each rank of a job of mpi4py_test.py runs: `mpi4py_program.py ORDER CASE...`. ORDER says who starts MPI, and so ends
it: mpi4py or ring_attention. Each case is a function of this file with its arguments, such as `late:used`.
"""

import functools
import os
import sys
import time

import numpy as np

if sys.argv[1] == "mpi4py":
    from mpi4py import MPI
import ring_attention as ra

if sys.argv[1] == "ring_attention":
    ra.size()
from mpi4py import MPI  # noqa: F811

import cases
import diagnose_rings
import reference
from cases import check, refused
from reference import largest_difference

WORLD = MPI.COMM_WORLD
SEQ = 23
WAY = {"causal": True, "threads": 1}
rng = np.random.default_rng(0)
WHOLE = [rng.standard_normal((1, heads, SEQ, 8)) for heads in (4, 2, 2, 4)]  # q, k, v, grad_out


def whole_step(**place):
    """Forward and backward on arrays of rank 0, and the results on rank 0."""
    root = ra.rank(place.get("comm")) == 0
    q, k, v, grad_out = (ra.scatter(array if root else None, **place) for array in WHOLE)
    result = ra.ring_attention(q, k, v, seq=SEQ, **WAY, **place)
    gradients = ra.ring_attention_backward(grad_out, q, k, v, *result, seq=SEQ, **WAY, **place)
    return [ra.gather(array, seq=SEQ, **place) for array in (result.out, *gradients[:3])]


def check_step(comm, **place):
    """Against dense attention on one process."""
    check((ra.rank(comm), ra.size(comm)) == (comm.rank, comm.size), "rank and size")
    got = whole_step(comm=comm, **place)
    want = [reference.attention(*WHOLE[:3], causal=True)[0], *reference.gradients(WHOLE[3], *WHOLE[:3], causal=True)]
    for one, array in zip(got, want):
        check((one is None) == (comm.rank != 0), "gather is on rank 0 of comm")
        if comm.rank == 0:
            check(largest_difference(one, array) <= 1e-12, "a result of", comm.size, "ranks")


def ones(comm, tokens=SEQ):
    """A call on arrays of ones; `tokens`: what this rank takes for the length of the sequence."""
    array = np.ones((2, len(ra.positions(tokens, comm=comm)), 4))
    return ra.ring_attention(array, array, array, seq=SEQ, comm=comm, threads=1)


def same():
    """COMM_WORLD is what is meant without comm=, to the bit; some ranks may say it and others not."""
    for place in ({}, {"placement": "striped", "parallel": "all-gather"}, {"parallel": "ulysses"}):
        plain = whole_step(**place)
        for comm in (WORLD, WORLD if WORLD.rank == 0 else None):
            for one, other in zip(whole_step(comm=comm, **place), plain):
                check((one is None) == (other is None) and (one is None or one.tobytes() == other.tobytes()), place)


def groups():
    """Two communicators of 1 and N - 1 ranks work at the same time, each in its own order and with its own number of calls."""
    group = min(WORLD.rank, 1)
    comm = WORLD.Split(group, -WORLD.rank)
    check(comm.size == 1 or comm.rank == WORLD.size - 1 - WORLD.rank, "reordered")
    for _ in range(1 + 2 * group):
        check_step(comm)
        check_step(comm, placement="striped", parallel="all-gather")
    check_step(WORLD)
    check_step(MPI.COMM_SELF)
    comm.Free()


def some():
    """All ranks but the last; an error of one of them is an error of these ranks only."""
    last = WORLD.rank == WORLD.size - 1
    comm = WORLD.Split(MPI.UNDEFINED if last else 0)
    if last:  # it makes no call
        return refused(ra.InputError, "comm is MPI_COMM_NULL", lambda: ones(comm))
    check_step(comm)
    culprit = comm.rank == comm.size - 1
    refused(ra.AgreedError, f"rank {comm.size - 1}: ", lambda: ones(comm, SEQ + 9 if culprit else SEQ))
    shard = np.ones((len(ra.positions(SEQ, comm=comm)), 2))
    refused(ra.AgreedError, "rank 0 has gather, rank 1 has ring_attention",
            lambda: ra.gather(shard, seq=SEQ, comm=comm) if comm.rank == 0 else ones(comm))
    check_step(comm)


def wrong():
    """What comm= does not take is an error of this rank, before any message."""
    for comm in (3, "world", MPI.GROUP_EMPTY):
        refused(TypeError, "it must be a communicator of an mpi4py", lambda: ones(comm))
    refused(ra.InputError, "comm is MPI_COMM_NULL", lambda: ones(MPI.COMM_NULL))
    half = WORLD.Split(WORLD.rank % 2)
    between = half.Create_intercomm(0, WORLD, 1 - WORLD.rank % 2)
    refused(ra.InputError, "comm is an intercommunicator", lambda: ones(between))
    check_step(between.Merge())
    between.Free()
    half.Free()
    refused(ra.InputError, "comm is MPI_COMM_NULL", lambda: ones(half))


def many():
    """10000 communicators, of which MPICH has about 2000 at a time; a handle comes again with other ranks."""
    half = WORLD.Split(WORLD.rank)
    handles = set()
    for count in range(10000):
        comm = (half if count % 2 else WORLD).Dup()
        handles.add(MPI._handleof(comm))
        check(ra.scatter(np.ones(2) if comm.rank == 0 else None, axis=0, comm=comm).size == 2 // comm.size, "a shard")
        comm.Free()
    check(len(handles) < 100, "handles are used again")
    check_step(WORLD)


def late(kind):
    """The last rank does not come, or comes with another communicator."""
    seconds = float(os.environ["RING_ATTENTION_TIMEOUT"])
    comm, other = WORLD.Dup(), WORLD.Dup()
    if kind == "used":
        ones(comm)
    last = WORLD.rank == WORLD.size - 1
    begin = time.monotonic()
    try:
        if not last or kind == "other":
            ones(other if last else comm)
            check(False, "no error")
    except TimeoutError as error:
        print(error, flush=True)
        check(time.monotonic() - begin < 2.5 * seconds, "too late")
        refused(ra.Error, "No further call", lambda: ones(None))
        comm.Free()
    time.sleep(2 * seconds)


def agreed():
    """An error of ranks without rank 0 of the world, which nothing catches."""
    comm = WORLD.Split(min(WORLD.rank, 1))
    if WORLD.rank > 0:
        ones(comm, SEQ + 9 if comm.rank == 1 else SEQ)
    time.sleep(20)


def broken():
    """An error of one rank alone, which nothing catches."""
    comm = WORLD.Split(0)
    ones(comm)
    if WORLD.rank == WORLD.size - 1:
        raise RuntimeError("this rank is broken")
    ones(comm)


def diagnosed():
    """diagnose in a job of the user's own: the library is right, and errors are the same on all ranks."""
    comm = WORLD.Split(0, -WORLD.rank)

    def attention(q, k, v, case):
        words = {"seq": case.tokens, "causal": case.causal, "threads": 1, "placement": "striped", "comm": case.comm}
        result = ra.ring_attention(q, k, v, **words)
        return *result, *ra.ring_attention_backward(case.dout, q, k, v, *result, **words)[:3]

    words = {"group": comm, "placement": "striped"}
    found = ra.diagnose(attention, only="full,causal,gqa,uneven", **words)
    check(found.right and found.json["backward"]["state"] == "right", found)
    wrong = ra.diagnose(functools.partial(diagnose_rings.numpy_ring, wrong=["mask-local"]), only="full,causal", **words)
    check("WRONG: the mask compares places in the shards" in WORLD.bcast(str(wrong)), wrong)
    refused(RuntimeError, "rank 1 failed in the case full: ValueError: this rank is broken",
            lambda: ra.diagnose(diagnose_rings.one_fails, only="full", **words))
    refused(ValueError, "ranks is 7 and the group has 3", lambda: ra.diagnose(attention, ranks=7 if comm.rank else 3, **words))
    refused(ValueError, "gave different arguments", lambda: ra.diagnose(attention, seed=comm.rank, **words))
    comm.Free()


def stuck():
    """A rank fails, for whose message the others wait."""
    ra.diagnose(diagnose_rings.broken, only="full,causal", group=WORLD)


def finalised():
    """The program ends MPI itself."""
    ones(WORLD.Dup())
    is_first = WORLD.rank == 0
    MPI.Finalize()
    refused(ra.Error, "it has ended", lambda: ra.size())
    if is_first:
        print("MPI has ended")
    sys.exit(0)


if __name__ == "__main__":
    cases.run(globals(), sys.argv[2:])
