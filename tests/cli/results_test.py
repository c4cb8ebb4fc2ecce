"""`ring-attention run`: what it writes is attention, for every kind of input, on any number of ranks."""

import math
import os
import signal
import time

import harness
import npy
from attention import Problem, random_values, worst_error

TOLERANCE = {"<f8": 1e-13, "<f4": 8e-6}
FILES = ("--q", "q.npy", "--k", "k.npy", "--v", "v.npy")


def four(shape):
    """(B, H, S, D) of a file's shape."""
    return (1,) * (4 - len(shape)) + tuple(shape)


def causal(query, key):
    return key <= query


class ResultsTest(harness.CommandTest):
    def write_problem(self, q_shape, kv_shape, dtype="<f8", value_dim=None, **problem_words):
        """Writes q, k, v and dout.npy."""
        arrays = {}
        out_shape, v_shape = ((*shape[:-1], value_dim or shape[-1]) for shape in (q_shape, kv_shape))
        for seed, (name, shape) in enumerate((("q", q_shape), ("k", kv_shape), ("v", v_shape), ("dout", out_shape))):
            arrays[name] = random_values(shape, seed)
            npy.write(self.path(name + ".npy"), shape, arrays[name], dtype)
        return Problem(**arrays, q_shape=four(q_shape), kv_shape=four(kv_shape), value_dim=value_dim, **problem_words)

    def assert_results(self, problem, q_shape, kv_shape, dtype, gradients=False, also=()):
        """The files in results/ are those of the problem, in `dtype` and the input's dimensions."""
        out_shape, v_shape = ((*shape[:-1], problem.value_dim) for shape in (q_shape, kv_shape))
        want = list(zip(("out", "lse"), (out_shape, q_shape[:-1]), problem.attend()))
        if gradients:
            want += zip(("dq", "dk", "dv"), (q_shape, kv_shape, v_shape), problem.differentiate())
        for name, shape, elements in want:
            got_shape, got_dtype, got = self.array(f"results/{name}.npy")
            self.assertEqual((got_shape, got_dtype), (tuple(shape), dtype), name)
            self.assertLessEqual(worst_error(got, elements), TOLERANCE[dtype], name)
        names = [f"{name}.npy" for name, _, _ in want]
        self.assertEqual(self.files_in("results"), sorted([*names, "report.json", *also]))

    def check_case(self, ranks, q_shape, kv_shape=None, words="", dtype="<f8", **problem_words):
        kv_shape = kv_shape or q_shape
        words = words.split()
        with self.subTest(ranks=ranks, q=q_shape, kv=kv_shape, words=words, dtype=dtype):
            problem = self.write_problem(q_shape, kv_shape, dtype, **problem_words)
            self.run_well(ranks, "run", *FILES, "--out", "results", *words)
            self.assert_results(problem, q_shape, kv_shape, "<f8" if dtype == "<f8" else "<f4", "--dout" in words)

    def test_dimensions(self):
        self.check_case(4, (13, 8))
        self.check_case(3, (2, 13, 8))
        self.check_case(4, (2, 3, 13, 8))

    def test_element_types(self):
        for ranks, dtype in ((3, "<f2"), (4, "<f4"), (1, "<f8")):
            self.check_case(ranks, (2, 9, 4), dtype=dtype)

    def test_engines(self):
        for dtype in ("<f4", "<f8"):
            for engine in ("fast", "readable"):
                self.check_case(2, (2, 9, 4), words=f"--dout dout.npy --engine {engine}", dtype=dtype)

    def test_grouped_query_heads(self):
        self.check_case(3, (2, 6, 10, 4), (2, 3, 10, 4))
        self.check_case(3, (4, 10, 4), (1, 10, 4))

    def test_other_lengths_of_keys(self):
        self.check_case(4, (5, 4), (11, 4))
        self.check_case(3, (11, 4), (5, 4))
        self.check_case(3, (1, 4), (9, 4))

    def test_values_of_another_width(self):
        for ranks, words in ((3, ""), (2, "--parallel ulysses"), (4, "--parallel all-gather"), (2, "--engine readable")):
            for value_dim in (1, 3, 9):
                self.check_case(ranks, (4, 10, 4), (2, 11, 4), f"--dout dout.npy --check {words}", value_dim=value_dim)
        self.run_well(3, "run", "--random", "1,4,40,12", "--kv-heads", "2", "--value-dim", "7", "--backward", "--check")
        report = self.run_well(2, "run", "--random", "1,2,9,12", "--value-dim", "7", "--json")
        self.assertIn('"value_dim": 7', report.out)

    def test_causal(self):
        for ranks in (1, 3, 4):
            self.check_case(ranks, (2, 13, 4), words="--causal", sees=causal)
        self.check_case(4, (5, 4), (11, 4), words="--causal", sees=causal, offset=6)

    def test_causal_rows_that_see_nothing(self):
        self.check_case(4, (11, 4), (5, 4), words="--causal", sees=causal, offset=-6)
        self.check_case(3, (8, 4), words="--causal --q-offset=-100", sees=causal, offset=-100)
        self.check_case(3, (8, 4), words="--causal --q-offset -3", sees=causal, offset=-3)
        self.assertEqual(self.array("results/lse.npy")[2][:3], [-math.inf] * 3)

    def test_q_offset(self):
        self.check_case(3, (4, 4), (12, 4), words="--causal --q-offset 5", sees=causal, offset=5)
        self.check_case(1, (4, 4), (12, 4), words="--causal --q-offset 1000", sees=causal, offset=1000)

    def test_scale(self):
        self.check_case(3, (9, 4), words="--scale 0.125", scale=0.125)
        self.check_case(1, (9, 4), words="--scale=-2", scale=-2.0)
        self.check_case(1, (9, 4), words="--scale 0", scale=0.0)

    def test_softcap(self):
        self.check_case(3, (2, 9, 4), words="--softcap 0.8 --dout dout.npy", softcap=0.8)
        self.check_case(2, (2, 9, 4), words="--softcap 1.5 --dout dout.npy --causal --engine readable", sees=causal, softcap=1.5)

    def test_block(self):
        for block in (1, 3, 1000):
            self.check_case(3, (20, 4), words=f"--engine readable --tile {block} --causal", sees=causal)

    def test_placements_and_transports(self):
        for ranks, placement, transport in (
            (4, "striped", "overlapped"),
            (4, "zigzag", "odd-even"),
            (3, "zigzag", "overlapped"),
            (3, "striped", "odd-even"),
        ):
            words = f"--causal --placement {placement} --transport {transport}"
            self.check_case(ranks, (2, 13, 4), words=words, sees=causal)

    def test_window(self):
        near = lambda query, key: query - 2 <= key <= query + 1  # noqa: E731
        self.check_case(4, (2, 13, 4), words="--window 2,1", sees=near)
        self.check_case(3, (7, 4), (13, 4), words="--window 2,1 --placement zigzag", sees=near, offset=6)
        self.check_case(3, (9, 4), words="--window 3,-1 --causal", sees=lambda query, key: query - 3 <= key <= query)

    def test_documents(self):
        npy.write(self.path("boundaries.npy"), (5,), [0, 4, 4, 5, 13], "<i8")
        document = [0] * 4 + [2] + [3] * 8
        same = lambda query, key: document[query] == document[key] and key <= query  # noqa: E731
        for ranks in (1, 4):
            self.check_case(ranks, (2, 13, 4), words="--documents boundaries.npy --causal", sees=same)

    def test_masks_of_several_intervals(self):
        inside = lambda begin, end, *tokens: all(begin <= token < end for token in tokens)  # noqa: E731
        rows = [[[0, query % 2], [4, 4], [5 + query // 2, 9 + query // 3]] for query in range(13)]
        npy.write(self.path("intervals.npy"), (13, 3, 2), [number for row in rows for pair in row for number in pair], "<i4")
        for ranks, words, sees in (
            (3, "--causal --prefix 5 --blocks 7:10", lambda i, j: j <= i or inside(0, 5, i, j) or inside(7, 10, i, j)),
            (4, "--causal --window 2,0 --sink-tokens 3", lambda i, j: j <= i and (i - 2 <= j or j < 3)),
            (2, "--window 1,1 --global-tokens 0:1,6:8",
             lambda i, j: abs(i - j) <= 1 or any(token in (0, 6, 7) for token in (i, j))),
            (3, "--causal --chunk 4 --placement zigzag", lambda i, j: j <= i and i // 4 == j // 4),
            (4, "--intervals intervals.npy --placement striped", lambda i, j: any(begin <= j < end for begin, end in rows[i])),
        ):
            with self.subTest(words):
                self.check_case(ranks, (2, 13, 4), words=words, sees=sees)

    def test_alibi(self):
        slopes = (2**-4, 2**-8, 2**-2)  # of the paper, for three heads
        distance = lambda head, query, key: -slopes[head] * abs(query - key)  # noqa: E731
        self.check_case(4, (3, 9, 4), words="--alibi", bias=distance)

    def test_gradients(self):
        words = "--dout dout.npy --causal --placement "
        self.check_case(1, (2, 4, 9, 4), (2, 2, 9, 4), words=words + "contiguous", sees=causal)
        self.check_case(4, (2, 4, 9, 4), (2, 2, 9, 4), words=words + "striped", sees=causal)
        self.check_case(3, (4, 6, 4), (2, 11, 4), words=words + "zigzag", sees=causal, offset=5)
        self.check_case(4, (9, 4), words="--dout dout.npy --transport odd-even", dtype="<f4")

    def test_fewer_tokens_than_ranks(self):
        for ranks in (1, 3):
            self.check_case(ranks, (1, 4))
        self.check_case(7, (2, 5, 4), words="--causal --check --dout dout.npy", sees=causal)

    def test_one_wide(self):
        self.check_case(3, (6, 1))

    def test_header_versions(self):
        shape = (2, 9, 4)
        for version in ((2, 0), (3, 0)):
            with self.subTest(version=version):
                problem = self.write_problem(shape, shape)
                for name in "qkv":
                    npy.write(self.path(name + ".npy"), shape, getattr(problem, name), version=version)
                self.run_well(3, "run", *FILES, "--out", "results")
                self.assert_results(problem, shape, shape, "<f8")

    def test_names_with_spaces_colons_and_bytes_that_are_no_text(self):
        problem = self.write_problem((9, 4), (9, 4))
        os.makedirs(self.path("a b"))
        words = []
        for name, odd in (("q", "a b/q:1.npy"), ("k", "a b/ufs:k.npy"), ("v", os.fsdecode(b"a b/\xff.npy"))):
            os.rename(self.path(name + ".npy"), self.path(odd))
            words += ["--" + name, self.path(odd)]
        self.run_well(4, "run", *words, "--out", self.path("results"))
        self.assert_results(problem, (9, 4), (9, 4), "<f8")

    def test_any_number_of_ranks_gives_the_same(self):
        self.write_problem((2, 2, 13, 8), (2, 2, 13, 8))
        for ranks in (1, 3, 4, 7):
            self.run_well(ranks, "run", *FILES, "--causal", "--out", f"on{ranks}")
        for name in ("out", "lse"):
            alone = self.array(f"on1/{name}.npy")
            for ranks in (3, 4, 7):
                shape, dtype, got = self.array(f"on{ranks}/{name}.npy")
                self.assertEqual((shape, dtype), alone[:2])
                self.assertLessEqual(worst_error(got, alone[2]), 1e-14)

    def test_transports_agree_bit_for_bit(self):
        self.write_problem((2, 13, 8), (2, 13, 8))
        for transport in ("overlapped", "odd-even"):
            words = ("--transport", transport, "--dout", "dout.npy", "--out", transport)
            self.run_well(4, "run", *FILES, *words)
        for name in ("out", "lse", "dq", "dk", "dv"):
            one, other = (harness.read_bytes(self.path(f"{t}/{name}.npy")) for t in ("overlapped", "odd-even"))
            self.assertEqual(one, other, name)

    def test_without_the_launcher(self):
        problem = self.write_problem((9, 4), (9, 4))
        self.run_well(1, "run", *FILES, "--out", "results", launcher=False)
        self.assert_results(problem, (9, 4), (9, 4), "<f8")

    def test_a_second_run_overwrites(self):
        self.write_problem((9, 4), (9, 4))
        self.run_well(3, "run", *FILES, "--out", "results", "--scale", "3")
        problem = self.write_problem((2, 5, 4), (2, 5, 4))
        self.run_well(4, "run", *FILES, "--out", "results")
        self.assert_results(problem, (2, 5, 4), (2, 5, 4), "<f8")
        self.assertEqual(self.report()["q_shape"], [1, 2, 5, 4])

    def test_the_next_run_removes_what_a_killed_run_leaves(self):
        """And nothing else: names that the program does not make, a directory, a link, another job's files."""
        words = "run --random 1,2,65536,64 --backward --out results --trace results/t.json".split()
        left = [f"{name}.npy.part" for name in ("dk", "dq", "dv", "lse", "out")]
        left += [f"t.json.rank{rank}" for rank in range(3)]
        os.mkdir(self.path("results"))  # where the trace goes, too
        with harness.Job(3, *words, cwd=self.folder) as job:
            give_up = time.monotonic() + 20 * harness.SLOWNESS
            while self.files_in("results") != left:
                self.assertLess(time.monotonic(), give_up, "the run opens no files")
                time.sleep(0.02)
            for pid in job.processes():
                harness.send(pid, signal.SIGKILL)
            job.wait()
        self.assertEqual(self.files_in("results"), left)
        others = ["notes.part", "other/dq.npy.part", "q.npy.part", "x.npy"]
        others += ["t.json.rank", "t.json.rank03", "t.json.rank1.txt"]
        os.makedirs(self.path("results/other"))
        os.makedirs(self.path("results/dbias.npy.part"))
        for name in [*others, "report.json.part", "t.json.rank17"]:
            with open(self.path(f"results/{name}"), "wb") as file:
                file.write(b"stale" * 1000)
        os.symlink("x.npy", self.path("results/dsink.npy.part"))
        others.append("dsink.npy.part")
        problem = self.write_problem((2, 5, 4), (2, 5, 4))
        again = ("run", *FILES, "--out", "results", "--trace", "results/t.json")
        said = self.run_well(2, *again).err.splitlines()
        self.assertEqual(said, [
            "results/t.json: removed 4 files FILE.rankN, which a killed job left",
            "results: removed report.json.part, out.npy.part, lse.npy.part, dq.npy.part, dk.npy.part, dv.npy.part,"
            " which a killed job left",
        ])
        self.assert_results(problem, (2, 5, 4), (2, 5, 4), "<f8", also=[*others, "t.json"])
        self.assertTrue(os.path.isdir(self.path("results/dbias.npy.part")))
        self.assertEqual(self.run_well(2, *again).err, "")

    def test_random_is_the_same_problem_on_any_number_of_ranks(self):
        words = ("run", "--random", "2,4,11,8", "--kv-heads", "2", "--check")
        for ranks in (1, 4):
            self.run_well(ranks, *words, "--seed", "7", "--out", f"on{ranks}")
        shape, dtype, one = self.array("on1/out.npy")
        self.assertEqual((shape, dtype), ((2, 4, 11, 8), "<f4"))
        self.assertLessEqual(worst_error(one, self.array("on4/out.npy")[2]), 1e-6)
        self.run_well(1, *words, "--seed", "8", "--out", "other")
        self.assertGreater(worst_error(one, self.array("other/out.npy")[2]), 0.1)


if __name__ == "__main__":
    harness.main()
