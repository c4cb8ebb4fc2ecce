"""Rings over PyTorch's gloo and over mpi4py's own calls: the bits of MPI, and what happens when a rank is lost."""

import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

import harness

harness.use_python_with("torch")
harness.require("numpy", "ring_attention")

from group_test import of_mpi

needs_torch = unittest.skipUnless(importlib.util.find_spec("torch"),
                                  "this Python has no PyTorch: TORCH_PYTHON names one that has")


def of_torch(size, case):
    """What each rank of gloo yields in a case of group_torch.py."""
    import group_torch
    from ring_attention import _rank_processes

    return [first for first, in _rank_processes.run_ranks(size, getattr(group_torch, case), [case])]


@needs_torch
class Torch(unittest.TestCase):
    def test_the_bits_are_those_of_mpi(self):
        for size in (1, 2, 3, 4):
            with self.subTest(size=size):
                self.assertEqual(of_torch(size, "bits"), of_mpi(size))

    def test_bad_arguments_are_the_same_error_and_the_next_call_works(self):
        first, *others = of_torch(3, "errors")
        self.assertEqual([first[:2]] * 2, [other[:2] for other in others])
        self.assertIn("rank 0 has scale 1, rank 1 has scale 2", first[0])
        self.assertIn("rank 1: dropout is 2", first[1])

    def test_a_group_that_is_none_or_is_missing_is_named(self):
        for texts in of_torch(2, "groups"):
            self.assertRegex(texts[0], "^TypeError: group is list: it must be a ProcessGroup or")
            for text in texts[1:]:
                self.assertRegex(text, "^ValueError: group: it is missing: torch.distributed has 2 ranks and MPI has 1")

    def test_a_rank_that_comes_late_prints_nothing(self):
        """PyTorch warns of each wait in its store that ends by its time limit."""
        script = ("import time, torch\nfrom group_cases import attend\ntorch.distributed.init_process_group('gloo')\n"
                  "for late in (0, 1, 0):\n    time.sleep(0.3 * (torch.distributed.get_rank() == late))\n"
                  "    attend(torch.distributed.group.WORLD)\ntorch.distributed.destroy_process_group()\n")
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "script.py").write_text(script, encoding="utf-8")
            done = self.torchrun(2, folder)
        self.assertEqual((done.returncode, done.stderr.count("[c10d] wait")), (0, 0), done.stderr)

    def test_a_group_may_be_a_part_of_the_ranks(self):
        ranks = of_torch(4, "parts")
        self.assertEqual([rank[:3] for rank in ranks], [(rank % 2, 2, True) for rank in range(4)])
        self.assertEqual(sorted(tokens for *_, tokens in ranks), [0, 1, 1, 1])

    def test_traces(self):
        self.assertEqual(of_torch(3, "traced"), [["ring.json"]] * 3)

    def test_gradients_and_compiled_functions(self):
        for size in (1, 2, 3):
            self.assertEqual(of_torch(size, "autograd"), [[True, True]] * size)

    def test_the_page_shows_a_script_for_torchrun(self):
        script = harness.python_blocks("python.md")[1]
        self.assertLessEqual(script.count("\n"), 10)
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "script.py").write_text(script + "print(qkv.grad.abs().sum() > 0)\n", encoding="utf-8")
            done = self.torchrun(3, folder)
        self.assertEqual((done.returncode, done.stdout.count("tensor(True)")), (0, 3), done.stderr)

    def torchrun(self, size, folder):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}", "script.py"]
        return subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=folder,
                              env={**harness.ENVIRONMENT, "GLOO_SOCKET_IFNAME": "lo"})

    def ends(self, case):
        """The errors of the ranks of a job that must end by itself, except for those of rank 1."""
        limit = 2 * harness.SLOWNESS
        environment = {**harness.ENVIRONMENT, "RING_ATTENTION_TIMEOUT": str(limit), "GLOO_SOCKET_IFNAME": "lo"}
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, str(harness.HERE / "group_torch.py"), case, folder]
            ranks = [subprocess.Popen([*command, str(rank), "3"], env=environment, stderr=subprocess.PIPE, text=True)
                     for rank in range(3)]
            try:
                texts = {rank: ranks[rank].communicate(timeout=60)[1] for rank in (0, 2)}
            finally:
                for one in ranks:
                    one.kill()
                    one.communicate()
            self.assertTrue(ranks[0].returncode and ranks[2].returncode, texts)
            return texts, limit

    def test_a_missing_rank_is_named(self):
        texts, limit = self.ends("missing")
        for text in texts.values():
            self.assertIn(f"TimeoutError: ring_attention: waited {limit:g} s for rank 2, which did not", text)

    def test_a_rank_that_stops_inside_a_call_is_an_error_of_the_others(self):
        for case in ("killed", "stopped"):
            with self.subTest(case=case):
                for text in self.ends(case)[0].values():
                    self.assertRegex(text, r"Error: nothing came from rank [012]: it has stopped, or is slower than .* \(\S+ s\)")


