"""Rings over threads: the bits of MPI, and what happens when a rank is lost. The others: group_jobs_test.py."""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import harness

import numpy as np
import ring_attention as ra
from group_cases import attend, digests, traces


def of_mpi(size, *program, **words):
    """The digests of each rank of a job of MPI."""
    with tempfile.TemporaryDirectory() as folder:
        done = harness.run(size, *(program or ["group_cases.py"]), f"{folder}/digests", **words)
        if done.returncode:
            raise AssertionError(done.stderr)
        found = []
        for rank in range(size):
            with open(f"{folder}/digests.{rank}", encoding="utf-8") as file:
                found.append(json.load(file))
        return found


class Bits(unittest.TestCase):
    def test_threads_have_the_bits_of_mpi(self):
        for size in (1, 2, 3, 4):
            with self.subTest(size=size):
                self.assertEqual(ra.threads(size).run(lambda group: digests({"group": group})), of_mpi(size))

    def test_tiles_have_the_bits_of_one_process(self):
        rng, words = np.random.default_rng(0), {"causal": True, "documents": [0, 26, 45], "same_bits": 8, "sink": [0.5, -1, 0, 2]}
        grad, q, k, v = (rng.standard_normal((heads, seq, 8), np.float32) for heads, seq in ((4, 21), (4, 21), (2, 45), (2, 45)))
        due = ra.attention(q, k, v, **words)
        back = ra.attention_backward(grad, q, k, v, *due, **words)

        def work(group):
            place, ring = {"same_bits": 8, "documents": [0, 26, 45], "group": group}, {"seq": (21, 45), "group": group, **words}
            rows, keys = ra.positions(21, q_offset=24, **place), ra.positions(45, **place)
            got = ra.ring_attention(q[:, rows], k[:, keys], v[:, keys], **ring)
            with self.assertRaisesRegex(ra.AgreedError, "the gradients of numbers"):
                ra.ring_attention_backward(grad[:, rows], q[:, rows], k[:, keys], v[:, keys], *got,
                                           sink_gradient="sum" if group.rank else "share", **ring)
            own = ra.ring_attention_backward(grad[:, rows], q[:, rows], k[:, keys], v[:, keys], *got, sink_gradient="sum", **ring)
            wanted = due.out[:, rows], due.lse[:, rows], back.q[:, rows], back.k[:, keys], back.v[:, keys], back.sink
            return [one.tobytes() == want.tobytes() for one, want in zip((*got, *own[:3], own.sink), wanted)]

        self.assertEqual(ra.threads(3).run(work), [[True] * 6] * 3)


