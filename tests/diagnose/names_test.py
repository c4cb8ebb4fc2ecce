"""The ids of mistakes are stable: scripts of other projects compare them. names.txt has each of them; a new one is a line."""

import csv
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIST = HERE.parents[1] / "src/python/ring_attention_diagnose/mistakes.tsv"


class Names(unittest.TestCase):
    def test_no_id_has_gone_or_is_missing_in_names_txt(self):
        with open(LIST, encoding="utf-8", newline="") as file:
            ids = [row["id"] for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
        kept = (HERE / "names.txt").read_text(encoding="utf-8").split()
        self.assertEqual(set(kept) - set(ids), set(), "gone or renamed: users' scripts have these ids")
        self.assertEqual(set(ids) - set(kept), set(), "new: add a line to names.txt for each")
        self.assertEqual(len(ids), len(set(ids)))


if __name__ == "__main__":
    unittest.main(verbosity=2)
