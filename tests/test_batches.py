"""What every reader of a queue has: a time limit, what is there now, times and JSON; in the log and in both clients."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mrecordlog_async import Batch, Limits, MultiRecordLog, PersistPolicy
from mrecordlog_async.client import BlockingRecordLogClient, RecordLogClient
from mrecordlog_async.model import Times
from mrecordlog_async.options import MIB
from tests.served import Served


class Blocking:
    """A reader of the blocking client, each of whose calls runs in a thread: the service runs on this loop."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    async def batch(self, **limits: Any) -> Batch | None:
        found: Batch | None = await asyncio.to_thread(self._reader.batch, **limits)
        return found

    async def acknowledge(self, done: Any) -> int:
        found: int = await asyncio.to_thread(self._reader.acknowledge, done)
        return found

    async def available(self, **limits: Any) -> Any:
        batches = self._reader.available(**limits)
        while (batch := await asyncio.to_thread(next, batches, None)) is not None:
            yield batch


@pytest.fixture(params=["log", "client", "blocking"])
async def readers(request: pytest.FixtureRequest, served: Served) -> Any:
    """Yield the log, a tail of its queue "q" and a consumer of it, in the log or over HTTP."""
    log = served.log
    if request.param == "log":
        async with log.consumer("q", "c") as consumer:
            yield log, log.tail("q"), consumer
    elif request.param == "client":
        async with RecordLogClient(served.url) as client, client.consumer("q", "c") as consumer:
            yield log, client.tail("q"), consumer
    else:
        blocking = BlockingRecordLogClient(served.url)
        holder = blocking.consumer("q", "c")
        await asyncio.to_thread(holder.__enter__)
        yield log, Blocking(blocking.tail("q")), Blocking(holder)
        await asyncio.to_thread(blocking.close)


async def test_a_timeout_ends_the_wait_for_the_first_record(readers: Any) -> None:
    """The call returns an empty batch, which is not the end, and acknowledges nothing."""
    log, *both = readers
    for reader in both:
        for timeout in (0, 0.05):
            empty = await reader.batch(timeout=timeout)
            assert empty is not None
            assert (len(empty), empty.bytes, empty.runs, empty.payloads(), empty.json(), empty.times(), [*empty]) == (
                *(0, 0, (), [], [], [], []),
            )
            assert (empty.queue, empty.queue_id, empty.first_position, empty.next_position) == (
                "q",
                log.queue_summary("q").id,
                0,
                0,
            )
            assert not empty
    assert await both[1].acknowledge(empty) == 0
    await log.append_records("q", None, [b"a", b"b"])
    for reader in both:
        assert (await reader.batch(timeout=60, max_wait=0)).payloads() == [b"a", b"b"]
    assert await both[1].acknowledge(await both[1].batch(timeout=0)) == 0, "the batch before is not acknowledged"
    assert await both[1].acknowledge(0) == 1
    assert await both[1].acknowledge(await both[1].batch(timeout=0)) == 1


async def test_a_timeout_ends_a_batch_that_is_being_collected(readers: Any) -> None:
    """What is there is handed out, however long the batch might have waited for more."""
    log, *both = readers
    await log.append("q", b"a")
    for reader in both:
        assert (await reader.batch(max_wait=None, timeout=0)).payloads() == [b"a"]
    for reader in both:
        await log.append("q", b"b")
        assert b"b" in (await reader.batch(max_wait=600, timeout=0.1)).payloads()


async def test_a_record_that_comes_during_the_timeout_is_returned_at_once(readers: Any) -> None:
    """The timeout is a limit, not a pause."""
    log, *both = readers
    for reader in both:
        await reader.batch(timeout=0)
        waiting = asyncio.ensure_future(reader.batch(timeout=600, max_wait=0))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await log.append("q", b"x")
        assert b"x" in (await asyncio.wait_for(waiting, 60)).payloads()


async def test_a_reader_that_has_ended_says_so_and_not_that_nothing_came(readers: Any) -> None:
    """None, with a timeout as well."""
    log, *both = readers
    await log.append("q", b"a")
    await log.seal_queue("q")
    for reader in both:
        assert (await reader.batch(timeout=0)).payloads() == [b"a"]
        assert await reader.batch(timeout=0) is None
        assert await reader.batch(timeout=600) is None
        assert [batch async for batch in reader.available()] == []


async def test_available_hands_out_what_is_there_and_ends(readers: Any) -> None:
    """However fast others append: a program that exports what is there now has an end."""
    log, *both = readers
    await log.append_records("q", None, [b"%d" % number for number in range(10)])
    for reader in both:
        found: list[bytes] = []
        end = log.next_position("q")
        async for batch in reader.available(max_records=4):
            found += batch.payloads()
            await log.append_records("q", None, [b"later"] * 4)
        assert found[:10] == [b"%d" % number for number in range(10)]
        assert end <= len(found) < end + 4, "the last batch may have some that came later"
        async for batch in reader.available():
            found += batch.payloads()
        assert found.count(b"later") == log.next_position("q") - 10
        assert [batch async for batch in reader.available()] == []


