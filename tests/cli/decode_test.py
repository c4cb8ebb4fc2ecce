"""`ring-attention decode`: a prompt and its next tokens are one causal forward; `bench decode` holds together."""

import json

import harness
import npy
from attention import Problem, random_values, worst_error

FILES = ("--q", "q.npy", "--k", "k.npy", "--v", "v.npy")
PLACEMENTS, TRANSPORTS = ("contiguous", "striped", "zigzag"), ("overlapped", "odd-even") * 2
TOLERANCE = {"<f8": 1e-13, "<f4": 8e-6}


def four(shape):
    """(B, H, S, D) of a file's shape."""
    return (1,) * (4 - len(shape)) + tuple(shape)


def causal(query, key):
    return key <= query


class DecodeTest(harness.CommandTest):
    def write_problem(self, q_shape, kv_shape, dtype="<f8", value_dim=None, **problem_words):
        arrays = {}
        v_shape = (*kv_shape[:-1], value_dim or kv_shape[-1])
        for seed, (name, shape) in enumerate((("q", q_shape), ("k", kv_shape), ("v", v_shape))):
            arrays[name] = random_values(shape, seed)
            npy.write(self.path(name + ".npy"), shape, arrays[name], dtype)
        return Problem(**arrays, q_shape=four(q_shape), kv_shape=four(kv_shape), value_dim=value_dim, **problem_words)

    def check_case(self, ranks, q_shape, kv_shape=None, words="", dtype="<f8", sees=causal, **problem_words):
        kv_shape = kv_shape or q_shape
        with self.subTest(ranks=ranks, q=q_shape, kv=kv_shape, words=words, dtype=dtype):
            problem = self.write_problem(q_shape, kv_shape, dtype, sees=sees, **problem_words)
            self.run_well(ranks, "decode", *FILES, "--out", "results", "--check", *words.split())
            out_shape = (*q_shape[:-1], problem.value_dim)
            for name, shape, elements in zip(("out", "lse"), (out_shape, q_shape[:-1]), problem.attend()):
                got_shape, got_dtype, got = self.array(f"results/{name}.npy")
                self.assertEqual((got_shape, got_dtype), (tuple(shape), dtype), name)
                self.assertLessEqual(worst_error(got, elements), TOLERANCE[dtype], name)
            return self.report()

    def test_any_number_of_ranks_and_any_prompt(self):
        for ranks, prompt in harness.first(4, (1, 0), (3, 12), (4, 6), (7, 2), (2, 1), (5, 3)):
            report = self.check_case(ranks, (2, 13, 4), words=f"--prompt {prompt}")
            self.assertEqual((report["prompt"], report["decoded"]), (prompt, 13 - prompt))
            self.assertEqual(sum(rank["tokens"] for rank in report["per_rank"]), 13)

    def test_placements(self):
        for placement, transport in harness.first(3, *zip(PLACEMENTS, TRANSPORTS), *zip(PLACEMENTS, TRANSPORTS[1:])):
            self.check_case(3, (2, 14, 4), words=f"--placement {placement} --transport {transport}")

    def test_grouped_heads_engines_and_types(self):
        for dtype, engine in harness.first(2, ("<f4", "fast"), ("<f8", "readable"), ("<f4", "readable"), ("<f8", "fast")):
            words = f"--engine {engine} --threads 2"
            self.check_case(2, (2, 4, 11, 8), (2, 2, 11, 8), words=words, dtype=dtype)

    def test_values_of_another_width(self):
        for value_dim, words in ((3, ""), (11, "--alibi"), (1, "--engine readable")):
            alibi = {"bias": lambda head, query, key: -(query - key) / 4 ** (head + 1)} if words == "--alibi" else {}
            self.check_case(3, (4, 11, 8), (2, 11, 8), words=words, value_dim=value_dim, **alibi)
        self.run_well(3, "decode", "--random", "1,4,40,12", "--kv-heads", "2", "--value-dim", "7", "--same-bits", "--check")

    def test_scores(self):
        self.check_case(3, (2, 13, 4), words="--window 2,0", sees=lambda query, key: query - 2 <= key <= query)
        self.check_case(3, (2, 13, 4), words="--scale 0.3", scale=0.3)
        self.check_case(3, (2, 13, 4), words="--softcap 0.8", softcap=0.8)
        self.check_case(3, (2, 13, 4), words="--alibi", bias=lambda head, query, key: -(query - key) / 16 ** (head + 1))
        npy.write(self.path("sink.npy"), (2,), [0.5, -1.0], "<f8")
        self.check_case(3, (2, 13, 4), words="--sink sink.npy", sinks=[0.5, -1.0])

    def test_it_is_what_run_writes(self):
        self.write_problem((2, 40, 8), (1, 40, 8))
        self.run_well(1, "decode", *FILES, "--out", "one", "--prompt", 25)
        self.run_well(1, "run", *FILES, "--out", "whole", "--causal")
        self.assertEqual(self.array("one/out.npy"), self.array("whole/out.npy"))

    def test_messages_do_not_grow_with_the_cache(self):
        sent = {}
        for tokens in (20, 200):
            out = self.run_well(2, "decode", "--random", f"1,4,{tokens},16", "--kv-heads", 2, "--prompt", tokens - 4,
                                "--check", "--json").out
            report = json.loads(out)
            sent[tokens] = report["bytes_per_token"]
            self.assertEqual(report["cache_bytes"], 2 * 2 * (tokens // 2) * 16 * 4)
            self.assertEqual(report["ring_bytes_per_token"], report["cache_bytes"])
        self.assertEqual(sent, {20: 4 * 2 * (18 + 17), 200: 4 * 2 * (18 + 17)})

    def test_text(self):
        out = self.run_well(2, "decode", "--random", "1,2,12,4", "--check").out
        for word in ("on 2 ranks", "prompt  6 tokens on a ring", "tokens/s", "a ring would send", "one causal forward"):
            self.assertIn(word, out)

    def test_refuses(self):
        self.write_problem((2, 13, 4), (2, 13, 4))
        npy.write(self.path("heads.npy"), (3, 13, 4), [0.0] * 156, "<f8")
        npy.write(self.path("dim.npy"), (2, 13, 5), [0.0] * 130, "<f8")
        npy.write(self.path("type.npy"), (2, 13, 4), [0.0] * 104, "<f4")
        npy.write(self.path("long.npy"), (2, 14, 4), [0.0] * 112, "<f8")
        out = ("--out", "results")
        for words, says in (
            ((*FILES, *out, "--prompt", "13"), ("--prompt 13", "no token", "at most 12")),
            ((*FILES, *out, "--prompt", "14"), ("--prompt 14", "at most 12")),
            ((*FILES, *out, "--prompt", "-1"), ("--prompt", "from 0")),
            (("--q", "q.npy", "--k", "heads.npy", "--v", "heads.npy", *out), ("heads.npy", "divide the heads")),
            (("--q", "q.npy", "--k", "dim.npy", "--v", "dim.npy", *out), ("dim.npy", "D must be the same")),
            (("--q", "q.npy", "--k", "type.npy", "--v", "type.npy", *out), ("type.npy", "in one type")),
            (("--q", "q.npy", "--k", "long.npy", "--v", "long.npy", *out), ("13 tokens", "long.npy", "14")),
            (("--random", f"1,8,{1 << 36},64"), ("memory", "more ranks")),
            ((*FILES,), ("--out", "--check")),
            (("--random", "1,2,8,4", "--causal"), ("--causal", "decode --help")),
            (("--random", "1,2,8,4", "--expect-ranks", "3"), ("--expect-ranks 3", "2")),
        ):
            with self.subTest(words=words):
                self.assert_refused(self.run_ranks(2, "decode", *words), *says)
        self.assertNotIn("results", [name.split("/")[0] for name in self.files_in()])

    def bench(self, ranks, *words):
        return json.loads(self.run_well(ranks, "bench", "decode", "--repetitions", "1", "--json", *words).out)

    def test_bench(self):
        for ranks in harness.first(2, 1, 3, 2):
            report = self.bench(ranks, "--seq", "640", "--heads", "4", "--kv-heads", "2", "--dim", "16")
            self.assertEqual([row["tokens"] for row in report["lengths"]], [10, 80, 640])
            for row in report["lengths"]:
                most = -(-row["tokens"] // ranks)
                self.assertEqual(row["cache_bytes"], 2 * 2 * most * 16 * 4)
                self.assertEqual(row["sent_bytes"], report["lengths"][0]["sent_bytes"])
                self.assertAlmostEqual(row["read_bytes_per_second"] * row["attend_seconds"], row["cache_bytes"])
                self.assertAlmostEqual(row["plain_bytes_per_second"] * row["plain_read_seconds"], row["cache_bytes"])
        self.assertIn("plain read", self.run_well(1, "bench", "decode", "--seq", "64", "--repetitions", "1").out)

    def test_bench_refuses(self):
        for words, says in (
            (("--seq", "5", "decode"), ("decode excludes --seq", "bench decode")),
            (("decode", "--causal"), ("--causal", "bench decode --help")),
            (("decode", "--kv-heads", "3"), ("--kv-heads 3", "--heads, 32")),
            (("decode", "--seq", "0"), ("--seq",)),
            (("decode", "--seq", str(1 << 52)), ("2^48",)),
            (("decode", "--seq", str(1 << 60)), ("--seq", str(1 << 53))),
            (("decode", "--seq", str(1 << 34)), ("memory", "more ranks")),
        ):
            with self.subTest(words=words):
                self.assert_refused(self.run_ranks(2, "bench", *words), *says)


if __name__ == "__main__":
    harness.main()
