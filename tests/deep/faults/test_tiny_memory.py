"""Every history whose log rolls, with so little memory that its records leave it: gathered, read and opened by index.

What the threads for gathering and reading do are turns of the loop here, so power cuts and faults meet every call.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial, wraps
from typing import Any
from unittest.mock import patch

import pytest

from mrecordlog_async import RecordLogError
from mrecordlog_async.storage.filesystem import FileSystem
from mrecordlog_async.storage.gathered_files import GATHERED_SUFFIX
from tests.faults import histories
from tests.faults.disk import Disk, Snapshot
from tests.faults.driver import DIRECTORY, Run
from tests.faults.explore import Explorer, Tally
from tests.faults.histories import LITTLE_MEMORY, Case
from tests.faults.inject import faults, inject
from tests.faults.judge import Violation

EVERY = 101
"""The suite checks only every n-th moment of each; a campaign can check all."""
RARELY = {"recycles": 401}
"""Of this history it checks fewer: it has ten times as many."""

FAULTS = dict.fromkeys(LITTLE_MEMORY, 41) | {"copy outlives": 211, "copy drained": 211, "recycles": 331}
"""Only every n-th fault of each is tried; the campaign tries all."""


@pytest.mark.parametrize("name", LITTLE_MEMORY)
def test_every_crash_state_keeps_what_was_answered_whatever_has_left_memory(name: str, tally: Tally) -> None:
    """Opened by index and by replay, the log is the same, and new calls work: with any part of the gathered files."""
    case = LITTLE_MEMORY[name]
    run = case.run()
    assert run.stopped is None
    disks = [moment.snapshot.kill() for life in run.lives for moment in life.moments]
    assert any(GATHERED_SUFFIX in file for disk in disks if disk.exists(DIRECTORY) for file in disk.content(DIRECTORY))
    explorer = Explorer(deep_every=100, kill_every=89)
    with case.sizes():
        explorer.explore(run, every=RARELY.get(name, EVERY))
    assert explorer.tally.crash_states > 10
    tally.add(explorer.tally)


class GatheredCalls(Disk):
    """A disk that notes which of its calls concern gathered files."""

    def __init__(self, snapshot: Snapshot | None = None, capacity_bytes: int | None = None, **options: Any) -> None:
        self.gathered_calls: list[int] = []
        self.gathered_handles: set[int] = set()
        super().__init__(snapshot, capacity_bytes, **options)


def _noting(name: str) -> Callable[..., Any]:
    method = getattr(Disk, name)

    @wraps(method)
    def call(self: GatheredCalls, *arguments: Any, **options: Any) -> Any:
        first, before = arguments[0] if arguments else None, self.calls
        by_path = isinstance(first, str) and GATHERED_SUFFIX in first
        while self.gathered_calls and self.gathered_calls[-1] > before:
            self.gathered_calls.pop()  # of a look at the disk that is not counted
        result = method(self, *arguments, **options)
        if by_path or (type(first) is int and first in self.gathered_handles):
            self.gathered_calls += range(before + 1, self.calls + 1)
        if by_path and type(result) is int:
            self.gathered_handles.add(result)
        if name == "close":
            self.gathered_handles.discard(arguments[0])
        return result

    return call


for _name, _method in vars(FileSystem).items():
    if not _name.startswith("_") and callable(_method):
        setattr(GatheredCalls, _name, _noting(_name))


def gathered_calls(case: Case) -> tuple[list[str], set[int]]:
    """Run *case*; return the names of all its calls, and the numbers of those that concern gathered files."""
    with patch.object(histories, "Disk", GatheredCalls):
        disk = case.run(moments=False).disk
    assert isinstance(disk, GatheredCalls), "the process does not die"
    return disk.call_names, {number for number in disk.gathered_calls if number <= disk.calls}


async def _gathers_and_reads(run: Run, step: int = 3) -> None:
    """Segments are gathered, read, truncated and removed; the log is opened by their indexes, and read again."""
    await run.open()
    await run.create("a")
    for number in range(20):
        await run.append("a", 9_000, 400, position=number * step)
        if number % 4 == 3:
            await _read(run, 0)
    calls = [call for call in run.model.calls if call.kind == "append"]
    for call in calls[::5]:  # what they repeat is read, and compared
        await run.do("append", "a", position=call.position, payloads=call.payloads)
    await run.truncate("a", 9)
    await run.idle()
    await run.append("a", 9_000)
    await run.close()
    await run.open()
    await _read(run, 10)
    await run.truncate("a", 16 * step)
    await run.idle()
    await run.append("a", 100)


async def _read(run: Run, first: int) -> None:
    """Read queue "a" from *first* on: it is what was stored, unless every call fails from some time on."""
    stored = {
        call.position + at: payload
        for life in run.lives
        for call in life.model.calls
        if call.kind == "append" and call.position is not None and call.outcome == "answered"
        for at, payload in enumerate(call.payloads)
    }
    fault = run.disk.fault
    if run.log is None or not run.log.queue_exists("a"):
        return
    with suppress(OSError, RecordLogError) if fault is not None and fault.on else nullcontext():
        async for record in run.log.read("a", first):
            if stored.pop(record.position, record.payload) != record.payload:
                raise Violation(f"position {record.position} is read as {record.payload[:20]!r}")
        if any(position >= first for position in stored):
            raise Violation(f"positions {sorted(stored)} are not read")


READS = Case(_gathers_and_reads, memory_bytes=128_000)
DENSE = Case(partial(_gathers_and_reads, step=2), memory_bytes=128_000)
"""Without gaps: truncates count what they drop even if nothing can be read any more."""


def test_a_fault_at_every_call_of_a_gathered_file_loses_nothing(tally: Tally) -> None:
    """EIO, ENOSPC and half a write, once or for good, at each create, write, rename, read and unlink of one.

    If it passes, no call is refused, and every read returns what was stored.
    """
    explorer = Explorer()
    for case, on in ((READS, False), (DENSE, True)):
        names, gathered = gathered_calls(case)
        struck = {names[number - 1] for number in gathered}
        assert {"create", "reserve", "write", "set_size", "rename", "open", "read_into", "unlink"} <= struck
        for fault in list(faults(names))[:: 1 + on]:
            if fault.at in gathered and fault.on is on:
                run = inject(case, fault, explorer)
                assert on or not any(call.error for life in run.lives for call in life.model.calls)
    tally.add(explorer.tally)
    assert explorer.tally.faults > 100


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_at_any_call_loses_nothing_with_little_memory(name: str, tally: Tally) -> None:
    """Acknowledged calls survive, refused ones are absent, and every call ends, whatever has left memory by then."""
    case, explorer = LITTLE_MEMORY[name], Explorer()
    for fault in list(faults(case.run(moments=False).disk.call_names))[:: FAULTS[name]]:
        inject(case, fault, explorer)
    assert explorer.tally.faults > 4
    tally.add(explorer.tally)
