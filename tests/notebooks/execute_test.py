"""notebooks/execute.py finds what a notebook shows otherwise than it is stored."""

import contextlib
import importlib.util
import io
import json
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "notebooks"))
import execute

if not all(map(importlib.util.find_spec, execute.NEEDED)):
    print(f"skipped: {sys.executable} cannot import {', '.join(execute.NEEDED)}. Remedy: sh setup.sh notebooks")
    sys.exit(77)

SHOWS = """import matplotlib
matplotlib.use("agg")
import matplotlib.pyplot as plt
plt.plot([0, 7])
plt.title("7 hops of 1.25 ms")
print("rank 3");"""


def notebook(source=SHOWS, tags=()):
    return {"cells": [{"cell_type": "code", "execution_count": None, "id": "a", "metadata": {"tags": list(tags)}, "outputs": [],
                       "source": source.splitlines(keepends=True)}], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


class Execute(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name, "a.ipynb")
        self.path.write_text(json.dumps(notebook()), encoding="utf-8")

    def differ(self, book=None, write=False):
        if book:
            self.path.write_text(json.dumps(book), encoding="utf-8")
        with contextlib.redirect_stdout(io.StringIO()):
            return execute.execute(self.path, write)

    def test_rounded_numbers_may_differ_in_their_last_digit(self):
        for stored, now, same in (("1.872 x", "1.873 x", True), ("1.872 x", "1.874 x", False), ("1.2e-03", "1.3e-03", True),
                                  ("1.2e-03", "1.2e-04", False), ("8 of 12", "8 of 13", False), ("\u22121", "1", False),
                                  ("1.5", "1.5 ms", False), ("nan", "0.1", False), (None, "", False)):
            self.assertEqual(bool(execute.same(stored, now)), same, (stored, now))

    def test_a_text_or_a_title_that_differs_is_found(self):
        self.assertEqual(self.differ(), [])  # nothing is stored
        self.assertEqual(self.differ(write=True), [])
        stored = json.loads(self.path.read_text(encoding="utf-8"))
        printed, picture = stored["cells"][0]["outputs"]
        self.assertEqual(printed["text"], ["rank 3\n"])
        self.assertEqual(picture["data"]["text/plain"], ["7 hops of 1.25 ms"])  # no ticks
        self.assertEqual(self.differ(), [])
        written = self.path.read_bytes()
        self.differ(write=True)
        self.assertEqual(self.path.read_bytes(), written)
        printed["text"], title = ["rank 4\n"], picture["data"]["text/plain"]
        self.assertEqual(len(self.differ(stored)), 1)
        printed["text"] = ["rank 3\n"]
        for other in ("8 hops of 1.25 ms", "7 hops of 1.27 ms", "7 steps of 1.25 ms"):
            title[0] = other
            self.assertEqual(len(self.differ(stored)), 1, other)

    def test_a_measured_cell_is_not_compared(self):
        self.assertEqual(self.differ(notebook(tags=["measured"])), [])

    def test_the_value_of_a_last_line_is_a_failure(self):
        self.assertRaises(ValueError, self.differ, notebook("1 + 1"))
        self.assertEqual(self.differ(notebook("1 + 1;")), [])

    def test_only_a_cell_that_says_so_may_fail(self):
        self.assertRaises(AssertionError, self.differ, notebook("assert False"))
        self.assertEqual(self.differ(notebook("assert False, 'why'", ["raises-exception"])), [])
