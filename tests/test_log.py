"""`MultiRecordLog`: what each call promises, and how each wrong call fails."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from mrecordlog_async import (
    Limits,
    LogClosedError,
    LogFailedError,
    LogFullError,
    LogLockedError,
    LogState,
    MultiRecordLog,
    PersistAction,
    PersistPolicy,
    PositionInPastError,
    QueueExistsError,
    QueueNameError,
    QueueNotFoundError,
    QueueOptions,
    Record,
    RecordTooLargeError,
)
from mrecordlog_async import errors as all_errors
from mrecordlog_async.engine.commit.storing import CALLERS_PER_TURN
from tests.conftest import contents

POSITION_MAX = 2**63 - 2


async def test_open_as_await_and_as_context(directory: Path) -> None:
    """Both ways give the same log; leaving the context closes it."""
    log = await MultiRecordLog.open(directory)
    states = [log.state]
    await log.close()
    states.append(log.state)
    async with MultiRecordLog.open(directory) as log:
        assert log.list_queues() == []
        states.append(log.state)
    states.append(log.state)
    assert states == [LogState.OPEN, LogState.CLOSED, LogState.OPEN, LogState.CLOSED]


async def test_appended_records_are_there_after_reopening(directory: Path) -> None:
    """Acknowledged records are found again at the positions that were returned."""
    async with MultiRecordLog.open(directory) as log:
        await log.create_queue("q")
        assert await log.append_record("q", None, b"a") == 0
        assert await log.append_records("q", None, [b"b", b"c"]) == 2
        before = contents(log)
    async with MultiRecordLog.open(directory) as log:
        assert contents(log) == before == {"q": (0, 3, [(0, b"a"), (1, b"b"), (2, b"c")])}
        assert log.recovery_report.clean
        assert log.recovery_report.records == 3


@pytest.mark.parametrize("calls", ["single records", "single records of many queues", "calls of several records"])
async def test_loop_gets_a_turn_while_many_callers_are_woken(log: MultiRecordLog, calls: str) -> None:
    """Callers of one batch are not all woken in one turn of the event loop, which would block it."""
    await asyncio.gather(*(log.create_queue(f"q{n}") for n in range(7)))
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def caller(number: int) -> tuple[int, int | None]:
        queue = f"q{number % 7}" if calls == "single records of many queues" else "q0"
        if calls == "calls of several records":
            position = await log.append_records(queue, None, [b"a", b"b"])
        else:
            position = await log.append_record(queue, None, b"a")
        return turns, position

    counting = asyncio.create_task(count_turns())
    results = await asyncio.gather(*(caller(number) for number in range(1000)))
    counting.cancel()
    assert max(Counter(turn for turn, _ in results).values()) <= CALLERS_PER_TURN
    assert [turn for turn, _ in results] == sorted(turn for turn, _ in results)
    queues = 7 if calls == "single records of many queues" else 1
    records = 2 if calls == "calls of several records" else 1
    assert [position for _, position in results] == [(n // queues + 1) * records - 1 for n in range(1000)]


async def test_batches_that_began_a_segment_are_timed_by_themselves(directory: Path) -> None:
    """The delay of a roll is distinct from the disk's usual time."""
    async with MultiRecordLog.open(directory, segment_bytes=65_536) as log:
        await log.create_queue("q")
        for _ in range(10):
            await log.append_record("q", None, bytes(30_000))
        stats = log.stats()
    assert stats.rolls == stats.roll_seconds.count == 4
    assert 0 < stats.roll_seconds.sum < stats.commit_seconds.sum


async def test_batches_are_counted_by_the_records_in_them(log: MultiRecordLog) -> None:
    """A run of three records counts as three, however it is laid out on the disk."""
    before = log.stats().commit_records.sum
    await log.append_records("q", None, [b"a", b"b", b"c"])
    assert log.stats().commit_records.sum - before == 3


async def test_positions_follow_arrival_order(log: MultiRecordLog) -> None:
    """Concurrent callers get consecutive positions in the order in which they called."""
    results = await asyncio.gather(*(log.append_record("q", None, b"%d" % n) for n in range(500)))
    assert results == list(range(500))
    assert [payload for _, payload in log.range("q")] == [b"%d" % n for n in range(500)]


async def test_concurrent_callers_share_syncs(log: MultiRecordLog) -> None:
    """A thousand callers cost at most a hundredth as many fsyncs as records."""

    async def caller() -> None:
        for _ in range(20):
            await log.append_record("q", None, b"x" * 100)

    before = log.stats()
    await asyncio.gather(*(caller() for _ in range(1000)))
    after = log.stats()
    assert after.appended_records - before.appended_records == 20_000
    assert after.syncs - before.syncs <= 200


