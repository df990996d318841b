"""Consumers of a log that is open: positions, holders, rules, and what an acknowledgement removes."""

from __future__ import annotations

import asyncio
import errno
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest

from mrecordlog_async import (
    Batch,
    ConsumerBehindError,
    ConsumerExistsError,
    ConsumerFencedError,
    ConsumerNameError,
    ConsumerNotFoundError,
    ConsumerOwnedError,
    Limits,
    LogFullError,
    MultiRecordLog,
    PersistPolicy,
    PositionAheadError,
    PositionTruncatedError,
    QueueNotFoundError,
    QueueOptions,
    ReadOnlyLog,
    RecordLogError,
)
from mrecordlog_async.cli.main import main
from mrecordlog_async.engine.commit import writer
from mrecordlog_async.engine.commit.batch import CommitRequest, CommitResult
from mrecordlog_async.engine.commit.journal import Journal
from mrecordlog_async.engine.intake.controls import Attached
from mrecordlog_async.engine.planning import consumer as plan_consumers
from mrecordlog_async.engine.planning import queue as plan_queues

OWNER, OTHER = uuid.uuid4(), uuid.uuid4()


@pytest.fixture
async def log(directory: Path) -> AsyncIterator[MultiRecordLog]:
    """A log with the queue "q", which holds the records 0 to 9."""
    async with MultiRecordLog.open(directory) as opened:
        await opened.create_queue("q")
        await opened.append_records("q", None, [b"%d" % number for number in range(10)])
        yield opened


def position_of(log: MultiRecordLog, consumer: str, queue: str = "q") -> int:
    """Return where a consumer stands."""
    return log.consumers(queue)[consumer].position


async def test_batches_are_handed_out_until_they_are_acknowledged(log: MultiRecordLog) -> None:
    """What was not acknowledged comes again for the next holder, and what was does not."""
    async with log.consumer("q", "c") as c:
        batch = await c.batch(max_records=4, max_wait=0)
        assert batch is not None and [record.position for record in batch] == [0, 1, 2, 3]
        assert await c.acknowledge(batch) == 4
        assert (await c.batch(max_records=4, max_wait=0) or batch).first_position == 4
    async with log.consumer("q", "c") as c:
        assert [(await anext(c)).position for _ in range(2)] == [4, 5]


async def test_positions_survive_a_reopen(directory: Path, log: MultiRecordLog) -> None:
    """Owner, epoch and position are on the disk, and a reader without the lock sees them."""
    async with log.consumer("q", "c", owner=OWNER) as c:
        await c.acknowledge(6)
        epoch = c.epoch
    await log.close()
    found = (await asyncio.to_thread(ReadOnlyLog.open, directory)).consumers("q")["c"]
    assert (found.position, found.records, found.bytes, found.epoch, found.owner) == (7, 3, 3, epoch, str(OWNER))
    async with MultiRecordLog.open(directory) as again:
        now = again.consumers("q")["c"]
        assert replace(now, oldest_seconds=found.oldest_seconds, idle_seconds=found.idle_seconds) == found
        async with again.consumer("q", "c", owner=OWNER) as c:
            assert c.epoch > epoch and c.position == 7


async def test_an_acknowledgement_never_goes_back(log: MultiRecordLog) -> None:
    """An older one returns the position and writes nothing; each of the three forms names the last record."""
    async with log.consumer("q", "c") as c:
        batch = await c.batch(max_records=5, max_wait=0)
        assert isinstance(batch, Batch)
        assert await c.acknowledge(batch) == 5
        written = log.stats().written_bytes
        assert await c.acknowledge(next(iter(batch))) == 5
        assert await c.acknowledge(2) == 5
        assert log.stats().written_bytes == written
        with pytest.raises(PositionAheadError, match="position 10 has not been assigned"):
            await c.acknowledge(10)
        (last,) = await asyncio.gather(c.acknowledge(9), return_exceptions=True)
        assert last == 10


async def test_a_new_holder_fences_the_old_one_off(log: MultiRecordLog) -> None:
    """The old one gets no records and moves nothing, even if it waits for records at that moment."""
    async with log.consumer("q", "c") as old:
        assert (await old.batch(max_wait=0) or pytest.fail()).last_position == 9
        waiting = asyncio.ensure_future(old.batch())
        await asyncio.sleep(0)
        async with log.consumer("q", "c") as new:
            for call in (waiting, old.batch(), old.acknowledge(3), old.seek(0), anext(old)):
                with pytest.raises(ConsumerFencedError, match="attach again"):
                    await call
            assert await new.acknowledge(1) == 2
    assert position_of(log, "c") == 2


