"""A log that is changed without its records in memory is changed as an open log changes it."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from pathlib import Path
from unittest.mock import Mock

import pytest

from mrecordlog_async import MultiRecordLog, QueueNotFoundError, QueueOptions, QueueOptionsError, ReadOnlyLog
from mrecordlog_async.maintenance.changing import open_to_change
from mrecordlog_async.maintenance.repair import repair
from mrecordlog_async.options import MIB
from mrecordlog_async.recovery import positions
from mrecordlog_async.recovery.segment_reader import SegmentReader
from tests import damage
from tests.cli import running
from tests.conftest import contents
from tests.deep.readonly.test_from_the_disk import change

RECORD = bytes(2_000)


@pytest.mark.parametrize("seed", range(4))
def test_truncates_and_deletes_are_those_of_an_open_log(
    directory: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Truncates drop as many records, wherever places begin, and the log is the same afterwards."""
    monkeypatch.setattr(positions, "PLACE_BYTES", 300)
    dice = random.Random(seed)

    async def fill(log: MultiRecordLog) -> None:
        for _ in range(80):
            await change(log, dice)

    running.build(directory, fill, blocks=1)
    copy = damage.copy(directory, directory.with_name("copy"))
    asyncio.run(change_both(copy, directory, dice))
    with ReadOnlyLog.open(copy) as due, ReadOnlyLog.open(directory) as log:
        assert contents(log) == contents(due)


async def test_a_segment_size_that_no_log_has_is_refused(tmp_path: Path) -> None:
    """As `MultiRecordLog.open` refuses it: each batch would get its own file."""
    with pytest.raises(ValueError, match="segment_bytes must be at least 32768, not 5"):
        await open_to_change(tmp_path / "wal", create=True, segment_bytes=5)
    assert list(tmp_path.iterdir()) == []


async def change_both(copy: Path, directory: Path, dice: random.Random) -> None:
    """Make the same calls to a log that is open as usual and to one without its records."""
    opened = await open_to_change(directory)
    async with MultiRecordLog.open(copy) as whole, opened.log as log:
        for _ in range(30):
            queue = dice.choice(whole.list_queues())
            position = dice.randrange(whole.next_position(queue) + 2)
            assert await opened.truncate(queue, position) == await whole.truncate(queue, position)
        await whole.delete_queue(queue)
        await log.delete_queue(queue)
        with pytest.raises(QueueNotFoundError):
            await opened.truncate(queue, 1)


def peak_of(directory: Path) -> int:
    """Return the peak of traced memory while the damaged log in *directory* is repaired."""
    tracemalloc.start()
    try:
        assert repair(directory).written
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture
def few_undigested(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last appends take 16 MiB at most, whatever the size of the log: less here, so that the rest is seen."""
    monkeypatch.setattr(positions, "UNDIGESTED_BYTES_MAX", MIB)


@pytest.mark.usefixtures("few_undigested")
def test_repair_does_not_keep_the_log_in_memory(directory: Path) -> None:
    """A log of 48 MB is rewritten in less memory, most of which is buffers, and every readable record is in it."""

    async def fill(log: MultiRecordLog) -> None:
        await log.create_queue("large")
        for _ in range(120):
            await log.append_records("large", None, [RECORD] * 200)

    running.build(directory, fill, blocks=512)
    first = damage.segments(directory)[0]
    damage.flip_byte(first, first.stat().st_size // 2)
    assert peak_of(directory) < 32 * MIB
    with ReadOnlyLog.open(f"{directory}.repaired") as log:
        left = log.summary()["large"]
    assert 120 * 200 - 400 <= left.records < 120 * 200


async def test_limits_count_what_a_truncate_left(directory: Path) -> None:
    """Even of a stored append that was cut: there is room for as many records as were removed."""
    async with MultiRecordLog.open(directory) as log:
        await log.create_queue("q", options=QueueOptions(max_records=10))
        await log.append_records("q", None, [b"x"] * 10)
        await log.truncate("q", 3)
    opened = await open_to_change(directory)
    async with opened.log as log:
        assert await log.append_records("q", None, [b"y"] * 3) == 12
        assert await opened.count("q") == 9
        await log.configure_queue("q", QueueOptions(max_records=9))
        with pytest.raises(QueueOptionsError, match="below the 9 that it holds"):
            await log.configure_queue("q", QueueOptions(max_bytes=8))


@pytest.mark.parametrize("position", [205, 399])
@pytest.mark.parametrize("steps", range(4))
async def test_a_truncate_while_a_queue_is_counted_is_counted(
    directory: Path, position: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An age may remove records at any moment: what was read of a place says nothing about the one after it."""
    monkeypatch.setattr(positions, "PLACE_RECORDS", 50)
    async with MultiRecordLog.open(directory) as log:
        await log.create_queue("a")
        for first in range(0, 400, 20):
            await log.append_records("a", first, [b"record"] * 20)
        await log.truncate("a", 5)
    opened = await open_to_change(directory)
    async with opened.log as log:
        truncated = asyncio.ensure_future(log.truncate("a", position))
        for _ in range(steps):
            await asyncio.sleep(0)  # the count begins before the truncate does, and at each of its steps
        await opened.count("a")
        await truncated
        assert await opened.count("a") == 399 - position
        assert log.queue_summary("a").bytes == (399 - position) * len(b"record")


async def test_a_log_that_was_not_closed_stays_so(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the open fails after recovery: the next open of its service must see that it was not closed."""
    async with MultiRecordLog.open(directory) as log:
        await log.create_queue("q")
    async with (await open_to_change(directory)).log as log:
        await log.append_record("q", None, b"x")
    assert (directory / "CLOSED").exists()
    (directory / "CLOSED").unlink()
    async with (await open_to_change(directory)).log as log:
        await log.append_record("q", None, b"y")
        await log.configure_queue("q", QueueOptions(max_records=9))
    assert not (directory / "CLOSED").exists()
    monkeypatch.setattr(SegmentReader, "left_of", Mock(side_effect=OSError("a segment cannot be read")))
    with pytest.raises(OSError, match="a segment cannot be read"):
        await open_to_change(directory)
    assert not (directory / "CLOSED").exists()
