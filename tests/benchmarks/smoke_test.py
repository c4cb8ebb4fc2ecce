"""The benchmarks run, on small problems. Skipped where they were not built."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

BUILD = Path(os.environ["RING_ATTENTION_BUILD"])
HERE = Path(__file__).resolve().parent


def main():
    if not all((BUILD / name).exists() for name in ("tests/benchmarks/benchmark_arrays", "ring-attention")):
        print("skipped: the benchmark programs are not built; make bench does it")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "results.json"
        subprocess.run([sys.executable, HERE / "bench.py", "--quick", "--dim", "64", "--threads", "2", "--only",
                        "attention,ring,partitions,memory", "--out", out], check=True)
        results = json.loads(out.read_text(encoding="utf-8"))
    speeds = [row["gflops"][1] for row in results["attention"]["rows"]]
    seconds = [row["seconds"][1] for rows in results["ring"].values() for row in rows]
    seconds += [row["seconds"][1] for row in results["partitions"]["rows"]]
    assert len(results["partitions"]["rows"]) == 14, "a partition is missing"
    assert all(x > 0 for x in speeds + seconds) and seconds, "a time that is not positive"
    memory = results["memory"]["long"]
    shards = 6 * 4 * memory["heads"] * memory["seq"] // memory["ranks"] * memory["dim"]
    assert shards <= memory["tensor_bytes"] <= 1.1 * shards, "a rank holds six shards and at most a tenth more"


main()