async def test_an_epoch_is_never_used_twice(log: MultiRecordLog) -> None:
    """Not for a consumer or a queue that was deleted and created again either."""
    async with log.consumer("q", "c") as c:
        await log.delete_consumer("q", "c")
        with pytest.raises(ConsumerNotFoundError):
            await c.acknowledge(0)
        await log.create_consumer("q", "c")
        with pytest.raises(ConsumerFencedError):
            await c.acknowledge(0)
        await log.delete_queue("q", past_consumers=True)
        await log.create_queue("q")
        await log.append_record("q", None, b"x")
        async with log.consumer("q", "c") as again:
            assert again.epoch > c.epoch
            assert await c.batch(max_wait=0) is None
            with pytest.raises(QueueNotFoundError):
                await c.acknowledge(0)


async def test_an_owner_is_asked_for(log: MultiRecordLog) -> None:
    """Only its owner attaches to an owned consumer, unless it is taken over; anybody may own one without."""
    async with log.consumer("q", "c"), log.consumer("q", "c", owner=OWNER):
        for other in (OTHER, None):
            with pytest.raises(ConsumerOwnedError, match=str(OWNER)):
                await log.inspection.attach_consumer("q", "c", owner=other)
        await log.inspection.attach_consumer("q", "c", owner=str(OWNER))
        await log.inspection.attach_consumer("q", "c", owner=OTHER, take_over=True)
    assert log.consumers("q")["c"].owner == str(OTHER)
    with pytest.raises(ValueError, match="must be a UUID"):
        await log.inspection.attach_consumer("q", "c", owner="me")


async def test_a_cancelled_wait_loses_nothing(log: MultiRecordLog) -> None:
    """A timeout around a batch, as around a record, leaves both to the next call."""
    async with log.consumer("q", "c") as c:
        await c.seek(10)
        for wait in (c.batch(), c.batch(max_wait=None), anext(c)):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(wait, 0.01)
        await log.append_record("q", None, b"x")
        assert (await c.batch() or pytest.fail()).first_position == 10


async def within(call: Coroutine[Any, Any, Batch | None]) -> Batch | None:
    """Wait with a limit of `asyncio.timeout`."""
    async with asyncio.timeout(60):
        return await call


async def waited(call: Coroutine[Any, Any, Batch | None]) -> Batch | None:
    """Wait with a limit of `asyncio.wait_for`."""
    return await asyncio.wait_for(call, 60)


LIMITED = [within, lambda call: within(within(call)), waited]
if sys.version_info >= (3, 12):  # that of Python 3.11 may drop what it waited for
    LIMITED.append(lambda call: waited(waited(call)))


@pytest.mark.parametrize("limited", LIMITED)
async def test_a_call_that_is_cancelled_as_records_arrive_loses_none(
    log: MultiRecordLog, limited: Callable[[Coroutine[Any, Any, Batch | None]], Coroutine[Any, Any, Batch | None]]
) -> None:
    """At whichever turn of the loop the cancel comes, this call returns the records or the next one does."""
    async with log.consumer("q", "c") as c:
        await c.seek(10)
        for turns in range(8):
            call = asyncio.create_task(limited(c.batch(max_wait=0)))
            await asyncio.sleep(0)
            position = await log.append("q", b"x")
            for _ in range(turns):
                await asyncio.sleep(0)
            call.cancel()
            (found,) = await asyncio.gather(call, return_exceptions=True)
            batch = await c.batch(max_wait=0) if isinstance(found, asyncio.CancelledError) else found
            assert isinstance(batch, Batch) and batch.first_position == position


async def test_a_cancelled_seek_is_made_again(log: MultiRecordLog) -> None:
    """It may have moved the consumer's stored position or not; what is handed out next is as before until then."""
    async with log.consumer("q", "c") as c:
        call = asyncio.create_task(c.seek(7))
        await asyncio.sleep(0)
        call.cancel()
        (outcome,) = await asyncio.gather(call, return_exceptions=True)
        assert isinstance(outcome, asyncio.CancelledError)
        await log.sync()
        assert position_of(log, "c") in (0, 7) and c.position == 0
        assert await c.seek(7) == position_of(log, "c") == c.position == 7


