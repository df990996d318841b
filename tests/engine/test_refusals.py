"""Refused appends are counted once each, under their reason, and logged by stretch."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import Counter
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from mrecordlog_async import (
    Limits,
    LogClosedError,
    LogFullError,
    MultiRecordLog,
    QueueNotFoundError,
    QueueOptions,
    RecordLogError,
)
from mrecordlog_async.engine.intake.commands import Command
from mrecordlog_async.engine.intake.refusals import CALM_SECONDS, Refusals, reason_of
from mrecordlog_async.metrics import REFUSED, Counters
from mrecordlog_async.model import POSITION_MAX
from tests.cached_files import CachedFiles, FailingSyncs


def refused(log: MultiRecordLog) -> dict[str, int]:
    """Return the reasons for which appends were refused."""
    return {reason: count for reason, count in log.stats().refused.items() if count}


async def outcomes(calls: Sequence[Any]) -> list[str]:
    return [type(one).__name__ for one in await asyncio.gather(*calls, return_exceptions=True)]


async def test_every_reason_counts_each_refused_append_once(directory: Path) -> None:
    """Single records that wait together are as many appends as there are callers."""
    limits = Limits(record_bytes=1_000, pending_bytes=20_000, memory_bytes=100_000)
    async with MultiRecordLog.open(directory, limits=limits) as log:
        await log.create_queue("q")
        await log.append_record("q", 0, b"a")
        calls = [
            log.append_record("q", 0, b"b"),
            log.append_records("q", 0, [b"b", b"c"]),
            log.append_record("q", None, bytes(1_001)),
            *[log.append_record("absent", None, b"a") for _ in range(3)],
        ]
        await outcomes(calls)
        assert refused(log) == {"past": 2, "too_large": 1, "no_queue": 3}
        waiting = []
        with pytest.raises(LogFullError):
            while True:
                waiting.append(log.append_soon("q", bytes(1_000)))
        await asyncio.gather(*waiting)
        assert refused(log)["pending"] == 1
    with pytest.raises(Exception, match="closed"):
        await log.append_record("q", None, b"late")
    assert refused(log) == {"past": 2, "too_large": 1, "no_queue": 3, "pending": 1, "closed": 1}


async def test_appends_above_the_memory_limit_are_counted_and_the_message_adds_up(directory: Path) -> None:
    """The bytes in the message are those that were compared with the limit."""
    limits = Limits(record_bytes=40_000, pending_bytes=100_000, memory_bytes=200_000)
    async with MultiRecordLog.open(directory, limits=limits) as log:
        await log.create_queue("q")
        results = await asyncio.gather(
            *(log.append_record("q", None, bytes(40_000)) for _ in range(20)), return_exceptions=True
        )
        full = [one for one in results if isinstance(one, LogFullError)]
        assert refused(log) == {"memory": len(full)}
        assert all(one.used + 40_000 > one.limit for one in full)


class Refusing(CachedFiles):
    """A disk that refuses to reserve space while the test says so."""

    error = 0

    def reserve(self, handle: int, offset: int, length: int) -> None:
        if self.error:
            raise OSError(self.error, "refused by the test")
        super().reserve(handle, offset, length)


QUEUES = ("plain", "full", "ring", "sealed", "absent", "")
OPTIONS = {"full": QueueOptions(max_records=4), "ring": QueueOptions(max_bytes=600, when_full="drop_oldest")}


def append_of(log: MultiRecordLog, chance: Random) -> Awaitable[object]:
    """Begin an append of any kind to any queue. Its call may raise at once."""
    queue, create = chance.choice(QUEUES), chance.random() < 0.1
    payload = bytes(chance.choice([0, 1, 300, 300, 700, 1_001]))
    position = chance.choice([None, None, None, 0, 3, POSITION_MAX])
    kind = chance.choice(["append", "record", "records", "soon", "soon"])
    if kind == "soon":
        return log.append_soon(queue, payload)
    if kind == "append":
        return log.append(queue, payload, create=create)
    if kind == "record":
        return log.append_record(queue, position, payload, create=create)
    return log.append_records(queue, position, [payload] * chance.choice([0, 1, 1, 3, 9]), create=create)


def change_of(log: MultiRecordLog, chance: Random) -> Awaitable[object]:
    """Begin a change other than an append."""
    queue, kind = chance.choice(QUEUES), chance.choice(["truncate", "create", "sync"])
    if kind == "truncate":
        return log.truncate(queue, chance.randrange(9))
    return log.create_queue(queue) if kind == "create" else log.sync()


@pytest.mark.parametrize("seed", range(20))
async def test_every_refused_call_of_a_random_batch_is_counted_once(directory: Path, seed: int) -> None:
    """Whatever the call, its queue and the calls around it: one refused append is one count, all others are none."""
    chance, expected, disk = Random(seed), Counter[str](), Refusing()
    limits = Limits(
        record_bytes=1_000,
        pending_bytes=chance.choice([5_000, 100_000]),
        memory_bytes=chance.choice([30_000, 1_000_000]),
        queues=chance.choice([4, 9]),
        on_full=chance.choice(["raise", "wait"]),
    )
    existing = {name: OPTIONS.get(name, QueueOptions()) for name in ("plain", "full", "ring", "sealed")}
    log = await MultiRecordLog.open(directory, limits=limits, segment_bytes=65_536, queues=existing, filesystem=disk)
    await log.seal_queue("sealed")
    for _ in range(40):
        appends, others = [], []
        disk.error = 0
        with suppress(QueueNotFoundError):
            await log.delete_queue("absent")
        disk.error = chance.choice([0, 0, 0, errno.EIO, errno.ENOSPC]) if limits.on_full == "raise" else 0
        for _ in range(chance.choice([1, 3, 15])):
            if chance.random() < 0.15:
                others.append(asyncio.ensure_future(change_of(log, chance)))
                continue
            try:
                appends.append(asyncio.ensure_future(append_of(log, chance)))
            except RecordLogError as error:
                expected[reason_of(error)] += 1
        cancelled = 0
        if chance.random() < 0.3:
            await asyncio.sleep(0)
            cancelled = len(appends) // 4
            for one in chance.sample(appends, cancelled):
                one.cancel()
        results = await asyncio.gather(*appends, return_exceptions=True)
        await asyncio.gather(*others, return_exceptions=True)
        expected.update(reason_of(one) for one in results if isinstance(one, Exception))
        found = Counter(refused(log))
        # One that was refused before it was cancelled was counted, and its caller does not learn of it.
        assert not expected - found
        assert (found - expected).total() <= cancelled
        expected = found
    assert set(log.stats().refused) == set(REFUSED)
    disk.error = 0
    await log.close()
    expected.update(["closed"] * 5)
    for call in (
        lambda: log.append("plain", b""),
        lambda: log.append("plain", b"", create=True),
        lambda: log.append("absent", b"", create=True),
        lambda: log.append_records("plain", None, [b"", b""]),
        lambda: log.append_soon("plain", b""),
    ):
        with pytest.raises(LogClosedError):
            await call()
    assert refused(log) == expected


@pytest.mark.parametrize(("number", "reason"), [(errno.ENOSPC, "space"), (errno.EIO, "disk_error")])
async def test_appends_that_the_disk_refuses_are_counted_and_the_disks_errors_too(
    directory: Path, number: int, reason: str
) -> None:
    """A batch of many callers is refused in parts: each caller is one refused append."""
    disk = Refusing()
    async with MultiRecordLog.open(directory, segment_bytes=4 * 32_768, filesystem=disk) as log:
        await log.create_queue("q")
        disk.error = number
        calls = [log.append_records("q", None, [bytes(100_000)]) for _ in range(5)]
        kinds = await outcomes(calls)
        disk.error = 0
        assert refused(log) == {reason: kinds.count("LogFullError") + kinds.count("OSError")}
        assert refused(log)[reason] >= 3
        assert log.stats().io_errors >= 1


async def test_a_failed_log_counts_what_it_refuses_and_the_error(directory: Path) -> None:
    """The calls in flight, those that waited, and those that came later."""
    disk = FailingSyncs()
    log = await MultiRecordLog.open(directory, filesystem=disk)
    await log.create_queue("q")
    disk.failing = True
    await outcomes([log.append_record("q", None, b"a") for _ in range(4)])
    await outcomes([log.append_record("q", None, b"late")])
    assert refused(log) == {"failed": 5}
    assert log.stats().io_errors == 1
    await log.close()


class Waiting(Command):
    """Appends of this many callers."""

    def __init__(self, callers: int) -> None:
        self.callers = callers

    def waiting_appends(self) -> int:
        return self.callers

    def refuse(self, error: Exception) -> None:
        self.callers = 0


def test_a_stretch_is_logged_where_it_begins_and_where_it_ended(caplog: pytest.LogCaptureFixture) -> None:
    """One line each, however many appends were refused; a pause within the calm time does not end it."""
    caplog.set_level(logging.INFO, "mrecordlog_async")
    now, ticking = 0.0, []
    counters = Counters()
    refusals = Refusals(counters, "/wal", lambda: now)
    refusals.on_begin = lambda: ticking.append(now)
    for moment in (1.0, 2.0, 2.0 + CALM_SECONDS - 1):
        now = moment
        refusals.refuse([Waiting(10)], LogFullError("memory", 5, 4, "idle"))
        assert refusals.check()
    now += CALM_SECONDS
    assert not refusals.check()
    assert ticking == [1.0]
    begun, ended = caplog.records
    assert (begun.levelname, ended.levelname) == ("WARNING", "INFO")
    assert "queue 'idle' holds the most" in begun.getMessage()
    assert "30 were refused within 30 s" in ended.getMessage()
    assert ended.__dict__["facts"]["appends"] == counters.refused["memory"] == 30


def test_refusals_that_are_the_callers_fault_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """They are counted; the log stores what it should."""
    refusals = Refusals(Counters())
    for resource in ("pending", "positions"):
        refusals.counted(LogFullError(resource), None)
    assert caplog.records == []
    assert not refusals.check()


def test_every_reason_is_a_series_before_it_occurs() -> None:
    """A rate needs the zero before the first refusal."""
    assert set(Counters().refused) == set(REFUSED)
