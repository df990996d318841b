"""The cycle collector of a process that serves a log."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from mrecordlog_async.support.gc_tuning import rare_collections

SCRIPT = """
import gc
from mrecordlog_async.support.gc_tuning import calm_collector
loop = []
loop.append(loop)
calm_collector()
print(gc.get_freeze_count() > 1_000, gc.get_threshold())
"""


def test_a_calm_collector_leaves_alone_what_was_there_at_the_start() -> None:
    """Modules and classes are frozen, and a collection comes after 20,000 new objects instead of 700."""
    said = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert said.stdout == "True (20000, 20, 100)\n"


@pytest.mark.parametrize(
    ("before", "within"),
    [((700, 10, 10), (200_000, 10, 10)), ((500_000, 5, 5), (500_000, 5, 5)), ((0, 10, 10), (0, 10, 10))],
)
def test_collections_are_rarer_for_a_while(before: tuple[int, int, int], within: tuple[int, int, int]) -> None:
    """Afterwards, after an error too, they are as frequent as before; who has switched them off keeps them off."""
    own = gc.get_threshold()
    try:
        gc.set_threshold(*before)
        with pytest.raises(KeyError), rare_collections():
            assert gc.get_threshold() == within
            raise KeyError
        assert gc.get_threshold() == before
    finally:
        gc.set_threshold(*own)
