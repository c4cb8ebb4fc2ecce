"""The tables under `Accuracy` in docs/results.md: errors of 8 ranks in float32 against the dense reference in double,
and of 8 ranks whose arrays are bf16.

Writes them between the two markers. With `--check` it writes nothing and fails unless the tables exist and each of
their figures is near the figure of this build: a mean within a factor of two, a largest error, which is that of one
element, within a factor of five. Instruction sets and compilers differ in the last digits.
"""

import json
import math
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

SOURCE = Path(os.environ.get("RING_ATTENTION_SOURCE", Path(__file__).resolve().parents[2]))
BUILD = Path(os.environ.get("RING_ATTENTION_BUILD", SOURCE / "build/release")).resolve()
MPIRUN = os.environ.get("MPIRUN", str(BUILD / "mpirun"))
PAGE = SOURCE / "docs/results.md"
BEGIN, END = "<!-- accuracy:begin, by tests/benchmarks/accuracy_table.py -->", "<!-- accuracy:end -->"

RANKS = 8
RESULTS = ("out", "lse", "dq", "dk", "dv")
# The commands as a reader types them, in the top folder. LICENSE: a text that does not change with the table.
COMMANDS = (
    "build/release/ring-attention example --text LICENSE --out build/accuracy --bias --sink",
    f"build/release/mpirun -n {RANKS} build/release/ring-attention run --q build/accuracy/q.npy "
    "--k build/accuracy/k.npy --v build/accuracy/v.npy --dout build/accuracy/dout.npy "
    "--causal --placement zigzag --check",
)
# Rows of the first table, for the first and the last rank: what is added to the command.
VARIANTS = {
    "K,V as bf16": "--kv-dtype bf16",
    "with all three": "--bias build/accuracy/bias.npy --sink build/accuracy/sink.npy --dropout 0.1",
}