async def test_position_of_the_caller_may_leave_a_gap(log: MultiRecordLog) -> None:
    """A position in the future is taken as it is; the gap holds nothing."""
    assert await log.append_record("q", 5, b"a") == 5
    assert log.first_position("q") == 5
    assert await log.append_records("q", 10, [b"b", b"c"]) == 11
    assert list(log.range("q")) == [(5, b"a"), (10, b"b"), (11, b"c")]
    assert log.next_position("q") == 12


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
    assert await append_in_past(log, 0, [other, large])
    assert await log.append_record("q", 1, large) is None


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


async def test_nothing_to_append_returns_none(log: MultiRecordLog) -> None:
    """An empty batch writes nothing."""
    before = log.stats().commits
    assert await log.append_records("q", None, []) is None
    assert log.stats().commits == before
    with pytest.raises(QueueNotFoundError):
        await log.append_records("nowhere", None, [])


async def test_empty_payloads_are_records(log: MultiRecordLog, directory: Path) -> None:
    """A record of no bytes has a position like any other."""
    assert await log.append_records("q", None, [b"", b"x", b""]) == 2
    await log.close()
    async with MultiRecordLog.open(directory) as again:
        assert list(again.range("q")) == [(0, b""), (1, b"x"), (2, b"")]


async def test_payload_is_copied_when_called(log: MultiRecordLog) -> None:
    """Changing a bytearray after the call, before the await, changes nothing in the log."""
    mutable = bytearray(b"before")
    call = log.append_record("q", None, mutable)
    batch = log.append_records("q", None, [mutable, memoryview(mutable)])
    mutable[:] = b"after!"
    await call
    await batch
    assert [payload for _, payload in log.range("q")] == [b"before"] * 3


async def test_truncate_is_inclusive_and_counts(log: MultiRecordLog) -> None:
    """Truncating drops records up to and including the position, and returns how many."""
    await log.append_records("q", None, [b"%d" % n for n in range(10)])
    assert await log.truncate("q", 3) == 4
    assert await log.truncate("q", 3) == 0
    assert await log.truncate("q", 1) == 0
    assert log.first_position("q") == 4
    assert [position for position, _ in log.range("q")] == [4, 5, 6, 7, 8, 9]


async def test_truncate_past_the_end_moves_the_next_position(log: MultiRecordLog, directory: Path) -> None:
    """Truncating past the end uses up those positions, even after reopening: none is assigned again."""
    await log.append_record("q", None, b"a")
    assert await log.truncate("q", 99) == 1
    assert (log.first_position("q"), log.next_position("q"), log.last_position("q")) == (100, 100, 99)
    await log.close()
    async with MultiRecordLog.open(directory) as again:
        assert await again.append_record("q", None, b"b") == 100


async def test_truncate_of_another_incarnation_is_refused(log: MultiRecordLog) -> None:
    """A truncate that names a queue id spares a queue made again under the name."""
    first = log.queue_summary("q").id
    await log.delete_queue("q")
    await log.create_queue("q")
    await log.append_record("q", None, b"new")
    with pytest.raises(QueueNotFoundError):
        await log.truncate("q", 0, queue_id=first)
    assert await log.truncate("q", 0, queue_id=log.queue_summary("q").id) == 1


async def test_deleted_queue_does_not_exist_and_a_new_one_is_new(log: MultiRecordLog, directory: Path) -> None:
    """A deleted queue never comes back; its name may be used again, with another id, from position 0."""
    await log.append_record("q", None, b"old")
    old = log.queue_summary("q").id
    await log.delete_queue("q")
    assert not log.queue_exists("q")
    await log.create_queue("q")
    assert log.queue_summary("q").id > old
    assert log.next_position("q") == 0
    await log.close()
    async with MultiRecordLog.open(directory) as again:
        assert contents(again) == {"q": (0, 0, [])}


async def test_create_queue_twice(log: MultiRecordLog) -> None:
    """A second create is an error, or with exist_ok no news."""
    with pytest.raises(QueueExistsError) as caught:
        await log.create_queue("q")
    assert caught.value.queue == "q"
    assert await log.create_queue("q", exist_ok=True) is False
    assert await log.create_queue("new", exist_ok=True) is True
    assert log.list_queues() == ["new", "q"]


async def test_an_append_may_create_its_queue(log: MultiRecordLog) -> None:
    """Only if it does not exist; calls that arrive together keep their order and create one queue."""
    assert await log.append_record("new", None, b"a", create=True) == 0
    assert await log.append_records("new", None, [b"b", b"c"], create=True) == 2
    assert await log.append_records("other", 7, [b"a"], create=True) == 7
    assert await log.append("third", b"a", 7, create=True) == 7
    positions = await asyncio.gather(*(log.append("fourth", b"%d" % n, create=True) for n in range(20)))
    assert positions == list(range(20))
    assert [record.payload for record in log.range("fourth")] == [b"%d" % n for n in range(20)]


