"""If a call to the disk fails, once or from then on, the caller gets an error, and acknowledged calls survive."""

from __future__ import annotations

import errno

import pytest

from mrecordlog_async import Limits, LogFailedError, LogFullError
from tests.faults.disk import Fault
from tests.faults.driver import Run
from tests.faults.explore import Explorer, Tally
from tests.faults.histories import CASES, Case
from tests.faults.inject import faults, inject


@pytest.mark.parametrize("name", ["copied", "copy drained"])
def test_file_whose_names_cannot_be_counted_is_left_alone(name: str, tally: Tally) -> None:
    """If the system does not report whether a segment has a second name, its bytes are not changed."""
    case, explorer = CASES[name], Explorer()
    calls = case.run(moments=False).disk.call_names
    for fault in faults(calls):
        if calls[fault.at - 1] == "links" and not fault.on:
            inject(case, fault, explorer)
    assert explorer.tally.faults > 5
    tally.add(explorer.tally)


async def _three_appends(run: Run) -> None:
    await run.open()
    await run.create("a")
    for _ in range(3):
        await run.append("a", 100)
    await run.truncate("a", 0)


CACHED = Case(_three_appends, has_direct=False)
DIRECT = Case(_three_appends)


def _fail(case: Case, number: int, effect: str = "before", code: int = errno.EIO, *, on: bool = False) -> Run:
    return inject(case, Fault(number, code, on, effect), Explorer())


def _number(case: Case, call: str, occurrence: int) -> int:
    """Return the number among all calls of the n-th call of this name."""
    names = case.run(moments=False).disk.call_names
    return [number for number, name in enumerate(names, 1) if name == call][occurrence]


SECOND_APPEND = pytest.mark.parametrize(
    ("case", "call", "occurrence"), [(CACHED, "sync", -4), (DIRECT, "write_durable", -3)], ids=["cached", "direct"]
)


@SECOND_APPEND
@pytest.mark.parametrize("effect", ["before", "after"])
def test_failed_sync_ends_the_log_and_tells_everyone(case: Case, call: str, occurrence: int, effect: str) -> None:
    """After a failed sync the batch's outcome is unknown, later calls are not stored, and no sync is tried again."""
    number = _number(case, call, occurrence)
    run = _fail(case, number, effect)
    outcomes = [call.outcome for call in run.model.calls]
    assert outcomes == ["answered", "answered", "unknown", "absent", "absent"]
    errors = [call.error for call in run.model.calls if call.error]
    assert [error.written for error in errors if isinstance(error, LogFailedError)] == ["unknown", "no", "no"]
    later = run.disk.call_names[number:]
    assert not {"sync", "write", "write_durable", "rename", "sync_directory"} & set(later), later


def test_direct_access_refused_later_is_done_without() -> None:
    """The same bytes go through the cache and are synced, and callers do not notice."""
    run = _fail(DIRECT, _number(DIRECT, "write_durable", -3), code=errno.EINVAL)
    assert {call.outcome for call in run.model.calls} == {"answered"}


@pytest.mark.parametrize("call", ["set_direct", "read_into"])
def test_direct_access_refused_at_open_is_done_without(call: str) -> None:
    """On a file system that cannot do it, segments are written through the cache, and callers do not notice."""
    run = _fail(DIRECT, _number(DIRECT, call, 0), code=errno.EINVAL)
    assert {call.outcome for call in run.model.calls} == {"answered"}
    assert "write_durable" not in run.disk.call_names


@pytest.mark.parametrize("case", [CACHED, DIRECT], ids=["cached", "direct"])
def test_short_writes_are_continued(case: Case) -> None:
    """If the disk writes half of the data, the log writes the rest, and callers do not notice."""
    run = _fail(case, _number(case, "write_durable" if case.has_direct else "write", -2), "short")
    assert {call.outcome for call in run.model.calls} == {"answered"}


@pytest.mark.parametrize("case", [CACHED, DIRECT], ids=["cached", "direct"])
def test_disk_that_takes_nothing_fails_the_log(case: Case) -> None:
    """If a write writes zero bytes, the log fails instead of repeating it forever."""
    run = _fail(case, _number(case, "write_durable" if case.has_direct else "write", -2), "zero")
    assert "unknown" in {call.outcome for call in run.model.calls}


def test_no_room_is_refused_before_anything_is_written() -> None:
    """If space cannot be reserved, appends are refused as full, truncate succeeds, and the log does not fail."""
    run = CASES["full disk"].run(moments=False)
    refused = [call.error for call in run.model.calls if call.outcome == "absent"]
    assert refused
    assert all(isinstance(error, LogFullError) and error.resource == "space" for error in refused)
    assert {call.outcome for call in run.model.calls if call.kind in ("truncate", "delete")} == {"answered"}
    assert run.model.calls[-1].outcome == "answered"


async def _one_record_at_a_time(run: Run) -> None:
    await run.open()
    await run.create("a")
    for position in range(60):
        await run.append("a", 9_000)
        await run.truncate("a", position)
        if position % 3 == 0:
            await run.idle(1.2)


def test_no_removal_for_good_stops_a_log_at_its_limit() -> None:
    """Dead segments that cannot be removed count in the limit: appends are refused, and truncates take little more."""
    limits = Limits(disk_bytes=420_000)
    case = Case(_one_record_at_a_time, limits=limits, early_roll_bytes=4_096, may_refuse=True, recycle=False)
    run = inject(case, Fault(1, errno.EACCES, on=True, calls=frozenset({"unlink"})), Explorer())
    assert run.disk.allocated_bytes() < limits.disk_bytes + 150_000, "more than a segment and a spare, with reserves"
    assert {call.outcome for call in run.model.calls if call.kind == "truncate"} == {"answered"}
    refused = [call.error for call in run.model.calls if isinstance(call.error, LogFullError)]
    assert {error.resource for error in refused} == {"disk"}
    assert isinstance(refused[-1].__cause__, PermissionError)
