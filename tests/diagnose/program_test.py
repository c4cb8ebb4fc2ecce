"""What the program `python3 -m ring_attention_diagnose` refuses, in this process: each in one line with exit code 2."""

import contextlib
import io
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(os.environ.get("RING_ATTENTION_SOURCE", Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "src/python"))

import numpy as np
from ring_attention_diagnose import InputError, judged, problems_of
from ring_attention_diagnose.__main__ import main


class Program(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(folder.name)

    def refuse(self, words, *says):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(words)
        self.assertEqual((code, out.getvalue()), (2, ""), err.getvalue())
        self.assertRegex(err.getvalue(), r"\Aerror: [^\n]*\n\Z")
        for word in says:
            self.assertIn(word, err.getvalue())

    def cases(self, *words):
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(main(["cases", "--out", "mine", *words]), 0)

    @unittest.skipUnless(os.path.exists("/dev/full"), "no /dev/full")
    def test_a_full_disk(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = subprocess.run([sys.executable, "-m", "ring_attention_diagnose", "--help"], stdout=full,
                                  stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": sys.path[0]})
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertRegex(done.stderr, r"\Aerror: the output cannot be written: [^\n]*\n\Z")

    def test_results_that_are_not_all_there(self):
        problems = problems_of(3, only=["full", "causal"])
        out = np.zeros((4, 8, 16))
        for given, says in (([{}], "results for 1 of 2 cases"),
                            ([{"out": [("mine.0", out), ("mine.1", out)]}, {}], "mine.0: 2 arrays for 3 ranks")):
            with self.assertRaises(InputError) as caught:
                judged(problems, given)
            self.assertIn(says, str(caught.exception))

    def test_a_number_of_ranks_that_no_job_has(self):
        for ranks in (-1, 0, 49):
            with self.assertRaisesRegex(InputError, f"ranks: it is {ranks}: use a number from 1 to 48"):
                problems_of(ranks)

    def test_flags(self):
        for words, *says in (
            ("cases --only full,nothing", "nothing", "empty-rows"),
            ("cases --only=", "--only", "needs a value"),
            ("cases --parallel hybrid --ulysses 3 --ranks 4", "Ulysses", "divides"),
            ("cases --ulysses 3", "--ulysses goes with --parallel hybrid"),
            ("cases --placement zigzag --parallel ulysses", "--placement goes with --parallel ring"),
            ("cases --ranks 0", "--ranks", "from 1 to 48"), ("cases --ranks 49", "--ranks", "from 1 to 48"),
            ("cases --ranks 3.5", "--ranks", "not '3.5'"), ("cases --ranks", "--ranks", "missing"),
            ("cases --ranks 3 --ranks 4", "--ranks", "At Most 1"), ("cases --placement snake", "--placement", "zigzag"),
            ("cases --seed -1", "--seed", "from 0 to 9223372036854775807"),
            ("cases --seed 9223372036854775808", "--seed", "from 0 to 9223372036854775807"),
            ("cases extra", "not expected", "extra"), ("", "no directory"), ("mine --bogus", "--bogus"),
            ("mine --json --json", "--json", "At Most 1"), ("a b", "not expected: b"),
        ):
            with self.subTest(words):
                self.refuse(words.split(), *says)
        self.refuse(["cases", "--placement", "a\nb"], "a?b")
        self.assertEqual(os.listdir(), [])
        Path("own.json").write_text('{"causal": [[0, 1]]}', encoding="utf-8")
        self.refuse("cases --tokens-of-rank own.json --only causal,full".split(), "own.json: has no layout of the case full")

    def test_without_numpy(self):
        done = subprocess.run([sys.executable, "-S", "-m", "ring_attention_diagnose", "--version"], capture_output=True,
                              text=True, env={**os.environ, "PYTHONPATH": sys.path[0]})
        if "NumPy" not in done.stderr:
            self.skipTest("NumPy is where Python's own modules are")
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, r"\Aerror: NumPy is missing: [^\n]*\n\Z")

    def test_version(self):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            self.assertEqual(main(["--version"]), 0)
        self.assertRegex(out.getvalue(), r"\Aring-attention-diagnose \d+\.\d+\.\d+\n\Z")
        self.refuse(["--version", "mine"], "not expected: --version")

    def test_cases_json(self):
        """Each file of hostile_cases.json in place of cases.json."""
        hostile = json.loads((SOURCE / "tests/diagnose/hostile_cases.json").read_text(encoding="utf-8"))
        os.mkdir("mine")
        for case in hostile:
            with self.subTest(case["what"]):
                Path("mine/cases.json").write_text(case["file"], encoding="latin-1")
                self.refuse(["mine"], "mine/cases.json: ", *case["says"])
        for text in ("[" * 100000, '{"ranks": NaN}', '{"ranks": 1e400, "placement": "zigzag"}', "\0"):
            Path("mine/cases.json").write_text(text, encoding="latin-1")
            self.refuse(["mine"], "mine/cases.json: ")

    def test_what_is_no_file(self):
        """A pipe in the place of a file would be read for ever."""
        kinds = {"cannot be read: Is a directory": os.mkdir, "is not a plain file": getattr(os, "mkfifo", None),
                 "cannot be read: Too many levels of symbolic links": lambda place: os.symlink(os.path.basename(place), place)}
        for place, (says, make) in itertools.product(("full/out.npy", "full/out.1.npy", "full/lse.npy", "full/q.npy", "cases.json"),
                                                     kinds.items()):
            self.cases("--only", "full")
            if place != "full/out.1.npy":
                np.save("mine/full/out.npy", np.zeros((1, 4, 24, 16)))
            if os.path.exists(f"mine/{place}"):
                os.remove(f"mine/{place}")
            make(f"mine/{place}")
            self.refuse(["mine"], f"mine/{place}: {says}")
            if place in ("full/q.npy", "cases.json") and make is os.mkfifo:
                self.refuse(["cases", "--only", "full", "--out", "mine"], f"mine/{place}: {says}")
            shutil.rmtree("mine")
        self.refuse(["x" * 300], f"{'x' * 300}/cases.json", "File name too long")

    def test_arrays(self):
        """Files in place of out.npy."""
        self.cases("--only", "full")
        out = io.BytesIO()
        np.save(out, np.zeros((1, 4, 24, 16), np.float32))
        good = out.getvalue()

        def header(text):
            return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()

        def saved(array):
            file = io.BytesIO()
            np.save(file, array, allow_pickle=True)
            return file.getvalue()

        for content, *says in (
            (b"", "not a .npy file"), (b"PK\x03\x04", ".npz"), (good[:30], "header"), (good[:-1], "truncated: 1"),
            (good + b"more", "4 bytes follow"), (header("{" * 2000), "header"), (header("__import__('os')"), "header"),
            (header("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }"), "negative"),
            (header("{'descr': '<f4', 'fortran_order': False, 'shape': (" + "9" * 300 + ",), }"), "more than"),
            (header("(" * 60000), "header"),
            (header("{'descr': 7, 'fortran_order': False, 'shape': (1,), }"), "header"),
            (good[:6] + b"\x09" + good[7:], "header"), (saved(np.zeros((4, 24, 16), int)), "integers"),
            (saved(np.array([None])), "Python objects"), (saved(np.zeros((4, 24, 16), complex)), "dtype"),
            (saved(np.zeros((4, 24, 17))), "[4, 24, 17]", "[4, 24, 16]"), (saved(np.float32(1)), "[]"),
        ):
            with self.subTest(content[:60]):
                Path("mine/full/out.npy").write_bytes(content)
                self.refuse(["mine"], "mine/full/out.npy: ", *says)