async def test_creating_for_an_append_costs_nothing_once_the_queue_exists(log: MultiRecordLog) -> None:
    """The create is sent only if there is no such queue."""
    before = log.stats().commits
    assert await log.append("q", b"a", create=True) == 0
    assert log.stats().commits == before + 1


async def test_an_append_that_creates_raises_what_the_create_raises(directory: Path) -> None:
    """A wrong name, or one queue too many."""
    async with MultiRecordLog.open(directory, limits=Limits(queues=1), queues=["q"]) as log:
        with pytest.raises(QueueNameError):
            await log.append("", b"a", create=True)
        with pytest.raises(LogFullError) as caught:
            await log.append("second", b"a", create=True)
        assert caught.value.resource == "queues"


async def test_append_is_append_record_with_the_position_last(log: MultiRecordLog) -> None:
    """Without a position it takes the next one; with one a repeat is recognized."""
    assert await log.append("q", b"a") == 0
    assert await log.append("q", b"b", 5) == 5
    assert await log.append("q", b"b", 5) is None
    with pytest.raises(TypeError, match="encode it first"):
        await log.append("q", "text")  # type: ignore[call-overload]  # what a user may do


async def test_open_creates_the_queues_it_is_given(directory: Path) -> None:
    """Those that exist keep their records; all others are created in one batch."""
    names = ["a", "b", "c"]
    async with MultiRecordLog.open(directory, queues=names[:1]) as log:
        await log.append("a", b"1")
    async with MultiRecordLog.open(directory, queues=names) as log:
        assert log.list_queues() == names
        assert log.next_position("a") == 1
        assert log.stats().commits == 1
    with pytest.raises(TypeError, match=r"pass \['orders'\]"):
        MultiRecordLog.open(directory, queues="orders")


WRONG_OPTIONS: list[dict[str, Any]] = [
    {"persist_policy": "always"},
    {"persist_policy": {}},
    {"limits": {"queues": 1}},
    {"limits": ()},
    {"queues": {"a": {"max_records": 1}}},
    {"queues": {"a": QueueOptions}},
]


@pytest.mark.parametrize("wrong", WRONG_OPTIONS, ids=repr)
def test_open_refuses_options_of_another_type(directory: Path, wrong: dict[str, Any]) -> None:
    """The error says what is expected, before anything is created."""
    with pytest.raises(TypeError, match=r"must be (PersistPolicy|Limits|QueueOptions), not (str|dict|tuple|type)"):
        MultiRecordLog.open(directory, **wrong)
    assert not directory.exists()


async def test_options_of_a_queue_are_queue_options(log: MultiRecordLog) -> None:
    """A dict creates no queue, and changes none; None is for a new queue only."""
    wrong: Any
    for wrong in ({"max_records": 1}, Limits()):
        with pytest.raises(TypeError, match=r"options must be QueueOptions, not (dict|Limits)"):
            await log.create_queue("other", options=wrong)
    for wrong in ({"max_records": 1}, None):
        with pytest.raises(TypeError, match=r"options must be QueueOptions, not (dict|NoneType)"):
            await log.configure_queue("q", wrong)
    assert log.list_queues() == ["q"] and log.queue_options("q") == QueueOptions()


async def test_open_gives_the_directory_back_if_a_queue_cannot_be_created(directory: Path) -> None:
    """The log is closed before the error is raised."""
    with pytest.raises(QueueNameError):
        await MultiRecordLog.open(directory, queues=["good", ""])
    async with MultiRecordLog.open(directory) as log:
        assert log.list_queues() in ([], ["good"])
        assert log.recovery_report.clean


async def test_a_log_that_was_not_awaited_says_so(directory: Path) -> None:
    """`open` without await returns no log; the error says what to write."""
    opening: Any = MultiRecordLog.open(directory)
    with pytest.raises(AttributeError, match=r"'create_queue': write `log = await MultiRecordLog.open"):
        await opening.create_queue("q")
    assert not directory.exists()


async def test_a_log_shows_where_it_is_and_its_state(directory: Path) -> None:
    """In a debugger or a log line, the log names its directory."""
    async with MultiRecordLog.open(directory, queues=["q"]) as log:
        assert repr(log) == f"<MultiRecordLog {str(directory)!r}, open, queues: 1>"
    assert "closed" in repr(log)


@pytest.mark.parametrize("bounds", [(1.5, None), ("1", None), (None, 2.0), (b"1", None)])
async def test_positions_to_read_are_ints(log: MultiRecordLog, bounds: Any) -> None:
    """A wrong type is an error, not an empty result."""
    for read in (log.range, log.runs):
        with pytest.raises(TypeError, match="positions are ints or None"):
            read("q", *bounds)


