"""What a mistake does: an edit of the rules of a ring, under its id in mistakes.tsv."""

from __future__ import annotations

from typing import Callable

from .rules import Rules

Edit = Callable[[Rules], None]
EDITS: dict[str, Edit] = {}
DIRECTED: set[str] = set()


def edit(name: str, directed: bool = False) -> Callable[[Edit], Edit]:
    """Decorates the edit of a mistake. `directed`: it depends on the way in which parcels travel."""
    if directed:
        DIRECTED.add(name)
    return lambda function: EDITS.setdefault(name, function)


def mistake(name: str, directed: bool = False, **rules) -> None:
    """A mistake that replaces rules."""
    edit(name, directed)(lambda r: r.__dict__.update(rules))


def adds(name: str, field: str, function: Callable, directed: bool = False) -> None:
    """A mistake that adds an edit to a list of the rules."""
    edit(name, directed)(lambda r: setattr(r, field, (*getattr(r, field), function)))
