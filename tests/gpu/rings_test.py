"""Rings on real GPUs, as a user starts them: several ranks, which share a GPU if there are too few. Skipped on a machine
without a GPU and in a build without CUDA; every other problem is a failure."""

import os
import re
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))

import harness

ON_GPU = "--device cuda --share-gpu --timeout 20".split()


class RingsTest(harness.CommandTest):
    def test_they_agree_with_the_reference(self):
        for ring in ("nccl", "staged"):
            for ranks, words in (
                (1, "--dtype float32"),
                (2, "--dtype float32 --causal"),
                (2, "--dtype bf16"),
                (3, "--dtype bf16 --causal --placement zigzag"),
                (3, "--dtype fp16 --causal --placement striped"),
                (4, "--dtype bf16 --causal --placement zigzag"),
            ):
                with self.subTest(ring=ring, ranks=ranks, words=words):
                    result = self.run_ranks(
                        ranks,
                        *"run --random 1,8,1001,64 --kv-heads 2 --backward --check --transport".split(),
                        ring,
                        *ON_GPU,
                        *words.split(),
                    )
                    if ring == "nccl" and "this program was built without NCCL" in result.err:
                        self.skipTest(result.err)
                    self.assertEqual(result.code, 0, str(result))

    def test_a_rank_that_dies_ends_the_job(self):
        for ring in ("nccl", "staged"):
            with self.subTest(ring=ring):
                words = "run --random 1,1,786432,128 --kernel tiled --backward --transport".split()  # seconds a step
                with harness.Job(2, *words, ring, *ON_GPU) as job:
                    time.sleep(10)
                    if job.ended():
                        self.fail(f"the job was over before a rank could be stopped: {job.wait()}")
                    harness.send(job.rank(1), signal.SIGKILL)
                    result = job.wait(60)
                    self.assertNotIn(result.code, (0, None), str(result))
                    self.assertEqual(result.survivors, [])


if __name__ == "__main__":
    probe = subprocess.run([harness.PROGRAM, "run", "--random", "1,1,8,8", "--device", "cuda"],
                           capture_output=True, text=True, timeout=120)
    if re.search(r"this machine has no (NVIDIA driver|GPU)|this program was built without CUDA", probe.stderr):
        print("skipped:", probe.stderr.strip())
        sys.exit(77)
    unittest.main(argv=[word for word in sys.argv if word != "long"], verbosity=2)
