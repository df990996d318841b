"""A suite that finds nothing proves nothing: bugs that are put in on purpose are found, each by its hunt."""

from __future__ import annotations

import pytest

from .explore import Tally
from .seeded_bugs import BUGS


@pytest.mark.parametrize("name", BUGS)
def test_seeded_bug_is_caught(name: str, tally: Tally) -> None:
    """With the bug in, the hunt ends at a broken promise."""
    with BUGS[name].bug(), pytest.raises((AssertionError, OSError)) as caught:
        BUGS[name].hunt()
    assert str(caught.value)
    tally.seeded_bugs += 1


def test_the_hunts_find_nothing_in_the_log_as_it_is() -> None:
    """What is caught above is the bug, not the hunt."""
    for hunt in {bug.hunt for name, bug in BUGS.items() if "damage" in name or "commit" in name or "space" in name}:
        hunt()
