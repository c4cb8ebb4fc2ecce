"""ring_attention.diagnose: rings in NumPy, on threads, and in PyTorch, on processes and in a job of the user's own."""

import functools
import json
import os
import subprocess
import tempfile
import time
import unittest
import unittest.mock

import harness

if __name__ == "__main__":  # processes of ranks import this file
    harness.use_python_with("torch")
harness.require("numpy", "ring_attention")

import diagnose_rings as rings
import numpy as np
import ring_attention as ra
from ring_attention import _exchange, _own_job
from ring_attention_diagnose import problems_of

try:
    import torch
    from ring_attention import _rank_processes
except ImportError:
    torch = None

CASES = "full,causal,gqa"


def mistakes(answer, phase="forward"):
    return [one["mistakes"] for one in answer.json[phase]["explanations"]]


class Threads:
    """Threads in place of the ranks of a communicator of mpi4py."""

    library = "numpy"

    def __init__(self, comm):
        self.rank, self.size, self.of_all = comm.rank, comm.size, comm.allgather

    def free(self):
        pass


class NumPy(unittest.TestCase):
    def test_a_right_ring(self):
        for placement, dtype in (("contiguous", "float32"), ("zigzag", np.float64), ("striped", "float32")):
            found = ra.diagnose(rings.numpy_ring, placement=placement, only=CASES, dtype=dtype)
            self.assertTrue(found.right and found, found.report)
            self.assertIn("3 cases on 3 ranks", found.report)
            self.assertEqual(found.json["backward"]["state"], "absent")
            self.assertIn("no-delta", found.json["not_tested"])
        ra.diagnose(rings.numpy_ring, ranks=4, only=["full"]).assert_right()

    def test_mistakes_are_named(self):
        for wrong in ("no-scale", "mask-local"):
            found = ra.diagnose(functools.partial(rings.numpy_ring, wrong=[wrong]), only=CASES)
            self.assertFalse(found)
            self.assertEqual(mistakes(found), [[wrong]])
        found = ra.diagnose(functools.partial(rings.numpy_ring, wrong=["no-scale", "mask-local"]), only=CASES)
        self.assertEqual([sorted(one) for one in mistakes(found)], [["mask-local", "no-scale"]])
        with self.assertRaisesRegex(AssertionError, "(?s)2 cases.*WRONG: the mask compares places in the shards"):
            ra.diagnose(functools.partial(rings.numpy_ring, wrong=["mask-local"]), only="causal,gqa").assert_right()

    def test_decoding(self):
        for placement in ("contiguous", "striped"):
            ra.diagnose(rings.decoding, placement=placement, only="decode").assert_right()
        found = ra.diagnose(functools.partial(rings.decoding, wrong=["average"]), ranks=4, only="decode")
        self.assertEqual(mistakes(found), [["average"]])

    def test_gradients_and_another_order_of_axes(self):
        found = ra.diagnose(rings.gathered, placement="zigzag", only="full,causal")
        self.assertTrue(found.right, found.report)
        self.assertEqual(found.json["backward"]["state"], "right")
        self.assertEqual(found.json["layouts"], ["out: axes are [S, H, D]"])

        def forward(*arguments):
            return {name: array for name, array in rings.gathered(*arguments).items() if name in ("out", "lse")}

        self.assertEqual(ra.diagnose(forward, only="full").json["backward"]["state"], "absent")

    def test_whole_arrays(self):
        def dense(q, k, v, case):
            self.assertEqual((case.ranks, case.comm, case.positions), (4, None, list(range(24))))
            buffer[:], lse = ra.attention(q, k, v, scale=case.scale)
            return buffer, lse

        buffer = np.empty((1, 4, 24, 16))  # the function uses it again
        found = ra.diagnose(dense, ranks=4, placement="zigzag", whole=True, only="full,causal", dtype="float64")
        self.assertEqual(mistakes(found), [["no-mask"]])
        self.assertIn("on 4 ranks, zigzag", found.report)

    def test_placements_and_sizes_of_ones_own(self):
        def dealt(case):
            return [list(range(case["tokens"]))[::-1][rank :: case["ranks"]] for rank in range(case["ranks"])]

        words = {"placement": dealt, "tokens": 36, "heads": 6, "dim": 8, "only": CASES}
        self.assertTrue(ra.diagnose(rings.numpy_ring, **words))
        found = ra.diagnose(functools.partial(rings.numpy_ring, wrong=["mask-local"]), **words)
        self.assertEqual(mistakes(found), [["mask-local"]])

    def test_the_seed_and_the_block_reach_the_cases(self):
        calls, (problem,) = [], problems_of(2, only=["full"], seed=5, block=8)
        with self.assertRaisesRegex(ValueError, "returned nothing"):
            ra.diagnose(lambda q, k, v, case: calls.append(q), ranks=2, only="full", seed=5, block=8, whole=True)
        self.assertEqual([q.tolist() for q in calls], [problem.inputs()["q"].tolist()] * 2)  # the first case runs twice

    def test_a_placement_of_ones_own_in_a_job_of_ones_own(self):
        """Each rank of a job makes the function: it is the same if its name is."""
        def diagnosed(comm, name):
            def dealt(case):
                return [list(range(rank, case["tokens"], case["ranks"])) for rank in range(case["ranks"])]

            dealt.__qualname__ = name
            return ra.diagnose(rings.numpy_ring, placement=dealt, group=comm, only=CASES)

        with unittest.mock.patch.object(_own_job, "group_of", Threads):
            for found in _exchange.run_ranks(2, lambda _, comm: diagnosed(comm, "dealt")):
                self.assertTrue(found.right, found.report)
            with self.assertRaisesRegex(ValueError, "the ranks gave different arguments to diagnose"):
                _exchange.run_ranks(2, lambda rank, comm: diagnosed(comm, f"dealt by {rank}"))
            for function, words, says in ((rings.one_fails, {}, "rank 1 failed in the case full: ValueError: this rank is"),
                                          (lambda q, k, v, case: q[:, 1:], {}, "out of rank 0 in the case full: the shape"),
                                          (rings.numpy_ring, {"ranks": 7}, "ranks is 7 and the group has 2")):
                _exchange.run_ranks(2, lambda _, comm: self.assertRaisesRegex(  # noqa: B023
                    Exception, f"^{says}", ra.diagnose, function, group=comm, only="full", **words))  # noqa: B023

    def test_two_sequences_a_wide_v_a_bias_and_more_keys_than_queries(self):
        def attention(q, k, v, case):
            self.assertEqual((len(q), v.shape[3]), (case.batch, case.value_dim or case.dim))
            rows = np.arange(q.shape[2])
            if case.comm is not None:  # a rank has its own queries, and all keys after a gather
                order = np.argsort(sum(case.tokens_of_rank, []))
                rows = case.queries_of_rank[case.rank] if case.queries else case.positions
                k, v = (np.concatenate(of_ranks, 2)[:, :, order] for of_ranks in zip(*case.comm.allgather((k, v))))
            seen = np.arange(case.tokens) <= case.first_query + np.array(rows)[:, np.newaxis]
            scores = case.scale * q @ k.swapaxes(2, 3) + (0 if case.bias is None else case.bias)
            scores = np.where(seen | (not case.causal), scores, -np.inf)
            weights = np.exp(scores - scores.max(3, keepdims=True))
            return weights / weights.sum(3, keepdims=True) @ v

        for words in ({"whole": True}, {"placement": "zigzag"}):
            ra.diagnose(attention, only="bias,batch,wide-v,more-keys", **words).assert_right()

    def test_a_race(self):
        calls = []

        def racing(q, k, v, case):
            calls.append(case.name)
            return q * (len(calls) > case.ranks)

        found = ra.diagnose(racing, only="full")
        self.assertIn("WRONG: not the same twice: rows 0 to 23 of out, on ranks 0, 1, 2, in the case full", found.report)

    def test_every_case_says_what_it_is(self):
        """The library's own attention with these words, and the same report as from the command line."""
        def attention(q, k, v, case):
            self.assertEqual((case.rank, case.ranks, case.positions), (0, 1, case.tokens_of_rank[0]))
            bias = case.bias
            if case.hidden_keys:
                bias = np.zeros((case.tokens, case.tokens), q.dtype)
                bias[:, :case.hidden_keys] = -np.inf
            words = {"causal": case.causal, "scale": case.scale, "documents": case.cu_seqlens, "bias": bias,
                     "sink": case.sinks, "alibi": case.alibi_slopes is not None,
                     "window": (case.window - 1, 0) if case.window else None}
            result = ra.attention(q, k, v, **words)
            gradients = ra.attention_backward(case.dout, q, k, v, *result, **words)
            seen.append(case.name)
            kept[case.name] = dict(zip(("out", "lse", "dq", "dk", "dv"), (*result, *gradients[:3])))
            return kept[case.name]

        seen, kept = [], {}
        found = ra.diagnose(attention, ranks=1)
        self.assertTrue(found.right, found.report)
        self.assertEqual(len(seen), 13)  # the first one twice
        program = harness.BUILD / "ring-attention"
        if not program.exists():
            self.skipTest("the program is not built")
        with tempfile.TemporaryDirectory() as folder:
            def run(*words):
                return subprocess.run([program, "diagnose", *words], capture_output=True, text=True, check=True).stdout

            run("cases", "--ranks", "1", "--out", f"{folder}/mine")
            for case, results in kept.items():
                for name, array in results.items():
                    np.save(f"{folder}/mine/{case}/{name}.npy", array)
            self.assertEqual(run(f"{folder}/mine"), found.report)
            self.assertEqual(json.loads(run(f"{folder}/mine", "--json")), found.json)

    def test_errors_name_rank_and_case(self):
        def two_wait(_q, _k, _v, case):
            return case.comm.recv(source=(case.rank + 1) % 3)

        def of_another_tag(_q, _k, _v, case):
            case.comm.send(0, (case.rank + 1) % 3, tag=1)
            return case.comm.recv(source=(case.rank - 1) % 3, tag=2)

        def one_waits(q, _k, _v, case):
            return q if case.rank else case.comm.recv(source=2, tag=5)

        for function, kind, text in (
                (rings.broken, RuntimeError, "^rank 1 failed in the case causal: ValueError: this rank is broken$"),
                (two_wait, RuntimeError, "deadlock: rank . waits for .*, and .*rank (0 for one of rank 1|1 for one of rank 2)"),
                (of_another_tag, RuntimeError, "deadlock: rank . waits for a message of rank . with tag 2"),
                (one_waits, RuntimeError, "rank 0 waits for a message of rank 2 with tag 5, and rank 1 has returned"),
                (lambda q, k, v, case: case.comm.send(q, 3), RuntimeError, "ValueError: dest is 3: ranks are 0 to 2$"),
                (lambda q, k, v, case: (q, q, q), RuntimeError, "the function returned 3 things"),
                (lambda q, k, v, case: {"o": q}, RuntimeError, "returned o: the names are out, lse, dq, dk, dv"),
                (lambda q, k, v, case: None if case.rank == 2 else q, ValueError, "rank 2 returned no out in the case full"),
                (lambda q, k, v, case: None, ValueError, "the function returned nothing"),
                (lambda q, k, v, case: q[:, 1:], ra.InputError,
                 r"^out of rank 0 in the case full: the shape \[1, 3, 8, 16\] is not \[4, 8, 16\]")):
            begin = time.monotonic()
            with self.subTest(text=text), self.assertRaisesRegex(kind, text):
                ra.diagnose(function, only="full,causal")
            self.assertLess(time.monotonic() - begin, 5)

    def test_a_message_is_a_copy(self):
        """Of a list too: a rank that uses its buffer again changes nothing."""
        def work(rank, comm):
            buffer = np.full(2, rank)
            comm.send([buffer], (rank + 1) % 3)
            buffer[:] = -1
            comm.send(0, (rank + 1) % 3, tag=1)
            comm.recv(source=(rank - 1) % 3, tag=1)
            got = int(comm.recv(source=(rank - 1) % 3)[0][0])
            return got, comm.bcast(rank, root=2), comm.alltoall([rank, rank + 3, rank + 6])

        self.assertEqual(_exchange.run_ranks(3, work), [(2, 2, [0, 1, 2]), (0, 2, [3, 4, 5]), (1, 2, [6, 7, 8])])

    def test_bad_arguments(self):
        for text, words in (("there is none: take some of full, causal", {"only": "full,none"}),
                            ("ranks is 0", {"ranks": 0}), ("placement is 'snake'", {"placement": "snake"}),
                            ('only "gloo"', {"backend": "nccl"}), ("group is int", {"group": 3}),
                            ("give one of them", {"whole": True, "backend": "gloo"}),
                            ("divides", {"parallel": "hybrid", "ulysses": 2})):
            with self.subTest(text=text), self.assertRaisesRegex((TypeError, ValueError), text):
                ra.diagnose(rings.numpy_ring, **words)