async def test_concurrent_creates_make_one_queue(log: MultiRecordLog) -> None:
    """A result that depends on a command of the same batch is the one a later call would get."""
    results = await asyncio.gather(*(log.create_queue("r") for _ in range(3)), return_exceptions=True)
    assert results[0] is True
    assert [type(result) for result in results[1:]] == [QueueExistsError] * 2


async def test_calls_of_one_batch_see_each_other(log: MultiRecordLog) -> None:
    """Create, append, truncate, delete and create again without waiting do what they do one by one."""
    results = await asyncio.gather(
        log.create_queue("r"),
        log.append_record("r", None, b"a"),
        log.append_record("r", None, b"b"),
        log.truncate("r", 0),
        log.append_record("r", None, b"c"),
        log.delete_queue("r"),
        log.append_record("r", None, b"lost"),
        log.create_queue("r"),
        log.append_record("r", None, b"d"),
        return_exceptions=True,
    )
    assert results[:6] == [True, 0, 1, 1, 2, None]
    assert isinstance(results[6], QueueNotFoundError)
    assert results[7:] == [True, 0]
    assert list(log.range("r")) == [(0, b"d")]


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
    assert [position for run in log.runs("q", start, stop) for position, _ in run.records()] == expected


async def test_iter_from_and_last_record(log: MultiRecordLog) -> None:
    """Reading can start at any position; the newest record is available directly."""
    assert log.last_record("q") is None
    assert log.last_position("q") is None
    await log.append_records("q", None, [b"a", b"b", b"c"])
    assert list(log.iter_from("q", 1)) == [(1, b"b"), (2, b"c")]
    assert log.last_record("q") == (2, b"c")
    await log.truncate("q", 2)
    assert log.last_record("q") is None
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


# Wrong calls: each a clear error, and nothing lost.


@pytest.mark.parametrize("name", ["", "x" * 256, "é" * 128, "\ud800", 7, None, b"bytes", ["list"]])
async def test_bad_queue_names(log: MultiRecordLog, name: Any) -> None:
    """A name is text of 1 to 255 bytes in UTF-8; anything else is refused by every call."""
    with pytest.raises(QueueNameError):
        await log.create_queue(name)
    with pytest.raises(QueueNameError):
        await log.append_record(name, None, b"x")
    with pytest.raises(QueueNameError):
        await log.truncate(name, 0)
    with pytest.raises(QueueNameError):
        await log.delete_queue(name)
    with pytest.raises(QueueNameError):
        log.range(name)
    assert contents(log) == {"q": (0, 0, [])}


async def test_unknown_queue(log: MultiRecordLog) -> None:
    """Every call on a queue that does not exist reports it."""
    for call in (
        log.append_record("nowhere", None, b"x"),
        log.append_records("nowhere", 3, [b"x"]),
        log.truncate("nowhere", 0),
        log.delete_queue("nowhere"),
    ):
        with pytest.raises(QueueNotFoundError, match="queue 'nowhere' does not exist"):
            await call
    for read in (log.range, log.runs, log.first_position, log.next_position, log.last_position, log.last_record):
        with pytest.raises(QueueNotFoundError):
            read("nowhere")


@pytest.mark.parametrize(
    ("position", "error"),
    [(-1, ValueError), (POSITION_MAX + 1, ValueError), (True, TypeError), (1.0, TypeError), ("1", TypeError)],
)
async def test_bad_positions(log: MultiRecordLog, position: Any, error: type[Exception]) -> None:
    """A position is an int in 0 … 2**63 - 2."""
    with pytest.raises(error):
        await log.append_record("q", position, b"x")
    with pytest.raises(error):
        await log.truncate("q", position)
    assert contents(log) == {"q": (0, 0, [])}


async def test_the_last_position_can_be_used_and_none_after_it(log: MultiRecordLog, directory: Path) -> None:
    """A queue whose positions are used up refuses appends and still truncates and reopens."""
    assert await log.append_record("q", POSITION_MAX, b"end") == POSITION_MAX
    with pytest.raises(LogFullError):
        await log.append_record("q", None, b"x")
    with pytest.raises(LogFullError):
        await log.append_records("q", POSITION_MAX, [b"x", b"y"])
    assert await log.truncate("q", POSITION_MAX) == 1
    await log.close()
    async with MultiRecordLog.open(directory) as again:
        assert again.next_position("q") == POSITION_MAX + 1


@pytest.mark.parametrize("payload", ["text", 5, None, [b"x"], 1.5])
async def test_bad_payloads(log: MultiRecordLog, payload: Any) -> None:
    """A payload is a bytes-like object; the error comes from the call, before anything is awaited."""
    with pytest.raises(TypeError, match="payload"):
        _ = log.append_record("q", None, payload)
    with pytest.raises(TypeError, match="payload"):
        _ = log.append_records("q", None, [b"fine", payload])
    with pytest.raises(TypeError, match="append_records"):
        _ = log.append_records("q", None, b"one payload")  # type: ignore[arg-type]  # the mistake under test
    assert contents(log) == {"q": (0, 0, [])}


