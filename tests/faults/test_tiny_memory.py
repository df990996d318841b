"""Every history whose log rolls, with so little memory that its records leave it: gathered, read and opened by index.

What the threads for gathering and reading do are turns of the loop here, so power cuts and faults meet every call.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from mrecordlog_async.storage.gathered_files import GATHERED_SUFFIX

from .driver import DIRECTORY
from .explore import Explorer, Tally, bounded
from .histories import CASES

KB = 1_000
LITTLE = {
    "rolls": 128 * KB,
    "never, rolls": 128 * KB,
    "rolls, small": 64 * KB,
    "recycles": 32 * KB,
    "small recycled, thread": 32 * KB,
    "few callers, stepping, thread": 64 * KB,
    "singles": 256 * KB,
    "singles, small": 256 * KB,
    "large": 128 * KB,
    "large, small, cached": 128 * KB,
    "many queues": 256 * KB,
    "interval": 64 * KB,
    "never": 64 * KB,
    "full disk": 64 * KB,
    "disk limit": 64 * KB,
    "waits for memory": 64 * KB,
    "spare cut": 64 * KB,
    "busy": 32 * KB,
    "copied": 64 * KB,
    "copy outlives": 128 * KB,
    "copy drained": 64 * KB,
    "changed without records": 64 * KB,
    "in pieces, stepping, thread": 128 * KB,
    "recreated": 32 * KB,
}
"""The memory of each history: little enough that segments are gathered, and enough for its largest call."""

EVERY = 101
"""The suite checks only every n-th moment of each; a campaign can check all."""


@pytest.mark.parametrize("name", LITTLE)
def test_every_crash_state_keeps_what_was_answered_whatever_has_left_memory(name: str, tally: Tally) -> None:
    """Opened by index and by replay, the log is the same, and new calls work: with any part of the gathered files."""
    case = replace(CASES[name], memory_bytes=LITTLE[name])
    run = case.run()
    assert run.stopped is None
    disks = [moment.snapshot.kill() for life in run.lives for moment in life.moments]
    assert any(GATHERED_SUFFIX in file for disk in disks if disk.exists(DIRECTORY) for file in disk.content(DIRECTORY))
    explorer = Explorer(deep_every=100, kill_every=89)
    with case.sizes(), bounded(LITTLE[name] // 2):
        explorer.explore(run, every=EVERY)
    assert explorer.tally.crash_states > 10
    tally.add(explorer.tally)
