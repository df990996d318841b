"""The watch: what the loop reports of a disk that hangs or is slow, and the times of the last minute."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import pytest

from mrecordlog_async import MultiRecordLog, metrics
from mrecordlog_async.engine.commit import thread as watching
from mrecordlog_async.engine.commit.thread import Job, LogThread, ThreadProgress, Watch, timed
from mrecordlog_async.engine.intake.refusals import Refusals
from mrecordlog_async.metrics import Counters, Recent
from mrecordlog_async.support.clock import Clock
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
    monkeypatch.setattr(watching, "SLOW_SECONDS", 3_600.0)
    monkeypatch.setattr(watching, "TICK_SECONDS", 0.01)
    disk = HangingDisk()
    async with MultiRecordLog.open(directory, filesystem=disk) as log:
        await log.create_queue("q")
        assert log.inspection.waiting_seconds == 0
        caplog.clear()
        disk.goes_on.clear()
        begun = perf_counter()
        append = asyncio.ensure_future(log.append_record("q", None, b"a"))
        try:
            await asyncio.to_thread(disk.waits.wait)
            later = asyncio.ensure_future(log.append_record("q", None, b"b"))
            monkeypatch.setattr(
                watching, "SLOW_SECONDS", 0.01
            )  # not before both wait: an earlier commit may have been slow, too
            line = (await lines(caplog, "hanging"))[0]
            assert "a commit has been under way" in line
            assert "records waiting: 2" in line
            assert 0.01 < log.inspection.under_way_seconds <= log.inspection.waiting_seconds <= perf_counter() - begun
        finally:
            disk.goes_on.set()
        await asyncio.gather(append, later)
        assert "responds again" in (await lines(caplog, "slow"))[0]
        assert log.inspection.waiting_seconds == 0


async def test_the_watch_of_an_idle_log_does_not_tick(log: MultiRecordLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle log wakes nobody."""
    monkeypatch.setattr(watching, "TICK_SECONDS", 0.001)
    monkeypatch.setattr(metrics, "RECENT_STEP_SECONDS", 0.0)
    await log.append_record("q", None, b"a")
    while log._engine.disk_watch._timer is not None:
        await asyncio.sleep(0.001)


class Clocked:
    """A watch at times that the test names."""

    def __init__(self) -> None:
        self.progress = ThreadProgress()
        self.now = 1_000.0
        clock = Clock(seconds=lambda: self.now)
        self.watch = Watch(self.progress, Refusals(Counters()), Counters(), "/wal", lambda: 0, clock)

    def tick(self, late: float = 0.0) -> None:
        """Tick now; *late*: by this much after the time that was set."""
        self.watch._due = self.now - late
        self.watch._tick()
        self.watch.stop()

    def begin(self) -> Job:
        """Have the thread begin a job, and a system call in it at once."""
        job = self.progress.job = Job(commit, self.now, self.progress.stood_still_seconds)
        self.progress.call_begun, self.progress.called_seconds = self.now, 0.0
        return job

    def end(self, job: Job, seconds: float) -> None:
        """Have the thread end a job whose system calls took this long."""
        self.progress.job, self.progress.call_begun = None, 0.0
        self.progress.slow.append(job._replace(seconds=seconds))


def commit() -> None:
    """Stand for a job of the log's thread."""


async def test_a_long_hang_is_reported_at_ten_times_its_age(caplog: pytest.LogCaptureFixture) -> None:
    """Not every second: after 1, 10 and 100 seconds."""
    clocked = Clocked()
    clocked.begin()
    ages = []
    for _ in range(101):
        clocked.now += 1.0
        clocked.tick()
        ages += [clocked.now - 1_000.0] * len(caplog.records)
        caplog.clear()
    assert ages[:2] == [1.0, 10.0]
    assert len(ages) <= 4


async def test_a_disk_that_is_slow_for_long_is_reported_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """A line for each of its commits would bury everything else."""
    clocked = Clocked()
    for _ in range(100):
        job = clocked.begin()
        clocked.now += 1.2
        clocked.end(job, 1.2)
        clocked.tick()
    assert len(caplog.records) == 2
    expected = "/wal: the disk is slow: a commit took 1.2 s; if it stays slow, the next report comes in 60 s"
    assert [record.getMessage() for record in caplog.records] == [expected] * 2


async def test_a_disk_that_hung_and_stays_slow_is_not_called_well(caplog: pytest.LogCaptureFixture) -> None:
    """The last line of a minute in which every commit took three seconds says when the next one comes."""
    clocked = Clocked()
    for _ in range(5):
        job = clocked.begin()
        for _ in range(3):
            clocked.now += 1.0
            clocked.tick()
        clocked.end(job, 3.0)
        clocked.tick()
    assert [record.getMessage() for record in caplog.records] == [
        "/wal: the disk does not respond: a commit has been under way for 1.0 s (records waiting: 0); look at the disk "
        "and at the kernel's log",
        "/wal: the disk is slow: a commit took 3.0 s; it responds again; if it stays slow, the next report comes in "
        "60 s",
    ]


async def test_the_disk_is_not_blamed_for_work_of_the_log_itself(caplog: pytest.LogCaptureFixture) -> None:
    """A job that makes the table of a million queues, or waits for the interpreter, is in no system call."""
    clocked = Clocked()
    clocked.begin()
    clocked.progress.call_begun = 0.0
    clocked.progress.called_seconds = 0.4
    for _ in range(30):
        clocked.now += 1.0
        clocked.tick()
        assert clocked.watch.under_way_seconds() == 0.4
    assert not caplog.records


@pytest.mark.parametrize("hog", [1.1, 1.9, 5.0, 60.0])
@pytest.mark.parametrize("since_tick", [0.01, 0.5, 0.99])
async def test_the_disk_is_not_blamed_while_nothing_can_run(
    hog: float, since_tick: float, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collection of a large heap stops all threads: a sync that takes a millisecond returns when it is over."""
    clocked = Clocked()
    due = clocked.now + watching.TICK_SECONDS
    clocked.now += since_tick
    job = clocked.begin()
    clocked.now += hog
    clocked.tick(late=max(clocked.now - due, 0.0))  # before the thread runs again
    clocked.end(job, hog)
    clocked.now += 1.0
    clocked.tick()
    assert not caplog.records


async def test_only_time_in_system_calls_is_counted() -> None:
    """Of a job of the log's thread: that of each call, even of one that fails, and of the one under way."""
    worker = LogThread(asyncio.get_running_loop())
    disk = HangingDisk()
    files, progress = timed(disk, worker.progress), worker.progress
    handle = await asyncio.wrap_future(worker.submit(files.open_directory, "/"))
    assert progress.disk_seconds(perf_counter()) == 0

    def work() -> tuple[float, float]:
        begun = perf_counter()
        while perf_counter() - begun < 0.02:
            assert not progress.called_seconds
        with pytest.raises(FileNotFoundError):
            files.open("/does/not/exist", write=False)
        called = progress.called_seconds
        assert not progress.call_begun
        files.sync(handle)
        return called, perf_counter() - begun

    disk.goes_on.clear()
    job = asyncio.wrap_future(worker.submit(work))
    await asyncio.to_thread(disk.waits.wait)
    before, now = perf_counter(), progress.disk_seconds(perf_counter())
    assert 0 < now < before
    assert progress.disk_seconds(before + 7) >= 7
    disk.goes_on.set()
    called, whole = await job
    assert 0 < called < progress.called_seconds <= whole - 0.02
    await asyncio.wrap_future(worker.submit(files.close, handle))
    worker.shutdown(wait=False)


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