async def test_too_large_records_are_refused_at_once(directory: Path) -> None:
    """What can never fit is refused, with sizes, and writes nothing."""
    limits = Limits(record_bytes=1000, pending_bytes=5000, memory_bytes=100_000)
    async with MultiRecordLog.open(directory, limits=limits) as log:
        await log.create_queue("q")
        with pytest.raises(RecordTooLargeError) as caught:
            await log.append_record("q", None, bytes(1001))
        assert (caught.value.size_bytes, caught.value.limit_bytes) == (1001, 1000)
        with pytest.raises(RecordTooLargeError):
            await log.append_records("q", None, [b"x", bytes(1001)])
        with pytest.raises(RecordTooLargeError):
            await log.append_records("q", None, [bytes(1000)] * 6)
        await log.configure_queue("q", QueueOptions(max_bytes=10))
        with pytest.raises(RecordTooLargeError, match="smaller records"):  # it is one record already
            await log.append_record("q", None, bytes(11))
        await log.configure_queue("q", QueueOptions())
        assert await log.append_record("q", None, bytes(1000)) == 0


async def test_full_memory_pushes_back_and_truncate_makes_room(directory: Path) -> None:
    """Above memory_bytes appends are refused with the numbers; after a truncate they work again."""
    async with MultiRecordLog.open(directory, limits=Limits(memory_bytes=50_000)) as log:
        await log.create_queue("q")
        with pytest.raises(LogFullError) as caught:
            for _ in range(100):
                await log.append_record("q", None, bytes(1000))
        assert caught.value.resource == "memory"
        assert caught.value.used <= caught.value.limit == 50_000
        await log.truncate("q", log.next_position("q") - 1)
        await log.append_record("q", None, bytes(1000))


async def test_full_memory_may_wait_for_room(directory: Path) -> None:
    """With on_full="wait" callers wait in order until a truncate makes space."""
    limits = Limits(memory_bytes=50_000, on_full="wait")
    async with MultiRecordLog.open(directory, limits=limits) as log:
        await log.create_queue("q")
        calls = [asyncio.ensure_future(log.append_record("q", None, bytes(1000))) for _ in range(100)]
        await calls[0]
        while not all(call.done() for call in calls):
            await log.truncate("q", max(log.next_position("q") - 1, 0))
        assert [call.result() for call in calls] == list(range(100))


async def test_waiting_callers_are_bounded_in_bytes_and_keep_their_order(directory: Path) -> None:
    """Above pending_bytes callers wait in order; the bytes held for the writer stay below the limit."""
    limits = Limits(record_bytes=10_000, pending_bytes=30_000)
    async with MultiRecordLog.open(directory, limits=limits) as log:
        await log.create_queue("q")
        calls = [asyncio.ensure_future(log.append_record("q", None, bytes(5000))) for _ in range(50)]
        await asyncio.sleep(0)
        assert log.resource_usage().pending_bytes <= 31_000
        assert await asyncio.gather(*calls) == list(range(50))


async def test_truncate_and_delete_pass_the_line_of_appends(directory: Path) -> None:
    """Control calls never wait for the space that appends wait for."""
    limits = Limits(memory_bytes=20_000, on_full="wait")
    async with MultiRecordLog.open(directory, limits=limits) as log:
        await log.create_queue("q")
        await log.create_queue("other")
        calls = [asyncio.ensure_future(log.append_record("q", None, bytes(4000))) for _ in range(8)]
        await calls[0]
        await log.delete_queue("other")
        assert not all(call.done() for call in calls)
        while not all(call.done() for call in calls):
            await log.truncate("q", max(log.next_position("q") - 1, 0))


async def test_number_of_queues_is_limited(directory: Path) -> None:
    """More queues than allowed are refused; deleting one makes space for another."""
    async with MultiRecordLog.open(directory, limits=Limits(queues=2)) as log:
        await log.create_queue("a")
        await log.create_queue("b")
        with pytest.raises(LogFullError) as caught:
            await log.create_queue("c")
        assert caught.value.resource == "queues"
        await log.delete_queue("a")
        await log.create_queue("c")


async def test_disk_limit_refuses_appends_until_space_is_given_back(directory: Path) -> None:
    """Above disk_bytes appends are refused; truncating everything rolls, gives the space back, and they work again."""
    limits = Limits(disk_bytes=1_000_000)
    async with MultiRecordLog.open(directory, limits=limits, segment_bytes=65_536) as log:
        await log.create_queue("q")
        with pytest.raises(LogFullError) as caught:
            for _ in range(100):
                await log.append_record("q", None, bytes(20_000))
        assert caught.value.resource == "disk"
        await log.truncate("q", log.next_position("q") - 1)
        await log.sync()
        await log.append_record("q", None, bytes(20_000))
        assert log.resource_usage().disk_bytes <= 1_000_000


