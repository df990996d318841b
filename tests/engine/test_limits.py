"""Limits: every call ends, what fits is stored, and what frees space is never refused because of a limit."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from mrecordlog_async import (
    Limits,
    LogClosedError,
    LogFullError,
    MultiRecordLog,
    QueueNotFoundError,
    RecordTooLargeError,
)
from mrecordlog_async.engine.commit import upkeep
from mrecordlog_async.engine.intake.admission import BATCH_CONTROLS
from mrecordlog_async.engine.intake.controls import ChangeRule, DeleteConsumer
from mrecordlog_async.storage.locked_directory import RESERVE_BYTES
from mrecordlog_async.storage.os_filesystem import OsFileSystem

KIB = 1024
MIB = 1024 * KIB


async def ends(calls: list[Any]) -> list[Any]:
    """Wait for all calls; return results and errors. A call that never ends fails the test."""
    async with asyncio.timeout(60):
        return await asyncio.gather(*calls, return_exceptions=True)


def kinds(results: list[Any]) -> set[str]:
    """Return the kinds of the results."""
    return {type(result).__name__ for result in results}


# Memory.


async def test_no_call_stays_in_line_when_memory_has_filled_meanwhile(directory: Path) -> None:
    """A call that waited for pending_bytes is refused once memory has run out; small calls still pass."""
    limits = Limits(memory_bytes=1_000_000, pending_bytes=100_000, record_bytes=100_000)
    async with MultiRecordLog.open(directory, limits=limits) as log:
        await log.create_queue("q")
        results = await ends([log.append_record("q", None, bytes(40_000)) for _ in range(60)])
        assert kinds(results) == {"int", "LogFullError"}
        assert [result for result in results if isinstance(result, int)] == list(range(24))
        assert await log.append_record("q", None, b"tiny") == 24
        await log.truncate("q", 24)
        assert await log.append_record("q", None, bytes(40_000)) == 25


async def test_memory_that_the_line_will_take_is_not_given_away_twice(directory: Path) -> None:
    """A call that does not fit after those in line is refused at once, not when its turn comes."""
    limits = Limits(memory_bytes=200_000, pending_bytes=50_000, record_bytes=50_000)
    async with MultiRecordLog.open(directory, limits=limits) as log:
        await log.create_queue("q")
        calls = [asyncio.ensure_future(log.append_record("q", None, bytes(40_000))) for _ in range(8)]
        await asyncio.sleep(0)
        refused = asyncio.ensure_future(log.append_record("q", None, bytes(40_000)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert isinstance(refused.exception(), LogFullError)
        assert kinds(await ends(calls)) == {"int", "LogFullError"}
        assert log._admission._line_bytes == log._admission.pending_bytes == 0


@pytest.mark.parametrize("on_full", ["raise", "wait"])
async def test_a_call_that_the_queues_leave_no_memory_for_is_refused_at_once(directory: Path, on_full: Any) -> None:
    """No truncate frees what the queues themselves cost, so no call waits for it."""
    limits = Limits(memory_bytes=100_000, record_bytes=100_000, pending_bytes=200_000, on_full=on_full)
    async with MultiRecordLog.open(directory, limits=limits) as log:
        await log.create_queue("q")
        results = await ends([log.append_record("q", None, bytes(size)) for size in (99_600, 1, 1, 1)])
        assert kinds(results[:1]) == {"RecordTooLargeError"}
        assert results[0].limit == "memory_bytes"
        assert results[1:] == [0, 1, 2]


async def test_a_call_that_the_consumers_leave_no_memory_for_is_refused_at_once(directory: Path) -> None:
    """Nor does a truncate free what the consumers cost."""
    limits = Limits(memory_bytes=100_000, record_bytes=100_000, pending_bytes=200_000, on_full="wait")
    async with MultiRecordLog.open(directory, limits=limits, queues=["q"]) as log:
        assert await log.append("q", bytes(80_000)) == 0
        await log.truncate("q", 0)
        await asyncio.gather(*(log.create_consumer("q", f"c{number}") for number in range(200)))
        with pytest.raises(RecordTooLargeError):
            async with asyncio.timeout(60):
                await log.append("q", bytes(80_000))


async def test_queues_made_meanwhile_refuse_who_can_fit_no_more(directory: Path) -> None:
    """Calls waiting for memory are refused once new queues take it for good; later ones continue."""
    limits = Limits(memory_bytes=100_000, record_bytes=99_000, pending_bytes=200_000, on_full="wait")
    async with MultiRecordLog.open(directory, limits=limits) as log:
        await log.create_queue("q")
        await log.append_record("q", None, bytes(60_000))
        large = asyncio.ensure_future(log.append_record("q", None, bytes(90_000)))
        small = asyncio.ensure_future(log.append_record("q", None, b"1"))
        await asyncio.sleep(0)
        for number in range(40):
            await log.create_queue(f"q{number}")
        [refused] = await ends([large])
        assert isinstance(refused, RecordTooLargeError)
        assert await ends([small]) == [1]


async def test_who_waits_for_memory_goes_on_when_there_is_some(directory: Path) -> None:
    """With on_full="wait" a truncate lets the line move up in order."""
    limits = Limits(memory_bytes=100_000, record_bytes=99_000, pending_bytes=200_000, on_full="wait")
    async with MultiRecordLog.open(directory, limits=limits) as log:
        await log.create_queue("q")
        calls = [asyncio.ensure_future(log.append_record("q", None, bytes(40_000))) for _ in range(10)]
        done = 0
        while done < 10:
            await calls[done]
            done += 1
            await log.truncate("q", log.next_position("q") - 1)
        assert [call.result() for call in calls] == list(range(10))


# The disk.


class Room(OsFileSystem):
    """A disk with a fixed number of bytes left for reservations."""

    left = 1 << 40

    def reserve(self, handle: int, offset: int, length: int) -> None:
        more = offset + length - self.size(handle)
        if more > self.left:
            raise OSError(errno.ENOSPC, "no room")
        self.left -= max(more, 0)
        super().reserve(handle, offset, length)


@pytest.mark.parametrize("full", ["limit", "disk"])
@pytest.mark.parametrize("single", [True, False], ids=["group", "calls"])
async def test_a_large_append_without_room_takes_no_small_one_with_it(directory: Path, full: str, single: bool) -> None:
    """The calls of its batch that fit are stored in order; only the large one is refused."""
    disk = Room()
    limits = Limits(disk_bytes=7 * MIB if full == "limit" else 1 << 40)
    async with MultiRecordLog.open(directory, limits=limits, filesystem=disk) as log:
        for queue in ("large", "small"):
            await log.create_queue(queue)
        for _ in range(2):
            await log.append_record("large", None, bytes(2 * MIB))
        disk.left = 100 * KIB if full == "disk" else disk.left

        def append(queue: str, payload: bytes) -> Any:
            return log.append_record(queue, None, payload) if single else log.append_records(queue, None, [payload])

        before = [append("small", b"%d" % number) for number in range(50)]
        after = [append("small", b"%d" % number) for number in range(50, 100)]
        results = await ends([*before, append("large", bytes(3 * MIB)), *after])
        assert isinstance(results.pop(50), LogFullError)
        assert results == list(range(100))
        assert [payload for _, payload in log.range("small")] == [b"%d" % number for number in range(100)]


async def test_a_repeat_of_an_append_that_found_no_space_is_no_duplicate(directory: Path) -> None:
    """Both are refused, or both stored: only what repeats a stored record is counted."""
    disk = Room()
    async with MultiRecordLog.open(directory, filesystem=disk, queues=["q", "r"]) as log:
        large, small = bytes(1_900_000), b"small"
        for left, expected in ((0, [LogFullError, LogFullError]), (1 << 40, [0, type(None)])):
            disk.left = left
            calls = [log.append_record("q", 0, large), log.append_record("q", 0, large)]
            results = await ends(calls)
            assert [each if each == 0 else type(each) for each in results] == expected
        assert log.stats().duplicates == 1
        disk.left = 0
        calls = [log.append_record("r", 0, small), log.append_record("r", 0, small), log.append_record("r", 1, large)]
        results = await ends(calls)
        assert (results[0], results[1], type(results[2])) == (0, None, LogFullError)
        assert log.stats().duplicates == 2


@pytest.mark.parametrize("on_full", ["raise", "wait"])
async def test_a_repeat_is_recognized_although_an_append_of_its_batch_finds_no_space(
    directory: Path, on_full: Any
) -> None:
    """It needs no space, and a refusal would say that the record is not stored."""
    disk = Room()
    async with MultiRecordLog.open(directory, limits=Limits(on_full=on_full), filesystem=disk) as log:
        await log.create_queue("q")
        await log.append_record("q", 0, b"stored")
        disk.left = 0
        append = log.append_soon("q", bytes(3 * MIB))
        assert await log.append_record("q", 0, b"stored") is None
        assert log.stats().duplicates == 1
        disk.left = 1 << 40
        if on_full == "wait":
            assert await append == 1
        else:
            assert isinstance((await ends([append]))[0], LogFullError)


async def test_a_rule_is_deleted_although_an_append_of_its_batch_waits_for_space(directory: Path) -> None:
    """As its consumers are: otherwise they are deleted, and new queues get them again."""
    disk = Room()
    async with MultiRecordLog.open(directory, limits=Limits(on_full="wait"), filesystem=disk) as log:
        await log.create_queue("q")
        await log.create_consumer("*", "lake")
        disk.left = 0
        append = log.append_soon("q", bytes(3 * MIB))
        deleted = log._submit(DeleteConsumer, "q", "lake")
        removed = log._submit(ChangeRule, "*", "lake", True, False)
        await asyncio.gather(deleted, removed)
        assert not append.done() and [*log.consumers("q"), *log.inspection.consumer_rules()] == []
        disk.left = 1 << 40
        assert await append == 0


class FailingRoom(Room):
    """Cannot sync either, once `fails` is set."""

    fails = False

    def sync(self, handle: int) -> None:
        self._check()
        super().sync(handle)

    def write_durable(self, handle: int, buffers: Any, offset: int) -> int:
        self._check()
        return super().write_durable(handle, buffers, offset)

    def _check(self) -> None:
        if self.fails:
            raise OSError(errno.EIO, "broken")


async def test_a_disk_that_fails_when_it_is_full_leaves_only_one_part_unknown(directory: Path) -> None:
    """A batch that found no room is stored in parts; what was in none that was tried is certainly not stored."""
    disk = FailingRoom()
    log = await MultiRecordLog.open(directory, filesystem=disk)
    await log.create_queue("q")
    await log.append_record("q", None, bytes(3 * MIB))
    disk.left, disk.fails = 100 * KIB, True
    sizes = [*[10] * 50, 3 * MIB, *[10] * 50]
    results = await ends([log.append_records("q", None, [bytes(size)]) for size in sizes])
    assert kinds(results) == {"LogFailedError"}
    unknown = [number for number, error in enumerate(results) if error.written == "unknown"]
    assert unknown and unknown[-1] < 50
    assert {error.written for error in results[unknown[-1] + 1 :]} == {"no"}
    assert log.inspection.pending_records == 0
    await log.close()
    async with MultiRecordLog.open(directory) as log:
        assert log.next_position("q") - 1 in (0, len(unknown))


@pytest.mark.parametrize("position", [1, None])
async def test_a_call_does_not_overtake_one_of_its_queue_that_found_no_room(
    directory: Path, position: int | None
) -> None:
    """At positions of the caller's choice it would leave a gap where the refused one belongs, and shut it out."""
    async with MultiRecordLog.open(directory, limits=Limits(disk_bytes=4 * MIB)) as log:
        for queue in "ab":
            await log.create_queue(queue)
        await log.append_record("a", 0, bytes(2 * MIB))
        results = await ends(
            [
                log.append_record("a", position, bytes(2 * MIB)),
                log.append_record("a", 2, b"x"),
                log.append_record("b", 2, b"x"),
            ]
        )
        assert [type(result) for result in results] == [LogFullError, LogFullError, int]
        assert log.next_position("a") == 1


