"""Reading: ranges, tails, limits and summaries."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from mrecordlog_async import (
    MultiRecordLog,
    Record,
)


@pytest.mark.parametrize("bounds", [(1.5, None), ("1", None), (None, 2.0), (b"1", None)])
async def test_positions_to_read_are_ints(log: MultiRecordLog, bounds: Any) -> None:
    """A wrong type is an error, not an empty result."""
    for read in (log.range, log.runs):
        with pytest.raises(TypeError, match="positions are ints or None"):
            read("q", *bounds)


async def test_range_is_fixed_at_the_call(log: MultiRecordLog) -> None:
    """A reader keeps what it holds while the queue is appended to and truncated."""
    await log.append_records("q", None, [b"%d" % n for n in range(5)])
    reader = log.range("q", 1, 4)
    assert next(reader) == Record(1, b"1")
    await log.append_record("q", None, b"late")
    await log.truncate("q", 100)
    assert list(reader) == [(2, b"2"), (3, b"3")]


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        (None, None, [3, 4, 5, 10, 11]),
        (0, 4, [3]),
        (4, 11, [4, 5, 10]),
        (6, 10, []),
        (6, 11, [10]),
        (11, 5, []),
        (50, None, []),
        (-5, None, [3, 4, 5, 10, 11]),
    ],
)
async def test_range_bounds(log: MultiRecordLog, start: int | None, stop: int | None, expected: list[int]) -> None:
    """Start is included, stop is not, both are optional, gaps hold nothing."""
    await log.append_records("q", 3, [b"a", b"b", b"c"])
    await log.append_records("q", 10, [b"d", b"e"])
    assert [position for position, _ in log.range("q", start, stop)] == expected
    runs = log.runs("q", start, stop)
    assert [position for run in runs for position, _ in run.records()] == expected
    assert [tuple(record) for record in log.range("q", start, stop)] == [pair for run in runs for pair in run.pairs()]
    assert {type(pair) for run in runs for pair in run.pairs()} <= {tuple}


async def test_reading_begins_anywhere_and_at_the_newest_record(log: MultiRecordLog) -> None:
    """The last position is where it is; it stays when the queue is empty."""
    assert log.last_position("q") is None
    assert list(log.range("q", log.last_position("q"))) == []
    await log.append_records("q", None, [b"a", b"b", b"c"])
    assert list(log.range("q", 1)) == [(1, b"b"), (2, b"c")]
    assert list(log.range("q", log.last_position("q"))) == [(2, b"c")]
    await log.truncate("q", 2)
    assert list(log.range("q", log.last_position("q"))) == []
    assert log.last_position("q") == 2


async def test_tail_waits_for_more_and_ends_on_delete(log: MultiRecordLog) -> None:
    """A tail yields what is there, then what comes, and ends with its queue."""
    await log.append_record("q", None, b"0")
    seen = []

    async def follow() -> None:
        async for record in log.tail("q"):
            seen.append(tuple(record))
            if len(seen) == 1:
                follower_is_waiting.set()

    follower_is_waiting = asyncio.Event()
    follower = asyncio.create_task(follow())
    await follower_is_waiting.wait()
    await log.append_records("q", None, [b"1", b"2"])
    await log.delete_queue("q")
    await log.create_queue("q")
    await follower
    assert seen[:1] == [(0, b"0")]
    assert seen in ([(0, b"0")], [(0, b"0"), (1, b"1"), (2, b"2")])  # deleted before or after the follower woke


async def test_tail_continues_after_a_truncate_and_ends_on_close(directory: Path) -> None:
    """What was truncated before it was seen is passed over; closing the log ends the tail."""
    log = await MultiRecordLog.open(directory)
    await log.create_queue("q")
    await log.append_records("q", None, [b"0", b"1", b"2"])
    await log.truncate("q", 1)
    tail = log.tail("q", 0)
    assert await anext(tail) == (2, b"2")
    waiting = asyncio.create_task(anext(tail, None))
    await asyncio.sleep(0)
    await log.close()
    assert await waiting is None


@pytest.mark.parametrize("records", [20, 5_000])
async def test_a_tail_yields_nothing_that_was_truncated_before(log: MultiRecordLog, records: int) -> None:
    """Once the truncate returns, even in the middle of a run, nothing truncated is yielded and nothing else skipped."""
    await log.append_records("q", None, [b"%d" % number for number in range(records)])
    tail = log.tail("q")
    assert [(await anext(tail))[0] for _ in range(3)] == [0, 1, 2]
    await log.truncate("q", records - 5)
    assert [(await anext(tail))[0] for _ in range(4)] == list(range(records - 4, records))


@pytest.mark.parametrize("records", [20, 5_000])
async def test_a_tail_ends_once_the_queue_is_deleted(log: MultiRecordLog, records: int) -> None:
    """Not a record more, though a queue of the same name takes its place."""
    await log.append_records("q", None, [b"%d" % number for number in range(records)])
    tail = log.tail("q")
    assert (await anext(tail))[0] == 0
    await log.delete_queue("q")
    await log.create_queue("q")
    await log.append_record("q", None, b"another")
    assert await anext(tail, None) is None


async def test_a_tail_goes_over_gaps_and_on_with_what_comes(log: MultiRecordLog) -> None:
    """A tail yields every record once and in order, however much of the queue is sealed."""
    positions = [number * 3 for number in range(2_500)]
    await asyncio.gather(*(log.append_record("q", position, b"%d" % position) for position in positions[:2_000]))
    tail = log.tail("q", 4)
    seen = [(await anext(tail))[0] for _ in range(1_990)]
    await asyncio.gather(*(log.append_record("q", position, b"%d" % position) for position in positions[2_000:]))
    seen += [(await anext(tail))[0] for _ in range(508)]
    assert seen == positions[2:]


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("limit", [0, 1, 7, 600, 2_500, 5_000])
async def test_a_limit_reads_the_next_records_whatever_the_gaps(log: MultiRecordLog, step: int, limit: int) -> None:
    """`limit=n` reads the first n records from a position on, in every form, and no more."""
    positions = [number * step for number in range(2_500)]
    await asyncio.gather(*(log.append_record("q", position, b"%d" % position) for position in positions))
    for start, stop in ((None, None), (40, None), (40, 1_000)):
        expected = [at for at in positions if at >= (start or 0) and at < (stop or 10_000)][:limit]
        assert [record.position for record in log.range("q", start, stop, limit=limit)] == expected
        runs = log.runs("q", start, stop, limit=limit)
        assert [record.position for run in runs for record in run.records()] == expected


@pytest.mark.parametrize(("limit", "error"), [(-1, ValueError), (1.0, TypeError), (True, TypeError)])
async def test_bad_limits(log: MultiRecordLog, limit: Any, error: type[Exception]) -> None:
    """A limit is a number of records."""
    with pytest.raises(error, match="limit must be"):
        log.range("q", limit=limit)
    with pytest.raises(error, match="limit must be"):
        log.runs("q", limit=limit)


async def test_summary_and_usage(log: MultiRecordLog) -> None:
    """Sizes and positions are reported per queue and for the log."""
    await log.append_records("q", None, [b"abc", b"de"])
    await log.truncate("q", 0)
    summary = log.summary()["q"]
    assert (summary.first_position, summary.next_position, summary.records, summary.bytes) == (1, 2, 1, 2)
    assert summary.first_segment == 0
    usage = log.resource_usage()
    assert usage.queues == 1
    assert usage.segments == 1
    assert usage.pending_bytes == 0
    assert 0 < usage.disk_written_bytes <= usage.disk_bytes
    assert 0 < usage.memory_bytes < usage.memory_limit_bytes
