"""A log that is read in little memory shows what `ReadOnlyLog` shows."""

from __future__ import annotations

import asyncio
import random
import shutil
import tracemalloc
from collections.abc import Callable
from itertools import count
from pathlib import Path
from unittest.mock import patch

import pytest

from mrecordlog_async import CorruptionError, MultiRecordLog, PersistPolicy, QueueNotFoundError, ReadOnlyLog
from mrecordlog_async.maintenance import stored_log, verify
from mrecordlog_async.maintenance.stored_log import StoredLog
from mrecordlog_async.model import TICK_NS
from mrecordlog_async.options import MIB
from mrecordlog_async.recovery import places
from mrecordlog_async.recovery.segment_files import LogReplacedError
from mrecordlog_async.storage.segment import segment_name
from mrecordlog_async.support.clock import Clock
from tests import damage
from tests.cli import running
from tests.conftest import contents
from tests.readonly.overtaking import BLOCK, Interrupted, build

State = dict[str, tuple[int, int, list[tuple[int, bytes]]]]


def shown(log: StoredLog) -> State:
    """Return what `contents` returns for a log in memory."""
    return {
        name: (first, stop, [(position, payload) for run in runs for position, payload in run.records()])
        for name, first, stop, runs in log.contents()
    }


def in_memory(directory: Path) -> State:
    with ReadOnlyLog.open(directory) as log:
        return contents(log)


async def change(log: MultiRecordLog, dice: random.Random) -> None:
    """Make one random call."""
    names = log.list_queues()
    if not names or dice.random() < 0.05:
        await log.create_queue(f"q{dice.randrange(10**9)}")
        return
    queue = dice.choice(names)
    next_position = log.next_position(queue)
    match dice.randrange(12):
        case 0:
            await log.truncate(queue, next_position + dice.randrange(3))
        case 1 | 2:
            await log.truncate(
                queue, dice.randint(log.first_position(queue), max(next_position - 1, log.first_position(queue)))
            )
        case 3 if len(names) > 2:
            await log.delete_queue(queue)
        case 4:
            await log.append_record(queue, next_position + dice.randrange(1, 9), b"after a gap")
        case 5:
            await log.append_records(queue, None, [bytes(dice.randrange(9_000)) for _ in range(20)])
        case _:
            await log.append_records(queue, None, [b"%d" % n for n in range(dice.randint(1, 9))])


