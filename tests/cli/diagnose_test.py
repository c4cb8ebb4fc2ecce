"""`ring-attention diagnose`: writes cases, and says what is wrong with the results of a code. The code here is `run`,
with flags that a case asks for, or with wrong ones. `diagnose_test.py CLASS` runs the tests of one class."""

import itertools
import json
import math
import os
import shutil
import unittest.mock

import harness
import numpy as np

GRADIENTS = ("dq", "dk", "dv")
RESULTS = ("out", "lse", *GRADIENTS)


class Diagnosed(harness.CommandTest):
    def cases(self, *words):
        self.run_well(1, "diagnose", "cases", "--out", "mine", *words, launcher=False)
        return self.json("mine/cases.json")

    def attend(self, case, *flags, gradients=True):
        """Attention of a case by `run`: its results lie beside its arrays."""
        folder = f"mine/{case}"
        files = [word for name in ("q", "k", "v") for word in (f"--{name}", f"{folder}/{name}.npy")]
        if gradients:
            files += ["--dout", f"{folder}/dout.npy"]
        self.run_well(1, "run", *files, "--out", folder, *flags, launcher=False)

    def change(self, name, function):
        """Replaces an array of results by function(it)."""
        np.save(self.path(name), function(self.array(name)))

    def diagnose(self, code, *words):
        result = self.run_ranks(1, "diagnose", "mine", *words, launcher=False)
        self.assertEqual(result.code, code, str(result))
        self.assertEqual(result.err, "", str(result))
        return result.out

    def answer(self, code):
        return json.loads(self.diagnose(code, "--json"))

    def refuse(self, *words, directory="mine"):
        self.assert_refused(self.run_ranks(1, "diagnose", directory, launcher=False), *words)


class VerdictTest(Diagnosed):
    def assert_named(self, mistake, phase="forward"):
        answer = self.answer(1)
        self.assertEqual(
            [one["mistakes"] for one in answer[phase]["explanations"]], [[mistake]], json.dumps(answer, indent=1)
        )
        self.assertTrue(answer["explained"])

    def test_right(self):
        cases = self.cases("--only", "full,causal,gqa", "--placement", "zigzag")
        self.assertEqual([case["name"] for case in cases["cases"]], ["full", "causal", "gqa"])
        self.assertEqual(cases["cases"][0]["tokens_of_rank"][0], [0, 1, 2, 3, 20, 21, 22, 23])
        self.assertEqual(self.files_in("mine/gqa"), ["dout.npy", "k.npy", "q.npy", "v.npy"])
        self.attend("full")
        self.attend("causal", "--causal")
        text = self.diagnose(0)
        for words in (
            "2 cases on 3 ranks, zigzag",
            "RIGHT in these cases",
            "would not show",
            "gqa-modulo",
            "window-plus-one",
        ):
            self.assertIn(words, text)
        answer = self.answer(0)
        self.assertTrue(answer["right"])
        self.assertEqual(answer["cases_without_results"], ["gqa"])
        self.assertIn("sink-ignored", answer["not_tested"])
        self.assertLess(answer["errors"]["causal"]["dq"], 1e-5)

    def test_wrong(self):
        self.cases("--only", "full,causal,window")
        self.attend("full")
        self.attend("causal")
        self.assert_named("no-mask")
        text = self.diagnose(1)
        self.assertIn("WRONG: no mask", text)
        self.assertIn("100 % of the difference", text)
        self.attend("window", "--causal", "--window", "4,0")
        self.assertIn("causal alone: no mask", self.diagnose(1))  # the window has a mask

    def test_flags(self):
        """One wrong flag, one mistake."""
        self.cases("--only", "causal,window")
        self.attend("causal", "--causal")
        for flags, mistake in (
            (("--window", "5,0"), "window-plus-one"),
            (("--window", "3,0"), "window-minus-one"),
            (("--causal",), "window-ignored"),
        ):
            self.attend("window", *flags)
            self.assert_named(mistake)
        self.attend("window", "--window", "4,0")
        self.attend("causal", "--causal", "--scale", "1")
        self.attend("window", "--window", "4,0", "--scale", "1")
        self.assert_named("no-scale")

    def test_files_of_ranks_in_another_order_of_axes(self):
        cases = self.cases("--only", "causal", "--placement", "striped")
        self.attend("causal", "--causal")
        for name in RESULTS:
            tokens_first = self.array(f"mine/causal/{name}.npy").swapaxes(1, 2)
            os.remove(self.path(f"mine/causal/{name}.npy"))
            for rank, here in enumerate(cases["cases"][0]["tokens_of_rank"]):
                np.save(self.path(f"mine/causal/{name}.{rank}.npy"), tokens_first[:, here])
        text = self.diagnose(0)
        self.assertIn("read: out, dq, dk, dv: axes are [S, H, D]", text)
        self.assertIn("RIGHT", text)

    def test_conventions(self):
        self.cases("--only", "full,causal")
        self.attend("full")
        self.attend("causal", "--causal")
        for case in ("full", "causal"):
            self.change(f"mine/{case}/lse.npy", lambda lse: lse / math.log(2))
            for name in GRADIENTS:
                self.change(f"mine/{case}/{name}.npy", lambda grad: 3 * grad)
        text = self.diagnose(0)
        self.assertIn("lse is in base 2", text)
        self.assertIn("times 3, the number of ranks", text)

    def test_a_mistake_that_is_not_known(self):
        """dK without the last head: every other head is right."""
        self.cases("--only", "causal")
        self.attend("causal", "--causal")
        dk = self.array("mine/causal/dk.npy")
        dk[:, -1] = 0.1
        np.save(self.path("mine/causal/dk.npy"), dk)
        text = self.diagnose(1)
        for words in (
            "forward     right",
            "WRONG, by no mistake that is known",
            "Where, in the case causal",
            "dk   oooo",
        ):
            self.assertIn(words, text)

    def test_forward_alone(self):
        self.cases("--only", "full,causal")
        self.attend("full", gradients=False)
        self.attend("causal", "--causal", gradients=False)
        os.remove(self.path("mine/full/lse.npy"))
        answer = self.answer(0)
        self.assertEqual(answer["backward"]["state"], "absent")
        self.assertIn("no-delta", answer["not_tested"])

    def test_nan_is_evidence(self):
        self.cases("--only", "causal")
        self.attend("causal", "--causal")
        out = self.array("mine/causal/out.npy")
        out[0, 0, 0, :7] = np.nan
        np.save(self.path("mine/causal/out.npy"), out)
        self.assertIn("NaN*", self.diagnose(1))


