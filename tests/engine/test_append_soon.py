"""`append_soon`: a future per record, in order, and never more of them than the limits allow."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from mrecordlog_async import (
    Limits,
    LogClosedError,
    LogFullError,
    LogState,
    MultiRecordLog,
    QueueNameError,
    QueueNotFoundError,
    RecordTooLargeError,
)
from mrecordlog_async.engine.intake.commands import SINGLE_OVERHEAD_BYTES

SMALL = Limits(record_bytes=10_000, pending_bytes=10_000)


def payloads_of(log: MultiRecordLog) -> list[bytes]:
    """Return the payloads of the queue."""
    return [bytes(payload) for _, payload in log.range("q")]


async def test_records_are_stored_in_the_order_of_the_calls(log: MultiRecordLog) -> None:
    """Futures and calls that are awaited share one order."""
    futures = [log.append_soon("q", b"%d" % number) for number in range(500)]
    called = asyncio.ensure_future(log.append_record("q", None, b"500"))
    await asyncio.sleep(0)
    last = log.append_soon("q", bytearray(b"501"))
    assert await asyncio.gather(*futures, called, last) == list(range(502))
    assert payloads_of(log) == [b"%d" % number for number in range(502)]


async def test_a_cancelled_future_withdraws_its_record(log: MultiRecordLog) -> None:
    """As long as the writer has not taken it, nothing of it is stored."""
    futures = [log.append_soon("q", payload) for payload in (b"a", b"b", b"c")]
    futures[1].cancel()
    assert [await futures[0], await futures[2]] == [0, 1]
    assert payloads_of(log) == [b"a", b"c"]


async def test_it_refuses_what_exceeds_the_pending_limit_until_earlier_records_are_stored(directory: Path) -> None:
    """A pipeline that never awaits is refused before it fills memory; one that awaits stores everything."""
    async with MultiRecordLog.open(directory, limits=SMALL) as log:
        await log.create_queue("q")
        waiting: list[asyncio.Future[int]] = []
        with pytest.raises(LogFullError, match="await earlier appends") as refused:
            waiting.extend(log.append_soon("q", bytes(1_000)) for _ in range(100))
        assert (refused.value.resource, len(waiting)) == ("pending", 8)
        assert log._admission.pending_bytes <= refused.value.limit + SINGLE_OVERHEAD_BYTES
        for _ in range(92):
            await waiting[-1]
            waiting.append(log.append_soon("q", bytes(1_000)))
        assert await asyncio.gather(*waiting) == list(range(100))


async def test_it_does_not_pass_calls_that_wait_in_line(directory: Path) -> None:
    """A small record does not take the space that an earlier large one waits for."""
    async with MultiRecordLog.open(directory, limits=SMALL) as log:
        await log.create_queue("q")
        first = log.append_soon("q", bytes(5_000))
        large = asyncio.ensure_future(log.append_record("q", None, bytes(9_000)))
        await asyncio.sleep(0)
        with pytest.raises(LogFullError):
            log.append_soon("q", b"small")
        assert [await first, await large] == [0, 1]
        assert await log.append_soon("q", b"small") == 2


@pytest.mark.parametrize("on_full", ["raise", "wait"])
async def test_full_memory_refuses_it_under_either_option(directory: Path, on_full: str) -> None:
    """It has no caller that could wait: the error says at once what is full, and a truncate makes space."""
    limits = Limits(memory_bytes=100_000, pending_bytes=60_000, record_bytes=60_000, on_full=on_full)  # type: ignore[arg-type]  # one of both
    async with MultiRecordLog.open(directory, limits=limits) as log:
        await log.create_queue("q")
        assert await log.append_soon("q", bytes(60_000)) == 0
        with pytest.raises(LogFullError) as refused:
            log.append_soon("q", bytes(60_000))
        assert refused.value.resource == "memory"
        await log.truncate("q", 0)
        assert await log.append_soon("q", bytes(60_000)) == 1


async def test_wrong_calls_fail_at_once_and_unknown_queues_with_the_future(log: MultiRecordLog) -> None:
    """Whether a queue exists is decided in the order of the calls."""
    with pytest.raises(TypeError):
        log.append_soon("q", "text")  # type: ignore[arg-type]  # what is tested
    with pytest.raises(QueueNameError):
        log.append_soon(b"q", b"x")  # type: ignore[arg-type]  # what is tested
    with pytest.raises(RecordTooLargeError):
        log.append_soon("q", bytes(log.limits.record_bytes + 1))
    created = asyncio.ensure_future(log.create_queue("later"))
    await asyncio.sleep(0)
    assert await log.append_soon("later", b"x") == 0
    assert await created
    with pytest.raises(QueueNotFoundError):
        await log.append_soon("missing", b"x")


async def test_close_stores_what_was_accepted_and_refuses_what_comes_later(directory: Path) -> None:
    """No future is left undone."""
    log = await MultiRecordLog.open(directory)
    await log.create_queue("q")
    future = log.append_soon("q", b"x")
    closing = asyncio.ensure_future(log.close())
    while log.state is LogState.OPEN:
        await asyncio.sleep(0)
    with pytest.raises(LogClosedError):
        log.append_soon("q", b"y")
    await closing
    assert future.done()
    assert await future == 0


async def test_another_thread_is_refused(log: MultiRecordLog) -> None:
    """Futures are not thread-safe: a thread hands its records to the loop."""
    errors: list[LogClosedError] = []

    def use() -> None:
        try:
            log.append_soon("q", b"x")
        except LogClosedError as error:
            errors.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert len(errors) == 1
    assert log.inspection.pending_records == 0
