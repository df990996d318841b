"""The watch: what the loop reports of a disk that hangs or is slow, and the times of the last minute."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import pytest

from mrecordlog_async import MultiRecordLog
from mrecordlog_async.engine import watch as watching
from mrecordlog_async.engine.refusals import Refusals
from mrecordlog_async.engine.thread import Progress, SlowJob
from mrecordlog_async.engine.watch import Recent, Watch
from mrecordlog_async.metrics import Counters
from tests.cached_files import HangingDisk


async def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    """Wait for lines of the log about *event*; return them."""
    while True:
        found = [one.getMessage() for one in caplog.records if one.__dict__.get("facts", {}).get("event") == event]
        if found:
            return found
        await asyncio.sleep(0.001)


async def test_a_disk_that_hangs_is_reported_while_it_hangs(
    directory: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the loop, with the gauges; and once more when it responds again."""
    slow_seconds = "mrecordlog_async.engine.watch.SLOW_SECONDS", "mrecordlog_async.engine.thread.SLOW_SECONDS"
    for name in slow_seconds:
        monkeypatch.setattr(name, 3_600.0)
    monkeypatch.setattr(watching, "TICK_SECONDS", 0.01)
    disk = HangingDisk()
    async with MultiRecordLog.open(directory, filesystem=disk) as log:
        await log.create_queue("q")
        assert log.waiting_seconds == 0
        caplog.clear()
        disk.goes_on.clear()
        begun = perf_counter()
        append = asyncio.ensure_future(log.append_record("q", None, b"a"))
        try:
            await asyncio.to_thread(disk.waits.wait)
            later = asyncio.ensure_future(log.append_record("q", None, b"b"))
            for name in slow_seconds:
                monkeypatch.setattr(name, 0.01)  # not before both wait: an earlier commit may have been slow, too
            line = (await lines(caplog, "hanging"))[0]
            assert "a commit has been under way" in line
            assert "records waiting: 2" in line
            assert 0.01 < log.under_way_seconds <= log.waiting_seconds <= perf_counter() - begun
        finally:
            disk.goes_on.set()
        await asyncio.gather(append, later)
        assert "responds again" in (await lines(caplog, "slow"))[0]
        assert log.waiting_seconds == 0


async def test_the_watch_of_an_idle_log_does_not_tick(log: MultiRecordLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle log wakes nobody."""
    monkeypatch.setattr(watching, "TICK_SECONDS", 0.001)
    monkeypatch.setattr(watching, "STEP_SECONDS", 0.0)
    await log.append_record("q", None, b"a")
    while log._disk_watch._timer is not None:
        await asyncio.sleep(0.001)


class Clocked:
    """A watch at times that the test names."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.progress = Progress()
        self.watch = Watch(self.progress, Refusals(Counters()), Counters(), "/wal", lambda: 0)
        self.now = 1_000.0
        monkeypatch.setattr(watching, "perf_counter", lambda: self.now)

    def tick(self) -> None:
        self.watch._tick()
        self.watch.stop()


def commit() -> None:
    """Stand for a job of the log's thread."""


async def test_a_long_hang_is_reported_at_ten_times_its_age(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not every second: after 1, 10 and 100 seconds."""
    clocked = Clocked(monkeypatch)
    clocked.progress.job = (clocked.now, commit)
    ages = []
    for _ in range(101):
        clocked.now += 1.0
        clocked.tick()
        ages += [clocked.now - 1_000.0] * len(caplog.records)
        caplog.clear()
    assert ages[:2] == [1.0, 10.0]
    assert len(ages) <= 4


async def test_a_disk_that_is_slow_for_long_is_reported_once_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line for each of its commits would bury everything else."""
    clocked = Clocked(monkeypatch)
    for _ in range(100):
        clocked.progress.slow.append(SlowJob(commit, clocked.now, 1.2))
        clocked.now += 1.2
        clocked.tick()
    assert len(caplog.records) == 2
    assert all("a commit took 1.2 s" in record.getMessage() for record in caplog.records)


def recent_p50(recent: Recent, now: float) -> float:
    return recent.histograms(now)["commit_seconds"].quantile(0.5)


def test_the_last_minute_forgets_what_was_before() -> None:
    """A slow disk shows at once, whatever the millions of fast commits before; and an idle log shows nothing."""
    counters = Counters()
    recent = Recent(counters, 0.0)
    now = 0.0

    def work(seconds: int, observe: Callable[[], None]) -> None:
        nonlocal now
        for _ in range(seconds):
            observe()
            now += 1.0
            assert recent.keep(now)

    work(300, lambda: counters.commit_seconds.observe(0.0002, 1_000))
    assert recent_p50(recent, now) < 0.001
    work(100, lambda: counters.commit_seconds.observe(0.2, 5))
    assert recent_p50(recent, now) >= 0.2
    assert 300 <= recent.histograms(now)["commit_seconds"].count <= 5 * 66
    assert counters.commit_seconds.quantile(0.5) < 0.001
    assert not recent.keep(now + 5) or not recent.keep(now + 6)
    assert recent.histograms(now + 100)["commit_seconds"].count == 0
    assert len(recent._kept) < 20
