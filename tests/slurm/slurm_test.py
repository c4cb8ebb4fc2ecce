"""Jobs under Slurm: `srun --mpi=pmi2` starts the program and the Python package, and a rank that is killed ends the job.

Slurm is Debian's, on this machine, with a configuration of its own (cluster.py). The scripts of docs/clusters.md run on it.
Arguments: an interpreter that has NumPy and the package's module, or nothing.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "cli"))
import cluster  # noqa: E402
import harness  # noqa: E402

PYTHON = next((word for word in sys.argv[1:] if os.path.isabs(word)), None)
PACKAGE_TESTS = os.path.join(HERE, "..", "python")
TIMEOUT = 2 * harness.SLOWNESS  # for --timeout
SLACK = 10 * harness.SLOWNESS  # what a job may take to end, in seconds
SRUN = ("srun", "--mpi=pmi2", "--unbuffered")  # else srun keeps a line of progress until it is complete
LONG_RUN = ("run", "--random", "1,8,16384,64", "--progress", "always", "--timeout", TIMEOUT)


@unittest.skipUnless(harness.HAS_PROC, "ranks are found through /proc, which is not here")
class SlurmTest(harness.CommandTest):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="ring_attention_slurm_")
        cls.addClassCleanup(folder.cleanup)
        cls.cluster = cluster.Cluster(folder.name).__enter__()
        cls.addClassCleanup(cls.cluster.__exit__)

    def job(self, *words, srun=(*SRUN, "-n", 2)):
        job = harness.Job(2, *words, launcher=False, before=[str(word) for word in srun], cwd=self.folder,
                          environment=self.cluster.environment)
        self.addCleanup(job.__exit__)
        return job

    def ends(self, job):
        result = job.wait()
        self.assertIsNotNone(result.code, f"did not end\n{result}\n{self.cluster.logs()}")
        self.assertEqual(result.survivors, [], str(result))
        return result

    def test_two_nodes(self):
        result = self.ends(self.job("run", "--random", "1,4,301,64", "--backward", "--check", "--json", "--expect-ranks", 3,
                                    srun=(*SRUN, "-N", 2, "-n", 3)))
        self.assertEqual(result.code, 0, f"{result}\n{self.cluster.logs()}")
        self.assertTrue(json.loads(result.out)["ok"])

    def test_without_pmi(self):
        """Without PMI each rank is a world of its own, which --expect-ranks makes an error."""
        result = self.ends(self.job("run", "--random", "1,1,8,4", "--expect-ranks", 2, srun=("srun", "--mpi=none", "-n", 2)))
        self.assertEqual(result.code, 2, str(result))
        self.assertIn("--expect-ranks 2: there are 1 rank", result.err)

    def strike(self, number, *srun):
        """Sends a signal to rank 1 of two that compute; how the job ended, and after how many seconds."""
        job = self.job(*LONG_RUN, srun=(*SRUN, "-n", 2, *srun))
        job.until(lambda: ", step " in job.errors_so_far(), "it reported a step")
        begin = time.monotonic()
        os.kill(job.rank(1), number)
        result = self.ends(job)
        self.assertNotEqual(result.code, 0, str(result))
        return result, time.monotonic() - begin

    def test_killed_rank(self):
        """--kill-on-bad-exit ends the other ranks at once."""
        result, taken = self.strike(signal.SIGKILL, "--kill-on-bad-exit=1")
        self.assertRegex(result.err, "task 1: Killed")
        self.assertLess(taken, SLACK)

    def test_killed_rank_alone(self):
        """Without it the other rank ends by its own time limit, and says so."""
        result, _ = self.strike(signal.SIGKILL)
        self.assertRegex(result.err, "task 1: Killed")
        self.assertRegex(result.err, rf"\[rank 0\] error: nothing moved for {TIMEOUT} s")

    def test_stopped_rank(self):
        """--kill-on-bad-exit also removes the stopped rank, when the other one has given up."""
        result, _ = self.strike(signal.SIGSTOP, "--kill-on-bad-exit=1")
        self.assertRegex(result.err, rf"\[rank 0\] error: nothing moved for {TIMEOUT} s")

    @unittest.skipUnless(PYTHON, "the Python package is not built")
    def test_python(self):
        if subprocess.run([PYTHON, "-c", "import numpy"], stderr=subprocess.DEVNULL).returncode:
            self.skipTest(f"{PYTHON} has no NumPy")
        done = subprocess.run(
            [*SRUN, "-N", "2", "-n", "3", PYTHON, f"{PACKAGE_TESTS}/ranks_program.py", "values"], capture_output=True,
            text=True, timeout=60 * harness.SLOWNESS,
            env={**self.cluster.environment, "PYTHONPATH": f"{harness.BUILD}/python:{PACKAGE_TESTS}", "OMP_NUM_THREADS": "1"})
        self.assertEqual((done.returncode, done.stdout), (0, "all is well on 3 ranks\n"), done.stderr)

    def test_scripts_of_the_page(self):
        """Each script of docs/clusters.md for CPUs runs as it is."""
        with open(f"{harness.SOURCE}/docs/clusters.md", encoding="utf-8") as file:
            scripts = re.findall(r"^```sh\n(#!/bin/bash\n.*?)^```", file.read(), re.M | re.S)
        scripts = [script for script in scripts if "--gpus" not in script]
        self.assertEqual(len(scripts), 2)
        os.mkdir(self.path("build"))
        os.symlink(os.path.abspath(harness.BUILD), self.path("build/release"))
        for script in scripts:
            self.write("job.sh", script)
            done = subprocess.run(["sbatch", "--wait", "--output=log", "job.sh"], capture_output=True, text=True,
                                  cwd=self.folder, env=self.cluster.environment, timeout=120 * harness.SLOWNESS)
            log = harness.read_bytes(self.path("log")).decode(errors="replace")
            self.assertEqual(done.returncode, 0, f"{script}\n{done.stderr}\n{log}")
            self.assertIn("on 4 ranks", log, script)


if __name__ == "__main__":
    lacking = cluster.missing()
    if lacking:
        print(f"skipped: not here: {', '.join(lacking)}. Remedy: apt-get install slurmctld slurmd slurm-client munge")
        sys.exit(77)
    if PYTHON:
        sys.argv.remove(PYTHON)
    unittest.main(argv=[word for word in sys.argv if word != "long"], verbosity=2)
