"""What ranks of PyTorch do in group_test.py. `group_torch.py CASE FOLDER RANK SIZE` is one rank of a job of gloo."""

import os
import shutil
import signal
import sys
import tempfile
import time

import numpy as np
import ring_attention as ra
import torch
import torch.distributed as dist
from group_cases import attend, digests, traces


def bits(rank, group):
    yield digests({"group": group})


def errors(rank, group):
    """Two texts of AgreedError, and the digits of a result after them."""
    texts = []
    for words in ({"scale": float(1 + rank)}, {"dropout": 2 * rank}):
        try:
            attend(group, **words)
        except ra.AgreedError as error:
            texts.append(str(error))
    yield [*texts, attend(group).out.shape]


def groups(rank, group):
    """The errors of calls whose group= is none, or is missing."""
    from ring_attention.torch import ring_attention

    q, k, v = torch.ones(3, 2, 5, 4)
    texts = []
    for call in (lambda: ring_attention(q, k, v, seq=10, group=[0, 1]), lambda: ring_attention(q, k, v, seq=10),
                 lambda: ra.decode(*np.ones((3, 2, 5, 4))), lambda: ra.all_reduce(np.ones(3))):
        try:
            texts.append(call())
        except Exception as error:
            texts.append(f"{type(error).__name__}: {error}")
    yield texts


def traced(rank, group):
    """Names of the files that a trace leaves."""
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder, src=0)
    traces(folder[0], group=group)
    dist.barrier()
    yield os.listdir(folder[0])
    dist.barrier()
    shutil.rmtree(folder[0], ignore_errors=True)


def parts(rank, group):
    """Two rings of two ranks, a process group each and a dimension of a DeviceMesh, and one of all ranks."""
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    if rank < 2:
        attend(halves[0])  # the other ranks have called with no group yet
    same = [attend(part).out.tobytes() for part in (group, halves[rank // 2], mesh["cp"])]
    whole = [ra.threads(size).run(attend)[rank % size].out.tobytes() for size in (4, 2, 2)]
    three = ra.scatter(np.ones((1, 3, 2)) if rank == 0 else None, group=group)  # one rank gets none
    yield (ra.rank(group=mesh["cp"]), ra.size(group=mesh["cp"]), same == whole, three.shape[1])


def autograd(rank, group):
    """Are the gradients those of one process, and those of a compiled function, without a graph break, the same bits?"""
    from ring_attention.torch import attention, ring_attention

    generator = torch.Generator().manual_seed(0)
    whole = [torch.randn(1, heads, 23, 8, dtype=torch.float64, generator=generator).requires_grad_() for heads in (4, 2, 2)]
    sink, layer = torch.randn(4, generator=generator).double().requires_grad_(), torch.nn.Linear(8, 8).double()
    layer.weight.data.fill_(0.25)
    mine = torch.from_numpy(ra.positions(23, group=group))
    shards = [tensor.detach()[:, :, mine].requires_grad_() for tensor in whole]

    def ring(q, k, v):
        return ring_attention(layer(q), k, v, seq=23, causal=True, sink=sink, documents=[0, 9, 23], group=group)

    def one(q, k, v):
        return attention(layer(q), k, v, causal=True, sink=sink, documents=[0, 9, 23])

    def gradients(function, arrays):
        out, lse = function(*arrays)
        return torch.autograd.grad(out.square().sum() + lse.sin().sum(), [*arrays, sink])

    *due, of_sink = gradients(one, whole)
    *found, share = gradients(ring, shards)
    dist.all_reduce(share)
    worst = max(float((got - want[:, :, mine]).abs().max()) for got, want in zip(found, due))
    compiled = gradients(torch.compile(ring, fullgraph=True, backend="aot_eager"), shards)
    yield [max(worst, float((share - of_sink).abs().max())) < 1e-12,
           all(torch.equal(got, want) for got, want in zip(compiled, found))]


def kernel(q, k, v, mask, scale):
    """One rank stops inside a call."""
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL if sys.argv[1] == "killed" else signal.SIGSTOP)
    return np.zeros_like(q), np.zeros(q.shape[:3])


def main(case, folder, rank, size):
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=int(rank), world_size=int(size))
    world = dist.group.WORLD
    attend(world)
    if case == "missing" and rank == "2":
        time.sleep(4 * float(os.environ["RING_ATTENTION_TIMEOUT"]))
    attend(world, **({} if case == "missing" else {"kernel": kernel}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
