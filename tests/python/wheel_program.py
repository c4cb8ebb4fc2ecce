"""Calls of an installed ring_attention that need no MPI: `wheel_program.py [OFF]`; OFF: it was built without MPI."""

import importlib.metadata
import sys

import numpy as np
import ring_attention as ra


def main():
    about = importlib.metadata.metadata("ring_attention")
    assert about["Version"] == ra.__version__, about["Version"]
    assert "MIT" in str(about.get_all("Classifier")) and about.get_all("Requires-Dist")[0] == "numpy"
    assert ra.diagnose(lambda q, k, v, case: ra.attention(q, k, v, scale=case.scale), ranks=1, only="full").right
    x = np.random.default_rng(0).standard_normal((4, 50, 8))
    due = ra.attention(x, x, x, causal=True).out

    def work(group):
        mine = x[:, ra.positions(50, group=group)]
        return ra.gather(ra.ring_attention(mine, mine, mine, seq=50, causal=True, group=group).out, seq=50, group=group)

    for ranks in (1, 3):
        assert abs(ra.threads(ranks).run(work)[0] - due).max() < 1e-12
    if sys.argv[1:] == ["OFF"]:
        try:
            ra.rank()
            raise SystemExit("MPI was found")
        except ra.Error as error:
            assert "this build of ring_attention has no MPI: build it where MPICH is, or give group=" in str(error), error
    print("ring_attention", ra.__version__, "works")


if __name__ == "__main__":
    main()
