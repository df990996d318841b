"""The name that somebody meant who misspelt one: errors suggest it."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the name in *known* that is most like *name*, or None if none is like it."""
    return next(iter(get_close_matches(name, list(known), 1)), None)


def did_you_mean(name: str | None) -> str:
    """Return the end of an error that suggests *name*; "" without one."""
    return f"; did you mean {name}?" if name else ""
