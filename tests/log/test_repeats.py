"""Appends that are sent again, and appends at positions that are taken, skipped or truncated."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mrecordlog_async import (
    MultiRecordLog,
    PositionInPastError,
    QueueExistsError,
)
from tests.conftest import contents


async def test_append_at_last_position_again_is_a_no_op(log: MultiRecordLog) -> None:
    """Sending the same record twice stores it once and reports the repeat."""
    assert await log.append_record("q", 0, b"a") == 0
    assert await log.append_record("q", 0, b"a") is None
    assert list(log.range("q")) == [(0, b"a")]
    assert log.stats().duplicates == 1


async def test_a_batch_sent_again_is_a_no_op_also_further_back(log: MultiRecordLog) -> None:
    """A repeat is known by its payloads, not only at the very end."""
    await log.append_records("q", 0, [b"a", b"b", b"c"])
    await log.append_record("q", None, b"d")
    assert await log.append_records("q", 0, [b"a", b"b"]) is None
    assert await log.append_records("q", 1, [b"b", b"c", b"d"]) is None


async def test_another_payload_at_a_taken_position_is_refused(log: MultiRecordLog) -> None:
    """A position belongs to the record that got it."""
    await log.append_records("q", 0, [b"a", b"b"])
    with pytest.raises(PositionInPastError) as caught:
        await log.append_record("q", 0, b"other")
    assert (caught.value.queue, caught.value.position, caught.value.next_position) == ("q", 0, 2)
    with pytest.raises(PositionInPastError):
        await log.append_records("q", 1, [b"b", b"new"])
    assert contents(log) == {"q": (0, 2, [(0, b"a"), (1, b"b")])}
    with pytest.raises(QueueExistsError):
        await log.create_queue("q")
    assert log.stats().refused["past"] == 2


async def test_a_position_in_a_gap_is_refused_as_skipped(log: MultiRecordLog) -> None:
    """No record has it, so the message does not say that it is certainly taken."""
    await log.append_record("q", 0, b"a")
    await log.append_record("q", 10, b"b")
    with pytest.raises(PositionInPastError, match="position 5 is already taken or was skipped, the next one is 11"):
        await log.append_record("q", 5, b"x")


async def append_in_past(log: MultiRecordLog, position: int, payloads: list[bytes]) -> bool:
    """Append a record that must be refused as in the past; return whether its outcome is reported as unknown."""
    with pytest.raises(PositionInPastError) as refused:
        await log.append_records("q", position, payloads)
    assert ("is unknown" in str(refused.value)) is refused.value.outcome_unknown
    return refused.value.outcome_unknown


async def test_a_repeat_of_truncated_records_is_known_only_at_the_end(log: MultiRecordLog) -> None:
    """Where no payload is left to compare, only the queue's last append is known again, by its digest."""
    await log.append_records("q", 0, [b"a", b"b", b"c"])
    await log.truncate("q", 2)
    assert await log.append_records("q", 0, [b"a", b"b", b"c"]) is None
    assert await append_in_past(log, 0, [b"a", b"b"])
    assert await append_in_past(log, 1, [b"b", b"c"]), "stored by another call"
    assert not await append_in_past(log, 0, [b"a", b"b", b"x"])
    assert not await append_in_past(log, 0, [b"ab", b"", b"c"])
    assert not await append_in_past(log, 0, [b"a", b"b", b"c", b"d"])
    assert await log.append_record("q", 3, b"d") == 3
    assert await append_in_past(log, 0, [b"a", b"b", b"c"]), "it was the last one no more"


async def test_two_producers_that_use_the_same_position_conflict(log: MultiRecordLog) -> None:
    """The record of the first was stored and truncated: the second one's, at the same position, is not taken for it."""
    assert await log.append_record("q", 0, b"order 1, of the old instance") == 0
    await log.truncate("q", 0)
    assert not await append_in_past(log, 0, [b"order 2"])
    assert await log.append_record("q", 0, b"order 1, of the old instance") is None


@pytest.mark.parametrize("position", [2, 5, 100])
async def test_a_truncate_beyond_the_end_leaves_nothing_to_compare_with(log: MultiRecordLog, position: int) -> None:
    """Only a call that ends at the next position can be the last append."""
    await log.append_records("q", 0, [b"a", b"b"])
    await log.truncate("q", position)
    assert await append_in_past(log, 0, [b"a", b"b"])
    assert await append_in_past(log, position - 1, [b"a", b"b"])


async def test_a_repeat_of_partly_truncated_records(log: MultiRecordLog) -> None:
    """What is retained is compared; for the rest the call must be the last append."""
    await log.append_records("q", 0, [b"a", b"b", b"c"])
    await log.truncate("q", 0)
    assert await log.append_records("q", 0, [b"a", b"b", b"c"]) is None
    assert not await append_in_past(log, 0, [b"x", b"b", b"c"])
    assert not await append_in_past(log, 0, [b"a", b"x", b"c"])
    await log.append_record("q", None, b"d")
    assert await append_in_past(log, 0, [b"a", b"b", b"c"])
    assert not await append_in_past(log, 0, [b"a", b"x", b"c"])
    assert await log.append_records("q", 1, [b"b", b"c"]) is None


async def test_a_repeat_needs_every_position(log: MultiRecordLog) -> None:
    """A call that would fill a gap is not a repeat, whatever the records on both sides of the gap."""
    await log.append_record("q", 5, b"5")
    await log.append_record("q", 10, b"10")
    assert not await append_in_past(log, 5, [b"5", b"6", b"7", b"8", b"9", b"10"])
    assert not await append_in_past(log, 5, [b"5", b"6"])
    assert not await append_in_past(log, 7, [b"7"])
    assert not await append_in_past(log, 9, [b"9", b"10"])
    assert await log.append_record("q", 10, b"10") is None


