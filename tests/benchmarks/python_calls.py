"""What a call from Python costs: `python3 tests/benchmarks/python_calls.py`, with nothing else running.

Small arrays: microseconds a call. Large ones: the time beside the forward of `ring-attention run` on the same shape, the
least of some runs of each in turn.
"""

import json
import os
import subprocess
import sys
import timeit
from pathlib import Path

BUILD = Path(os.environ.get("RING_ATTENTION_BUILD") or Path(__file__).resolve().parents[2] / "build/release")
sys.path.insert(0, str(BUILD / "python"))

import numpy as np
import ring_attention as ra


def program_seconds(shape):
    done = subprocess.run([BUILD / "ring-attention", "run", "--random", ",".join(map(str, shape)), "--threads", "1", "--json"],
                          capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["forward_seconds"]


def main():
    for shape in ((1, 1), (4, 64), (16, 64)):
        q = np.ones((1, *shape), np.float32)
        out, lse = ra.attention(q, q, q, threads=1)
        for name, call in (("attention", lambda: ra.attention(q, q, q, threads=1)),
                           ("attention_backward", lambda: ra.attention_backward(q, q, q, q, out, lse, threads=1)),
                           ("ring_attention, one rank", lambda: ra.ring_attention(q, q, q, seq=shape[0], threads=1))):
            best = min(timeit.repeat(call, number=200, repeat=20)) / 200
            print(f"{name}, q [1, {shape[0]}, {shape[1]}]: {1e6 * best:.1f} us")
    for shape in ((1, 4, 4096, 128), (1, 1, 16384, 64)):
        arrays = [np.random.default_rng(i).uniform(-np.sqrt(3), np.sqrt(3), shape).astype(np.float32) for i in range(3)]
        python, program = [], []
        for _ in range(7):
            program.append(program_seconds(shape))
            python.append(min(timeit.repeat(lambda: ra.attention(*arrays, threads=1), number=1, repeat=1)))
        print(f"attention, {list(shape)}: {min(python):.4f} s; ring-attention run {min(program):.4f} s; "
              f"ratio {min(python) / min(program):.3f}")


if __name__ == "__main__":
    main()