@pytest.fixture(params=[None, 300])
def bounds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sizes of places and groups, and such small ones that every log has several."""
    if request.param is not None:
        monkeypatch.setattr(places, "PLACE_BYTES", request.param)
        monkeypatch.setattr(places, "UNDIGESTED_BYTES_MAX", request.param)
        monkeypatch.setattr(stored_log, "GROUP_BYTES", 100 * request.param)


async def test_an_older_copy_in_the_place_of_the_log_is_not_read_for_it(directory: Path) -> None:
    """Records of equal size are at the same places there: reading them is refused until a refresh."""

    async def store(letter: str) -> None:
        async with MultiRecordLog.open(directory, queues=["q", "r"]) as log:
            for number in range(3):
                await log.append("q", b"%s%d" % (letter.encode() * 4, number))
                await log.append("r", b"small")

    async with MultiRecordLog.open(directory, queues=["q", "r"]):
        pass
    copy = Path(shutil.copytree(directory, directory.parent / "copy"))
    await store("A")
    stored = await asyncio.to_thread(StoredLog.open, directory)
    before = await asyncio.to_thread(shown, stored)
    shutil.rmtree(directory)
    copy.rename(directory)
    await store("B")
    for read in (lambda: list(stored.runs("q")), lambda: shown(stored)):
        with pytest.raises(LogReplacedError, match="an older copy took the place"):
            await asyncio.to_thread(read)
    assert await asyncio.to_thread(stored.refresh)
    assert stored.went_back
    after = await asyncio.to_thread(shown, stored)
    assert after == await asyncio.to_thread(in_memory, directory)
    assert after != before


def test_an_empty_range_has_no_records(directory: Path) -> None:
    """A range whose end is before its beginning is empty, even where both are inside one run."""

    async def fill(log: MultiRecordLog) -> None:
        await log.create_queue("q")
        await log.append_records("q", None, [b"x"] * 9)

    with StoredLog.open(running.build(directory, fill)) as log:
        assert list(log.runs("q", 5, 3)) == []


@pytest.mark.usefixtures("bounds")
@pytest.mark.parametrize("seed", range(6))
def test_it_shows_what_a_log_in_memory_shows(directory: Path, seed: int) -> None:
    """Positions, records, sizes, times, ranges and the report are the same for any history, even after a refresh."""
    dice = random.Random(seed)
    moments = count(10**18, TICK_NS)  # no two batches have the same time

    async def make() -> StoredLog:
        async with MultiRecordLog.open(directory, segment_bytes=2 * BLOCK, persist_policy=PersistPolicy.never()) as log:
            for _ in range(150):
                await change(log, dice)
            await log.sync()
            followed = await asyncio.to_thread(StoredLog.open, directory)
            await asyncio.to_thread(followed.summary)
            for _ in range(50):
                await change(log, dice)
            await log.sync()
        return followed

    with patch("mrecordlog_async.support.clock.SYSTEM", Clock(moments.__next__)):
        followed = asyncio.run(make())
    with ReadOnlyLog.open(directory) as expected, StoredLog.open(directory) as found:
        followed.refresh()
        for stored in (found, followed):
            assert stored.summary() == expected.summary()
            assert shown(stored) == contents(expected)
        assert found.recovery_report.records == expected.recovery_report.records
        for queue in expected.list_queues():
            middle = (expected.first_position(queue) + expected.next_position(queue)) // 2
            for start, stop in ((None, middle), (middle, None), (middle, middle + 3), (0, 10**9)):
                records = [record for run in found.runs(queue, start, stop) for record in run.records()]
                assert records == list(expected.range(queue, start, stop))


def test_a_queue_that_does_not_exist_is_named(directory: Path) -> None:
    """The error is that of a log in memory."""
    running.build(directory, running.three_queues)
    with StoredLog.open(directory) as log, pytest.raises(QueueNotFoundError):
        log.runs("absent")


@pytest.mark.parametrize("read", [shown, StoredLog.summary], ids=["records", "sizes"])
def test_what_a_writer_removes_meanwhile_is_truncated(
    tmp_path: Path, directory: Path, read: Callable[[StoredLog], object]
) -> None:
    """A segment that was removed since the log was opened is not an error: the records that remain are shown."""
    stages = asyncio.run(build(tmp_path, count=2, each=3, kept=6))
    directory.mkdir()
    stages.put(0, directory)
    files = Interrupted()
    with StoredLog.open(directory, filesystem=files) as log:
        stages.put(1, directory)
        read(log)
        left = shown(log)
    before, after = stages.states[0]["q"][2], stages.states[1]["q"][2]
    assert left["idle"] == stages.states[0]["idle"]
    assert left["q"][1] == stages.states[0]["q"][1]
    assert left["q"][2] == [record for record in before if record[0] >= left["q"][2][0][0]]
    assert left["q"][2][-1] == before[-1]
    assert left["q"][2][0][0] <= after[0][0]


def test_damage_that_comes_later_is_damage(directory: Path) -> None:
    """Bytes that were intact when the log was opened and cannot be read now, in a file that exists, are an error."""

    async def fill(log: MultiRecordLog) -> None:
        await log.create_queue("q")
        for _ in range(6):
            await log.append_record("q", None, bytes(30_000))

    running.build(directory, fill, blocks=2)
    segment = damage.segments(directory)[1]
    with StoredLog.open(directory) as stored:
        damage.flip_byte(segment, BLOCK + 5_000)
        with pytest.raises(CorruptionError, match=segment_name(1)):
            list(stored.runs("q"))


def test_memory_does_not_grow_with_the_log(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of 48 MiB is listed, verified, and read to its end in 24 MiB, a large queue and many small ones alike."""
    monkeypatch.setattr(stored_log, "GROUP_BYTES", 2 * MIB)

    async def fill(log: MultiRecordLog) -> None:
        names = [f"q{number}" for number in range(24)]
        for name in ("large", *names):
            await log.create_queue(name)
        for number in range(24):
            await log.append_records("large", None, [bytes(10_000)] * 100)
            await log.append_records(names[number], None, [bytes(1_000)] * 1_000)
        await log.truncate("large", 149)

    running.build(directory, fill, blocks=512)
    tracemalloc.start()
    try:
        with StoredLog.open(directory) as stored:
            assert sum(summary.bytes for summary in stored.summary().values()) > 46_000_000
            assert sum(run.record_count for each in stored.contents() for run in each.runs) == 26_250
        assert verify(directory).ok
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 24 * MIB
