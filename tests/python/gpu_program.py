"""What each rank of a job of gpu_test.py runs: `gpu_program.py CASE...`, each case a function of this file with its
arguments. The package is the one with the emulated GPU. A failed check ends the job.
"""

import itertools
import sys
import time

import emulated_gpu as gpu
import numpy as np
import reference
import ring_attention as ra
from harness import largest_difference, lines_for_torch
from ranks_program import check, held

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


def lost():
    """The GPU of the last rank stops after a call."""
    mine = [gpu.Array(array[:, :, ra.positions(29)]) for array in problem()]
    ra.ring_attention(*mine[:3], seq=29)
    last = ra.rank() + 1 == ra.size()
    if last:
        gpu.stop()
    _kept = ra.ring_attention(*mine[:3], seq=29)  # noqa: F841
    if last:
        time.sleep(600)
    ra.wait()


def refused(text, call):
    try:
        call()
    except (TypeError, ValueError) as error:
        check(text in str(error), "another error:", error)
        return
    check(False, "no error:", text)


def errors():
    arrays = problem()
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
    refused("q is in the memory of a GPU, which needs ranks of MPI: give arrays of the host", lambda: ra.threads(2).run(
        lambda group: ra.ring_attention(q, k, v, seq=58, placement="contiguous", group=group)))
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


if __name__ == "__main__":
    for case in sys.argv[1:]:
        function, *arguments = case.split(":")
        globals()[function](*arguments)
    sizes = ra.size()
    if ra.rank() == 0:
        print(f"all is well on {sizes} ranks")