async def test_gaps_are_passed_over(log: MultiRecordLog) -> None:
    """A batch after a gap begins after it, and a consumer inside a gap waits instead of spinning."""
    await log.append_record("q", 100, b"x")
    async with log.consumer("q", "c") as c:
        await c.seek(50)
        batch = await c.batch()
        assert batch is not None and batch.first_position == 100
        await c.acknowledge(batch)
        await log.truncate("q", 200)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(c.batch(), 0.01)
    assert position_of(log, "c") == 201


async def test_a_consumer_ends_with_its_queue(log: MultiRecordLog) -> None:
    """Sealed and read to its end, deleted, or closed: there is no next batch."""
    async with log.consumer("q", "c") as c:
        await log.seal_queue("q")
        assert [batch.last_position async for batch in c.batches(max_records=5)] == [4, 9]
        await c.acknowledge(9)
        await log.delete_queue("q")
        assert await c.batch() is None
        assert [record async for record in c] == []


async def test_where_a_consumer_begins(log: MultiRecordLog) -> None:
    """At the first retained record, or at its start, moved into what the queue retains."""
    await log.truncate("q", 2)
    for name, start in (("first", None), ("before", 0), ("there", 5), ("past", 99)):
        assert await log.create_consumer("q", name, start=start)
    assert [found.position for found in log.consumers("q").values()] == [3, 3, 10, 5]
    assert not await log.create_consumer("q", "there", start=9, exist_ok=True)
    assert position_of(log, "there") == 5


async def test_a_consumer_begins_at_a_time(log: MultiRecordLog) -> None:
    """At the first record that was stored then or later; it can also be sent there."""
    stored = log.time_of("q", 9)
    assert stored is not None
    later, early = stored + timedelta(seconds=0.3), stored - timedelta(days=1)
    await log.create_consumer("q", "from then on", start=stored)
    await log.create_consumer("*", "from later on", start=later)
    assert [found.position for found in log.consumers("q").values()] == [10, log.position_at("q", stored)]
    async with log.consumer("q", "c", start=later) as c:
        assert c.position == 10
        assert await c.seek(early) == 0
        with pytest.raises(ValueError, match="is in the future"):
            await c.seek(stored + timedelta(days=1))
    for queue in ("q", "*"):
        with pytest.raises(ValueError, match="is in the future"):
            await log.create_consumer(queue, "d", start=stored + timedelta(days=1))
    assert log.inspection.consumer_rules() == [("*", "from later on")]


@pytest.mark.parametrize("start", [-1, 2**63, True, "5"])
async def test_a_start_that_is_no_position_leaves_no_rule(log: MultiRecordLog, start: Any) -> None:
    """Whether a queue matches the pattern or not."""
    for pattern in ("q*", "none*"):
        with pytest.raises((ValueError, TypeError), match="position must be"):
            await log.create_consumer(pattern, "c", start=start)
    assert log.inspection.consumer_rules() == []


async def test_a_consumer_of_a_queue_with_a_star_in_its_name_can_be_deleted(log: MultiRecordLog) -> None:
    """Where there is a rule it is deleted first, with the consumer of every queue that matches."""
    for queue in ("a*b", "axb"):
        await log.create_queue(queue)
        async with log.consumer(queue, "c"):
            pass
    await log.delete_consumer("a*b", "c")
    assert [*log.consumers("a*b"), *log.consumers("axb")] == ["c"]
    with pytest.raises(ConsumerNotFoundError):
        await log.delete_consumer("a*b", "c")
    await log.create_consumer("a*b", "c")
    await log.delete_consumer("a*b", "c")
    assert [*log.consumers("a*b"), *log.consumers("axb"), *log.inspection.consumer_rules()] == []


async def test_deleting_a_rule_half_way_is_repeated(log: MultiRecordLog) -> None:
    """If the disk refuses a part of it, the same call does the rest: no consumer is left that keeps records."""
    await log.create_consumer("*", "lake")
    commit, refusing = Journal.commit, False

    def refuse_from_second(journal: Journal, request: CommitRequest) -> CommitResult | None:
        nonlocal refusing
        if refusing:
            raise OSError(errno.EIO, "Input/output error")
        refusing = True
        return commit(journal, request)

    with patch.object(Journal, "commit", refuse_from_second), pytest.raises(OSError, match="Input/output error"):
        await log.delete_consumer("*", "lake")
    await log.delete_consumer("*", "lake")
    assert [*log.consumers("q"), *log.inspection.consumer_rules()] == []


