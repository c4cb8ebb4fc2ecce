"""comm=, with communicators of mpi4py. MPI4PY_FOLDER in the environment names a folder that has it (docs/python.md)."""

import concurrent.futures
import subprocess
import sys

import harness

harness.require("numpy", "ring_attention")

PROBE = """
import sys
try:
    import mpi4py
    mpi4py.rc.initialize = False
    from mpi4py import MPI
except ImportError as error:
    sys.exit(f"no mpi4py: {error}")
import numpy as np, ring_attention as ra
ra.attention(*np.ones((3, 4, 4)))  # needs no MPI
try: print(ra.size())
except ra.Error as error: print(error)
"""


# Skipped where mpi4py is missing, or has another MPI, of which the package must say so.
probe = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=50, env=harness.ENVIRONMENT)
if "no mpi4py: " in probe.stderr or 'two MPI libraries, "' in probe.stdout:
    harness.skip(f"{sys.executable}: {(probe.stdout or probe.stderr).strip()}; docs/python.md says which mpi4py works")
if (probe.returncode, probe.stdout) != (0, "1\n"):
    sys.exit(probe.stderr + probe.stdout)


class Mpi4py(harness.Jobs):
    PROGRAM = "mpi4py_program.py"

    def run_case(self, ranks, order, *cases):
        return harness.run(ranks, self.PROGRAM, order, *cases)

    def test_values_and_errors(self):
        """In both orders: the package or mpi4py starts MPI, and ends it."""
        self.well(1, "mpi4py", "same")
        self.well(2, "ring_attention", "same", "wrong")
        self.well(2, "mpi4py", "same", "wrong")
        self.well(4, "ring_attention", "groups", "some")
        self.well(4, "mpi4py", "some", "groups")  # at first, one rank makes no call

    def test_the_page_shows_code_that_runs(self):
        _, _, _, one, _, _, pairs, *_ = harness.python_blocks("python.md")
        program = (one + "want = out\n" + pairs + "assert (out is None) == (ra.rank() % 2 == 1)\n"
                   "assert out is None or abs(out - want).max() < 1e-12\nif ra.rank() == 0: print(ra.size())\n")
        done = harness.run_text(4, program)
        self.assertEqual((done.returncode, done.stdout), (0, "4\n"), done.stderr)

    def test_communicators_do_not_leak(self):
        self.well(2, "mpi4py", "many")

    def test_no_rank_waits_without_end(self):
        waited = f"ring_attention: waited {self.set_timeout():g} s for "
        texts = {"late:used": (waited + "rank 2, which", 2), "late:new": (waited + "at least one of rank ", 2),
                 "late:other": (waited + "at least one of rank ", 3)}
        with concurrent.futures.ThreadPoolExecutor(len(texts)) as pool:  # they wait most of the time
            jobs = dict(zip(texts, pool.map(lambda case: self.run_case(3, "mpi4py", case), texts)))
        for case, (text, ranks) in texts.items():
            with self.subTest(case=case):
                self.assertEqual(jobs[case].stdout.count(text), ranks, jobs[case])
                self.assertNotEqual(jobs[case].returncode, 0, jobs[case])
                self.assertIn("a call failed on this rank", jobs[case].stderr)

    def test_an_error_that_nothing_catches_ends_the_job(self):
        for order in ("mpi4py", "ring_attention"):
            for case, text in (("agreed", "AgreedError: rank 1: "), ("broken", "RuntimeError: this rank is broken")):
                with self.subTest(order=order, case=case):
                    done = self.run_case(3, order, case)
                    self.assertNotEqual(done.returncode, 0)
                    self.assertEqual(done.stderr.count(text), 1, done.stderr)

    def test_diagnose(self):
        self.well(3, "mpi4py", "diagnosed")
        self.set_timeout(2)
        done = self.run_case(3, "mpi4py", "stuck")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("[rank 1] error: rank 1 failed in the case causal: ValueError: this rank is broken; the other ranks",
                      done.stderr)

    def test_the_program_may_end_mpi(self):
        for order in ("mpi4py", "ring_attention"):
            with self.subTest(order=order):
                done = self.run_case(2, order, "finalised")
                self.assertEqual((done.returncode, done.stdout), (0, "MPI has ended\n"), done.stderr)