@pytest.mark.parametrize("reopened", [False, True])
async def test_a_long_call_is_known_by_all_of_it(directory: Path, reopened: bool) -> None:
    """A call that was stored as several runs is one append: no truncated record of it passes without a comparison."""
    payloads = [b"%05d" % number * 200 for number in range(100)]
    log = await MultiRecordLog.open(directory)
    await log.create_queue("q")
    await log.append_records("q", 0, payloads)
    for position in (10, 40, 98, 99):
        await log.truncate("q", position)
        if reopened:
            await log.close()
            log = await MultiRecordLog.open(directory)
        assert await log.append_records("q", 0, payloads) is None
        assert not await append_in_past(log, 0, [b"other", *payloads[1:]])
        assert not await append_in_past(log, 0, [payloads[0] + b"0", payloads[1][1:], *payloads[2:]])
        assert not await append_in_past(log, 0, [*payloads[:-1], b"other"])
    assert await append_in_past(log, 0, payloads[:-1])
    await log.close()


@pytest.mark.parametrize("first_position", [0, 1])
async def test_a_repeat_is_the_whole_last_append(log: MultiRecordLog, first_position: int) -> None:
    """A long call that only ends with the last append's run is none: its first record is stored nowhere."""
    large, other = b"a" * 40_000, b"b" * 40_000
    if first_position == 0:
        await log.append_record("q", 0, b"something else")
    await log.append_record("q", 1, large)
    await log.truncate("q", 1)
    # Where nothing was ever stored at position 0, it is known that this call was not.
    assert await append_in_past(log, 0, [other, large]) is (first_position == 0)
    assert await log.append_record("q", 1, large) is None


@pytest.mark.parametrize("reopened", [False, True])
async def test_a_position_that_the_queue_skipped_at_its_beginning_is_no_repeat(directory: Path, reopened: bool) -> None:
    """No record was ever stored there, so the outcome is known, even after the first records are truncated."""
    log = await MultiRecordLog.open(directory, queues=["q"])
    await log.append_records("q", 5, [b"a", b"b"])
    await log.append_record("q", None, b"c")
    await log.truncate("q", 6)
    if reopened:
        await log.close()
        log = await MultiRecordLog.open(directory)
    assert not await append_in_past(log, 4, [b"a"])
    assert not await append_in_past(log, 4, [b"x", b"a", b"b"])
    assert await append_in_past(log, 5, [b"a"]), "this one may have been stored"
    await log.close()


async def test_the_last_append_of_a_batch_with_several(log: MultiRecordLog) -> None:
    """Calls of one batch are distinguished even if one call's run had space for the next record."""
    long = [b"%04d" % number * 1_000 for number in range(40)]
    calls = [(0, [b"a"]), (1, [b"b"]), (2, long)]
    await asyncio.gather(*(log.append_records("q", first, payloads) for first, payloads in calls))
    assert log.stats().commits <= 3, "the create and two batches at most"
    await log.truncate("q", 41)
    assert await log.append_records("q", 2, long) is None
    assert not await append_in_past(log, 2, [b"x", *long[1:]])
    assert await append_in_past(log, 1, [b"b", *long])


async def test_repeat_of_what_the_same_batch_truncates(log: MultiRecordLog) -> None:
    """Append, truncate and repeat may meet in one batch: the comparison is the same."""
    calls = [
        log.append_records("q", 0, [b"a", b"b"]),
        log.truncate("q", 1),
        log.append_records("q", 0, [b"a", b"b"]),
        log.append_records("q", 0, [b"a", b"x"]),
    ]
    first, truncated, again, other = await asyncio.gather(*calls, return_exceptions=True)
    assert (first, truncated, again) == (1, 2, None)
    assert isinstance(other, PositionInPastError)
    truncated, again, other = await asyncio.gather(
        log.truncate("q", 1),
        *(log.append_records("q", 0, [b"a", last]) for last in (b"b", b"x")),
        return_exceptions=True,
    )
    assert (truncated, again) == (0, None)
    assert isinstance(other, PositionInPastError)


@pytest.mark.parametrize("rolls", [0, 1, 3])
async def test_the_last_append_after_a_restart(directory: Path, rolls: int) -> None:
    """The last append is known after a restart too: from its records, or from the table if no file holds them."""
    async with MultiRecordLog.open(directory, segment_bytes=32_768) as log:
        for queue in ("q", "kept"):
            await log.create_queue(queue)
        if rolls == 3:
            await log.append_record("kept", None, b"holds the segment")
        await log.append_records("q", 0, [b"a", b"b"])
        if rolls < 3:
            await log.truncate("q", 1)
        before = log.segments[-1]
        while log.segments[-1] < before + rolls:
            await log.append_record("kept", None, bytes(20_000))
        if rolls == 3:
            await log.truncate("q", 1)
        elif rolls:
            await log.truncate("kept", log.next_position("kept") - 2)
            await log.create_queue("synced")
    async with MultiRecordLog.open(directory, segment_bytes=32_768) as log:
        assert log.queue_summary("q").records == 0
        assert await log.append_records("q", 0, [b"a", b"b"]) is None
        assert not await append_in_past(log, 0, [b"a", b"x"])
        assert await log.append_record("q", 2, b"c") == 2


async def test_repeat_within_one_batch_returns_with_it(log: MultiRecordLog) -> None:
    """Two callers that send the same record at once: one position, one None, one record."""
    results = await asyncio.gather(*(log.append_record("q", 0, b"same") for _ in range(3)))
    assert results == [0, None, None]
    assert log.queue_summary("q").records == 1
