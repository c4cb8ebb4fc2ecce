"""What each rank of torch_test.py runs: gradients and PyTorch's kernel through a ring, against one process."""

import os

import numpy as np
import reference
import ring_attention as ra
import torch
from harness import lines_for_torch
from ring_attention.torch import attention, ring_attention

torch.set_num_threads(1)
SEQ = 23
rng = np.random.default_rng(0)
whole = [torch.from_numpy(rng.standard_normal((2, heads, SEQ, dim))).requires_grad_() for heads, dim in ((4, 8), (2, 8), (2, 5))]
weights = torch.from_numpy(rng.standard_normal((2, 4, SEQ, 5)))
sink = torch.from_numpy(rng.standard_normal(4)).requires_grad_()

out, lse = attention(*whole, causal=True, sink=sink)
want = torch.autograd.grad((out * weights).sum() + lse.square().sum(), [*whole, sink])

mine = torch.from_numpy(ra.positions(SEQ))
shards = [tensor.detach()[:, :, mine].requires_grad_() for tensor in whole]
got, statistic = ring_attention(*shards, seq=SEQ, causal=True, sink=sink)
found = torch.autograd.grad((got * weights[:, :, mine]).sum() + statistic.square().sum(), [*shards, sink])


def check(one, other):
    if not (one - other).abs().max() <= 1e-12:
        raise AssertionError(f"rank {ra.rank()}: {(one - other).abs().max()}")


check(got, out[:, :, mine])
check(statistic, lse[:, :, mine])
for one, other in zip(found[:3], want[:3]):
    check(one, other[:, :, mine])
check(torch.from_numpy(ra.all_reduce(found[3].numpy())), want[3])
summed, _ = ring_attention(*shards, seq=SEQ, causal=True, sink=sink, sink_gradient="sum", documents=torch.tensor([0, SEQ]))
check(torch.autograd.grad((summed * weights[:, :, mine]).sum(), sink)[0],
      torch.autograd.grad((attention(*whole, causal=True, sink=sink)[0] * weights).sum(), sink)[0])

heads = [tensor.repeat_interleave(4 // tensor.shape[1], dim=1).detach() for tensor in shards]
heads[2] = torch.nn.functional.pad(heads[2], (0, 3))  # PyTorch's kernel takes equal widths
foreign, _ = ring_attention(*heads, seq=SEQ, causal=True, sink=sink, kernel=reference.torch_kernel)
check(foreign[..., :5], out[:, :, mine])

documents = [0, 90, 300]
longer = [torch.from_numpy(rng.standard_normal((1, 2, 300, 8))).requires_grad_() for _ in range(3)]
due = torch.autograd.grad(attention(*longer, causal=True, documents=documents)[0].square().sum(), longer)
placement = ra.balanced(300, causal=True, documents=documents)
mine = torch.from_numpy(ra.positions(300, placement=placement))
shards = [tensor.detach()[:, :, mine].requires_grad_() for tensor in longer]
got, _ = ring_attention(*shards, seq=300, causal=True, documents=documents, placement=placement)
del placement  # its ranges are in the operator's arguments
for one, other in zip(torch.autograd.grad(got.square().sum(), shards), due):
    if one.numel():
        check(one, other[:, :, mine])

words = {name: torch.randn(2, len(ra.positions(1000)), 8, requires_grad=True) for name in ("q_shard", "k_shard", "v_shard")}
exec("\n".join(lines_for_torch()), words)  # README.md
if not all(torch.isfinite(words[name].grad).all() for name in ("q_shard", "k_shard", "v_shard")):
    raise AssertionError("README.md gives no gradients")

if "MPI4PY_FOLDER" in os.environ:  # the ranks in another order
    from mpi4py import MPI

    comm = MPI.COMM_WORLD.Split(0, -ra.rank())
    mine = torch.from_numpy(ra.positions(SEQ, comm=comm))
    shards = [tensor.detach()[:, :, mine].requires_grad_() for tensor in whole]
    got, lse = ring_attention(*shards, seq=SEQ, causal=True, sink=sink, comm=comm)
    found = torch.autograd.grad((got * weights[:, :, mine]).sum() + lse.square().sum(), shards)
    for one, other in zip((got, *found), (out, *want)):
        check(one, other[:, :, mine])
if ra.rank() == 0:
    print("all is well")
