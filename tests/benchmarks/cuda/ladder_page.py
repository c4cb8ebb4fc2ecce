"""Writes the results of the GPU benchmark into lesson 11's ESTIMATES.md, between two markers.

    ladder_page.py [RESULTS.json | --check]

RESULTS.json is the output of `bench_cuda.py --out`; it is copied to tests/benchmarks/cuda/results/. Without it the page is
written from the newest file there. --check writes nothing and fails if the page is out of date.
"""

import json
import os
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(os.environ.get("RING_ATTENTION_SOURCE", Path(__file__).resolve().parents[3]))
PAGE = ROOT / "lessons/11_tensor_cores/ESTIMATES.md"
STORED = ROOT / "tests/benchmarks/cuda/results"
MARKED = re.compile(r"(<!-- ladder:begin[^\n]*-->\n).*?(<!-- ladder:end -->)", re.DOTALL)


def column(case):
    p = case["problem"]
    return f"{case['pass']}, {'causal' if p['causal'] else 'full'}, D = {p['dim']}"


def text(results):
    """One table for the length with the most cases: a row per kernel, a column per kind of problem, in TFLOP/s."""
    if results is None:
        return "Not measured yet.\n"
    cases = [case for case in results["attention"] if case["problem"]["heads"] == case["problem"]["kv_heads"]]
    lengths = [case["problem"]["seq"] for case in cases]
    seq = max(dict.fromkeys(lengths), key=lengths.count)  # the first of them, where several have as many
    cases = [case for case in cases if case["problem"]["seq"] == seq]
    kernels = list(dict.fromkeys(name for case in cases for name in case["tflops"]))
    machine, ceilings = results["machine"], results["ceilings"]
    lines = [
        f"{machine['name']}, {machine['nvidia_smi'].get('clocks.sm', '?')} at the start; CUDA {machine['cuda']}, cuDNN "
        f"{machine['cudnn']}, PyTorch {machine['torch']}; {results['date']}. {cases[0]['problem']['type']}, S = {seq}, "
        f"{cases[0]['problem']['batch'] * seq} tokens in all; medians of TFLOP/s, and % of cuDNN in the same run. A product of "
        f"matrices, {ceilings['gemm_size']}³: {ceilings['gemm_tflops']:.0f}.",
        "",
        "| kernel | " + " | ".join(map(column, cases)) + " |",
        "|---" * (len(cases) + 1) + "|",
    ]
    for kernel in kernels:
        cells = []
        for case in cases:
            rate, peer = case["tflops"].get(kernel), case["tflops"].get("cuDNN")
            share = f", {100 * rate / peer:.0f} %" if rate and peer and kernel != "cuDNN" else ""
            cells.append(f"{rate:.0f}{share}" if rate else "")
        lines.append(f"| {kernel} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def newest():
    stored = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(STORED.glob("*.json"))]
    return max(stored, key=lambda results: results["date"], default=None)


def page(results):
    old = PAGE.read_text(encoding="utf-8")
    assert MARKED.search(old), f"{PAGE}: no markers"
    return old, MARKED.sub(lambda match: match[1] + text(results) + match[2], old)


SAMPLE = {
    "machine": {"name": "GPU", "nvidia_smi": {"clocks.sm": "1980 MHz"}, "cuda": "13.0", "cudnn": 1, "torch": "2"},
    "date": "2000-01-01", "ceilings": {"gemm_size": 8192, "gemm_tflops": 700.0},
    "attention": [
        {"pass": "forward", "tflops": {"cuDNN": 600.0, "mma": 300.0},
         "problem": {"type": "bf16", "batch": 2, "heads": 16, "kv_heads": kv, "seq": 8192, "dim": 128, "causal": False}}
        for kv in (16, 2)
    ],
}


def main(arguments):
    assert "| mma | 300, 50 % |" in text(SAMPLE) and "| kernel | forward, full, D = 128 |" in text(SAMPLE)
    if arguments and arguments != ["--check"]:
        results = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
        if results["quick"]:
            sys.exit(f"{arguments[0]}: --quick measures nothing")
        STORED.mkdir(exist_ok=True)
        name = re.sub(r"\W+", "-", results["machine"]["name"].lower())
        shutil.copyfile(arguments[0], STORED / f"{name}.json")
    old, new = page(newest())
    if arguments == ["--check"]:
        print("up to date" if old == new else f"{PAGE}: out of date: run {Path(__file__).name}")
        return 0 if old == new else 1
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
