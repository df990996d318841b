"""The suite finds bugs that are put in on purpose, each with its hunt. A suite that finds nothing proves nothing."""

from __future__ import annotations

import pytest

from tests.faults.explore import Tally
from tests.faults.later_bugs import LATER
from tests.faults.seeded_bugs import BUGS
from tests.faults.survivors import SURVIVORS

ALL = {**BUGS, **SURVIVORS, **LATER}


@pytest.mark.parametrize("name", ALL)
def test_seeded_bug_is_caught(name: str, tally: Tally) -> None:
    """With the bug in place, the hunt finds a broken promise."""
    with ALL[name].bug(), pytest.raises((AssertionError, OSError)) as caught:
        ALL[name].hunt()
    assert str(caught.value)
    tally.seeded_bugs += 1


def test_the_hunts_find_nothing_in_the_log_as_it_is() -> None:
    """Without a bug, no hunt finds anything."""
    for hunt in {bug.hunt for name, bug in BUGS.items() if "damage" in name or "commit" in name or "space" in name}:
        hunt()
    for name, bug in {**SURVIVORS, **LATER}.items():
        if name not in EXPLORED:
            bug.hunt()


EXPLORED = {name for name, bug in {**SURVIVORS, **LATER}.items() if "crash" in bug.hunt.__qualname__}
"""Bugs whose hunts also run in other tests, without a bug."""
EXPLORED |= {"forked_child_keeps_everything", "last_batch_kept_in_the_process", "commits_vouch_for_one_batch_less"}