# Closing, cancelling, failing.


async def test_calls_on_a_closed_log_raise(directory: Path) -> None:
    """After close every call reports that the log is closed; closing again is allowed."""
    log = await MultiRecordLog.open(directory)
    await log.create_queue("q")
    await log.close()
    await log.close()
    for call in (log.append_record("q", None, b"x"), log.create_queue("r"), log.truncate("q", 0), log.sync()):
        with pytest.raises(LogClosedError):
            await call
    with pytest.raises(LogClosedError):
        log.range("q")


async def test_close_finishes_what_was_called_before(directory: Path) -> None:
    """Appends in flight are stored and acknowledged before close returns."""
    log = await MultiRecordLog.open(directory)
    await log.create_queue("q")
    calls = [asyncio.ensure_future(log.append_record("q", None, b"x")) for _ in range(100)]
    await asyncio.sleep(0)
    await log.close()
    assert [call.result() for call in calls] == list(range(100))
    async with MultiRecordLog.open(directory) as again:
        assert again.next_position("q") == 100


async def test_close_refuses_callers_who_wait_for_room(directory: Path) -> None:
    """Callers in line when the log closes get an error; none is left waiting."""
    limits = Limits(memory_bytes=10_000, on_full="wait")
    log = await MultiRecordLog.open(directory, limits=limits)
    await log.create_queue("q")
    calls = [asyncio.ensure_future(log.append_record("q", None, bytes(4000))) for _ in range(8)]
    await calls[0]
    await log.close()
    results = await asyncio.gather(*calls, return_exceptions=True)
    stored = [result for result in results if isinstance(result, int)]
    assert stored == list(range(len(stored)))
    assert all(isinstance(result, int | LogClosedError) for result in results)
    assert len(stored) < len(results)


async def test_cancelling_before_the_writer_took_it_withdraws(log: MultiRecordLog) -> None:
    """A call cancelled while it still waits is certainly not stored; its neighbours are, without a hole."""
    calls = [asyncio.ensure_future(log.append_record("q", None, b"%d" % n)) for n in range(10)]
    if asyncio.get_running_loop().get_task_factory() is None:  # eager tasks wait already
        await asyncio.sleep(0)
    for call in calls[::2]:
        call.cancel()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result) for result in results[::2]] == [asyncio.CancelledError] * 5
    assert results[1::2] == [0, 1, 2, 3, 4]
    assert [payload for _, payload in log.range("q")] == [b"1", b"3", b"5", b"7", b"9"]


async def test_cancel_storm_leaves_no_hole_and_no_half(log: MultiRecordLog, directory: Path) -> None:
    """Whenever callers cancel, each call is stored whole or not at all, and positions stay contiguous."""

    async def caller(name: int) -> None:
        for round_ in range(20):
            call = asyncio.ensure_future(
                log.append_records("q", None, [b"%d %d %d" % (name, round_, n) for n in range(3)])
            )
            for _ in range((name * 7 + round_) % 5):
                await asyncio.sleep(0)
            if (name + round_) % 3 == 0:
                call.cancel()
            await asyncio.wait([call])

    await asyncio.gather(*(caller(name) for name in range(50)))
    await log.sync()
    records = list(log.range("q"))
    assert [position for position, _ in records] == list(range(len(records)))
    groups = [payload.rsplit(b" ", 1) for _, payload in records]
    assert all(groups[i][0] == groups[i + 1][0] == groups[i + 2][0] for i in range(0, len(groups), 3))
    before = contents(log)
    await log.close()
    async with MultiRecordLog.open(directory) as again:
        assert contents(again) == before


async def test_cancelled_open_gives_the_directory_back(directory: Path) -> None:
    """Cancelling open at any moment leaves no lock behind."""
    async with MultiRecordLog.open(directory) as log:
        await log.create_queue("q")
    for turns in range(6):
        opening = asyncio.ensure_future(_open(directory))
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        result = (await asyncio.gather(opening, return_exceptions=True))[0]
        if isinstance(result, MultiRecordLog):
            await result.close()
    while True:
        try:
            async with MultiRecordLog.open(directory) as log:
                assert log.queue_exists("q")
                return
        except LogLockedError:
            await asyncio.sleep(0)  # the abandoned thread is still on its way out


async def _open(directory: Path) -> MultiRecordLog:
    return await MultiRecordLog.open(directory)