async def test_a_rule_with_many_stars_is_made_used_and_deleted(directory: Path, log: MultiRecordLog) -> None:
    """A regular expression would compare this pattern with this name until the end of days."""
    pattern, name = "*a" * 41 + "b", "a" * 200
    await log.create_queue(name)
    assert await log.create_consumer(pattern, "c")
    await log.close()
    async with MultiRecordLog.open(directory) as again:
        await again.create_queue(name + "a")
        await again.create_queue(name + "b")
        assert {queue: [*again.consumers(queue)] for queue in again.list_queues()} == {
            name: [],
            name + "a": [],
            name + "b": ["c"],
            "q": [],
        }
        await again.delete_consumer(pattern, "c")
        assert [*again.consumers(name + "b"), *again.inspection.consumer_rules()] == []


async def test_a_rule_gives_every_queue_a_consumer(directory: Path, log: MultiRecordLog) -> None:
    """Those that exist, and new ones in the same moment as they are; even after a restart, until it is removed."""
    await log.create_queue("other")
    assert await log.create_consumer("*", "lake")
    assert not await log.create_consumer("*", "lake", exist_ok=True)
    await log.create_consumer("q*", "only q")
    await log.close()
    async with MultiRecordLog.open(directory) as again:
        assert again.inspection.consumer_rules() == [("*", "lake"), ("q*", "only q")]
        await again.create_queue("qq")
        names = {queue: [*again.consumers(queue)] for queue in again.list_queues()}
        assert names == {"other": ["lake"], "q": ["lake", "only q"], "qq": ["lake", "only q"]}
        with pytest.raises(ConsumerExistsError):
            await again.create_consumer("*", "lake")
        await again.delete_consumer("*", "lake")
        await again.create_queue("new")
        assert [*again.consumers("q"), *again.consumers("new")] == ["only q"]
        with pytest.raises(ConsumerNotFoundError):
            await again.delete_consumer("*", "lake")


async def test_records_go_once_the_slowest_consumer_has_acknowledged_them(log: MultiRecordLog) -> None:
    """Whatever moves it truncates in the same batch: acknowledge, seek, delete, and the option itself."""
    async with log.consumer("q", "slow") as slow, log.consumer("q", "fast") as fast:
        await fast.acknowledge(8)
        await slow.acknowledge(0)
        await log.configure_queue("q", QueueOptions(keep="until_acknowledged"))
        assert log.first_position("q") == 1
        commits = log.stats().commits
        await slow.acknowledge(2)
        assert (log.first_position("q"), log.stats().commits - commits) == (3, 1)
        await slow.seek(5)
        assert log.first_position("q") == 5
        with pytest.raises(PositionTruncatedError, match="seek to 5"):
            await slow.seek(4)
        await log.delete_consumer("q", "slow")
        assert log.first_position("q") == 9
        await log.delete_consumer("q", "fast")
        await log.append_record("q", None, b"x")
        assert log.first_position("q") == 9  # without a consumer nothing goes
        await log.create_consumer("q", "late", start=11)
        assert log.first_position("q") == 9  # creating one removes nothing


async def test_records_are_not_removed_past_a_consumer(log: MultiRecordLog) -> None:
    """A truncate and a delete name the slowest one; where they are forced, it continues after them."""
    await log.create_consumer("q", "fast", start=8)
    await log.create_consumer("q", "slow", start=3)
    await log.truncate("q", 2)
    for call in (log.truncate("q", 4), log.delete_queue("q")):
        with pytest.raises(ConsumerBehindError, match="'slow' is at 3") as caught:
            await call
        assert caught.value.consumer == "slow"
    assert await log.truncate("q", 4, past_consumers=True) == 2
    assert [(found.position, found.skipped) for found in log.consumers("q").values()] == [(8, 0), (5, 2)]
    for name in ("fast", "slow"):
        await log.inspection.attach_consumer("q", name)
        await log.seek_consumer("q", name, 10)
    await log.delete_queue("q")


async def test_an_operators_seek_takes_the_consumer(log: MultiRecordLog) -> None:
    """The holder is fenced off, and attaches again where the operator put it."""
    async with log.consumer("q", "c") as c:
        await c.acknowledge(7)
        assert await log.seek_consumer("q", "c", 2) == 2
        with pytest.raises(ConsumerFencedError):
            await c.acknowledge(8)
    async with log.consumer("q", "c") as c:
        assert (await anext(c)).position == 2


