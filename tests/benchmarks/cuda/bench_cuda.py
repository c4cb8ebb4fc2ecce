"""Times every GPU kernel and PyTorch's cuDNN and FlashAttention-2 kernels, on the same tensors.

    bench_cuda.py LIBRARY [--seconds 240] [--quick] [--out FILE]

LIBRARY is libring_attention_benchmark.so; needs a Python with a CUDA build of PyTorch, and one GPU. Contenders take
turns within each case; times are of CUDA events, medians over the turns with quartiles. Results are compared with
each other before they are timed. Cases come in the order of their importance, and no new one begins after --seconds.
Prints one table; --out gets JSON with the GPU, its clock and all versions. TFLOP/s count 4 B H S² D operations for a
forward and 10 for a backward, half of that under a causal mask.
"""

import argparse
import ctypes
import datetime
import json
import math
import subprocess
import sys
import time
from pathlib import Path

try:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError as error:
    print(f"skipped: no PyTorch in {sys.executable} ({error})")
    sys.exit(77)

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import tables  # noqa: E402

PEERS = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "FlashAttention-2": SDPBackend.FLASH_ATTENTION}
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
TOKENS = 16384  # batch * S, as the papers do
HEADS = 16      # at D = 128; twice as many at 64
SLOW = 60e-3    # seconds: a contender that needs more runs in the smaller cases only
LONGEST = {"naive": 4096, "tiled": 16384, "tiled-atomics": 16384}  # S of a kernel that would take seconds beyond
BUSY = 2_000_000  # clocks, about 1 ms: the GPU spins while the host enqueues the work that is timed
TILE = 128        # rows of a query tile


class Library:
    def __init__(self, path):
        self.c = ctypes.CDLL(str(path))
        for name in ("error", "kernels"):
            getattr(self.c, f"ring_attention_{name}").restype = ctypes.c_char_p
        self.c.ring_attention_case.restype = ctypes.c_void_p
        for name in ("forward", "backward"):
            getattr(self.c, f"ring_attention_{name}").restype = ctypes.c_bool

    def require(self, result):
        if not result:
            sys.exit("the library says: " + self.c.ring_attention_error().decode())
        return result

    def kernels(self, kind, dim):
        return json.loads(self.require(self.c.ring_attention_kernels(kind.encode(), dim)))


def pointer(tensor):
    return ctypes.c_void_p(tensor.data_ptr())


def stream():
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


class Ours:
    """One of our kernels over N virtual ranks: tensors are [ranks, batch, heads, tokens, dim]."""

    def __init__(self, library, kernel, problem, backward=False, ranks=1, placement="contiguous", reserved_sms=0):
        self.library, self.ranks = library, ranks
        what = {name: problem[name] for name in ("type", "batch", "heads", "kv_heads", "seq", "dim", "causal")}
        what |= {"kernel": kernel, "backward": backward, "ranks": ranks, "placement": placement,
                 "reserved_sms": reserved_sms}
        self.case = ctypes.c_void_p(library.require(library.c.ring_attention_case(json.dumps(what).encode())))

    def __del__(self):
        if getattr(self, "case", None):
            self.library.c.ring_attention_free(self.case)

    def forward(self, arrays, first=0, count=None):
        a = arrays
        self.library.require(self.library.c.ring_attention_forward(
            self.case, first, self.ranks if count is None else count, pointer(a["q"]), pointer(a["k"]), pointer(a["v"]),
            pointer(a["out"]), pointer(a["lse"]), stream()))

    def backward(self, arrays):
        a = arrays
        self.library.require(self.library.c.ring_attention_backward(
            self.case, pointer(a["q"]), pointer(a["k"]), pointer(a["v"]), pointer(a["out"]), pointer(a["lse"]),
            pointer(a["grad"]), pointer(a["dq"]), pointer(a["dk"]), pointer(a["dv"]), stream()))