async def test_second_open_is_refused_with_the_owners_pid(log: MultiRecordLog, directory: Path) -> None:
    """One writer per directory, even within a process; the message names the owner and the ways out."""
    import os

    with pytest.raises(LogLockedError) as caught:
        await MultiRecordLog.open(directory)
    assert caught.value.owner_pid == os.getpid()
    assert "mrecordlog serve" in str(caught.value)
    assert await log.append_record("q", None, b"still works") == 0


def test_another_event_loop_is_refused(directory: Path) -> None:
    """A log belongs to the loop that opened it: using it from another raises at once."""
    loop = asyncio.new_event_loop()
    log = loop.run_until_complete(_open(directory))
    loop.run_until_complete(log.create_queue("q"))

    async def use() -> None:
        with pytest.raises(LogClosedError, match="event loop"):
            await log.append_record("q", None, b"x")
        with pytest.raises(LogClosedError, match="event loop"):
            await log.truncate("q", 0)

    asyncio.run(use())
    loop.run_until_complete(log.close())
    loop.close()


@pytest.mark.parametrize(
    ("closes", "error", "reason"),
    [(True, LogClosedError, "the log is closed"), (False, LogFailedError, "the event loop ended")],
    ids=["closed", "loop ended"],
)
def test_a_log_that_has_ended_says_so_on_any_loop(
    directory: Path, closes: bool, error: type[Exception], reason: str
) -> None:
    """Nobody is sent back to a loop that no longer helps."""

    async def end() -> MultiRecordLog:
        log = await MultiRecordLog.open(directory)
        if closes:
            await log.close()
        return log

    log = asyncio.run(end())

    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: log.append("q", b"x"),
        lambda: log.truncate("q", 0),
        log.sync,
        log.drain,
    ]

    async def use() -> None:
        for call in calls:
            with pytest.raises(error, match=reason):
                await call()
        with pytest.raises(error, match=reason):
            log.append_soon("q", b"x")

    asyncio.run(use())


def test_a_second_loop_of_the_thread_cannot_join_a_waiting_group(directory: Path) -> None:
    """Not even while records wait that the log's own loop appended: the record is withdrawn, the others are stored."""
    loop = asyncio.new_event_loop()
    log = loop.run_until_complete(_open(directory))
    loop.run_until_complete(log.create_queue("q"))
    waiting = loop.create_task(log.append_record("q", None, b"of its own loop"))
    loop.run_until_complete(asyncio.sleep(0))
    assert not waiting.done()
    with pytest.raises(LogClosedError, match="event loop"):
        asyncio.run(asyncio.wait_for(log.append_record("q", None, b"of another"), 60))
    assert loop.run_until_complete(waiting) == 0
    assert [bytes(payload) for _, payload in log.range("q")] == [b"of its own loop"]
    loop.run_until_complete(log.close())
    loop.close()