class InputTest(Diagnosed):
    def results_of_seed_7(self):
        """The output of another seed's `full` among the cases of this one."""
        os.rename(self.path("mine"), self.path("kept"))
        self.cases("--seed", "7", "--only", "full")
        self.attend("full")
        os.replace(self.path("mine/full/out.npy"), self.path("kept/full/out.npy"))
        shutil.rmtree(self.path("mine"))
        os.rename(self.path("kept"), self.path("mine"))

    def test_bad_input(self):
        self.refuse("nowhere/cases.json", "cannot be read", directory="nowhere")
        self.cases("--only", "full,causal")
        self.refuse("mine", "no case has out.npy")
        self.attend("full")
        self.attend("causal", "--causal")
        self.assertEqual(json.loads(self.diagnose(0, "--json"))["right"], True)

        q, out = (self.array(f"mine/full/{name}.npy") for name in ("q", "out"))
        np.save(self.path("mine/full/out.npy"), out[:, :, :12])
        self.refuse("mine/full/out.npy", "[1, 4, 12, 16]", "[4, 24, 16]")
        np.save(self.path("mine/full/out.npy"), out.astype(int))
        self.refuse("mine/full/out.npy", "integers")
        np.save(self.path("mine/full/out.npy"), self.array("mine/causal/out.npy"))
        self.refuse("results of full", "are those of the case causal")
        self.results_of_seed_7()
        self.refuse("results of full", "those for the arrays of seed 7", "these cases have seed 1")
        self.assert_refused(
            self.run_ranks(1, "diagnose", "cases", "--seed", "2", "--out", "mine", launcher=False),
            *("mine/full", "has results for other arrays"),
        )
        os.remove(self.path("mine/full/out.npy"))
        np.save(self.path("mine/full/out.1.npy"), out[:, :, :8])
        self.refuse("is missing", "every rank")
        os.remove(self.path("mine/full/out.1.npy"))

        np.save(self.path("mine/full/q.npy"), 2 * q)
        self.refuse("mine/full/q.npy", "not the array of this case", "--seed")

    def test_a_name_that_is_too_long(self):
        for ranks in (1, 3):
            self.assert_refused(self.run_ranks(ranks, "diagnose", "cases", "--out", "x" * 300), "x" * 300, "File name too long")

    def test_a_sparse_array(self):
        """Refused by its header: nobody reads 256 GiB."""
        self.cases("--only", "full")
        shape = (1, 4, 2**30, 16)
        for name in ("out.npy", "q.npy"):
            np.lib.format.open_memmap(self.path(f"mine/full/{name}"), "w+", "<f4", shape)
            says = ("more", "elements") if name == "out.npy" else ("not the array of this case",)
            self.refuse(f"mine/full/{name}", *says)
            shutil.copy(self.path("mine/full/v.npy"), self.path("mine/full/out.npy"))

    def test_without_numpy(self):
        """One line says how to install it."""
        os.mkdir(self.path("nothing"))
        self.write("nothing/numpy.py", "raise ImportError")
        with unittest.mock.patch.dict(os.environ, {"PYTHONPATH": self.path("nothing")}):
            self.refuse("no python3 has NumPy: `apt-get install python3-numpy`, or `python3 -m pip install numpy`")

    def test_bad_flags(self):
        """diagnose.program tries the others."""
        for words, says in (
            (("cases", "--parallel", "hybrid", "--ulysses", "3", "--ranks", "4"), ("Ulysses", "divides")),
            ((), ("no directory",)),
            (("mine", "--bogus"), ("--bogus", "see ring-attention diagnose --help")),
        ):
            with self.subTest(words=words):
                self.assert_refused(self.run_ranks(1, "diagnose", *words, launcher=False), *says)
        self.assertEqual(self.files_in(), [])

    def test_every_partition_and_placement_has_cases(self):
        for words in (
            ("--parallel", "ulysses", "--ranks", "4"),
            ("--parallel", "hybrid", "--ranks", "6"),
            ("--parallel", "all-gather", "--placement", "striped"),
            ("--ranks", "1"),
            ("--ranks", "7"),
        ):
            cases = self.cases(*words)["cases"]
            self.assertEqual(len(cases), 12)
            for case in cases:
                self.assertEqual(sorted(itertools.chain(*case["tokens_of_rank"])), list(range(case["tokens"])))