def problem(seq, dim, causal=False, kind="bf16", kv_heads=None):
    heads = HEADS * 128 // dim if dim in (64, 128) else HEADS
    return {"type": kind, "batch": max(1, TOKENS // seq), "heads": heads, "kv_heads": kv_heads or heads, "seq": seq,
            "dim": dim, "causal": causal}


def flop(p, backward=False):
    return (10 if backward else 4) * p["batch"] * p["heads"] * p["seq"] ** 2 * p["dim"] / (2 if p["causal"] else 1)


def arrays_of(p):
    def random(heads):
        return torch.randn(p["batch"], heads, p["seq"], p["dim"], device="cuda", dtype=TYPES[p["type"]])

    def poisoned(like, **options):
        return torch.full_like(like, math.nan, dtype=torch.float32, **options)

    q, k, v, grad = random(p["heads"]), random(p["kv_heads"]), random(p["kv_heads"]), random(p["heads"])
    return {"q": q, "k": k, "v": v, "grad": grad, "out": poisoned(q), "dq": poisoned(q), "dk": poisoned(k),
            "dv": poisoned(v), "lse": torch.full(q.shape[:-1], math.nan, device="cuda")}


class Torch:
    """PyTorch's scaled_dot_product_attention with one backend."""

    def __init__(self, backend, p, a):
        self.backend, self.p, self.a = backend, p, a
        self.inputs = [a[name].detach().clone().requires_grad_() for name in ("q", "k", "v")]
        self.result = None

    def attend(self, inputs):
        with sdpa_kernel([self.backend]):
            return F.scaled_dot_product_attention(*inputs, is_causal=self.p["causal"],
                                                  enable_gqa=self.p["heads"] != self.p["kv_heads"])

    def forward(self):
        with torch.no_grad():
            self.result = self.attend([self.a[name] for name in ("q", "k", "v")])
        return self.result

    def prepare_backward(self):
        self.result = self.attend(self.inputs)

    def backward(self):
        return torch.autograd.grad(self.result, self.inputs, self.a["grad"], retain_graph=True)


def seconds(work):
    """Of the GPU. It is busy until `work` has been enqueued, so the time of the host does not count."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(BUSY)
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e-3


def in_turns(contenders, turns):
    """{name: [quartile, median, quartile]} of seconds. Between two timings the chip works on something else."""
    times = {name: [] for name in contenders}
    for turn in range(-1, turns):  # the first warms up
        for name, work in contenders.items():
            spent = seconds(work)
            if turn >= 0:
                times[name].append(spent)
    return {name: tables.quartiles(values) for name, values in times.items()}


def relative(result, wanted):
    """norm(result - wanted) / norm(wanted); inf when something is not finite."""
    result, wanted = result.double(), wanted.double()
    if not bool(torch.isfinite(result).all()):
        return math.inf
    return float((result - wanted).norm() / wanted.norm())


def of_worst_tile(result, wanted):
    """The largest difference in any tile of rows of a head, relative to the largest number wanted there. The norm of a
    whole array hides a wrong tile: one of 64 adds 2 % to it."""
    difference, size = ((x.float().abs().flatten(0, -3)) for x in (result.float() - wanted.float(), wanted))
    worst = 0.0
    for first in range(0, size.shape[1], TILE):
        rows = slice(first, first + TILE)
        ratio = difference[:, rows].amax(dim=(1, 2)) / size[:, rows].amax(dim=(1, 2))
        if not bool(torch.isfinite(ratio).all()):
            return math.inf
        worst = max(worst, float(ratio.max()))
    return worst


def require_close(what, error, worst, tolerance=1.5e-2, of_tile=5e-2):
    if not error <= tolerance:
        sys.exit(f"{what}: the relative difference is {error:.3g}: nothing is timed")
    if not worst <= of_tile:
        sys.exit(f"{what}: the relative difference in one tile is {worst:.3g}: nothing is timed")


def contest(library, p, backward, options):
    """One case: all contenders that are not too slow for it."""
    a = arrays_of(p)
    both = library.kernels(p["type"], p["dim"])
    kernels = both["backward" if backward else "forward"]
    contenders, notes = {}, {}
    wanted, reference = None, None
    for name, backend in PEERS.items():
        peer = Torch(backend, p, a)
        try:
            if backward:
                peer.prepare_backward()
                result = dict(zip(("dq", "dk", "dv"), peer.backward()))
                contenders[name] = peer.backward
            else:
                result = {"out": peer.forward()}
                contenders[name] = peer.forward
        except RuntimeError as error:
            notes[name] = str(error).splitlines()[0]
            continue
        if wanted is None:
            wanted, reference = {key: value.float() for key, value in result.items()}, name
    if backward:
        forward = Ours(library, "auto", p)
        forward.forward(a)
    errors = {}
    for kernel in kernels:
        if p["seq"] > LONGEST.get(kernel["name"], p["seq"]):
            notes[kernel["name"]] = f"left out beyond S = {LONGEST[kernel['name']]}"
            continue
        ours = Ours(library, kernel["name"], p, backward)
        work = (lambda o=ours: o.backward(a)) if backward else (lambda o=ours: o.forward(a))
        seconds(work)
        slow = seconds(work)
        if wanted:
            errors[kernel["name"]] = max(relative(a[key], value) for key, value in wanted.items())
            require_close(f"{kernel['name']} against {reference}, {p}", errors[kernel["name"]],
                          max(of_worst_tile(a[key], value) for key, value in wanted.items()))
        if slow > SLOW and not options.quick:
            notes[kernel["name"]] = f"{slow * 1e3:.0f} ms, once"
            if p["seq"] > 4096:
                continue
        contenders[kernel["name"]] = work
    times = in_turns(contenders, 3 if options.quick else 15)
    return {"problem": p, "pass": "backward" if backward else "forward", "seconds": times, "errors": errors, "notes": notes,
            "tflops": {name: flop(p, backward) / figure[1] / 1e12 for name, figure in times.items()}}


def ring(library, p, ranks, options):
    """N virtual ranks over one call, and each rank's time, contiguous and zigzag."""
    a = arrays_of(p)  # the same memory as [ranks, batch, heads, tokens, dim]
    one = Ours(library, "auto", p)
    rings = {layout: Ours(library, "auto", p, ranks=ranks, placement=layout) for layout in ("contiguous", "zigzag")}
    contenders = {"one call": lambda: one.forward(a)}
    for layout, ours in rings.items():
        contenders[layout] = lambda o=ours: o.forward(a)
        for rank in range(ranks):
            contenders[f"{layout}, rank {rank}"] = lambda o=ours, r=rank: o.forward(a, r, 1)
    return {"problem": p, "ranks": ranks, "seconds": in_turns(contenders, 3 if options.quick else 9)}


def fewer_multiprocessors(library, p, options):
    a = arrays_of(p)
    cases = {sms: Ours(library, "auto", p, reserved_sms=sms) for sms in (0, 4, 8, 16)}
    return {"problem": p, "seconds": in_turns({str(n): (lambda o=ours: o.forward(a)) for n, ours in cases.items()},
                                              3 if options.quick else 9)}


def ceilings(options):
    n = 2048 if options.quick else 8192
    x, y = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    big = torch.randn((1 << 26) if options.quick else (1 << 30), device="cuda")
    other = torch.empty_like(big)
    times = in_turns({"gemm": lambda: x @ y, "copy": lambda: other.copy_(big)}, 9)
    return {"gemm_size": n, "gemm_tflops": 2 * n ** 3 / times["gemm"][1] / 1e12,
            "copy_bytes_per_second": 2 * big.numel() * 4 / times["copy"][1]}


def machine():
    fields = "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.limit"
    done = subprocess.run(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"], capture_output=True, text=True)
    properties = torch.cuda.get_device_properties(0)
    return {"name": properties.name, "multiprocessors": properties.multi_processor_count,
            "nvidia_smi": dict(zip(fields.split(","), done.stdout.strip().split(", "))),
            "torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}


def schedule(options):
    """(what it is, how to run it), most important first."""
    lengths = (1024,) if options.quick else (8192, 2048, 32768, 4096, 16384)
    for backward in (False, True):
        for dim in (128, 64):
            for causal in (False, True):
                yield "attention", (problem(lengths[0], dim, causal), backward)
    for seq in (lengths[0], 4 * lengths[0]):  # 2048 and 8192 tokens a rank
        for causal in (False, True):
            yield "ring", (problem(seq, 128, causal), 4)
    yield "multiprocessors", (problem(lengths[0], 128),)
    yield "attention", (problem(lengths[0], 128, kv_heads=HEADS // 8), False)
    for seq in lengths[1:]:
        for dim in (128, 64):
            for causal in (False, True):
                for backward in (False, True):
                    yield "attention", (problem(seq, dim, causal), backward)


def text(results):
    rows = [["pass", "mask", "D", "S", "kernel", "ms", "TFLOP/s", "% of cuDNN"]]
    for case in results["attention"]:
        p = case["problem"]
        for name, figure in case["seconds"].items():
            rate = case["tflops"][name]
            peer = case["tflops"].get("cuDNN")
            heads = f" {p['heads']}:{p['kv_heads']}" if p["heads"] != p["kv_heads"] else ""
            rows.append([case["pass"], ("causal" if p["causal"] else "full") + heads, str(p["dim"]), str(p["seq"]), name,
                         tables.milliseconds(figure), f"{rate:.0f}", f"{100 * rate / peer:.0f}" if peer else ""])
    lines = tables.in_columns(rows)
    c = results["ceilings"]
    lines.append(f"ceilings: bf16 GEMM {c['gemm_size']} {c['gemm_tflops']:.0f} TFLOP/s, copy {c['copy_bytes_per_second'] / 1e12:.2f} TB/s")
    for case in results["ring"]:
        whole = {name: figure[1] for name, figure in case["seconds"].items()}
        n, mask = case["ranks"], f"S = {case['problem']['seq']}, {'causal' if case['problem']['causal'] else 'full'}"
        for layout in ("contiguous", "zigzag"):
            slowest = max(whole[f"{layout}, rank {rank}"] for rank in range(n))
            lines.append(f"{n} virtual ranks, {mask}, {layout}: {whole[layout] / whole['one call']:.3f} of one call; "
                         f"slowest rank {n * slowest / whole['one call']:.3f} of its share")
    for case in results["multiprocessors"]:
        base = case["seconds"]["0"][1]
        shares = ", ".join(f"{n}: {figure[1] / base:.3f}" for n, figure in case["seconds"].items())
        lines.append(f"multiprocessors reserved: {shares} of the time with all")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=Path)
    parser.add_argument("--seconds", type=float, default=240, help="no new case begins after so many")
    parser.add_argument("--quick", action="store_true", help="small problems, to see that everything runs")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("skipped: PyTorch sees no GPU")
        sys.exit(77)
    torch.manual_seed(0)
    library = Library(options.library)
    begin = time.monotonic()
    results = {"machine": machine(), "date": datetime.date.today().isoformat(), "quick": options.quick,
               "ceilings": ceilings(options), "attention": [], "ring": [], "multiprocessors": [], "left_out": 0}
    for part, arguments in schedule(options):
        if time.monotonic() - begin > options.seconds:
            results["left_out"] += 1
            continue
        run = {"attention": contest, "ring": ring, "multiprocessors": fewer_multiprocessors}[part]
        results[part].append(run(library, *arguments, options))
        if options.out:
            options.out.write_text(json.dumps(tables.rounded(results), indent=1) + "\n", encoding="utf-8")
        torch.cuda.empty_cache()
    results["machine"]["nvidia_smi_after"] = machine()["nvidia_smi"]
    if options.out:
        options.out.write_text(json.dumps(tables.rounded(results), indent=1) + "\n", encoding="utf-8")
    print(text(results))
    if results["left_out"]:
        print(f"{results['left_out']} cases were left out: the time was up")


if __name__ == "__main__":
    main()