class OverMpi4py:
    python = sys.executable

    def test_the_bits_are_those_of_mpi(self):
        for size in (1, 2, 3, 4):
            with self.subTest(size=size):
                self.assertEqual(of_mpi(size, "group_mpi4py.py", "bits", python=self.python), of_mpi(size))

    def test_no_rank_waits_without_end(self):
        limit = self.set_timeout()
        done = harness.run(3, "group_mpi4py.py", "missing", python=self.python)
        self.assertIn(f"ring_attention: waited {limit:g} s for rank 2, which did not make this call", done.stdout)
        done = harness.run(2, "group_mpi4py.py", "frozen", python=self.python)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("[rank 0] error: a call failed on this rank and perhaps not on the others", done.stderr)
        done = harness.run(3, "group_mpi4py.py", "stopped", python=self.python)
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr, r"\[rank [02]\] error: nothing came from rank [012]: it has stopped")

    def test_traces(self):
        with tempfile.TemporaryDirectory() as folder:
            done = harness.run(3, "group_mpi4py.py", "traced", folder, python=self.python)
            self.assertEqual((done.returncode, os.listdir(folder)), (0, ["ring.json"]), done.stderr)

    def test_an_interrupt_inside_a_call_ends_the_job(self):
        done = harness.run(3, "group_mpi4py.py", "interrupted", python=self.python)
        self.assertNotEqual(done.returncode, 0)
        self.assertNotIn("goes on", done.stdout)

    def test_a_freed_communicator_is_freed_here_as_well(self):
        done = harness.run(2, "group_mpi4py.py", "many", python=self.python)
        self.assertEqual((done.returncode, done.stdout.count("many")), (0, 2), done.stderr)


@unittest.skipUnless("MPI4PY_FOLDER" in os.environ, "MPI4PY_FOLDER names no folder with mpi4py")
class Mpi4py(OverMpi4py, harness.Jobs):
    pass


@unittest.skipUnless("OPENMPI_PYTHON" in os.environ, "OPENMPI_PYTHON names no Python with an mpi4py over Open MPI")
class OpenMpi(OverMpi4py, harness.Jobs):
    """The package is built with MPICH."""

    python = os.environ.get("OPENMPI_PYTHON")

    def setUp(self):
        patch = unittest.mock.patch.dict(harness.ENVIRONMENT, LD_LIBRARY_PATH="", LD_PRELOAD="", HWLOC_COMPONENTS="",
                                         OMPI_ALLOW_RUN_AS_ROOT="1",
                                         PYTHONPATH=f"{harness.PACKAGE}{os.pathsep}{harness.HERE}",
                                         OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        patch.start()
        self.addCleanup(patch.stop)

    def test_it_is_another_mpi(self):
        done = harness.run(2, "group_mpi4py.py", "library", python=self.python)
        self.assertEqual(done.stdout.count("Open MPI v"), 2, done.stderr)


@unittest.skipUnless(importlib.util.find_spec("jax"), "this Python has no JAX: TORCH_PYTHON names one that has")
class Jax(unittest.TestCase):
    def test_the_page_shows_a_ring_under_jit(self):
        program = next(block for block in harness.python_blocks("python.md") if "import jax" in block)
        self.assertLessEqual(len([line for line in program.splitlines() if line]), 24)
        for ranks in (1, 2, 3):
            done = harness.run_text(ranks, program + """
whole = [ra.gather(array, seq=1000) for array in (q, k, v, *map(np.asarray, gradients))]
if ra.rank() == 0:
    *arrays, dq, dk, dv = whole
    result = ra.attention(*arrays, causal=True)
    due = ra.attention_backward(2 * result.out, *arrays, *result, causal=True)
    print(all(np.abs(got - want).max() <= 1e-5 for got, want in zip((dq, dk, dv), due)))
""")
            self.assertEqual((done.returncode, done.stdout), (0, "True\n"), done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
