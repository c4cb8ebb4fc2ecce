"""What each rank of cuda_test.py runs: `cuda_program.py CASE...`. Tensors of PyTorch, and arrays of CuPy and JAX, on a real
GPU, which the ranks share. A failed check ends the job.
"""

import importlib.util
import itertools
import os
import sys

# NCCL refuses two ranks on one GPU unless it takes them for two hosts. Read when NCCL is loaded.
os.environ |= {"NCCL_HOSTID": f"rank {os.environ.get('PMI_RANK', 0)}", "NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo",
               "NCCL_MNNVL_ENABLE": "0"}
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import cases
import numpy as np
import reference
import ring_attention as ra
import torch
from cases import check
from harness import lines_for_torch
from ring_attention.torch import attention, ring_attention

SEQ, DIM = 1001, 64
BOUND = {torch.float32: 2e-5, torch.bfloat16: 4e-2, torch.float16: 6e-3}


def problem(kind, heads):
    """(q, k, v, weights of out) as tensors of the GPU, and in double on the host."""
    torch.manual_seed(1)
    tensors = [torch.randn(1, n, SEQ, DIM, device="cuda").to(kind) for n in (heads, heads // 2, heads // 2, heads)]
    return tensors, [tensor.double().cpu().numpy() for tensor in tensors]


def expect(bound, got, wanted, *text):
    for array, want in zip(got, wanted, strict=True):
        difference = np.abs(array.detach().double().cpu().numpy() - want).max(initial=0)
        check(difference <= bound * max(1, np.abs(want).max(initial=0)), *text, "off by", difference)


def one():
    """attention on this process: every type, a stream of the caller, tensors that are not contiguous, bias and dropout."""
    side = torch.cuda.Stream()
    for kind, words in itertools.product(BOUND, ({"causal": True}, {"window": (90, 40)}, {"sink": torch.arange(4.0)})):
        (*tensors, weights), (*wide, grad) = problem(kind, 4)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            strided = [tensor.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for tensor in tensors]
            out, lse = attention(*strided, **words)
            found = torch.autograd.grad((out * weights).float().sum(), strided)
        torch.cuda.current_stream().wait_stream(side)
        words = {name: np.asarray(value) if name == "sink" else value for name, value in words.items()}
        expect(BOUND[kind], (out, lse), reference.attention(*wide, **words)[:2], "attention", kind, list(words))
        expect(3 * BOUND[kind], found, reference.gradients(grad, *wide, **words)[:3], "gradients", kind, list(words))
    (*tensors, _), (*wide, _) = problem(torch.float32, 4)
    bias = torch.randn(4, SEQ, SEQ, device="cuda")
    expect(BOUND[torch.float32], attention(*tensors, bias=bias),
           reference.attention(*wide, bias=bias.double().cpu().numpy())[:2], "bias")


def partitions(transports, **ranks):
    """Every partition, forward and backward by autograd, against dense attention; a second call has the same bits."""
    size = ra.size()
    for (kind, transport), (parallel, placement) in itertools.product(
            transports, (("ring", "zigzag"), ("ulysses", "contiguous"), ("hybrid", "zigzag"), ("all-gather", "striped"))):
        (*tensors, weights), (*wide, grad) = problem(kind, 2 * size)
        out, lse, _ = reference.attention(*wide, causal=True)
        wanted = reference.gradients(grad, *wide, causal=True)[:3]
        way = {"parallel": parallel, "placement": placement, "ulysses": 2 - size % 2 if parallel == "hybrid" else 1, **ranks}
        mine, kept = ra.positions(SEQ, **way), []
        for _ in range(2):
            shards = [tensor[:, :, mine].requires_grad_() for tensor in tensors]
            result = ring_attention(*shards, seq=SEQ, causal=True, transport=transport, **way)
            found = torch.autograd.grad((result[0] * weights[:, :, mine]).float().sum(), shards)
            ra.wait(**ranks)
            kept.append([tensor.detach().clone() for tensor in (*result, *found)])
        check(all(map(torch.equal, *kept)), "the second call has other bits", kind, transport, way)
        expect(BOUND[kind], result, [array[:, :, mine] for array in (out, lse)], kind, transport, way)
        expect(3 * BOUND[kind], found, [array[:, :, mine] for array in wanted], "gradients", kind, transport, way)


def ring():
    partitions(((torch.float32, "nccl"), (torch.bfloat16, "nccl"), (torch.float16, "staged")))


def group(folder):
    """The group of torch.distributed moves NCCL's ids, or the bytes."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=ra.rank(), world_size=ra.size())
    partitions(((torch.bfloat16, "nccl"), (torch.float32, "staged")), group=dist.group.WORLD)
    dist.destroy_process_group()


def readme():
    """The lines of README.md."""
    words = {name: torch.randn(2, len(ra.positions(1000)), 8, device="cuda", requires_grad=True)
             for name in ("q_shard", "k_shard", "v_shard")}
    exec("\n".join(lines_for_torch()), words)
    check(all(bool(torch.isfinite(words[name].grad).all()) for name in ("q_shard", "k_shard", "v_shard")), "no gradients")


def dlpack():
    """Arrays of CuPy and JAX, where they are installed, on CUDA's default stream."""
    (*tensors, _), (*wide, _) = problem(torch.float32, 4)
    wanted = reference.attention(*wide, causal=True)[:2]
    torch.cuda.synchronize()
    for name in ("cupy", "jax.numpy"):
        if importlib.util.find_spec(name.partition(".")[0]) is None:
            print(f"not tried: {name} is not installed", file=sys.stderr)
            continue
        module = importlib.import_module(name)
        arrays = [module.from_dlpack(tensor) for tensor in tensors]
        result = ra.attention(*arrays, causal=True)
        expect(BOUND[torch.float32], [torch.from_dlpack(module.from_dlpack(array)) for array in result], wanted, name)


if __name__ == "__main__":
    torch.cuda.set_device(0)
    cases.run(globals(), sys.argv[1:])