async def test_holders_attach_again_after_a_crash_under_a_weak_policy(directory: Path) -> None:
    """Their acknowledgements may be lost, and other records may have their positions; a clean close loses nothing."""
    policy = PersistPolicy.never()
    log = await MultiRecordLog.open(directory, persist_policy=policy)
    await log.append_record("q", None, b"x", create=True)
    held = await log.inspection.attach_consumer("q", "c", create=True)
    await log.close()
    log = await MultiRecordLog.open(directory, persist_policy=policy)
    assert await log.inspection.acknowledge("q", "c", 0, queue_id=held.queue_id, epoch=held.epoch) == 1
    await log.append_record("q", None, b"x")
    await log.close()
    await asyncio.to_thread((directory / "CLOSED").unlink)
    async with MultiRecordLog.open(directory, persist_policy=policy) as log:
        for _ in range(2):
            with pytest.raises(ConsumerFencedError, match="opened again"):
                await log.inspection.acknowledge("q", "c", 1, queue_id=held.queue_id, epoch=held.epoch)
            with pytest.raises(ConsumerFencedError, match="opened again"):
                log.inspection.check_holder("q", "c", queue_id=held.queue_id, epoch=held.epoch)
        again = await log.inspection.attach_consumer("q", "c")
        assert await log.inspection.acknowledge("q", "c", 1, queue_id=again.queue_id, epoch=again.epoch) == 2


async def crashed_with_a_holder(directory: Path) -> Attached:
    """Make a log under a weak policy whose process died with a holder."""
    async with MultiRecordLog.open(directory, persist_policy=PersistPolicy.never()) as log:
        await log.append_records("q", None, [b"x", b"y"], create=True)
        held = await log.inspection.attach_consumer("q", "c", create=True)
        await log.inspection.attach_consumer("q", "d", create=True)
    (directory / "CLOSED").unlink()
    return held


async def test_a_holder_from_before_a_crash_stays_fenced_off_through_later_restarts(directory: Path) -> None:
    """However often the log is closed before it calls; one that attached after the crash goes on."""
    policy, held = PersistPolicy.never(), await crashed_with_a_holder(directory)
    async with MultiRecordLog.open(directory, persist_policy=policy) as log:
        again = await log.inspection.attach_consumer("q", "d")
    assert (directory / "CLOSED").exists()
    for _ in range(2):
        async with MultiRecordLog.open(directory, persist_policy=policy) as log:
            with pytest.raises(ConsumerFencedError, match="opened again after a crash"):
                await log.inspection.acknowledge("q", "c", 0, queue_id=held.queue_id, epoch=held.epoch)
            assert await log.inspection.acknowledge("q", "d", 0, queue_id=again.queue_id, epoch=again.epoch) == 1


async def test_a_tool_on_the_directory_does_not_let_a_holder_from_before_a_crash_return(directory: Path) -> None:
    """It opens under `always`, whatever the service's policy is, and leaves the log as unclosed as it was."""
    held = await crashed_with_a_holder(directory)
    assert await asyncio.to_thread(main, ["configure", str(directory), "other", "--create"]) == 0
    assert await asyncio.to_thread(main, ["truncate", str(directory), "q", "0", "--past-consumers"]) == 0
    assert not (directory / "CLOSED").exists()
    async with MultiRecordLog.open(directory, persist_policy=PersistPolicy.never()) as log:
        assert log.queue_exists("other") and log.first_position("q") == 1
        with pytest.raises(ConsumerFencedError):
            await log.inspection.acknowledge("q", "c", 1, queue_id=held.queue_id, epoch=held.epoch)
    assert await asyncio.to_thread(main, ["configure", str(directory), "third", "--create"]) == 0
    assert (directory / "CLOSED").exists()


async def test_a_log_that_cannot_fence_holders_off_durably_is_not_closed(directory: Path) -> None:
    """Its disk is full: the holder is refused now, and again after the next open."""
    policy, held = PersistPolicy.never(), await crashed_with_a_holder(directory)
    full = patch.object(Journal, "commit", side_effect=OSError(errno.ENOSPC, "No space left on device"))
    with full:
        async with MultiRecordLog.open(directory, persist_policy=policy) as log:
            with pytest.raises(ConsumerFencedError):
                await log.inspection.acknowledge("q", "c", 0, queue_id=held.queue_id, epoch=held.epoch)
            with pytest.raises(ConsumerFencedError):
                log.inspection.check_holder("q", "c", queue_id=held.queue_id, epoch=held.epoch)
    assert not (directory / "CLOSED").exists()
    async with MultiRecordLog.open(directory, persist_policy=policy) as log:
        with pytest.raises(ConsumerFencedError):
            await log.inspection.acknowledge("q", "c", 0, queue_id=held.queue_id, epoch=held.epoch)
    assert (directory / "CLOSED").exists()


