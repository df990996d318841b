"""The suite finds bugs that are put in on purpose, each with its hunt. A suite that finds nothing proves nothing.

A run tries half of them: which half depends on the number of commits, so that the next commit tries the others.
`--nightly` tries all, and so does a copy of the source without its history.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from .explore import Tally
from .later_bugs import LATER
from .seeded_bugs import BUGS
from .survivors import SURVIVORS

ALL = {**BUGS, **SURVIVORS, **LATER}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Try the bugs of this commit, or all."""
    if "name" in metafunc.fixturenames:
        turn = None if metafunc.config.getoption("--nightly") else commits()
        metafunc.parametrize("name", of_this_turn(turn))


def of_this_turn(turn: int | None) -> list[str]:
    """Return every other bug, beginning with the first one in even turns; all without *turn*."""
    return list(ALL) if turn is None else list(ALL)[turn % 2 :: 2]


def commits() -> int | None:
    """Return how many commits the history of this source has, `None` without a history."""
    found = subprocess.run(["git", "rev-list", "--count", "HEAD"], cwd=Path(__file__).parent, capture_output=True)
    return int(found.stdout) if found.returncode == 0 else None


def test_two_turns_try_every_bug_once() -> None:
    """The halves of two commits that follow each other are all bugs, each one once."""
    assert sorted(of_this_turn(7) + of_this_turn(8)) == sorted(ALL)
    assert of_this_turn(None) == list(ALL)


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