@unittest.skipIf(torch is None, "no PyTorch: TORCH_PYTHON names a Python that has it")
class PyTorch(unittest.TestCase):
    def diagnose(self, function, **words):
        return ra.diagnose(function, backend="gloo", only="full,causal", **words)

    def test_right(self):
        for words, state in (({"placement": "zigzag", "dtype": torch.bfloat16}, "right"),
                             ({"ranks": 2, "dtype": "float64", "gradients": False}, "absent")):
            found = self.diagnose(rings.torch_attention, **words)
            self.assertTrue(found.right, found.report)
            self.assertEqual(found.json["backward"]["state"], state)
        found = self.diagnose(functools.partial(rings.torch_attention, order=(0, 2, 1, 3)), ranks=2)
        self.assertEqual(found.json["layouts"], ["out: axes are [S, H, D]"])
        self.assertEqual(found.json["backward"]["state"], "right")

    def test_mistakes_are_named(self):
        for wrong, phase, dtype in (("dkdv-own-only", "backward", "float32"), ("no-mask", "forward", "bfloat16")):
            found = self.diagnose(functools.partial(rings.torch_attention, wrong=[wrong]), dtype=dtype)
            self.assertEqual(mistakes(found, phase), [[wrong]], found.report)

    def test_errors_name_rank_and_case(self):
        for function, text in ((rings.torch_broken, "^rank 1 failed in the case full: ValueError: this rank is broken$"),
                               (rings.torch_exits, "the process of rank . ended in the case full")):
            with self.subTest(text=text), self.assertRaisesRegex(RuntimeError, text):
                self.diagnose(function)
        with self.assertRaisesRegex(TypeError, "top level of a module"):
            self.diagnose(lambda q, k, v, case: q)

    def test_no_rank_waits_without_end(self):
        os.environ["RING_ATTENTION_TIMEOUT"] = "2"
        self.addCleanup(os.environ.pop, "RING_ATTENTION_TIMEOUT")
        with self.assertRaisesRegex(TimeoutError, "no rank did anything for 2 s .*: rank 0 in the case full, rank 1"):
            self.diagnose(rings.torch_hangs, ranks=2)

    def test_in_a_job_of_their_own(self):
        job = rings.OwnJob(rings.torch_attention, functools.partial(rings.torch_attention, wrong=["dkdv-own-only"]),
                           rings.one_fails)
        for right, wrong, error in _rank_processes.run_ranks(2, job, ["right", "wrong", "error"]):
            self.assertTrue(right.right, right)
            self.assertEqual(mistakes(wrong, "backward"), [["dkdv-own-only"]])
            self.assertEqual(error, "rank 1 failed in the case full: ValueError: this rank is broken")


class Pages(unittest.TestCase):
    def test_the_page_shows_code_that_runs(self):
        in_numpy, in_torch = harness.python_blocks("diagnose.md")
        self.assertIn("owner + 1", in_numpy)
        done = harness.run_text(1, in_numpy + in_numpy.replace("owner + 1", "owner - 1"))
        self.assertEqual(done.returncode, 0, done.stderr)
        wrong, right = done.stdout.split("Results of ")[1:]
        shown = (harness.SOURCE / "docs/diagnose.md").read_text(encoding="utf-8")
        self.assertIn("\n".join(wrong.splitlines()[5:]), shown)  # the sentence, but no error of rounding
        self.assertIn("WRONG: the owner of a parcel is taken as", wrong)
        self.assertIn("RIGHT in these cases", right)
        if torch is not None:
            done = harness.run_text(1, in_torch + '\nif __name__ == "__main__":\n    test_my_attention()\n')
            self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
