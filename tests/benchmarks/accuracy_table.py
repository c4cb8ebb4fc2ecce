"""The table under `Accuracy` in docs/results.md: errors of 8 ranks in float32 against the dense reference in double.

Writes it between the two markers. With `--check` it writes nothing and fails unless the table exists and each of
its figures is near the figure of this build: a mean within a factor of two, a largest error, which is that of one
element, within a factor of five. Instruction sets and compilers differ in the last digits.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(os.environ.get("RING_ATTENTION_SOURCE", Path(__file__).resolve().parents[2]))
BUILD = Path(os.environ.get("RING_ATTENTION_BUILD", SOURCE / "build/release")).resolve()
MPIRUN = os.environ.get("MPIRUN", str(BUILD / "mpirun"))
PAGE = SOURCE / "docs/results.md"
BEGIN, END = "<!-- accuracy:begin, by tests/benchmarks/accuracy_table.py -->", "<!-- accuracy:end -->"

RANKS = 8
RESULTS = ("out", "lse", "dq", "dk", "dv")
# The commands as a reader types them, in the top folder. LICENSE: a text that does not change with the table.
COMMANDS = (
    "build/release/ring-attention example --text LICENSE --out build/accuracy",
    f"build/release/mpirun -n {RANKS} build/release/ring-attention run --q build/accuracy/q.npy "
    "--k build/accuracy/k.npy --v build/accuracy/v.npy --dout build/accuracy/dout.npy "
    "--causal --placement zigzag --check",
)


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
        return [json.loads(run(COMMANDS[1], folder, "--json", *more)) for more in ((), ("--wire", "bf16"))]


def table(report, over_bf16):
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
    for rank, errors in enumerate(over_bf16["per_rank"]):
        if rank in (0, RANKS - 1):
            cells = [f"{errors[name]['max']:.1e}, {errors[name]['mean']:.1e}" for name in RESULTS]
            lines.append(f"| {rank}, K,V as bf16 | " + " | ".join(cells) + " |")
    command = COMMANDS[1].replace(" --q", " \\\n    --q").replace(" --dout", " \\\n    --dout")
    return "\n".join([*lines, "", "```", COMMANDS[0], command, "```", "", "The last two rows: with `--wire bf16`."])


def figures(text):
    """The errors in a table, in order."""
    return [float(number) for number in re.findall(r"\d\.\d+e[-+]\d+", text)]


def check(stored, now):
    was, are = figures(stored), figures(now)
    if len(was) != len(are) or len(are) != 2 * (RANKS + 2) * len(RESULTS):
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
    now = table(*measured())
    if "--check" in sys.argv[1:]:
        check(stored, now)
    else:
        PAGE.write_text(f"{before}{BEGIN}\n{now}\n{END}{after}", encoding="utf-8")


main()
