"""`Mistake`: a known mistake in a ring. mistakes.tsv lists all of them; an edit of the rules simulates each one."""

from __future__ import annotations

import csv
import dataclasses
import functools
from pathlib import Path

from . import pass_edits, tile_edits  # noqa: F401
from .rules import EDITS, NO_RANK, Edit, Rules


@dataclasses.dataclass(frozen=True, eq=False)
class Mistake:
    """One line of mistakes.tsv, and what it does."""

    id: str
    phase: str  #: "forward", "backward", or "both": a rule that both share, and that may be wrong in only one of them
    says: str = ""  #: the mistake, in one sentence
    look: str = ""  #: where to look
    lesson: str = ""
    source: str = ""  #: who made it
    in_float: bool = False  #: shows only in float, and is simulated in it
    edit: Edit = lambda r: None
    directed: bool = False  #: does it depend on the way in which parcels travel?

    @functools.cached_property
    def loses_digits(self) -> bool:
        """Does it only round sums? Then it is no explanation of anything larger, alone or with other mistakes."""
        r = Rules()
        self.edit(r)
        return any((r.out_kept_in, r.lse_kept_in, r.dq_kept_in, r.dkdv_kept_in))

    @functools.cached_property
    def moves_content(self) -> bool:
        """Are the K,V at hand those of another rank than they should be? Of the first rank of a ring of three."""
        r = Rules()
        self.edit(r)
        s = r.steps(3)
        return bool(((s.dk_to != NO_RANK) & (s.dk_to == s.positions) & ((s.k != s.dk_to) | (s.v != s.dv_to)))[0].any())

    @property
    def in_forward(self) -> bool:
        return self.phase != "backward"

    @property
    def in_backward(self) -> bool:
        return self.phase != "forward"


def _read() -> dict[str, Mistake]:
    """In the order of the file; those that results of attention show."""
    mistakes = {}
    with open(Path(__file__).parent / "mistakes.tsv", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            phase, *more = row["phase"].split()
            if phase != "unseen":
                words = [row[name] for name in ("says", "look", "lesson", "source")]
                mistakes[row["id"]] = Mistake(row["id"], phase, *words, more == ["float"], *EDITS[row["id"]])
    return mistakes


MISTAKES = _read()
