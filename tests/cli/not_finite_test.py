"""NaN and infinities in the input: always counted and the first one named; an error only with --check."""

import json
import math

import harness
import npy
from attention import random_values

SHAPE = (2, 3, 6, 4)
RUN = ("run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--out", "results")


def element(b, h, s, d):
    return ((b * SHAPE[1] + h) * SHAPE[2] + s) * SHAPE[3] + d


class NotFiniteTest(harness.CommandTest):
    def write(self, dtype="<f8", **spoilt):
        """Writes q, k and v; `spoilt` says {element: value} for some of them."""
        for name in "qkv":
            values = random_values(SHAPE, 1)
            for index, value in spoilt.get(name, {}).items():
                values[index] = value
            npy.write(self.path(name + ".npy"), SHAPE, values, dtype)

    def test_counted_and_the_first_named(self):
        for i, (name, value) in enumerate((n, x) for n in "qkv" for x in (math.nan, math.inf, -math.inf)):
            ranks = (3, 4, 3, 1)[i % 4]
            with self.subTest(file=name, value=value, ranks=ranks):
                # Not the first in any rank's own memory: the last tokens belong to the last rank.
                self.write(**{name: {element(1, 0, 0, 0): value, element(0, 2, 5, 1): value, element(1, 2, 5, 3): value}})
                result = self.run_well(ranks, *RUN)
                self.assertEqual(
                    result.err,
                    f"warning: {name}.npy: 3 elements are NaN or infinite, the first at [0, 2, 5, 1] of [B, H, S, D]\n",
                )
                self.assertEqual(self.files_in("results"), sorted(harness.OUTPUTS))
                self.assertEqual(len(self.report()["warnings"]), 1)

    def test_one_element(self):
        self.write(k={element(0, 0, 3, 2): math.nan})
        result = self.run_well(3, *RUN)
        self.assertIn("k.npy: 1 element is NaN or infinite, the first at [0, 0, 3, 2]", result.err)

    def test_all_three_files(self):
        self.write(q={0: math.nan}, k={1: math.inf}, v={2: -math.inf})
        result = self.run_well(4, *RUN, "--json")
        self.assertEqual(len(result.err.splitlines()), 3)
        self.assertEqual([line[:5] for line in json.loads(result.out)["warnings"]], ["q.npy", "k.npy", "v.npy"])

    def test_only_rows_that_see_it_are_spoilt(self):
        self.write(v={element(0, 0, 5, 1): math.nan})
        self.run_well(4, *RUN, "--causal")
        spoilt = [i for i, x in enumerate(self.array("results/out.npy")[2]) if not math.isfinite(x)]
        self.assertEqual(spoilt, [element(0, 0, 5, 1)])

    def test_check_refuses(self):
        for ranks in (1, 4):
            self.write(v={element(0, 1, 2, 3): math.nan})
            before = self.files_in()
            result = self.run_ranks(ranks, *RUN, "--check")
            self.assert_refused(result, "v.npy", "1 element", "[0, 1, 2, 3]", "--check")
            self.assertEqual(self.files_in(), before)

    def test_every_element_type(self):
        for dtype in ("<f2", "<f4", "<f8"):
            self.write(dtype, k={5: math.inf})
            self.assertIn("k.npy: 1 element is", self.run_well(3, *RUN).err)

    def test_scores_that_overflow_are_found_by_the_check(self):
        """Finite input, results that are not: the check fails, and says so."""
        values = [3e38] * 24
        for name in "qkv":
            npy.write(self.path(name + ".npy"), (6, 4), values, "<f4")
        result = self.run_ranks(3, *RUN, "--check")
        self.assertEqual(result.code, 1, str(result))
        self.assertIn("FAIL", result.out)
        self.assertIn("error: the check failed; nothing was written", result.err)
        self.assertEqual(self.files_in("results"), [])

    def test_gradients_that_overflow_are_found_by_the_check(self):
        """The same of the gradients alone: out and lse are right."""
        for name, value in (("q", 0.5), ("k", 0.5), ("v", 2), ("dout", 3e38)):
            npy.write(self.path(name + ".npy"), (6, 4), [value] * 24, "<f4")
        result = self.run_ranks(3, *RUN, "--dout", "dout.npy", "--check", "--json")
        self.assertEqual(result.code, 1, str(result))
        for rank in json.loads(result.out)["per_rank"]:
            self.assertEqual([rank[name]["ok"] for name in ("out", "lse", "dq", "dk")], [True, True, False, False])
        self.assertIn("error: the check failed; nothing was written", result.err)
        self.assertEqual(self.files_in("results"), [])


if __name__ == "__main__":
    harness.main()