def calls_between(log: MultiRecordLog, cut: str) -> list[Any]:
    """Return calls that end a batch: this many, or such large ones."""
    if cut == "calls":
        return [log.create_queue("a", exist_ok=True) for _ in range(BATCH_CONTROLS + 1)]
    return [log.append_records("b", None, [bytes(3 * MIB)]) for _ in range(2)]


@pytest.mark.parametrize("cut", ["calls", "bytes", "line"])
async def test_a_call_of_the_next_batch_does_not_overtake_one_of_its_queue_that_found_no_room(
    directory: Path, cut: str
) -> None:
    """Callers do not know where a batch ends, nor whether their call waits in line."""
    limits = Limits(disk_bytes=4 * MIB, record_bytes=4 * MIB, pending_bytes=(5 if cut == "line" else 64) * MIB)
    async with MultiRecordLog.open(directory, limits=limits) as log:
        for queue in "abc":
            await log.create_queue(queue)
        await log.append_record("a", 0, bytes(2 * MIB))
        results = await ends(
            [
                log.append_record("a", 1, bytes(2 * MIB)),
                *calls_between(log, cut),
                log.append_record("a", 2, b"x"),
                log.append_record("c", 5, b"x"),
            ]
        )
        assert [type(results[at]) for at in (0, -2, -1)] == [LogFullError, LogFullError, int]
        assert log.next_position("a") == 1
        assert sum(log.stats().refused.values()) == sum(isinstance(result, LogFullError) for result in results)
        assert log.resource_usage().pending_bytes == 0


