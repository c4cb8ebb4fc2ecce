"""Two real ranks of this machine take what the model predicts, within 10 %.

`ring-attention bench` measures computing alone and messages alone, and predicts from those the ring whose hops come after
its steps, and the ring that overlaps. Other load on the machine is noise: the best of some tries counts.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

BUILD = Path(os.environ.get("RING_ATTENTION_BUILD", "build/release")).resolve()
MPIRUN = os.environ.get("MPIRUN", str(BUILD / "mpirun"))
PROBLEM = "--seq 8192 --heads 4 --dim 64 --causal --threads 1 --repetitions 5".split()
LIMIT, TRIES = 0.10, 3


def bench():
    command = [MPIRUN, "-n", "2", str(BUILD / "ring-attention"), "bench", "--json", *PROBLEM]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=200).stdout)


def errors(report):
    """{(placement, kind): measured / predicted - 1}"""
    return {
        (row["placement"], kind): row[f"{kind}_seconds"] / row[f"{kind}_model_seconds"] - 1
        for row in report["placements"]
        for kind in ("in_turn", "overlapped")
    }


def main():
    if (os.cpu_count() or 1) < 2:
        print("skipped: two ranks need two cores")
        return 77
    best = {}
    for _ in range(TRIES):
        for what, error in errors(bench()).items():
            if what not in best or abs(error) < abs(best[what]):
                best[what] = error
        if all(abs(error) <= LIMIT for error in best.values()):
            break
    for (placement, kind), error in best.items():
        print(f"{'ok  ' if abs(error) <= LIMIT else 'FAIL'} {placement}, {kind}: {100 * error:+.1f} %")
    return 0 if len(best) == 4 and all(abs(error) <= LIMIT for error in best.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