async def test_consumers_have_a_limit(directory: Path) -> None:
    """Rules count, and a queue whose consumers would exceed it is not created."""
    async with MultiRecordLog.open(directory, limits=Limits(consumers=3)) as log:
        await log.create_queue("q")
        await log.create_consumer("*", "a")
        await log.create_consumer("q", "b")
        full = (log.create_consumer("q", "c"), log.create_consumer("*", "c"), log.create_queue("r"))
        for call in (*full, log.inspection.attach_consumer("q", "c", create=True)):
            with pytest.raises(LogFullError, match="limit on consumers"):
                await call
        await log.delete_consumer("q", "b")
        await log.create_queue("r")
        # What one call of a batch frees, the next one may take.
        await asyncio.gather(log.delete_consumer("r", "a"), log.create_consumer("r", "c"))
        with pytest.raises(LogFullError, match="limit on consumers"):
            await log.create_consumer("r", "d")


async def test_an_operator_may_move_a_consumer_of_a_full_log(directory: Path) -> None:
    """Otherwise nobody could reset a consumer before the records that it keeps are removed."""
    async with MultiRecordLog.open(directory, limits=Limits(disk_bytes=1 << 20), queues=["q"]) as log:
        await log.create_consumer("q", "c")
        await log.append("q", b"first")
        with pytest.raises(LogFullError):
            while True:
                await log.append("q", bytes(20_000))
        with pytest.raises(LogFullError):
            while True:
                await log.append("q", b"")
        assert await log.seek_consumer("q", "c", 1) == 1
        with pytest.raises(LogFullError):
            await log.create_consumer("q", "d")


async def test_what_is_durable_under_every_policy_is_synced_before_it_returns(directory: Path) -> None:
    """An acknowledgement of a holder is as durable as the policy says; all else about consumers is durable."""
    async with MultiRecordLog.open(directory, persist_policy=PersistPolicy.never(), queues=["q"]) as log:

        def is_synced() -> bool:
            return log.inspection.durable_batch == log._engine.opened.journal.end.last_batch

        async def attach() -> Attached:
            return await log.inspection.attach_consumer("q", "c")

        calls: list[Callable[[], Coroutine[Any, Any, object]]] = [
            lambda: log.create_consumer("q", "c"),
            lambda: log.create_consumer("*", "d"),
            attach,
            lambda: log.seek_consumer("q", "c", 1),
            lambda: log.delete_consumer("q", "d"),
            lambda: log.delete_consumer("*", "d"),
        ]
        await log.append("q", b"0")
        for call in calls:
            await log.append("q", b"unsynced")
            assert not is_synced()
            await call()
            assert is_synced()
        held = await attach()
        await log.inspection.acknowledge("q", "c", 2, queue_id=held.queue_id, epoch=held.epoch)
        assert not is_synced()


async def test_a_holder_that_iterates_notices_the_next_one_at_its_next_record(log: MultiRecordLog) -> None:
    """Although it has read further records already."""
    await log.append_records("q", None, [b"0", b"1", b"2"])
    async with log.consumer("q", "c") as old:
        assert (await anext(old)).payload == b"0"
        async with log.consumer("q", "c") as new:
            with pytest.raises(ConsumerFencedError):
                await anext(old)
            assert (await anext(new)).payload == b"0"


async def test_a_holder_of_a_queue_that_was_created_again_is_told_so(log: MultiRecordLog) -> None:
    """A service checks its clients' holders before and after a read."""
    held = await log.inspection.attach_consumer("q", "c", create=True)
    log.inspection.check_holder("q", "c", queue_id=held.queue_id, epoch=held.epoch)
    await log.delete_queue("q", past_consumers=True)
    await log.create_queue("q")
    await log.create_consumer("q", "c")
    with pytest.raises(QueueNotFoundError):
        log.inspection.check_holder("q", "c", queue_id=held.queue_id, epoch=held.epoch)


