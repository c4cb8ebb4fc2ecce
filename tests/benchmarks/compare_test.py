"""compare.py finds what is slower, on programs that print the times they are told."""

import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
FAKE = """#!{python} -SE
import json, sys
nan = float("nan")
times, isa = {times}, sys.argv[2]
if isa not in times:
    sys.exit("no instruction set " + isa)
if "--benchmark_list_tests" in sys.argv:
    print(*times[isa], "sgemm/T:1/real_time", sep="\\n")
else:
    name = sys.argv[3].removeprefix("--benchmark_filter=^").removesuffix("$")
    print(json.dumps(dict(benchmarks=[dict(cpu_time=times[isa][name], error_occurred=False)])))
"""


def folder_with(root, name, times):
    """A build folder whose program has these milliseconds, {isa: {subject: time}}."""
    program = root / name / "tests/benchmarks/benchmark_attention"
    program.parent.mkdir(parents=True)
    times = {isa: {f"{what}/S:1024/D:64/T:1/real_time": time for what, time in of.items()} for isa, of in times.items()}
    program.write_text(FAKE.format(python=sys.executable, times=times), encoding="utf-8")
    program.chmod(0o755)
    return root / name


def compared(before, after, *flags):
    """Exit code, and the subjects that are slower."""
    done = subprocess.run([sys.executable, HERE / "compare.py", before, after, "--rounds", "1", *flags], capture_output=True,
                          text=True, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    print(done.stdout + done.stderr)
    return done.returncode, re.findall(r"^(\S+) +(\w+)/.* SLOWER$", done.stdout, re.MULTILINE)


def test_compare(tmp_path):
    usual = {"avx512": {"fast_backward": 10, "double_forward_causal": 10}, "avx2": {"fast_backward": 20, "fast_forward_bias": 20}}
    before = folder_with(tmp_path, "before", usual)
    near = folder_with(tmp_path, "near", {**usual, "avx2": {"fast_backward": 20.5, "fast_forward_bias": 10}})
    assert compared(before, near) == (0, []), "2.5 % more, and less, are not slower"
    slow = folder_with(tmp_path, "slow", {**usual, "avx2": {"fast_backward": 20.7, "fast_forward_bias": 20}})
    assert compared(before, slow) == (1, [("avx2", "fast_backward")]), "3.5 % more in one instruction set are found"
    assert compared(slow, before) == (0, []), "the other way round it is faster"
    nan = folder_with(tmp_path, "nan", {**usual, "avx2": {"fast_backward": float("nan"), "fast_forward_bias": 20}})
    assert compared(before, nan)[0] == 1, "a time that is NaN is not accepted"
    assert compared(before, slow, "--isa", "neon")[0] == 2, "an instruction set that is not here is an error"
    assert compared(before, tmp_path)[0] == 2, "a folder without the program is an error"
