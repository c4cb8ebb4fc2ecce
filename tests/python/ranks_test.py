"""ring_attention and what belongs to it, on several ranks."""

import concurrent.futures
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import harness

harness.require("numpy", "ring_attention")


class Ranks(harness.Jobs):
    def ends(self, ranks, case):
        """The text of an error that ends a job."""
        begin = time.monotonic()
        done = harness.run(ranks, "ranks_program.py", case)
        self.assertNotEqual(done.returncode, 0)
        self.assertLess(time.monotonic() - begin, 20)
        return done.stderr

    def test_balanced_placements(self):
        for ranks in (1, 2, 3):
            self.well(ranks, "balanced")

    def test_values_kernels_errors_and_memory(self):
        """Errors are the same on all ranks; 500 calls need no further memory."""
        self.well(1, "values", "kernels", "errors")
        self.well(2, "values", *(["memory"] if os.path.exists("/proc/self/statm") else []))
        self.well(3, "values", "kernels", "errors")
        self.well(5, "values")

    @unittest.skipUnless(os.path.exists("/proc/self/statm"), "only Linux says how much memory a process has")
    def test_no_memory_is_an_error_of_all_ranks(self):
        self.well(2, "no_memory")

    def test_traces(self):
        with tempfile.TemporaryDirectory() as folder:
            self.well(3, f"traces:{folder}")
            self.assertEqual(os.listdir(folder), ["ring.json"])

    def test_has_the_bits_of_the_program(self):
        for ranks, kind, *ways in ((1, "float32", "contiguous:ring"), (2, "float16", "striped:ulysses"),
                                   (3, "float64", "zigzag:ring", "contiguous:all-gather")):
            with self.subTest(ranks=ranks):
                self.has_the_bits(harness.BUILD / "ring-attention", ranks, kind, ways)

    def test_the_pages_show_code_that_runs(self):
        # mpi4py_test.py, group_test.py and attention_test.py run the others.
        one_process, _, mpi, one, _, ring, *_, torch, _, _, _, _, kernel = harness.python_blocks("python.md")
        shown = (harness.SOURCE / "README.md").read_text(encoding="utf-8")
        self.assertTrue(set(ring.splitlines()) <= set(shown.splitlines()), "README.md shows other lines")
        self.assertIn("scaled_dot_product_attention", torch)  # torch_test.py runs these calls
        for ranks, block in ((1, one_process), (3, mpi)):
            self.assertLessEqual(block.count("\n"), 10)
            done = harness.run_text(ranks, block)
            self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)
        program = (one + "want = out\n" + ring + "assert out is None or abs(out - want).max() < 1e-12\n" +
                   kernel + "out = ra.gather(out, seq=1000)\n"
                   "assert out is None or abs(out - want).max() < 1e-12\nif ra.rank() == 0: print(ra.size())\n")
        done = harness.run_text(4, program)
        self.assertEqual((done.returncode, done.stdout), (0, "4\n"), done.stderr)

    def test_an_error_of_one_rank_ends_the_job(self):
        self.assertIn("this rank is broken", self.ends(3, "failing:alone"))
        self.assertIn("this kernel is broken", self.ends(3, "failing:kernel"))

    def test_an_agreed_error_is_printed_once(self):
        text = self.ends(3, "failing:agreed")
        self.assertEqual(text.count("AgreedError: rank 2: k is [1, 2, 5, 4] where [1, 2, 5, 3] is due"), 1, text)

    def test_no_rank_waits_without_end(self):
        """A rank that does not come is an exception on the others. One that leaves a call ends the job."""
        timeout = self.set_timeout()
        no_call = f"ring_attention: waited {timeout:g} s for rank %d, which did not make this call"
        not_moved = rf"\[rank 0\] error: nothing moved for {timeout:g} s: exchange, step 1, peer 2; a peer has " \
                    "stopped, or is slower than RING_ATTENTION_TIMEOUT"
        jobs = {"first": (2, "TimeoutError: " + no_call % 0), "last": (3, "TimeoutError: " + no_call % 2),
                "caught": (3, not_moved), "stopped": (3, not_moved),
                "unstarted": (2, rf"nothing moved for {timeout:g} s: start;"), "late": (3, "a call failed on this rank"),
                "late_first": (3, "a call failed on this rank"), "slow": (2, "^")}
        with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:  # they wait most of the time
            done = dict(zip(jobs, pool.map(lambda kind: harness.run(jobs[kind][0], "ranks_program.py", f"missing:{kind}"),
                                           jobs)))
        for kind, (_, text) in jobs.items():
            with self.subTest(kind=kind):
                self.assertRegex(done[kind].stderr, text)
                self.assertEqual(done[kind].returncode == 0, kind == "slow", done[kind])
        for kind, late in (("late", 2), ("late_first", 0)):
            self.assertEqual(done[kind].stdout.count(no_call % late), 3, done[kind])  # also on the late one
            self.assertEqual(done[kind].stdout.count("no further call"), 3, done[kind])

    def test_an_interrupt_ends_the_job(self):
        for case in ("waiting", "computing"):
            command = [harness.MPIRUN, "-n", "2", sys.executable, str(harness.HERE / "ranks_program.py"), case]
            with self.subTest(case=case), subprocess.Popen(
                    command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=harness.ENVIRONMENT,
                    stdin=subprocess.DEVNULL, start_new_session=True) as job:
                self.assertEqual(job.stdout.readline(), "waiting\n")
                time.sleep(0.5)
                begin = time.monotonic()
                os.killpg(job.pid, signal.SIGINT)  # as a terminal does
                out = job.communicate(timeout=50)[0]
                self.assertNotIn("all is well", out)  # the exit code is that of MPICH's launcher: 2, 130, or even 0
                self.assertLess(time.monotonic() - begin, 10)

    def test_another_mpi_in_the_process_is_an_error(self):
        other = os.environ.get("RING_ATTENTION_OTHER_MPI")
        if not other:
            self.skipTest("its library is not built")
        for mode in (ctypes.RTLD_GLOBAL, ctypes.RTLD_LOCAL):
            program = (f"import ctypes\nctypes.CDLL({other!r}, mode={mode})\n"
                       "import numpy as np, ring_attention as ra\n"
                       "ra.attention(*np.ones((3, 4, 4)))  # needs no MPI\n"
                       "try: ra.rank()\nexcept ra.Error as error: print(error)\n")
            done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                                  env=harness.ENVIRONMENT, timeout=50)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn('two MPI libraries, "', done.stdout)
            self.assertIn('"Another MPI v4.1.4, package: stand-in"', done.stdout)
            self.assertIn("MPICH", done.stdout)