async def test_an_acknowledgement_of_what_is_truncated_already_changes_nothing(log: MultiRecordLog) -> None:
    """It comes late, after an operator truncated past the consumer."""
    await log.append_records("q", None, [b"0", b"1", b"2", b"3"])
    async with log.consumer("q", "c") as consumer:
        await log.truncate("q", 2, past_consumers=True)
        assert await consumer.acknowledge(0) == 3
        assert await consumer.acknowledge(3) == 4


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda log: log.create_consumer("nowhere", "c"), QueueNotFoundError),
        (lambda log: log.create_consumer("q", ""), ConsumerNameError),
        (lambda log: log.create_consumer("q", "c" * 256), ConsumerNameError),
        (lambda log: log.create_consumer("q", 5), ConsumerNameError),
        (lambda log: log.create_consumer("q", "c", start=-1), ValueError),
        (lambda log: log.delete_consumer("q", "unknown"), ConsumerNotFoundError),
        (lambda log: log.inspection.attach_consumer("q", "unknown"), ConsumerNotFoundError),
        (lambda log: log.seek_consumer("q", "unknown", 0), ConsumerNotFoundError),
        (lambda log: log.seek_consumer("q", "known", 11), PositionAheadError),
        (lambda log: log.seek_consumer("q", "known", 0), PositionTruncatedError),
        (lambda log: log.inspection.acknowledge("q", "known", 4, queue_id=1, epoch=1), QueueNotFoundError),
    ],
)
async def test_bad_input_is_refused(log: MultiRecordLog, call: object, error: type[Exception]) -> None:
    """Each with its class, and nothing is written."""
    await log.truncate("q", 0)
    await log.create_consumer("q", "known")
    written = log.stats().written_bytes
    with pytest.raises(error):
        await call(log)  # type: ignore[operator]  # one of the calls above
    assert log.stats().written_bytes == written
    assert issubclass(error, RecordLogError | ValueError)


async def test_a_consumer_is_used_inside_its_context(log: MultiRecordLog) -> None:
    """Outside it holds nothing."""
    c = log.consumer("q", "c")
    with pytest.raises(RuntimeError, match="async with"):
        await c.batch()


async def test_openings_are_recorded_with_the_first_batch(directory: Path) -> None:
    """An opening that stores nothing leaves no trace; the others have a number each, even in the next segment."""
    async with MultiRecordLog.open(directory, persist_policy=PersistPolicy.never()) as log:
        assert (log.inspection.opening, log.inspection.openings) == (0, ())
        await log.create_queue("q")
        first = log.inspection.openings
        assert log.inspection.opening == first[0].nonce and first[0].first_batch == 1
    async with MultiRecordLog.open(directory) as log:
        assert log.inspection.openings == first
    async with MultiRecordLog.open(directory, persist_policy=PersistPolicy.never(), segment_bytes=32_768) as log:
        syncs = log.stats().syncs
        await log.append_record("q", None, b"x")
        assert log.stats().syncs == syncs + 1  # under every policy
        both = log.inspection.openings
        assert len(both) == 2 and both[0] == first[0] and both[1].first_batch == 2
        for _ in range(2):
            await log.append_record("q", None, bytes(40_000))
        assert log.stats().rolls
    async with MultiRecordLog.open(directory) as log:
        assert log.inspection.openings == both


@pytest.mark.parametrize("wrong", [None, True, 1.0, "1"])
async def test_a_position_of_the_wrong_type_is_refused(log: MultiRecordLog, wrong: Any) -> None:
    """Acknowledging or seeking it is a TypeError that names the type, and moves nothing."""
    async with log.consumer("q", "c") as consumer:
        for move in (consumer.acknowledge, consumer.seek):
            with pytest.raises(TypeError, match=f"position must be .* not {type(wrong).__name__.removesuffix('Type')}"):
                await move(wrong)
        with pytest.raises(TypeError, match="position must be an int, not datetime"):
            await consumer.acknowledge(cast("Any", datetime.now(UTC)))
        assert log.consumers("q")["c"].position == 0


async def test_a_consumer_name_of_the_wrong_type_is_refused(log: MultiRecordLog) -> None:
    """Even one that no dictionary takes."""
    with pytest.raises(ConsumerNameError, match="must be a str, not list"):
        await log.create_consumer("q", cast("Any", ["c"]))


