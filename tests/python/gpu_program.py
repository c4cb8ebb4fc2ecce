"""What each rank of a job of gpu_test.py runs: `gpu_program.py CASE...`, each case a function of this file with its
arguments. The package is the one with the emulated GPU. A failed check ends the job.
"""

import functools
import hashlib
import itertools
import os
import pickle
import sys
import threading
import time

import cases
import emulated_gpu as gpu
import numpy as np
import reference
import ring_attention as ra
from cases import check
from harness import lines_for_torch
from reference import largest_difference
from ranks_program import held
from ring_attention import _groups, _peers

BOUND = {"float32": 2e-5, "bfloat16": 4e-2, "float16": 6e-3}


def problem(kind="float32", heads=4, seed=1):
    """(q, k, v, grad_out) as float32, with numbers of the type `kind`."""
    rng = np.random.default_rng(seed)
    return [gpu.as_type(rng.standard_normal(shape), kind)[0]
            for shape in ((1, heads, 29, 8), (1, heads // 2, 29, 8), (1, heads // 2, 29, 8), (1, heads, 29, 8))]


def expect(got, wanted, bound, *text):
    for array, want in zip(got, wanted):
        if array is None:
            continue
        host = array if isinstance(array, np.ndarray) else gpu.on_host(array)
        check(largest_difference(host, want) <= bound * max(1, np.abs(want[np.isfinite(want)]).max(initial=0)), *text)


def one_process():
    """attention and its backward on this process, against dense attention."""
    bias = np.random.default_rng(2).standard_normal((29, 29)).astype(np.float32)
    for kind, words in (("float32", {"causal": True}), ("bfloat16", {"window": (9, 4)}),
                        ("float16", {"sink": np.arange(4.0)}), ("float32", {"bias": bias, "alibi": True})):
        arrays = problem(kind)
        there = [gpu.Array(array, kind) for array in arrays]
        own = {**words, **({"bias": gpu.Array(bias)} if "bias" in words else {})}
        result = ra.attention(*there[:3], **own, check=True)
        wide = [array.astype(np.float64) for array in arrays]
        expect(result, reference.attention(*wide[:3], **words), BOUND[kind], "attention", kind, words)
        gradients = ra.attention_backward(there[3], *there[:3], *result, **own)
        expect(gradients, reference.gradients(wide[3], *wide[:3], **words), 3 * BOUND[kind], "gradients", kind, words)


def ring(kind, transport):
    """Every partition, against dense attention; the second call has the bits of the first."""
    arrays = problem(kind, 2 * ra.size())
    wide = [array.astype(np.float64) for array in arrays]
    words = {"causal": True, "sink": np.linspace(0, 1, 2 * ra.size())}
    out, lse, _ = reference.attention(*wide[:3], **words)
    wanted = reference.gradients(wide[3], *wide[:3], **words)
    for parallel, placement in itertools.product(("ring", "ulysses", "hybrid", "all-gather"), ("zigzag", "contiguous")):
        way = {"placement": placement, "parallel": parallel, "ulysses": ra.size() if parallel == "hybrid" else 1}
        mine = [gpu.Array(held(array, 29, way), kind) for array in arrays]
        kept = []
        for _ in range(2):
            result = ra.ring_attention(*mine[:3], seq=29, transport=transport, **way, **words)
            back = ra.ring_attention_backward(mine[3], *mine[:3], *result, seq=29, transport=transport, sink_gradient="sum",
                                              **way, **words)
            kept.append([gpu.on_host(array).tobytes() for array in (*result, *back[:3])])
        check(kept[0] == kept[1], "the second call has other bits", way)
        expect(result, [held(out, 29, way), held(lse, 29, way)], BOUND[kind], "ring", way)
        expect([*back[:3], None, back.sink], [*(held(array, 29, way) for array in wanted[:3]), None, wanted[4]],
               3 * BOUND[kind], "gradients", way)
    ra.wait()


class FileComm:
    """One rank's end of messages that are files of a folder."""

    def __init__(self, folder, rank, size):
        self.folder, self.rank, self.size, self._numbers = folder, rank, size, {}

    def _file(self, *key):
        self._numbers[key] = self._numbers.get(key, 0) + 1
        return f"{self.folder}/{key}{self._numbers[key]}"

    def send(self, obj, dest, tag):
        file = self._file(self.rank, dest, tag)
        with open(f"{file}.part", "wb") as part:
            pickle.dump(obj, part)
        os.rename(f"{file}.part", file)

    def poll(self, source, tag, seconds):
        key = source, self.rank, tag
        file, end = self._file(*key), time.monotonic() + seconds
        while not os.path.exists(file):
            if time.monotonic() > end:
                self._numbers[key] -= 1
                return None
            time.sleep(1e-4)
        with open(file, "rb") as message:
            return pickle.load(message)


class Processes(_peers.ThreadPeers):
    """The ranks of this job as a group whose messages MPI does not move."""

    are_threads = False

    def __init__(self, folder):
        super().__init__(FileComm(folder, ra.rank(), ra.size()))

    def Free(self):
        self.group_ranks = None


def torch_group(folder):
    import torch.distributed as dist

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=ra.rank(), world_size=ra.size())
    return dist.group.WORLD


def mpi4py_group(_):
    from mpi4py import MPI

    return MPI.COMM_WORLD.Dup()


def bits(kind, transport, size, device=0, **ranks):
    """What this rank has of some partitions, forward and backward, as numbers."""
    arrays, found = problem(kind, 2 * size), []
    for turn, (parallel, ulysses) in enumerate((("ring", 1), ("ulysses", 1), ("all-gather", 1), ("hybrid", 2 - size % 2))):
        way = {"placement": ("zigzag", "contiguous")[turn % 2], "parallel": parallel, "ulysses": ulysses}
        mine = [gpu.Array(array[:, :, ra.positions(29, **way, **ranks)], kind, device=device) for array in arrays]
        words = {"seq": 29, "causal": True, "sink": np.linspace(0, 1, 2 * size), "transport": transport, **way, **ranks}
        result = ra.ring_attention(*mine[:3], **words)
        back = ra.ring_attention_backward(mine[3], *mine[:3], *result, **words)
        ra.wait(**ranks)
        text = hashlib.sha256(back.sink.tobytes())
        for array in (*result, *back[:3]):
            text.update(gpu.on_host(array).tobytes())
        found.append(int.from_bytes(text.digest()[:6], "big"))
    return found


def groups(kind, folder, *others):
    """Over the messages of a group, and of `others`, the bits are those of MPI; so are those of threads, on two GPUs."""
    size = ra.size()
    due = bits(kind, "nccl", size)
    made = [Processes(folder), *(globals()[f"{other}_group"](folder) for other in others)]
    for group, transport in itertools.product(made, ("staged", "nccl")):
        check(bits(kind, transport, size, group=group) == due, "other bits", type(group), transport)
    for group in made:  # the emulated NCCL ends before MPI
        if hasattr(group, "Free"):
            group.Free()
    del group, made
    _groups._known.clear()
    of_all = np.zeros((size, len(due)), np.int64)
    of_all[ra.rank()] = due
    of_all = ra.all_reduce(of_all)
    if ra.rank() == 0:
        of_threads = ra.threads(size).run(lambda group: bits(kind, "overlapped", size, group.rank % 2, group=group))
        check(of_threads == of_all.tolist(), "other bits of threads")


def program(folder, placement, parallel):
    """The arrays of a folder; results into it."""
    way = {"placement": placement, "parallel": parallel, "ulysses": 2 if parallel == "hybrid" else 1}
    whole = [np.load(f"{folder}/{name}.npy") for name in ("q", "k", "v", "dout")]
    seq = whole[0].shape[2]
    mine = [gpu.Array(held(array, seq, way), "float16") for array in whole]
    words = {"seq": seq, "causal": True, "dropout": 0.25, "seed": 7, **way}
    result = ra.ring_attention(*mine[:3], **words)
    back = ra.ring_attention_backward(mine[3], *mine[:3], *result, **words)
    for name, array in zip(("out", "lse", "dq", "dk", "dv"), (*result, *back[:3])):
        whole = ra.gather(gpu.on_host(array), axis=-1 if name == "lse" else -2, seq=seq, **way)
        if ra.rank() == 0:
            np.save(f"{folder}/{parallel}_{name}.npy", whole)


def streams():
    """Arrays that are written late on streams of their own; the call on a third one."""
    arrays = problem()
    out, lse, _ = reference.attention(*(array.astype(np.float64) for array in arrays[:3]))
    for stream in (None, 1, 2, gpu.new_stream(), -1):
        own = [gpu.Array(array, stream=1 if stream == -1 else gpu.new_stream()) for array in arrays[:3]]
        result = ra.ring_attention(*(array for array in own), seq=29, stream=stream) if ra.size() == 1 else \
            ra.attention(*own, stream=stream)
        check(all(array.asked == [1 if stream is None else stream] for array in own), "asked for", own[0].asked)
        expect(result, (out, lse), BOUND["float32"], "stream", stream)
        dropped = [result.out]  # while a consumer reads it
        del result
        expect([gpu.on_host(dropped[0], ready=dropped.clear)], [out], BOUND["float32"], "dropped", stream)


def readme():
    """The call of README.md; the others of its lines are for tensors of PyTorch alone."""
    rng = np.random.default_rng(4)
    arrays = [rng.standard_normal((2, 1000, 8)).astype(np.float32) for _ in range(3)]
    held_here = [array[:, ra.positions(1000)] for array in arrays]
    words = dict(zip(("q_shard", "k_shard", "v_shard"), map(gpu.Array, held_here)), ring_attention=ra.ring_attention)
    exec(lines_for_torch()[1], words)
    want = ra.ring_attention(*held_here, seq=1000, causal=True)
    expect([words["out"], words["lse"]], want, BOUND["float32"], "README.md")


def lost(*folder):
    """The GPU of the last rank stops after a call. `folder`: of a group."""
    ranks = {"group": Processes(*folder)} if folder else {}
    mine = [gpu.Array(array[:, :, ra.positions(29)]) for array in problem()]
    ra.ring_attention(*mine[:3], seq=29, **ranks)
    last = ra.rank() + 1 == ra.size()
    if last:
        gpu.stop()
    _kept = ra.ring_attention(*mine[:3], seq=29, **ranks)  # noqa: F841
    if last:
        time.sleep(600)
    ra.wait(**ranks)


def errors():
    arrays, refused = problem(), functools.partial(cases.refused, (TypeError, ValueError))
    q, k, v, grad_out = (gpu.Array(array) for array in arrays)
    last = ra.rank() + 1 == ra.size()

    def ring(text, *mine, **words):
        """The last rank alone is wrong."""
        refused(f"rank {ra.size() - 1}: {text}", lambda: ra.ring_attention(
            *(mine if last else (q, k, v)), seq=29 * ra.size(), placement="contiguous", **(words if last else {})))

    ring("k is in the memory of the host, and q is in that of a GPU", q, arrays[1], v)
    ring("k is in the memory of a GPU, and q is not", arrays[0], k, v)
    ring("v is bfloat16 where float32 is due", q, k, gpu.Array(arrays[2], "bfloat16"))
    ring("k has a type that a GPU does not compute with", q, gpu.Array(arrays[1], "float64"), v)
    ring("v is in the memory of GPU 1, and q is in that of GPU 0", q, k, gpu.Array(arrays[2], device=1))
    ring("transport is 'odd-even'", q, k, v, transport="odd-even")
    ring("kernel: it gets arrays of NumPy", q, k, v, kernel=print)
    ring("stream is 0: DLPack has 1", q, k, v, stream=0)
    refused("stream is given, and q is in the memory of the host", lambda: ra.attention(*arrays[:3], stream=1))
    refused("k has 2 dimensions", lambda: ra.attention(q, gpu.Array(arrays[1][0, 0]), v))
    refused("v is [1, 1, 29, 8] where", lambda: ra.attention(
        q, k, gpu.Array(arrays[2][:, :1])))
    narrow = gpu.Array(np.ascontiguousarray(arrays[2][..., :5]))
    limit = "the kernels of the GPU take a V of as many columns as K has: V has 5 and K 8"
    refused(limit, lambda: ra.attention(q, k, narrow))
    refused(limit, lambda: ra.ring_attention(q, k, narrow, seq=29 * ra.size(), placement="contiguous"))
    ra._core.has_gpu = False
    refused("this build of ring_attention has no GPU parts", lambda: ra.attention(q, k, v))
    ra._core.has_gpu = True
    strided = gpu.Array(arrays[0], steps=(4 * 29 * 8, 8, 4 * 8, 1))  # [S, H, D] in memory
    refused("q is not C-contiguous: give a copy that is", lambda: ra.attention(strided, k, v))
    nothing = gpu.Array(arrays[0][:, :, :0], steps=(32, 8, 8, 1))  # as PyTorch numbers them
    check(ra.attention(nothing, k, v).out.shape == (1, 4, 0, 8), "no queries")
    result = ra.attention(q, k, v)
    shorter = gpu.Array(np.zeros((1, 4, 28), np.float32))
    refused("lse is [1, 4, 28, 1]", lambda: ra.attention_backward(grad_out, q, k, v, result.out, shorter))

    class Broken(gpu.Array):
        def __dlpack__(self, *, stream=None):
            raise BufferError("this array is broken")

    ring("this array is broken", Broken(arrays[0]), k, v)


def errors_of_threads():
    """Each is the same on all ranks, and the next call works."""
    on_host = problem()[:3]
    on_gpu, on_other = ([gpu.Array(array, device=device) for array in on_host] for device in (0, 1))

    def work(group):
        def ring(mine, **words):
            return ra.ring_attention(*mine, seq=58, placement="contiguous", group=group, **words)

        texts, lone = [], group.rank == 1
        first = gpu.on_host(ring(on_gpu).out)
        for other, words in ((on_other, {}), (on_host, {}), (on_gpu, {"transport": "nccl"})):
            try:
                ring(other if lone else on_gpu, **words)
            except ra.AgreedError as error:
                texts.append(str(error))
        return [texts, first.tobytes() == gpu.on_host(ring(on_gpu).out).tobytes()]

    first, second = ra.threads(2).run(work)
    check(first == second and first[1], first, second)
    for text, part in zip(first[0], ("rank 1: GPU 1 is current, and this GpuAttention began on GPU 0",
                                     "rank 0 has forward of GPU arrays of 4-byte numbers, rank 1 has forward of 4-byte",
                                     "transport is 'nccl', which needs ranks that are processes"), strict=True):
        check(part in text, text)


def stopped():
    """wait() returns when the GPU has done its work, and so never when the GPU has stopped. This ends the process."""
    mine, group = [gpu.Array(array) for array in problem()[:3]], Processes("")
    ra.ring_attention(*mine, seq=29, transport="nccl", group=group)
    ra.wait(group=group)
    gpu.stop()
    _kept = ra.ring_attention(*mine, seq=29, transport="nccl", group=group)  # noqa: F841
    waits = threading.Thread(target=ra.wait, kwargs={"group": group}, daemon=True)
    waits.start()
    waits.join(0.2)
    check(waits.is_alive(), "wait() has returned")
    print("all is well on 1 ranks", flush=True)
    os._exit(0)


if __name__ == "__main__":
    cases.run(globals(), sys.argv[1:])
