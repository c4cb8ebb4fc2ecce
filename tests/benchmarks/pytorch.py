"""Times PyTorch's CPU scaled_dot_product_attention beside ours, on the same arrays, and compares the results.

    pytorch.py PROGRAM [--seq 4096] [--heads 4] [--repetitions 7] [--isa avx2]

Needs a Python with torch and numpy. PROGRAM is benchmark_arrays. Arrays go through .npy files; float32 and
float64, the same number of threads. The two take turns; prints JSON, figures in seconds as [quartile, median, quartile],
and the median of the ratios of two that follow each other: a machine that is slow for a while is slow for both.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import tables


class Ours:
    """The program, which waits for a line and then runs once."""

    def __init__(self, program, folder, isa):
        self.process = subprocess.Popen([program, folder, *isa], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def seconds(self, what, mask, threads):
        self.process.stdin.write(f"{what} {mask} {threads}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def write(self):
        self.process.communicate("write\n")
        if self.process.returncode != 0:
            sys.exit("benchmark_arrays failed")


def theirs(arrays, what, mask, threads):
    """(seconds, results)"""
    torch.set_num_threads(threads)
    q, k, v, grad = (torch.from_numpy(array) for array in arrays)
    for x in (q, k, v):
        x.requires_grad_(what == "both")
    begin = time.perf_counter()
    out = F.scaled_dot_product_attention(q, k, v, is_causal=mask == "causal")
    if what == "both":
        out.backward(grad)
    seconds = time.perf_counter() - begin
    time.sleep(0.02)  # its threads go to sleep before ours start
    results = {"out": out.detach().numpy()}
    if what == "both":
        results |= {"dq": q.grad.numpy(), "dk": k.grad.numpy(), "dv": v.grad.numpy()}
    return seconds, results


def compare(options, dim, dtype, agreement):
    random = np.random.default_rng(dim)
    shape = (1, options.heads, options.seq, dim)
    arrays = [random.standard_normal(shape, dtype=dtype) for _ in range(4)]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, array in zip(("q", "k", "v", "dout"), arrays):
            np.save(Path(folder) / f"{name}.npy", array)
        for mask in ("full", "causal"):
            ours = Ours(options.program, folder, options.isa)
            times = {(what, threads): ([], []) for what in ("forward", "both") for threads in (1, 2)}
            # All rows once, then all again: a machine that is slow for some seconds is slow for all of them.
            for repetition in range(-1, options.repetitions):  # the first warms up
                for (what, threads), (mine, other) in times.items():
                    own = ours.seconds(what, mask, threads)
                    seconds, results = theirs(arrays, what, mask, threads)
                    if repetition >= 0:
                        mine.append(own)
                        other.append(seconds)
            for (what, threads), (mine, other) in times.items():
                rows.append({"what": what, "mask": mask, "seq": options.seq, "heads": options.heads, "dim": dim, "type": dtype,
                             "threads": threads, "ours": tables.quartiles(mine), "torch": tables.quartiles(other),
                             "ratio": statistics.median(they / we for we, they in zip(mine, other))})
            ours.write()
            differences = {}
            for name, array in results.items():
                differences[name] = float(np.abs(np.load(Path(folder) / f"{name}.npy") - array).max())
            if not max(differences.values()) <= agreement:
                sys.exit(f"the results differ: {differences}")
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--seq", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--isa", nargs=1, default=[], help="the instruction set of PROGRAM")
    options = parser.parse_args()
    rows = [row for dtype, agreement in (("float32", 1e-3), ("float64", 1e-12)) for dim in (64, 128)
            for row in compare(options, dim, dtype, agreement)]
    print(json.dumps({"version": torch.__version__, "rows": rows}))


main()