async def test_rules_that_begin_with_a_star_are_limited(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every new queue is compared with each of them. A log that has more of them opens, and loses none."""
    async with MultiRecordLog.open(directory) as log:
        for number in range(3):
            await log.create_consumer(f"*{number}", "c")
        monkeypatch.setattr(plan_consumers, "STARRED_RULES_MAX", 2)
    async with MultiRecordLog.open(directory) as again:
        with pytest.raises(
            LogFullError, match=r"^3 rules have a pattern that begins with \*, of at most 2; begin"
        ) as full:
            await again.create_consumer("*3", "c")
        assert full.value.resource == "starred_rules"
        assert await again.create_consumer("q*3", "c")
        for number in range(2):
            await again.delete_consumer(f"*{number}", "c")
        assert await again.create_consumer("*3", "c")
        assert again.inspection.consumer_rules() == [("*2", "c"), ("*3", "c"), ("q*3", "c")]


async def test_a_queue_is_given_no_more_than_a_thousand_consumers(directory: Path) -> None:
    """However they would come about; the sentence names the queue. Other queues take theirs."""
    full = r"^queue 'q' has 1000 of at most 1000 consumers; delete some"
    async with MultiRecordLog.open(directory) as log:
        await log.create_queues(["q", "other"])
        await asyncio.gather(*(log.create_consumer("q", f"c{number}") for number in range(1_000)))
        with pytest.raises(LogFullError, match=full) as error:
            await log.create_consumer("q", "more")
        assert (error.value.resource, error.value.queue, error.value.used) == ("consumers", "q", 1_000)
        with pytest.raises(LogFullError, match=full):
            async with log.consumer("q", "more"):
                pass
        assert await log.create_consumer("q", "c1", exist_ok=True) is False
        assert await log.create_consumer("other", "more")
        await log.delete_consumer("q", "c1")
        assert await log.create_consumer("q", "more")
    with pytest.raises(LogFullError, match=full):
        async with MultiRecordLog.open(directory, consumers={"q": ["declared"]}):
            pass


async def test_rules_give_a_new_queue_no_more_than_a_thousand_consumers(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not created; one that fewer rules match is."""
    monkeypatch.setattr(plan_queues, "CONSUMERS_MAX", 2)
    async with MultiRecordLog.open(directory) as log:
        for number in range(3):
            await log.create_consumer("many*", f"c{number}")
        for create in (log.create_queue("many"), log.create_queues(["few", "many"])):
            with pytest.raises(LogFullError, match=r"^queue 'many' has 0 of at most 2 consumers"):
                await create
        assert log.list_queues() == []
        assert await log.create_queue("few")


async def test_a_log_with_more_consumers_and_rules_than_it_takes_opens(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No limit applies to what is there. Only new ones are refused, until there are fewer."""
    async with MultiRecordLog.open(directory) as log:
        await log.create_queue("q")
        for number in range(3):
            await log.create_consumer("q", f"c{number}")
            await log.create_consumer(f"r{number}*", "c")
    monkeypatch.setattr(plan_queues, "CONSUMERS_MAX", 2)
    monkeypatch.setattr(plan_consumers, "RULES_MAX", 2)
    async with MultiRecordLog.open(directory) as log:
        assert len(log.consumers("q")) == 3
        with pytest.raises(LogFullError, match=r"^queue 'q' has 3 of at most 2 consumers"):
            await log.create_consumer("q", "more")
        with pytest.raises(LogFullError, match=r"^the limit on rules is reached: 3 of 2; delete some") as error:
            await log.create_consumer("r*", "more")
        assert error.value.resource == "rules"
        await log.append("q", b"x")
        async with log.consumer("q", "c1") as consumer:
            await consumer.acknowledge(0)
        for number in range(2):
            await log.delete_consumer(f"r{number}*", "c")
            await log.delete_consumer("q", f"c{number}")
        assert await log.create_consumer("r*", "more")
        assert await log.create_consumer("q", "more")


async def test_a_batch_ends_where_rules_have_made_it_long(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these queues gets ten consumers; all are created, in order, and with what rests on them."""
    monkeypatch.setattr(writer, "WORK_MAX", 30)
    async with MultiRecordLog.open(directory) as log:
        for number in range(10):
            await log.create_consumer("*", f"c{number}")
        commits = log.stats().commits
        calls = [log.create_queue(f"q{number}") for number in range(9)]
        assert await asyncio.gather(*calls, log.append("q8", b"x"), log.create_queue("q0", exist_ok=True)) == [
            *[True] * 9,
            0,
            False,
        ]
        assert log.stats().commits == commits + 4
        assert all(len(log.consumers(f"q{number}")) == 10 for number in range(9))
