"""Faults of the calls to gathered files, in logs with so little memory that records leave it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial, wraps
from typing import Any
from unittest.mock import patch

from mrecordlog_async import RecordLogError
from mrecordlog_async.storage.filesystem import FileSystem
from mrecordlog_async.storage.gathered_files import GATHERED_SUFFIX
from tests.faults import histories
from tests.faults.disk import Disk, Snapshot
from tests.faults.driver import Run
from tests.faults.explore import Explorer, Tally
from tests.faults.histories import Case
from tests.faults.inject import faults, inject
from tests.faults.judge import Violation


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
