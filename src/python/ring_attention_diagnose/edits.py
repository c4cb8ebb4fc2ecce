"""What a mistake does: an edit of the rules of a ring, under its id in mistakes.tsv."""

from __future__ import annotations

from typing import Callable

from .rules import Rules

Edit = Callable[[Rules], None]
EDITS: dict[str, tuple[Edit, bool]] = {}  #: each with `directed`: it depends on the way in which parcels travel


def mistake(name: str, directed: bool = False, **rules) -> None:
    """A mistake that replaces rules, and adds to those that are lists of edits."""
    def edit(r: Rules) -> None:
        for rule, value in rules.items():
            before = getattr(r, rule)
            setattr(r, rule, (*before, value) if isinstance(before, tuple) else value)

    EDITS[name] = edit, directed