def test_a_loop_that_moves_to_another_thread_takes_its_log_along(directory: Path) -> None:
    """Opened on one thread, used on the one that runs the loop afterwards; the first one is refused then."""
    loop = asyncio.new_event_loop()
    log = loop.run_until_complete(_open(directory))
    loop.run_until_complete(log.create_queue("q"))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        for position in range(2):
            appended = asyncio.run_coroutine_threadsafe(log.append_record("q", None, b"x"), loop)
            assert appended.result(60) == position
        with pytest.raises(LogClosedError, match="event loop"):
            asyncio.run(asyncio.wait_for(log.append_record("q", None, b"y"), 60))
        asyncio.run_coroutine_threadsafe(log.close(), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_loop_that_ends_without_close_gives_the_directory_back(directory: Path) -> None:
    """Acknowledged records are found, the lock is released, and nothing hangs."""

    async def forget() -> None:
        log = await MultiRecordLog.open(directory)
        await log.create_queue("q")
        assert await log.append_record("q", None, b"kept") == 0

    asyncio.run(forget())

    async def look() -> None:
        while True:
            try:
                async with MultiRecordLog.open(directory) as log:
                    assert list(log.range("q")) == [(0, b"kept")]
                    return
            except LogLockedError:
                await asyncio.sleep(0)

    asyncio.run(look())


# Policies.


@pytest.mark.parametrize(
    "policy",
    [
        PersistPolicy.always(),
        PersistPolicy.always(action=PersistAction.FLUSH),
        PersistPolicy.interval(0.01),
        PersistPolicy.interval(60, action=PersistAction.FLUSH),
        PersistPolicy.never(),
    ],
)
async def test_every_policy_stores_and_reopens(directory: Path, policy: PersistPolicy) -> None:
    """Under each policy what was written is there after a clean close."""
    async with MultiRecordLog.open(directory, persist_policy=policy) as log:
        await log.create_queue("q")
        for n in range(20):
            await log.append_record("q", None, b"%d" % n)
        await log.sync()
        before = contents(log)
    async with MultiRecordLog.open(directory) as log:
        assert contents(log) == before


def test_an_action_may_be_given_as_text() -> None:
    """It equals the member of the enumeration, so it must mean the same: what is acknowledged is synced."""
    fsync: Any = "fsync"
    flush: Any = "flush"
    assert PersistPolicy.always(action=fsync).syncs_each_batch
    assert PersistPolicy.interval(1, action=fsync).sync_interval_seconds == 1
    assert not PersistPolicy.always(action=flush).syncs_each_batch
    assert PersistPolicy.interval(1, action=flush).sync_interval_seconds is None


async def test_weaker_policies_sync_less(directory: Path) -> None:
    """`never` acknowledges without fsync, and `sync` does it on request."""
    async with MultiRecordLog.open(directory, persist_policy=PersistPolicy.never()) as log:
        await log.create_queue("q")
        before = log.stats().syncs
        for _ in range(10):
            await log.append_record("q", None, b"x")
        assert log.stats().syncs == before
        await log.sync()
        assert log.stats().syncs == before + 1
        await log.sync()
        assert log.stats().syncs == before + 1


async def test_interval_syncs_by_its_own_timer(directory: Path) -> None:
    """An idle log under `interval` becomes durable without another call."""
    async with MultiRecordLog.open(directory, persist_policy=PersistPolicy.interval(0.001)) as log:
        await log.create_queue("q")
        before = log.stats().syncs
        await log.append_record("q", None, b"x")
        while log.stats().syncs == before:
            await asyncio.sleep(0.001)
        assert log.stats().syncs > before


@pytest.mark.parametrize(
    "make",
    [
        lambda: PersistPolicy.interval(0),
        lambda: PersistPolicy.interval(-1),
        lambda: PersistPolicy("sometimes"),  # type: ignore[arg-type]  # the mistake under test
        lambda: Limits(memory_bytes=0),
        lambda: Limits(record_bytes=2**31),
        lambda: Limits(record_bytes=1000, pending_bytes=999),
        lambda: Limits(on_full="explode"),  # type: ignore[arg-type]  # the mistake under test
        lambda: Limits(name_bytes=70_000),
        lambda: MultiRecordLog.open("x", segment_bytes=100),
    ],
)
def test_bad_options(make: Any) -> None:
    """Options that make no sense are refused where they are made."""
    with pytest.raises(ValueError, match=r"."):
        make()


# Errors.


@pytest.mark.parametrize(
    "error",
    [
        all_errors.QueueNotFoundError("q"),
        all_errors.QueueExistsError("q"),
        all_errors.QueueNameError("q" * 300, "is too long"),
        all_errors.PositionInPastError("q", 7, 12),
        all_errors.PositionInPastError("q", 7, 12, outcome_unknown=True),
        all_errors.RecordTooLargeError(10, 5),
        all_errors.LogFullError("memory", 10, 5),
        all_errors.LogFullError("space"),
        all_errors.LogClosedError(),
        all_errors.LogFailedError("EIO", "unknown"),
        all_errors.LogLockedError("/somewhere", 12),
        all_errors.CorruptionError("wal-0", 64, "bad"),
    ],
)
def test_errors_survive_pickling_with_their_facts(error: all_errors.RecordLogError) -> None:
    """A task in another process can send its error home."""
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert again.__dict__ == error.__dict__
    assert str(again) == str(error)
    assert str(error.copy()) == str(error)


async def test_record_of_exactly_the_limit_is_taken(directory: Path) -> None:
    """`record_bytes` is the largest payload that is allowed, alone and among others."""
    async with MultiRecordLog.open(directory, limits=Limits(record_bytes=1_000, pending_bytes=5_000)) as log:
        await log.create_queue("q")
        assert await log.append_record("q", None, bytes(1_000)) == 0
        assert await log.append_records("q", None, [bytes(1_000), b""]) == 2
        with pytest.raises(RecordTooLargeError):
            await log.append_records("q", None, [b"", bytes(1_001)])


async def test_every_sync_is_timed(directory: Path) -> None:
    """The counters report one duration for every sync."""
    async with MultiRecordLog.open(directory, persist_policy=PersistPolicy.never()) as log:
        await log.create_queue("q")
        await log.append_record("q", None, b"x")
        await log.sync()
        stats = log.stats()
        assert stats.syncs == stats.sync_seconds.count == 2


async def test_an_append_takes_at_least_as_long_as_its_commit(log: MultiRecordLog) -> None:
    """On both event loops: the loop's own clock may stand still, and every append is counted."""
    for count in range(1, 31):
        before = log.stats()
        await asyncio.gather(*(log.append_record("q", None, b"a") for _ in range(count % 3 + 1)))
        after = log.stats()
        took = after.append_seconds.sum - before.append_seconds.sum
        assert took >= after.commit_seconds.sum - before.commit_seconds.sum > 0
        assert after.append_seconds.count - before.append_seconds.count == count % 3 + 1