def run(command, folder, *more):
    """The output of a command, with the paths of this build and this source, and its arrays in `folder`."""
    here = {
        "build/release/ring-attention": BUILD / "ring-attention",
        "build/release/mpirun": MPIRUN,
        "LICENSE": SOURCE / "LICENSE",
    }
    words = [str(here.get(word, word.replace("build/accuracy", folder))) for word in command.split()]
    done = subprocess.run([*words, *more], capture_output=True, text=True, timeout=100)
    if done.returncode != 0:
        sys.exit(f"{command}\nexit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def measured():
    with tempfile.TemporaryDirectory() as folder:
        run(COMMANDS[0], folder)
        return [json.loads(run(f"{COMMANDS[1]} {more}", folder, "--json")) for more in ("", *VARIANTS.values())]


# bf16 as published: a text measured q, k, v, dO in bf16 on 8 ranks, contiguous. (largest, mean), rank after rank.
PUBLISHED = {
    "out": "3.91e-3 7.68e-5 1.95e-3 1.14e-4 9.77e-4 9.16e-5 9.77e-4 7.96e-5 9.77e-4 7.1e-5 9.77e-4 6.48e-5 "
           "9.77e-4 6.01e-5 4.88e-4 5.63e-5",
    "lse": "9.54e-7 1.2e-7 9.54e-7 2.01e-7 9.54e-7 2.27e-7 9.54e-7 2.37e-7 1.91e-6 2.52e-7 1.91e-6 3.13e-7 "
           "1.91e-6 3.38e-7 1.91e-6 3.89e-7",
    "dq": "3.12e-2 7.36e-4 1.95e-3 9.49e-5 4.88e-4 6.39e-5 9.77e-4 5.46e-5 4.88e-4 4.32e-5 4.88e-4 3.17e-5 "
           "4.88e-4 2.94e-5 4.88e-4 1.39e-5",
    "dk": "1.56e-2 5.61e-4 9.77e-4 8.44e-5 9.77e-4 6.15e-5 4.88e-4 5.15e-5 4.88e-4 3.79e-5 4.88e-4 3.58e-5 "
           "4.88e-4 2.96e-5 4.88e-4 1.49e-5",
    "dv": "1.56e-2 5.68e-4 1.95e-3 9.63e-5 9.77e-4 5.6e-5 9.77e-4 4.77e-5 9.77e-4 4.48e-5 4.88e-4 3.24e-5 "
           "4.88e-4 2.87e-5 4.88e-4 1.53e-5",
}
HEADS, TOKENS, DIM = 2, 2048, 64


def rounded(array):
    """To bf16, to the nearest and ties to even; as float."""
    bits = array.astype(np.float32).view(np.uint32)
    return (bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000).view(np.float32)


def measured_bf16():
    """For each result, (largest, mean) of each rank: float arithmetic on arrays in bf16 against one rank in double."""
    random.seed(1)
    shape = 1, HEADS, TOKENS, DIM
    with tempfile.TemporaryDirectory() as folder:
        inputs = [rounded(np.reshape([random.gauss(0, 1) for _ in range(math.prod(shape))], shape)) for _ in range(4)]
        results = []
        for kind, ranks in ((np.float32, RANKS), (np.float64, 1)):
            for name, array in zip(("q", "k", "v", "dout"), inputs):
                np.save(f"{folder}/{name}.npy", array.astype(kind))
            command = COMMANDS[1].replace("--placement zigzag --check", "--placement contiguous --out build/accuracy")
            run(command.replace(f"-n {RANKS}", f"-n {ranks}"), folder)
            results.append([np.load(f"{folder}/{result}.npy") for result in RESULTS])
    errors = {}
    for result, got, want in zip(RESULTS, *results):
        off = abs((got if result == "lse" else rounded(got)) - want).reshape(HEADS, RANKS, -1)  # lse stays a float
        assert np.isfinite(off).all()
        errors[result] = np.stack([off.max(axis=(0, 2)), off.mean(axis=(0, 2))], 1).ravel()
    return errors


def bf16_table():
    ours = measured_bf16()
    published = {result: [float(figure) for figure in PUBLISHED[result].split()] for result in RESULTS}
    lines = [
        f"All arrays in bf16, as a [published text](sources.md) (D) has it: {RANKS} ranks, causal, contiguous placement.",
        "Inputs and results are rounded to bf16 (lse is not), the arithmetic is float. Random normal numbers,",
        f"{HEADS} heads, {TOKENS} tokens, D = {DIM}, against one rank in double on the same rounded inputs. The text compares",
        "with FlashAttention in bf16, on other shapes:",
        "",
        "| rank | " + " | ".join(RESULTS) + " |",
        "|---" * (len(RESULTS) + 1) + "|",
    ]
    for label, errors in (("", ours), (", published", published)):
        for rank in range(RANKS):
            cells = [f"{errors[name][2 * rank]:.1e}, {errors[name][2 * rank + 1]:.1e}" for name in RESULTS]
            lines.append(f"| {rank}{label} | " + " | ".join(cells) + " |")
    return "\n".join([
        *lines, "",
        "Rank 0 has the largest errors in both (the first number of a cell), except for lse. It has the first tokens, and these",
        "see few keys: their weights are large, so out, dQ, dK and dV are large, and a number in bf16 is off by up to 1/256 of",
        "itself. A zigzag placement, as in the first table, gives every rank early and late tokens, and the errors are alike.",
    ])


def table(report, *variants):
    batch, heads, tokens, dim = report["q_shape"]
    kv_heads = report["kv_shape"][1]
    assert batch == 1 and report["ranks"] == RANKS and report["dtype"] == "float32"
    lines = [
        f"Largest and mean error of each rank against dense attention in double, in float32 on {RANKS} ranks. Causal,",
        f"{tokens} tokens (the bytes of LICENSE), {heads} query heads and {kv_heads} KV heads of dimension {dim}:",
        "",
        "| rank | " + " | ".join(RESULTS) + " |",
        "|---" * (len(RESULTS) + 1) + "|",
    ]
    for rank, errors in enumerate(report["per_rank"]):
        cells = [f"{errors[name]['max']:.1e}, {errors[name]['mean']:.1e}" for name in RESULTS]
        lines.append(f"| {rank} | " + " | ".join(cells) + " |")
    for label, variant in zip(VARIANTS, variants):
        for rank in (0, RANKS - 1):
            errors = variant["per_rank"][rank]
            cells = [f"{errors[name]['max']:.1e}, {errors[name]['mean']:.1e}" for name in RESULTS]
            lines.append(f"| {rank}, {label} | " + " | ".join(cells) + " |")
    command = COMMANDS[1].replace(" --q", " \\\n    --q").replace(" --dout", " \\\n    --dout")
    bf16, all_three = VARIANTS.values()
    return "\n".join([
        *lines, "", "```", COMMANDS[0], command, "```", "",
        f"The rows with K,V as bf16: with `{bf16}`. The last two rows, with bias, sinks and dropout:",
        f"`{all_three}`.",
    ])


def figures(text):
    """The errors in a table, in order."""
    return [float(number) for number in re.findall(r"\d\.\d+e[-+]\d+", text)]


def check(stored, now):
    was, are = figures(stored), figures(now)
    if len(was) != len(are) or len(are) != 2 * (RANKS + 2 * len(VARIANTS) + 2 * RANKS) * len(RESULTS):
        sys.exit(f"{PAGE} has {len(was)} figures and not {len(are)}: run {Path(__file__).name}")
    if any((a > 0) != (b > 0) for a, b in zip(was, are)):
        sys.exit(f"{PAGE} has zeros in other places than this build: run {Path(__file__).name}\nnow\n{now}")
    factors = [max(a / b, b / a) if a > 0 else 1 for a, b in zip(was, are)]
    largest, mean = max(factors[::2]), max(factors[1::2])  # a cell is "largest, mean"
    if not (largest <= 5 and mean <= 2):
        sys.exit(f"{PAGE} is off by {largest:.1f} and {mean:.1f} times: run {Path(__file__).name}\nnow\n{now}")
    print(f"{len(are)} figures: largest errors within a factor of {largest:.2f}, means {mean:.2f}")


def main():
    text = PAGE.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        sys.exit(f"{PAGE} lacks the markers {BEGIN} and {END}")
    before, rest = text.split(BEGIN)
    stored, after = rest.split(END)
    now = table(*measured()) + "\n\n" + bf16_table()
    if "--check" in sys.argv[1:]:
        check(stored, now)
    else:
        PAGE.write_text(f"{before}{BEGIN}\n{now}\n{END}{after}", encoding="utf-8")


main()