class Threads(unittest.TestCase):
    def test_the_page_shows_code_that_runs(self):
        program = next(block for block in harness.python_blocks("python.md") if "threads(" in block)
        names = {"np": np, "ra": ra}
        exec(program, names)
        due = ra.attention(names["x"], names["x"], names["x"], causal=True).out
        self.assertLessEqual(abs(names["whole"] - due).max(), 1e-12)

    def test_arrays_are_scattered_and_gathered(self):
        whole = np.arange(60.0).reshape(3, 10, 2)

        def work(group):
            shard = ra.scatter(whole if group.rank == 0 else None, group=group)
            self.assertEqual((group.size, ra.rank(group=group)), (3, group.rank))
            return ra.gather(shard, seq=10, group=group)

        first, *others = ra.threads(3).run(work)
        self.assertEqual((first.tobytes(), others), (whole.tobytes(), [None, None]))
        brick = np.arange(10 * 12 * 14.0).reshape(10, 12, 14)
        for axis, place in ((-1, {"placement": "striped"}), (1, {"same_bits": 4, "documents": [5, 12]}),
                            (0, {"same_bits": 4, "documents": [0, 3, 15], "q_offset": 5})):
            def dealt(group, axis=axis, seq=brick.shape[axis], place=place):
                shard = ra.scatter(None if group.rank else brick, axis=axis, group=group, **place)
                self.assertEqual(shard.tobytes(), brick.take(ra.positions(seq, group=group, **place), axis).tobytes())
                return ra.gather(shard, seq=seq, axis=axis, group=group, **place)

            self.assertEqual(ra.threads(3).run(dealt)[0].tobytes(), brick.tobytes(), (axis, place))
        for other in (whole[:2, :5], whole[:, :5].astype(np.float32)):
            with self.assertRaisesRegex(ra.AgreedError, r"rank 0 has gather of float64 \[3, 10, 2\], rank 1 has gather of "):
                ra.threads(2).run(lambda group: ra.gather(other if group.rank else whole[:, 5:], seq=10, group=group))  # noqa: B023

    def test_sums_are_in_the_order_of_the_ranks(self):
        terms = np.random.default_rng(0).standard_normal((4, 3, 5))
        due, before = ((terms[0] + terms[1]) + terms[2]) + terms[3], terms.tobytes()
        for got in ra.threads(4).run(lambda group: ra.all_reduce(terms[group.rank], group=group)):
            self.assertEqual(got.tobytes(), due.tobytes())
        self.assertEqual(terms.tobytes(), before, "the caller's arrays")
        with self.assertRaisesRegex(ra.AgreedError, r"rank 0 has all_reduce of float64 \[1\], rank 1 has .* \[2\]"):
            ra.threads(2).run(lambda group: ra.all_reduce(np.zeros(1 + group.rank), group=group))

    def test_traces(self):
        for size in (1, 3):
            with tempfile.TemporaryDirectory() as folder:
                ra.threads(size).run(lambda group: traces(folder, group=group))
                self.assertEqual(os.listdir(folder), ["ring.json"])

    def test_decoding_over_a_sharded_cache(self):
        q, k, v = np.random.default_rng(0).standard_normal((3, 4, 30, 8))
        for words in ({"sink": [1.0, 0, -1, 2]}, {"causal": True, "window": (9, 0)}):
            due = ra.attention(q[:, -1:], k, v, **words)

            def work(group):
                mine = np.arange((0, 0, 15)[group.rank], (0, 15, 30)[group.rank])  # rank 0 has no keys
                return ra.decode(q[:, -1:], k[:, mine], v[:, mine], positions=([29], mine), group=group, **words)

            for got in ra.threads(3).run(work):
                self.assertLessEqual(abs(got.out - due.out).max(), 1e-12)
                self.assertLessEqual(abs(got.lse - due.lse).max(), 1e-12)
        with self.assertRaisesRegex(ra.AgreedError, "rank 1: k has 2 dimensions"):
            ra.threads(2).run(lambda group: ra.decode(q[:, -1:], k[0] if group.rank else k, v, group=group))

    def test_bad_arguments_are_the_same_error_and_the_next_call_works(self):
        def work(group):
            texts = []
            for words in ({"scale": float(1 + group.rank)}, {"dropout": 2 * group.rank}, {"transport": "odd-even"}):
                with self.assertRaises(ra.AgreedError) as caught:
                    attend(group, **words)
                texts.append(str(caught.exception))
            for words in ({"causal": True}, {"window": (3, -1)}, {"window": (-1, 5)}, {"q_offset": -4}):
                with self.assertRaises(ra.AgreedError) as caught:
                    attend(group, **(words if group.rank else {}))
                texts.append(str(caught.exception))
            with self.assertRaises(ra.AgreedError) as caught:
                attend(group) if group.rank else ra.scatter(np.zeros((11, 1)), group=group)
            texts.append(str(caught.exception))
            with self.assertRaises(ra.AgreedError) as caught:  # what is wrong on one rank explains more than another call
                ra.scatter(None, group=group) if group.rank == 1 else attend(group, ulysses=int(group.rank < 2))
            return [*texts, str(caught.exception), attend(group).out.shape]

        first, *others = ra.threads(3).run(work)
        self.assertEqual([first[:9]] * 2, [other[:9] for other in others])
        for text, part in zip(first, ("rank 0 has scale 1, rank 1 has scale 2", "rank 1: dropout is 2", "transport is 'odd-even'",
                                      "rank 0 has causal=False and no right side of window (None, or -1), rank 1 has causal=True",
                                      "rank 0 has no left side of window (None, or -1), rank 1 has window=(3, ...)",
                                      "rank 1 has window=(..., 5)", "rank 0 has q_offset 0, rank 1 has q_offset -4",
                                      "rank 0 has scatter, rank 1 has ring_attention", "rank 2: ulysses is 0")):
            self.assertIn(part, text)

    def test_one_thread_of_a_rank_makes_a_call_at_a_time(self):
        """Of two threads, ranks could pair the calls in two ways: the second call is refused while the first one runs."""
        def work(group):
            def kernel(q, k, v, mask, scale):
                def other_thread():
                    with self.assertRaisesRegex(ra.Error, "another thread of this rank is in a call"):
                        attend(group)
                    refused.append(group.rank)

                thread = threading.Thread(target=other_thread)
                thread.start()
                thread.join()
                return ra.attention(q, k, v, scale=scale)

            refused = []
            got, due = attend(group, kernel=kernel), attend(group)
            return len(refused), float(abs(got.out - due.out).max()) < 1e-12

        self.assertEqual(ra.threads(2).run(work), [(2, True)] * 2)

    def test_a_kernel_may_return_double_for_float32(self):
        def kernel(q, k, v, mask, scale):
            return [array.astype(np.float64) for array in ra.attention(q, k, v, scale=scale)]

        x = np.random.default_rng(0).standard_normal((2, 9, 8), np.float32)
        (got,) = ra.threads(1).run(lambda group: ra.ring_attention(x, x, x, seq=9, group=group, kernel=kernel))
        self.assertEqual((got.out.dtype, abs(got.out - ra.attention(x, x, x).out).max() < 1e-5), (np.float32, True))

    def test_no_rank_waits_without_end(self):
        self.assertEqual(ra._meeting.limit(), float(os.environ.get("RING_ATTENTION_TIMEOUT", 60)))
        self.addCleanup(os.environ.pop, "RING_ATTENTION_TIMEOUT")
        for os.environ["RING_ATTENTION_TIMEOUT"] in ("0", "-1", "inf"):
            self.assertRaisesRegex(ValueError, "it must be a number of seconds above 0", ra._meeting.limit)
        os.environ["RING_ATTENTION_TIMEOUT"] = "0.3"
        for missing in (0, 2):
            texts = {}

            def work(group):
                begin = time.monotonic()
                time.sleep({0: 0.2, missing: 0.8}.get(group.rank, 0))  # busy with other code
                try:
                    attend(group)
                except TimeoutError as error:
                    texts[group.rank] = str(error)
                with self.assertRaisesRegex(ra.Error, "No further call"):
                    attend(group)
                self.assertLess(time.monotonic() - begin, 10)

            ra.threads(3).run(work)
            for rank in range(3):
                self.assertIn(f"ring_attention: waited 0.3 s for rank {missing}, which", texts[rank])

    def test_a_rank_that_fails_inside_a_call_ends_all(self):
        def kernel(*_):
            raise KeyError("of one rank")

        def work(group):
            attend(group, kernel=kernel if group.rank == 1 else right)

        def right(q, k, v, mask, scale):
            return np.zeros_like(q), np.zeros(q.shape[:3])

        with self.assertRaisesRegex(KeyError, "of one rank"):
            ra.threads(3).run(work)

    @unittest.skipUnless(os.path.exists("/proc/self/maps"), "only Linux says what a process has loaded")
    def test_mpi_is_loaded_when_it_is_used(self):
        program = ("import numpy as np, ring_attention as ra\n"
                   "def loaded(): return 'libmpi' in open('/proc/self/maps').read()\n"
                   "ra.attention(*np.ones((3, 4, 4)))\n"
                   "ra.threads(2).run(lambda group: ra.ring_attention(*np.ones((3, 2, 4)), seq=4, group=group))\n"
                   "before = loaded()\nra.rank()\nprint(before, loaded())\n")
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60,
                              env=harness.ENVIRONMENT)
        self.assertEqual((done.returncode, done.stdout), (0, "False True\n"), done.stderr)

    def test_what_is_no_group(self):
        with self.assertRaisesRegex(TypeError, "group is int: it must be a ProcessGroup or"):
            ra.positions(3, group=3)
        with self.assertRaisesRegex(ValueError, "it must be at least 1"):
            ra.threads(0)