@pytest.mark.parametrize("cut", ["calls", "bytes"])
async def test_appends_of_the_next_batch_wait_behind_those_that_wait_for_the_disk(directory: Path, cut: str) -> None:
    """The order of the calls is kept wherever a batch ends."""
    async with MultiRecordLog.open(directory, limits=Limits(disk_bytes=4 * MIB, on_full="wait")) as log:
        for queue in "ab":
            await log.create_queue(queue)
        await log.append_record("a", None, bytes(2 * MIB))
        first = asyncio.ensure_future(log.append_record("a", None, bytes(2 * MIB)))
        between = [asyncio.ensure_future(call) for call in calls_between(log, cut)]
        last = asyncio.ensure_future(log.append_record("a", None, b"x"))
        async with asyncio.timeout(60):
            while not log._admission.waiting_for_space:
                await asyncio.sleep(0)
            await log.sync()
            assert not last.done()
            while not last.done():
                for queue in "ab":
                    await log.truncate(queue, max(log.next_position(queue) - 1, 0))
            assert (first.result(), last.result()) == (1, 2)
            assert all(call.done() for call in between)
        assert log.resource_usage().pending_bytes == 0


async def test_an_append_without_room_is_no_repeat_of_a_later_one(directory: Path) -> None:
    """Equal records of two callers are two records: both appends would succeed, and one record would be lost."""
    async with MultiRecordLog.open(directory, limits=Limits(disk_bytes=4 * MIB)) as log:
        await log.create_queue("a")
        await log.append_record("a", 0, bytes(2 * MIB))
        results = await ends(
            [
                log.append_record("a", 1, bytes(2 * MIB)),
                log.append_record("a", 1, b"x"),
                log.append_record("a", None, b"x"),
            ]
        )
        assert [type(result) for result in results] == [LogFullError, LogFullError, int]
        assert log.next_position("a") == 2