async def test_available_passes_over_what_was_truncated(readers: Any) -> None:
    """It does not wait for records that do not exist any more."""
    log, *both = readers
    await log.append_records("q", None, [b""] * 10)
    await log.truncate("q", 9, past_consumers=True)
    for reader in both:
        assert [batch async for batch in reader.available()] == []


async def test_a_batch_has_the_times_of_its_records(readers: Any) -> None:
    """They are those of the log, one for each record."""
    log, *both = readers
    await log.append_records("q", None, [b"a", b"b"])
    await asyncio.sleep(0.11)
    await log.append("q", b"c")
    await log.append("q", b"d", 7)
    expected = [log.time_of("q", position) for position in (0, 1, 2, 7)]
    assert expected[1] < expected[2]
    assert datetime.now(UTC) - expected[3] < timedelta(minutes=1)
    for reader in both:
        batch = await reader.batch(timeout=0)
        assert [record.position for record in batch] == [0, 1, 2, 7]
        assert batch.times() == expected


async def test_times_of_removed_records_are_not_known_any_more(log: MultiRecordLog) -> None:
    """The log looks them up when they are asked for: most programs do not ask."""
    await log.create_queue("t")
    await log.append_records("t", None, [b"a", b"b", b"c"])
    batch = await log.tail("t").batch(max_wait=0)
    assert batch is not None
    stored = log.time_of("t", 2)
    await log.truncate("t", 1)
    assert batch.times() == [None, None, stored]
    await log.delete_queue("t")
    assert batch.times() == [None] * 3
    assert Batch("t", 0, batch.runs).times() == [None] * 3


async def test_records_from_the_disk_have_their_times(directory: Any) -> None:
    """A batch that begins on the disk and ends in memory has all of them."""
    limits = Limits(memory_bytes=4 * MIB, beyond_memory="disk")
    async with MultiRecordLog.open(directory, limits=limits, persist_policy=PersistPolicy.never()) as log:
        await log.create_queue("q")
        for _ in range(20):
            await log.append_records("q", None, [bytes(50_000)] * 10)
            await asyncio.sleep(0.02)
        while not log.memory_first("q"):
            await asyncio.sleep(0.01)
        assert 0 < log.memory_first("q") < log.next_position("q")
        batch = await log.tail("q").batch(max_records=1_000, max_bytes=100 * MIB, max_wait=0)
        assert batch is not None
        assert (len(batch), batch.first_position) == (200, 0)
        times = batch.times()
        assert times[-1] == log.time_of("q", 199)
        assert None not in times
        assert times == sorted(times, key=lambda time: time or datetime.min)


def test_times_of_several_parts_are_joined() -> None:
    """A tick that goes on has one entry."""
    first, second = Times.none(), Times.none()
    first.add(0, 5)
    second.add(3, 5)
    second.add(4, 6)
    assert [*Times.joined([first, second]).spans(0, 6)] == [(0, 4, 5), (4, 6, 6)]


async def test_json_goes_in_and_comes_out(served: Served) -> None:
    """As UTF-8 without spaces, from the log and from both clients."""
    values = [{"id": 7, "tags": ["a", "ü"]}, None, [1.5, True], "text", 3]
    log = served.log
    async with RecordLogClient(served.url) as client:
        blocking = BlockingRecordLogClient(served.url)
        for value in values:
            await log.append_json("j", value, create=True)
            await client.append_json("j", value)
            await asyncio.to_thread(blocking.append_json, "j", value)
        await asyncio.to_thread(blocking.close)
    batch = await log.tail("j").batch(max_wait=0)
    assert batch is not None
    assert batch.json() == [value for value in values for _ in range(3)]
    assert batch.payloads()[0] == '{"id":7,"tags":["a","ü"]}'.encode()
    for refused, error in (({1, 2}, TypeError), (float("nan"), ValueError)):
        with pytest.raises(error):
            await log.append_json("j", refused)
    await log.append("j", b"{")
    with pytest.raises(ValueError, match="queue 'j': the record at position 15 is not JSON: Expecting"):
        (await log.fetch("j", 14)).json()  # type: ignore[union-attr]  # there are two


@pytest.mark.parametrize("timeout", [-1, float("nan")])
async def test_a_timeout_that_is_no_time_is_refused(readers: Any, timeout: float) -> None:
    """By name, as the other limits are."""
    for reader in readers[1:]:
        with pytest.raises(ValueError, match="timeout must be at least 0 seconds"):
            await reader.batch(timeout=timeout)
        with pytest.raises(TypeError, match="timeout must be a number of seconds or None, not str"):
            await reader.batch(timeout="1")
