"""`ring-attention run` with --bias, --dropout and --sink: what it writes, and what it refuses."""

import json
import math
import os

import harness
import npy
from attention import Problem, dropout_factor, random_values, worst_error

TOLERANCE = {"<f8": 1e-13, "<f4": 2e-5}
FILES = ("--q", "q.npy", "--k", "k.npy", "--v", "v.npy")
Q, KV = (2, 4, 7, 3), (2, 2, 9, 3)
SINKS = [0.5, -1.0, 0.25, 2.0]
BIASES = ((7, 9), (4, 7, 9), (1, 7, 9), (1, 4, 7, 9), (2, 1, 7, 9), (2, 4, 7, 9))


class BiasDropoutSinkTest(harness.CommandTest):
    def write_problem(self, dtype="<f8", bias=None, **words):
        """q, k, v and dout.npy; with `bias`, a shape, also bias.npy, of which some entries are -inf; and sink.npy."""
        arrays = {}
        for seed, (name, shape) in enumerate((("q", Q), ("k", KV), ("v", KV), ("dout", Q))):
            arrays[name] = random_values(shape, seed)
            npy.write(self.path(name + ".npy"), shape, arrays[name], dtype)
        npy.write(self.path("sink.npy"), (4,), SINKS, dtype)
        if bias:
            values = [-math.inf if x > 1.8 else x for x in random_values(bias, 4)]
            npy.write(self.path("bias.npy"), bias, values, dtype)
            words["dense_bias"] = lambda b, h, i, j: values[self.place(bias, b, h, i, j)]
        return Problem(**arrays, q_shape=Q, kv_shape=KV, offset=2, **words)

    @staticmethod
    def place(shape, b, h, i, j):
        """The index of a pair in a bias that may broadcast."""
        batch, heads = (1,) * (4 - len(shape)) + tuple(shape[:-2]) if len(shape) < 4 else shape[:2]
        return ((min(b, batch - 1) * heads + min(h, heads - 1)) * 7 + i) * 9 + j

    def assert_results(self, problem, dtype, bias=None, sinks=False):
        want = list(zip(("out", "lse"), (Q, Q[:-1]), problem.attend()))
        want += zip(("dq", "dk", "dv"), (Q, KV, KV), problem.differentiate())
        if bias:
            total = [0.0] * math.prod(bias)
            for pair, gradient in problem.dbias.items():
                total[self.place(bias, *pair)] += gradient
            want.append(("dbias", bias, total))
        if sinks:
            want.append(("dsink", (4,), problem.dsinks))
        for name, shape, elements in want:
            got_shape, got_dtype, got = self.array(f"results/{name}.npy")
            self.assertEqual((got_shape, got_dtype), (tuple(shape), dtype), name)
            self.assertLessEqual(worst_error(got, elements), TOLERANCE[dtype], name)
        self.assertEqual(self.files_in("results"), sorted([f"{name}.npy" for name, _, _ in want] + ["report.json"]))

    def run_with(self, ranks, *words):
        return self.run_well(ranks, "run", *FILES, "--dout", "dout.npy", "--out", "results", "--check", *words)

    # ---- what it writes

    def test_every_shape_of_bias(self):
        for i, shape in enumerate(BIASES):
            placement = ("contiguous", "striped", "zigzag")[i % 3]
            with self.subTest(shape=shape, placement=placement):
                problem = self.write_problem(bias=shape, sees=lambda query, key: key <= query)
                result = self.run_with((1, 3, 4)[i % 3], "--bias", "bias.npy", "--causal", "--placement", placement)
                self.assert_results(problem, "<f8", shape)
                self.assertIn("bias.npy", result.out)
                self.assertIn("dbias", result.out)
                os.remove(self.path("results/dbias.npy"))

    def test_dropout(self):
        alone = None
        for ranks, placement in ((1, "contiguous"), (3, "striped"), (5, "zigzag")):
            problem = self.write_problem(factor=dropout_factor(0.3, 11))
            words = ("--dropout", "0.3", "--dropout-seed", "11", "--placement", placement)
            self.run_with(ranks, *words)
            self.assert_results(problem, "<f8")
            zeros = [x == 0 for x in self.array("results/out.npy")[2]]
            alone = alone or zeros
            self.assertEqual(zeros, alone)

    def test_no_dropout_has_the_same_bits_as_a_probability_of_0(self):
        self.write_problem()
        for words in ((), ("--dropout", "0")):
            self.run_with(3, *words)
            bits = [harness.read_bytes(self.path(f"results/{name}.npy")) for name in ("out", "lse", "dq", "dk", "dv")]
            self.assertEqual(bits, self.__dict__.setdefault("bits", bits))

    def test_sinks(self):
        for ranks in (1, 4):
            problem = self.write_problem(sinks=SINKS, sees=lambda query, key: key < query - 3)
            self.run_with(ranks, "--sink", "sink.npy", "--causal", "--window=-1,-1", "--q-offset=-2")
            problem.offset, problem.sees = -2, lambda query, key: key <= query
            self.assert_results(problem, "<f8", sinks=True)
            lse = self.array("results/lse.npy")[2]
            self.assertEqual([lse[7 * h] for h in range(4)], SINKS)  # the first query sees no key

    def test_all_at_once_in_every_type(self):
        for ranks, dtype in ((3, "<f4"), (2, "<f8"), (1, "<f4")):
            problem = self.write_problem(dtype, bias=(4, 7, 9), sinks=SINKS, factor=dropout_factor(0.25, 1))
            self.run_with(ranks, *"--bias bias.npy --sink sink.npy --dropout 0.25".split())
            self.assert_results(problem, dtype, (4, 7, 9), sinks=True)

    def test_the_report(self):
        self.write_problem("<f4", bias=(4, 7, 9))
        words = "--bias bias.npy --sink sink.npy --dropout 0.25 --dropout-seed 3".split()
        report = json.loads(self.run_with(2, *words, "--json").out)
        self.assertEqual((report["dropout"], report["dropout_seed"]), (0.25, 3))
        self.assertEqual(report["bias_bytes"], 2 * 4 * 4 * 4 * 9)  # with its gradient: 4 heads, 4 of 7 rows, 9 keys
        self.assertEqual((report["files"]["bias"], report["files"]["sink"]), ("bias.npy", "sink.npy"))
        for rank in report["per_rank"]:
            self.assertTrue(rank["dbias"]["ok"] and rank["dsink"]["ok"])
        text = self.run_with(2, *words).out
        for line in ("bias    [1, 4, 7, 9]  bias.npy, ", "sinks of sink.npy", "dropout 0.25 of seed 3"):
            self.assertIn(line, text)

    def test_random_arrays_with_files_of_bias_and_sinks(self):
        npy.write(self.path("bias.npy"), (16, 16), random_values((16, 16), 1), "<f4")
        npy.write(self.path("sink.npy"), (2,), [0.5, 1.0], "<f2")
        words = "run --random 1,2,16,4 --backward --check --bias bias.npy --sink sink.npy --dropout 0.5"
        self.run_well(3, *words.split())

    # ---- what it refuses

    def refuse(self, *words, said, ranks=1):
        before = self.files_in()
        self.assert_refused(self.run_ranks(ranks, "run", *FILES, "--out", "results", *words), *said)
        self.assertEqual(self.files_in(), before)

    def test_bad_biases(self):
        self.write_problem()
        for shape in ((7, 8), (9, 7), (3, 7, 9), (2, 7, 9), (3, 4, 7, 9), (2, 2, 7, 9)):
            npy.write(self.path("bias.npy"), shape, [0.0] * math.prod(shape))
            self.refuse("--bias", "bias.npy", said=("bias.npy", "[2, 4, 7, 9]", "may also be 1"))
        for dtype, words in (("<i8", ("integers", "astype")), ("<f4", ("<f4", "float64", "one type"))):
            npy.write(self.path("bias.npy"), (7, 9), [0] * 63, dtype)
            self.refuse("--bias", "bias.npy", said=("bias.npy", *words))
        npy.write(self.path("bias.npy"), (7, 9), [0.0] * 63, fortran=True)
        self.refuse("--bias", "bias.npy", said=("bias.npy", "Fortran order"))
        npy.write(self.path("bias.npy"), (63,), [0.0] * 63)
        self.refuse("--bias", "bias.npy", said=("bias.npy", "reshape"))
        self.refuse("--bias", "missing.npy", said=("missing.npy",), ranks=3)

    def test_bad_sinks(self):
        self.write_problem()
        npy.write(self.path("sink.npy"), (3,), [0.0] * 3)
        self.refuse("--sink", "sink.npy", said=("sink.npy", "3 numbers", "4 query heads"))
        npy.write(self.path("sink.npy"), (1, 4), [0.0] * 4)
        self.refuse("--sink", "sink.npy", said=("sink.npy", "2 dimensions", "reshape"))
        npy.write(self.path("sink.npy"), (4,), [0] * 4, "<i8")
        self.refuse("--sink", "sink.npy", said=("sink.npy", "integers"))
        npy.write(self.path("sink.npy"), (4,), [0.0] * 4, "<f4")
        self.refuse("--sink", "sink.npy", said=("sink.npy", "<f4", "one type"))
        for wrong in (math.nan, math.inf):
            npy.write(self.path("sink.npy"), (4,), [0.0, wrong, 0.0, 0.0])
            self.refuse("--sink", "sink.npy", said=("sink.npy", "NaN or +inf"), ranks=3)

    def test_bad_probabilities(self):
        self.write_problem()
        for wrong in ("1", "-0.1", "1.5", "0.99999999999"):
            self.refuse(f"--dropout={wrong}", said=("--dropout", "below 1"))
        self.refuse("--dropout=nan", said=("--dropout", "finite"))
        self.refuse("--dropout-seed", "3", said=("--dropout-seed", "--dropout"))
        self.refuse("--dropout", "0.1", "--dropout-seed=-1", said=("--dropout-seed",))

    def test_a_device_that_cannot(self):
        """A GPU computes in float32 at most. (What it can is in cuda_test.py.)"""
        self.write_problem(bias=(7, 9))
        for words in (("--bias", "bias.npy"), ("--sink", "sink.npy"), ("--dropout", "0.5")):
            self.refuse(*words, "--device", "cuda", said=("--device cuda",))

    def test_nan_and_infinity_in_a_bias(self):
        self.write_problem()
        for wrong, said in ((math.nan, "1 element is NaN or infinite"), (math.inf, "1 element is NaN or infinite")):
            values = [-math.inf] * 9 + [0.0] * 54
            values[40] = wrong
            npy.write(self.path("bias.npy"), (7, 9), values)
            result = self.run_well(3, "run", *FILES, "--out", "results", "--bias", "bias.npy")
            self.assertEqual(result.err, f"warning: bias.npy: {said}, the first at [0, 0, 4, 4] of [B, H, Sq, Sk]\n")
            out = self.array("results/out.npy")[2]
            self.assertEqual({i // 3 % 7 for i, x in enumerate(out) if math.isnan(x)}, {4})
            self.refuse("--bias", "bias.npy", "--check", said=("bias.npy", said, "--check"), ranks=3)

    def test_a_bias_that_does_not_fit(self):
        length = 1 << 20
        for name in "qkv":
            npy.write(self.path(name + ".npy"), (length, 1), [0.0] * length, "<f2")
        with open(self.path("bias.npy"), "wb") as file:
            header = npy.header((length, length), "<f2")
            file.write(header)
            try:
                file.truncate(len(header) + 2 * length**2)  # no block of it exists
            except OSError:
                self.skipTest("the file system has no sparse files of this size")
        self.refuse("--bias", "bias.npy", said=("cannot have", "for the bias", "TiB"))

    def test_a_check_of_a_bias_that_does_not_fit(self):
        """The bias has 4 TiB, its gradient as much. The check has the gradient, a reference, its roundings and sizes in double."""
        shape = (64, 64, 1 << 14, 1 << 14)
        with open(self.path("bias.npy"), "wb") as file:
            header = npy.header(shape, "<f2")
            file.write(header)
            try:
                file.truncate(len(header) + 2 * math.prod(shape))
            except OSError:
                self.skipTest("the file system has no sparse files of this size")
        words = f"run --random {','.join(map(str, shape[:3]))},1 --bias bias.npy".split()
        for more, size in (((), "4.0"), (("--backward",), "8.0"), (("--backward", "--check"), "40.0"), (("--check",), "4.0")):
            self.assert_refused(self.run_ranks(1, *words, *more), "cannot have", f"({size} TiB of it for the bias)")


if __name__ == "__main__":
    harness.main()