async def test_a_full_disk_costs_a_bounded_number_of_tries(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of appends that do not fit ask the disk a few dozen times, not once each."""
    disk = Room()
    tries = 0

    def reserve(self: Room, handle: int, offset: int, length: int) -> None:
        nonlocal tries
        tries += 1
        raise OSError(errno.ENOSPC, "no room")

    async with MultiRecordLog.open(directory, filesystem=disk) as log:
        await log.create_queue("q")
        await log.append_record("q", None, bytes(5_000))  # reserves a step
        monkeypatch.setattr(Room, "reserve", reserve)
        # Smaller and smaller ones: that each is smaller than those refused before is the worst case.
        sizes = range(4_000, 3_000, -1)
        results = await ends([log.append_records("q", None, [bytes(size)]) for size in sizes])
        assert kinds(results) == {"int", "LogFullError"}
        assert tries < 300


@pytest.mark.parametrize(("segment_bytes", "size"), [(32 * KIB, 100_000), (2 * MIB, 1_900_000)])
async def test_dead_segments_go_where_the_disk_has_no_room_for_a_next_one(
    directory: Path, segment_bytes: int, size: int
) -> None:
    """The current segment is oversized and there is no spare: older segments are freed first."""
    disk = Room()
    async with MultiRecordLog.open(directory, segment_bytes=segment_bytes, filesystem=disk) as log:
        await log.create_queue("q")
        for _ in range(3):
            await log.append_record("q", None, bytes(size))
        await log.truncate("q", 0)
        async with asyncio.timeout(60):
            while log._engine.opened.journal.space.wants_spare():  # its file is there before it has its space
                await asyncio.sleep(0.001)
        disk.left = size + 30_000
        await log.append_record("q", None, bytes(size))
        await log.truncate("q", log.next_position("q") - 1)
        async with asyncio.timeout(60):  # there is no space for a spare: each attempt leaves a file only briefly
            while any(name.endswith(".tmp") for name in os.listdir(directory)):
                await asyncio.sleep(0.001)
        async with asyncio.timeout(60):
            while len(log.segments) > 1:
                await asyncio.sleep(0.001)


async def test_truncates_get_through_among_more_appends_than_are_tried(directory: Path) -> None:
    """Truncates succeed however many appends of their batch do not fit, however the batch is split."""
    disk = Room()
    async with MultiRecordLog.open(directory, segment_bytes=32 * KIB, filesystem=disk) as log:
        for queue in ("q", "r"):
            await log.create_queue(queue)
            await log.append_records(queue, None, [b"x"] * 400)
        disk.left = 0
        # Smaller and smaller appends, so that each is tried; all of them are too large.
        calls: list[Any] = []
        for number in range(300):
            calls.append(log.append_records("q", None, [bytes(10_000 - number)]))
            calls.append(log.truncate("r", number))
        calls.append(log.delete_queue("r"))
        results = await ends(calls)
        assert "LogFullError" in kinds(results[:-1:2])
        assert results[1::2] == [1] * 300
        assert results[-1] is None


@pytest.mark.parametrize("on_full", ["raise", "wait"])
@pytest.mark.parametrize("size", [900_000, 2_000_000])
async def test_a_call_that_the_disk_limit_never_has_room_for_is_refused_at_once(
    directory: Path, on_full: Any, size: int
) -> None:
    """It does not wait, and no call waits for it."""
    limits = Limits(disk_bytes=1_000_000, on_full=on_full)
    async with MultiRecordLog.open(directory, limits=limits, segment_bytes=100_000) as log:
        await log.create_queue("q")
        results = await ends(
            [log.append_record("q", None, bytes(size)), *(log.append_record("q", None, b"x") for _ in range(5))]
        )
        assert isinstance(results[0], RecordTooLargeError)
        assert results[0].limit == "disk_bytes"
        assert results[1:] == list(range(5))


@pytest.mark.parametrize("disk_bytes", [1, 100_000, 300_000])
async def test_a_limit_too_small_for_anything_makes_no_call_wait(directory: Path, disk_bytes: int) -> None:
    """Not even a small record waits for space that can never exist; create, truncate and delete work."""
    async with MultiRecordLog.open(directory) as log:
        await log.create_queue("q")
        await log.append_record("q", None, b"x")
    limits = Limits(disk_bytes=disk_bytes, on_full="wait")
    async with MultiRecordLog.open(directory, limits=limits) as log:
        calls = [log.append_record("q", None, bytes(size)) for size in (10, 100_000)]
        for result in await ends(calls):
            assert isinstance(result, int | RecordTooLargeError)
        assert await log.truncate("q", 0) == 1
        await log.delete_queue("q")


async def test_appends_that_wait_for_the_disk_go_on_in_order(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are retried when segments are removed, as far as they fit, and no later call overtakes them."""
    monkeypatch.setattr(upkeep, "RETRY_SECONDS", 1_000.0)
    limits = Limits(disk_bytes=2 * MIB, on_full="wait")
    async with MultiRecordLog.open(directory, limits=limits, segment_bytes=100_000) as log:
        await log.create_queue("q")
        calls = [asyncio.ensure_future(log.append_record("q", None, b"%d" % n * 10_000)) for n in range(300)]
        done = 0
        async with asyncio.timeout(60):
            while done < 300:
                await calls[done]
                done += 1
                if done % 20 == 0 or log.resource_usage().pending_bytes:
                    await log.truncate("q", done - 1)
        assert [call.result() for call in calls] == list(range(300))


@pytest.mark.parametrize("way", ["close", "leave"])
async def test_appends_that_wait_for_the_disk_end_with_the_log(directory: Path, way: str) -> None:
    """Closing ends every append: held, in line, or one call of several records."""
    limits = Limits(disk_bytes=1 * MIB, pending_bytes=300_000, record_bytes=200_000, on_full="wait")
    async with MultiRecordLog.open(directory, limits=limits, segment_bytes=100_000) as log:
        await log.create_queue("q")
        calls: list[asyncio.Future[int | None]] = []
        calls += [asyncio.ensure_future(log.append_record("q", None, bytes(90_000))) for _ in range(20)]
        calls += [asyncio.ensure_future(log.append_records("q", None, [bytes(90_000)])) for _ in range(20)]
        async with asyncio.timeout(60):
            while not log._admission.waiting_for_space:
                await asyncio.sleep(0)
        assert log._admission._parked
        if way == "close":
            await log.close()
    results = await ends(calls)
    assert kinds(results) == {"int", "LogClosedError"}
    assert all(isinstance(result, int | LogClosedError) for result in results)
    assert log.resource_usage().pending_bytes == 0


async def test_refused_appends_take_no_segments(directory: Path) -> None:
    """However many large appends are refused next to truncates, the log stays within a segment of its limit."""
    limits = Limits(disk_bytes=2_000_000)
    async with MultiRecordLog.open(directory, limits=limits, segment_bytes=32_768) as log:
        for queue in ("idle", "q", "other"):
            await log.create_queue(queue)
        await log.append_record("idle", None, b"1")
        refused = 0
        for number in range(100):
            try:
                await log.append_record("q", None, bytes(100_000))
            except LogFullError:
                refused += 1
            await log.truncate("q", max(log.next_position("q") - 1, 0))
            await log.truncate("other", number)  # a batch in any case, so that the segment has one
            assert log.resource_usage().disk_bytes <= 2_000_000 + 300_000
        assert refused > 50
        await log.truncate("idle", 0)
        await log.sync()
        for _ in range(20):
            await log.append_record("q", None, bytes(100_000))
            await log.truncate("q", log.next_position("q") - 1)


async def test_segments_are_smaller_than_the_disk_limit(directory: Path) -> None:
    """A limit below segment_bytes still leaves several segments, so that space is given back in use."""
    async with MultiRecordLog.open(directory, limits=Limits(disk_bytes=8 * MIB)) as log:
        await log.create_queue("q")
        for _ in range(100):
            await log.append_record("q", None, bytes(1_000_000))
            await log.truncate("q", max(log.next_position("q") - 3, 0))
        assert log.stats().rolls > 10


async def test_appends_leave_the_reserve_to_truncates(directory: Path) -> None:
    """On a full disk appends stop before the reserve, so that hundreds of truncates and deletes still succeed."""
    disk = Room()
    async with MultiRecordLog.open(directory, filesystem=disk) as log:
        for number in range(3):
            await log.create_queue(f"q{number}")
        await log.append_record("q0", None, bytes(5_000))  # reserves a step
        disk.left = 0
        stored = 0
        while True:
            try:
                await log.append_record("q0", None, bytes(5_000))
            except LogFullError:
                break
            stored += 1
        journal = log._engine.opened.journal
        assert stored
        assert journal._file.reserved_bytes - journal.end.offset >= RESERVE_BYTES
        for number in range(300):
            await log.truncate("q1", number)
        await log.delete_queue("q2")
        await log.truncate("q0", log.next_position("q0") - 1)
        disk.left = 1 << 40
        await log.append_record("q0", None, bytes(5_000))


# Limits that were lowered.


async def test_lowered_limits_remove_nothing_that_is_stored(directory: Path) -> None:
    """Reads, truncates, deletes and appends still work; only new queues obey the limit for names."""
    name = "n" * 300
    wide = Limits(name_bytes=1_000)
    async with MultiRecordLog.open(directory, limits=wide) as log:
        for queue in (name, "other", "third"):
            await log.create_queue(queue)
            await log.append_records(queue, None, [bytes(50_000)] * 4)
    async with MultiRecordLog.open(directory) as log:
        assert await log.append_record(name, 4, b"x") == 4
        assert await log.append_record(name, None, b"x") == 5
        assert await log.append_records(name, None, [b"x"]) == 6
        assert await log.wait_for(name, 6)
        for call in (log.create_queue("n" * 299), log.truncate("n" * 299, 0), log.append_record("n" * 299, 0, b"")):
            with pytest.raises(ValueError, match="255"):
                await call
    tight = Limits(memory_bytes=1, disk_bytes=1, pending_bytes=1, record_bytes=1, name_bytes=1, queues=1)
    async with MultiRecordLog.open(directory, limits=tight) as log:
        found = [record async for record in log.read(name)]  # memory has no room for them
        assert (len(found), found[-1]) == (7, (6, b"x"))
        assert await log.truncate(name, 3) == 4
        await log.delete_queue(name)
        with pytest.raises(QueueNotFoundError):
            log.first_position("x")
        for call in (log.append_record("other", None, b""), log.append_record("other", 7, b"")):
            with pytest.raises((LogFullError, RecordTooLargeError)):
                await call
        with pytest.raises(LogFullError):
            await log.create_queue("x")
        await log.delete_queue("other")
        await log.sync()


def test_a_queue_without_positions_left_is_said_so() -> None:
    """The error speaks of positions, not of bytes in use. One may be left where a call asks for two."""
    message = str(LogFullError("positions", 2**63 - 2, 2**63 - 1))
    assert "bytes" not in message and "no positions" not in message
    assert str(2**63 - 2) in message


@pytest.mark.parametrize("name", ["memory_bytes", "record_bytes", "queues"])
def test_a_limit_is_no_truth_value(name: str) -> None:
    """True would be a limit of one byte, or of one queue."""
    limits: dict[str, Any] = {name: True}
    with pytest.raises(ValueError, match=f"{name} must be an integer above 0, not True"):
        Limits(**limits)
