"""The ids of mistakes are stable: scripts of other projects compare them. Each is in a trial of verdicts.tsv, or in names.txt."""

import csv
import unittest
from pathlib import Path

from verdicts_test import TABLE, rows_of

HERE = Path(__file__).resolve().parent
LIST = HERE.parents[1] / "src/python/ring_attention_diagnose/mistakes.tsv"


class Names(unittest.TestCase):
    def test_no_id_has_gone_or_is_missing(self):
        with open(LIST, encoding="utf-8", newline="") as file:
            ids = [row["id"] for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
        kept = (HERE / "names.txt").read_text(encoding="utf-8").split()
        for trial in (trial for part in rows_of(TABLE).values() for trial in part):  # "early-swap (forward only)", "no-ring + gqa-modulo"
            names = trial.removesuffix(" (forward only)").removesuffix(" (backward only)").split(" + ")
            kept += [name for name in names if " " not in name]  # the others are sentences, of mistakes without an id
        self.assertEqual(set(kept) - set(ids), set(), "gone or renamed: users' scripts have these ids")
        self.assertEqual(set(ids) - set(kept), set(), "new: add a line to names.txt for each")
        self.assertEqual(len(ids), len(set(ids)))
