"""Retention by age, with clocks that the test sets: what goes, what stays, and when."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from mrecordlog_async import Limits, LogState, MultiRecordLog, PositionInPastError, QueueOptions, ReadOnlyLog
from mrecordlog_async.engine.commit.journal import Journal
from mrecordlog_async.engine.readers import expiry
from mrecordlog_async.engine.readers.age_clock import AgeClock
from mrecordlog_async.model import TICK_NS
from mrecordlog_async.support.clock import Clock
from tests.cached_files import FailingSyncs
from tests.clocks import opening
from tests.engine import in_flight

NS = 1_000_000_000
AGE = 100.0


class Clocks:
    """The wall clock and the time since boot, in seconds, which the test sets."""

    def __init__(self) -> None:
        self.wall = 1_700_000_000.0
        self.boot = 5_000.0

    def pass_by(self, seconds: float) -> None:
        """Let time pass."""
        self.wall += seconds
        self.boot += seconds

    def wall_ns(self) -> int:
        """Return the wall clock."""
        return round(self.wall * NS)

    def boot_ns(self) -> int:
        """Return the time since boot."""
        return round(self.boot * NS)

    @property
    def clock(self) -> Clock:
        """Return them as a log reads them."""
        return Clock(self.wall_ns, self.boot_ns)


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    """Clocks of commits and of expiry that the test sets."""
    monkeypatch.setattr(expiry, "SLEEP_SECONDS_MAX", 1_000.0)
    return Clocks()


@asynccontextmanager
async def opened(directory: Path, clocks: Clocks, **options: Any) -> AsyncIterator[MultiRecordLog]:
    """Open a log whose retention runs only when the test says so."""
    with patch.object(expiry.Expiry, "_arm", lambda self, seconds: None):
        async with opening(directory, clocks.clock, **options) as log:
            yield log


async def expire(log: MultiRecordLog) -> int:
    """Make a pass and wait until its truncates are stored; return how many queues it truncated."""
    assert log._engine.expiry is not None
    done = log._engine.expiry.run()
    while log._engine.expiry._unfinished and log.state is LogState.OPEN:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    return done


def positions(log: Any, queue: str = "q") -> list[int]:
    """Return the positions of the retained records."""
    return [record.position for record in log.range(queue)]


async def test_records_go_once_they_are_too_old(directory: Path, clocks: Clocks) -> None:
    """Never before their age, and at the next pass after it; younger ones and other queues stay."""
    async with opened(directory, clocks) as log:
        await log.create_queue("q", options=QueueOptions(max_age=AGE))
        await log.create_queue("other")
        for number in range(4):
            for queue in ("q", "other"):
                await log.append(queue, b"%d" % number)
            clocks.pass_by(30)
        assert await expire(log) == 1
        assert (positions(log), positions(log, "other")) == ([1, 2, 3], [0, 1, 2, 3])
        clocks.pass_by(5)
        assert await expire(log) == 0
    async with opened(directory, clocks) as log:
        assert (log.first_position("q"), log.next_position("q")) == (1, 4)


async def test_a_pass_truncates_up_to_the_first_young_record(directory: Path, clocks: Clocks) -> None:
    """The age is reached to the tick, all queues go in one batch, and what was dropped is counted."""
    async with opened(directory, clocks) as log:
        for queue in ("a", "b"):
            await log.create_queue(queue, options=QueueOptions(max_age=AGE))
            await log.append_records(queue, None, [b"0", b"1"])
        clocks.pass_by(40)
        for queue in ("a", "b"):
            await log.append(queue, b"2")
        clocks.pass_by(AGE - 40)
        assert await expire(log) == 0
        clocks.pass_by(0.1)
        commits = log.stats().commits
        assert await expire(log) == 2
        assert log.stats().commits == commits + 1
        assert log.stats().expired_records == 4
        assert positions(log, "a") == positions(log, "b") == [2]
        clocks.pass_by(1.5)
        assert await expire(log) == 0
        clocks.pass_by(AGE)
        assert await expire(log) == 2
        assert positions(log, "a") == []
        assert log.next_position("a") == 3


async def test_a_queue_is_truncated_at_most_once_in_a_hundredth_of_its_age(directory: Path, clocks: Clocks) -> None:
    """Records that come all the time cost a truncate per max(1 s, max_age / 100), not one each."""
    async with opened(directory, clocks) as log:
        await log.create_queue("q", options=QueueOptions(max_age=1_000.0))
        truncates = 0
        for _ in range(300):
            await log.append("q", b"x")
            clocks.pass_by(5)
            truncates += await expire(log)
        assert 45 <= truncates <= 51
        assert 200 <= len(positions(log)) <= 203


async def test_an_empty_queue_waits_for_its_age_again(directory: Path, clocks: Clocks) -> None:
    """A queue without records is looked at once per age, and its next record lives as long as any."""
    async with opened(directory, clocks) as log:
        await log.create_queue("q", options=QueueOptions(max_age=AGE))
        assert await expire(log) == 0
        clocks.pass_by(AGE - 1)
        await log.append("q", b"x")
        for _ in range(9):
            clocks.pass_by(10)
            assert await expire(log) == 0
        clocks.pass_by(12)
        assert await expire(log) == 1


async def test_a_wall_clock_that_is_set_does_not_change_what_is_too_old(directory: Path, clocks: Clocks) -> None:
    """Set a year forward and back again, the log removes what has really become too old."""
    async with opened(directory, clocks) as log:
        await log.create_queue("q", options=QueueOptions(max_age=AGE))
        await log.append("q", b"0")
        clocks.pass_by(30)
        clocks.wall += 365 * 86_400
        await log.append("q", b"1")
        assert await expire(log) == 0
        clocks.pass_by(30)
        await log.append("q", b"2")
        clocks.wall -= 365 * 86_400
        assert await expire(log) == 0
        await log.append("q", b"3")
        clocks.pass_by(45)
        assert await expire(log) == 1
        assert positions(log) == [1, 2, 3]
        clocks.pass_by(30)
        assert await expire(log) == 1
        assert positions(log) == [2, 3]
        clocks.pass_by(30)
        assert await expire(log) == 1
        assert positions(log) == []


async def test_a_clock_that_was_set_back_keeps_records_rather_too_long(directory: Path, clocks: Clocks) -> None:
    """Where a time happened twice, the later one counts."""
    async with opened(directory, clocks) as log:
        await log.create_queue("q", options=QueueOptions(max_age=AGE))
        await log.append("q", b"0")
        clocks.pass_by(50)
        clocks.wall -= 50
        assert await expire(log) == 0
        await log.append("q", b"1")
        clocks.pass_by(90)
        assert await expire(log) == 0
        clocks.pass_by(11)
        assert await expire(log) == 1
        assert positions(log) == []


async def test_records_from_the_future_count_from_the_open(directory: Path, clocks: Clocks) -> None:
    """Restored from a machine whose clock was ahead, records live for their age after the open."""
    async with opened(directory, clocks) as log:
        await log.create_queue("q", options=QueueOptions(max_age=10 * AGE))
        await log.append("q", b"0")
    clocks.wall -= 10_000
    async with opened(directory, clocks) as log:
        clocks.pass_by(10 * AGE - 1)
        await log.append("q", b"1")
        assert await expire(log) == 0
        clocks.pass_by(2)
        assert await expire(log) == 1
        assert positions(log) == [1]


async def test_records_from_the_future_count_from_when_their_queue_got_an_age(directory: Path, clocks: Clocks) -> None:
    """They were stored before that, whatever their time says, so they live for their age at most."""
    async with opened(directory, clocks) as log:
        await log.create_queue("q")
        await log.append("q", b"0")
    clocks.wall -= 10_000
    async with opened(directory, clocks) as log:
        clocks.pass_by(1_000)
        await log.configure_queue("q", QueueOptions(max_age=AGE))
        assert await expire(log) == 0
        clocks.pass_by(AGE - 1)
        await log.append("q", b"1")
        assert await expire(log) == 0
        clocks.pass_by(2)
        assert await expire(log) == 1
        assert positions(log) == [1]


async def test_what_became_too_old_while_the_log_was_closed_goes_at_open(directory: Path, clocks: Clocks) -> None:
    """Unless it is opened without retention, or only read: then everything is still there."""
    async with opened(directory, clocks) as log:
        await log.create_queue("q", options=QueueOptions(max_age=AGE))
        await log.append_records("q", None, [b"0", b"1"])
    clocks.pass_by(10_000)
    async with opened(directory, clocks, retention=False) as log:
        assert log._engine.expiry is None
        await log.append("q", b"2")
    assert await asyncio.to_thread(lambda: positions(ReadOnlyLog.open(directory))) == [0, 1, 2]
    async with opened(directory, clocks) as log:
        assert await expire(log) == 1
        assert positions(log) == [2]
        with pytest.raises(PositionInPastError):
            await log.append_record("q", 1, b"other")
        assert await log.append_record("q", 2, b"2") is None


async def test_a_repeat_is_recognized_after_retention(directory: Path, clocks: Clocks) -> None:
    """The last append of a queue is known by its digest, before and after a restart."""
    async with opened(directory, clocks) as log:
        await log.create_queue("q", options=QueueOptions(max_age=AGE))
        await log.append_records("q", 0, [b"0", b"1"])
        clocks.pass_by(AGE + 1)
        assert await expire(log) == 1
        assert positions(log) == []
        assert await log.append_records("q", 0, [b"0", b"1"]) is None
    async with opened(directory, clocks) as log:
        assert await log.append_records("q", 0, [b"0", b"1"]) is None
        with pytest.raises(PositionInPastError):
            await log.append_records("q", 0, [b"0", b"2"])


async def test_another_age_counts_at_once(directory: Path, clocks: Clocks) -> None:
    """configure_queue sets, changes and removes the age of a queue that holds records; a deleted queue is forgotten."""
    async with opened(directory, clocks) as log:
        await log.create_queue("q")
        await log.append("q", b"0")
        clocks.pass_by(1_000)
        assert await expire(log) == 0
        await log.configure_queue("q", QueueOptions(max_age=2_000.0))
        assert await expire(log) == 0
        await log.configure_queue("q", QueueOptions())
        clocks.pass_by(1_500)
        assert await expire(log) == 0
        await log.configure_queue("q", QueueOptions(max_age=AGE))
        assert await expire(log) == 1
        assert positions(log) == []
        await log.append("q", b"1")
        await log.delete_queue("q")
        clocks.pass_by(1_000)
        assert await expire(log) == 0


def entries(log: MultiRecordLog) -> int:
    """Return how many entries retention keeps, in the largest of its collections."""
    kept, queues = log._engine.expiry, log._engine.queues
    assert kept is not None
    stopped = queues.stopped_aging
    assert stopped is not None
    sizes = (kept._due, kept._seen, kept._heap, kept._opened_next, queues.newly_aging, stopped)
    return max(len(each) for each in sizes)


@pytest.mark.parametrize("reopened", [False, True])
async def test_a_deleted_queue_is_forgotten(directory: Path, clocks: Clocks, reopened: bool) -> None:
    """At once, not when its age is over: queues that live for a minute with an age of 30 days would fill the memory."""
    names = [str(number) for number in range(300)]
    async with opened(directory, clocks, queues={"kept": QueueOptions(max_age=AGE)}) as log:
        await log.append("kept", b"")
        for name in names:
            await log.create_queue(name, options=QueueOptions(max_age=30 * 86_400.0))
        await asyncio.gather(*(log.append(name, b"") for name in names))
        if not reopened:
            await expire(log)
            assert entries(log) > 300
            await asyncio.gather(*map(log.delete_queue, names))
            await expire(log)
            assert entries(log) <= expiry.HEAP_SLACK + 3
    async with opened(directory, clocks) as log:
        if reopened:
            await expire(log)
            await asyncio.gather(*map(log.delete_queue, names))
            await expire(log)
            assert entries(log) <= expiry.HEAP_SLACK + 3
        clocks.pass_by(AGE + 1)
        assert await expire(log) == 1
        assert positions(log, "kept") == []


async def test_a_queue_whose_age_changes_often_has_one_entry(directory: Path, clocks: Clocks) -> None:
    """Whatever is configured, and also when the age is taken away in the end."""
    async with opened(directory, clocks) as log:
        await log.create_queue("q")
        await log.append("q", b"")
        for number in range(300):
            await log.configure_queue("q", QueueOptions(max_age=1_000.0 + number))
            await expire(log)
        assert entries(log) <= expiry.HEAP_SLACK + 3
        await log.configure_queue("q", QueueOptions())
        await expire(log)
        assert log._engine.expiry is not None
        assert not log._engine.expiry._due
        assert not log._engine.expiry._seen


async def test_an_age_that_is_taken_away_and_given_again_counts(directory: Path, clocks: Clocks) -> None:
    """Even if retention looks only after both, or forgets others first."""
    async with opened(directory, clocks, queues={"q": QueueOptions(max_age=AGE)}) as log:
        await log.append("q", b"")
        await expire(log)
        with patch.object(expiry, "QUEUES_PER_PASS", 1):
            await log.create_queue("other", options=QueueOptions(max_age=AGE))
            await log.delete_queue("other")
            await log.configure_queue("q", QueueOptions())
            await log.configure_queue("q", QueueOptions(max_age=AGE))
            clocks.pass_by(AGE + 1)
            passes = [await expire(log) for _ in range(4)]
        assert sum(passes) == 1
        assert positions(log) == []


async def test_a_log_without_retention_keeps_nothing_of_deleted_queues(directory: Path, clocks: Clocks) -> None:
    """The command line opens logs so, and readers have no retention either."""
    async with opening(directory, clocks.clock, retention=False) as log:
        for number in range(20):
            await log.create_queue("q", options=QueueOptions(max_age=AGE + number))
            await log.delete_queue("q")
        assert not log._engine.queues.newly_aging
        assert log._engine.queues.stopped_aging is None


async def test_a_truncate_that_a_delete_overtook_leaves_nothing(directory: Path, clocks: Clocks) -> None:
    """The queue is deleted while the truncate of its old records waits."""
    async with opened(directory, clocks, queues={"q": QueueOptions(max_age=AGE)}) as log:
        await log.append("q", b"")
        clocks.pass_by(AGE + 1)
        deleted = asyncio.ensure_future(log.delete_queue("q"))
        await asyncio.sleep(0)
        assert await expire(log) == 1
        await deleted
        await expire(log)
        assert log._engine.expiry is not None
        assert not log._engine.expiry._due
        assert not log._engine.expiry._seen


async def test_many_queues_are_looked_at_in_steps(directory: Path, clocks: Clocks) -> None:
    """Opening a log with a million of them, or configuring them, must not stop the event loop for a second."""
    names = [str(number) for number in range(50)]
    async with opened(directory, clocks, queues=dict.fromkeys(names, QueueOptions(max_age=AGE))) as log:
        for name in names:
            await log.append(name, b"")
    looks: list[int] = []
    armed: list[float] = []
    expire_one = expiry.Expiry._expire

    def _expire(self: expiry.Expiry, queue_id: int, now: int) -> bool:
        looks.append(queue_id)
        return expire_one(self, queue_id, now)

    with (
        patch.object(expiry.Expiry, "_arm", lambda self, seconds: armed.append(seconds)),
        patch.object(expiry.Expiry, "_expire", _expire),
        patch.object(expiry, "QUEUES_PER_PASS", 20),
    ):
        async with opening(directory, clocks.clock) as log:
            assert log._engine.expiry is not None
            assert armed == [0.0]
            assert not looks
            for looked_at, again in ((20, 0.0), (40, 0.0), (50, AGE + 0.1)):
                log._engine.expiry.look()
                assert len(looks) == looked_at
                assert armed[-1] == pytest.approx(again)
            assert sorted(looks) == sorted(queue.id for queue in log._engine.queues)


async def test_retention_passes_a_consumer(directory: Path, clocks: Clocks) -> None:
    """`max_age` says how long records wait at most; the consumer goes on with what is left and knows what it missed."""
    async with opened(directory, clocks) as log:
        await log.create_queue("q", options=QueueOptions(max_age=AGE))
        await log.create_consumer("q", "slow")
        await log.append("q", b"0")
        clocks.pass_by(AGE + 1)
        await log.append("q", b"1")
        assert await expire(log) == 1
        summary = log.consumers("q")["slow"]
        assert (summary.position, summary.skipped) == (1, 1)


async def test_retention_looks_by_itself_and_ends_with_the_log(directory: Path, clocks: Clocks) -> None:
    """Without an append or a call, the timer of the log removes what is too old."""
    async with opening(directory, clocks.clock) as log:
        await log.create_queue("q")
        await log.append("q", b"0")
        clocks.pass_by(AGE + 1)
        await log.configure_queue("q", QueueOptions(max_age=AGE))
        assert log._engine.expiry is not None
        while positions(log):
            await asyncio.sleep(0)
        kept = log._engine.expiry
    assert kept._timer is None


async def test_the_next_look_is_when_the_oldest_record_is_too_old(directory: Path, clocks: Clocks) -> None:
    """Not a minute later, and at least a second after this one."""
    armed: list[float] = []
    with patch.object(expiry.Expiry, "_arm", lambda self, seconds: armed.append(seconds)):
        async with opening(directory, clocks.clock, queues={"q": QueueOptions(max_age=AGE)}) as log:
            await log.append("q", b"")
            assert log._engine.expiry is not None
            log._engine.expiry.look()
            clocks.pass_by(AGE - 0.5)
            log._engine.expiry.look()
    assert armed[-2:] == [pytest.approx(AGE + 0.1), 1.0]


async def test_a_pass_over_many_queues_goes_on_once_the_first_ones_are_truncated(
    directory: Path, clocks: Clocks
) -> None:
    """The other queues do not wait a second for each part, and nothing looks again once none is left."""
    armed: list[float] = []
    queues = {f"q{number}": QueueOptions(max_age=AGE) for number in range(5)}
    with (
        patch.object(expiry.Expiry, "_arm", lambda self, seconds: armed.append(seconds)),
        patch.object(expiry, "QUEUES_PER_PASS", 2),
    ):
        async with opening(directory, clocks.clock, queues=queues) as log:
            for queue in queues:
                await log.append(queue, b"")
            clocks.pass_by(AGE + 1)
            passes = []
            for _ in range(3):
                armed.clear()
                assert log._engine.expiry is not None
                log._engine.expiry.look()
                while log._engine.expiry._unfinished:
                    await asyncio.sleep(0)
                passes.append((sum(len(positions(log, queue)) for queue in queues), 0.0 in armed))
    assert passes == [(3, True), (1, True), (0, False)]


async def test_an_age_whose_call_was_cancelled_counts_too(directory: Path, clocks: Clocks) -> None:
    """Cancelling stops the waiting: the queue gets its age, and its records go when they are too old."""
    async with opening(directory, clocks.clock) as log:
        await log.create_queue("q")
        await log.append("q", b"0")
        clocks.pass_by(AGE + 1)
        call = asyncio.ensure_future(log.configure_queue("q", QueueOptions(max_age=AGE)))
        await in_flight.begun(log)
        call.cancel()
        async with asyncio.timeout(60):
            while positions(log):
                await asyncio.sleep(0)
        assert call.cancelled()


async def test_a_failed_log_removes_nothing(directory: Path, clocks: Clocks) -> None:
    """A pass on a log that has failed is refused without noise."""
    disk = FailingSyncs()
    async with opened(directory, clocks, filesystem=disk) as log:
        await log.create_queue("q", options=QueueOptions(max_age=AGE))
        await log.append("q", b"0")
        clocks.pass_by(AGE + 1)
        disk.failing = True
        assert await expire(log) == 1
        clocks.pass_by(10)
        await expire(log)
        assert log.state is LogState.FAILED
        assert positions(log) == [0]


async def test_what_a_full_disk_kept_goes_once_there_is_space(directory: Path, clocks: Clocks) -> None:
    """A truncate that is refused is made again after a hundredth of the age, not after the whole of it."""
    async with opened(directory, clocks) as log:
        await log.create_queue("q", options=QueueOptions(max_age=AGE))
        await log.append_records("q", None, [b"0", b"1"])
        clocks.pass_by(AGE + 1)
        with patch.object(Journal, "commit", side_effect=OSError(errno.ENOSPC, "No space left on device")):
            assert await expire(log) == 1
        assert positions(log) == [0, 1]
        clocks.pass_by(1)
        assert await expire(log) == 1
        assert positions(log) == []


def test_the_clock_of_ages_never_goes_back() -> None:
    """It runs with the time since boot, and maps every wall time that was seen to the time when it was."""
    clocks = Clocks()
    clock = AgeClock(clocks.clock)
    stored = []
    for step, jump in ((10, 0), (5, 7_200), (20, 0), (3, -10_000), (9, 0), (1, 500), (4, 0)):
        clocks.pass_by(step)
        clocks.wall += jump
        now = clock.now()
        assert now == clock.opened + round((clocks.boot - 5_000) * 10)
        stored.append((clocks.wall_ns() // TICK_NS, now))
    for tick, at in stored:
        assert at <= clock.stored_at(tick, before_open=False) <= clock.now()


def test_a_time_that_the_clock_never_saw_counts_as_between_the_open_and_now() -> None:
    """The wall clock was set and set back between two looks: the record was stored since the open, so it is young."""
    clocks = Clocks()
    clock = AgeClock(clocks.clock)
    for _ in range(3):
        clocks.pass_by(50)
        clock.now()
    now = clock.now()
    for tick in (0, clock.opened - 9_999, now + 9_999, 1 << 60):
        assert clock.opened <= clock.stored_at(tick, before_open=False) <= now
    assert clock.stored_at(now + 9_999, before_open=False) == now


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(1, 3)),
            st.tuples(st.just("pass"), st.floats(0.1, 40)),
            st.tuples(st.just("truncate"), st.integers(0, 4)),
            st.tuples(st.just("reopen"), st.just(0)),
        ),
        max_size=25,
    )
)
@settings(max_examples=40, deadline=None)
def test_any_history_keeps_what_is_young(
    tmp_path_factory: pytest.TempPathFactory, history: list[tuple[str, Any]]
) -> None:
    """A dictionary says what is retained: nothing young is ever missing, and nothing old is left after its pass."""
    directory = tmp_path_factory.mktemp("log") / "wal"
    asyncio.run(_compare(directory, Clocks(), history))


async def _compare(directory: Path, clocks: Clocks, history: list[tuple[str, Any]]) -> None:
    age, slack = 30.0, 1.2  # a pass per second at most, and ticks
    stored: dict[int, float] = {}
    first = 0
    todo = [("create", 0), *history]
    while todo:
        async with opened(directory, clocks) as log:
            while todo:
                what, number = todo.pop(0)
                if what == "create":
                    await log.create_queue("q", options=QueueOptions(max_age=age))
                elif what == "append":
                    last = await log.append_records("q", None, [b"x"] * number)
                    assert last is not None
                    stored |= dict.fromkeys(range(last + 1 - number, last + 1), clocks.wall)
                elif what == "pass":
                    clocks.pass_by(number)
                    await expire(log)
                    clocks.pass_by(1.1)
                    await expire(log)
                elif what == "truncate" and stored:
                    position = min(min(stored) + number, max(stored))
                    await log.truncate("q", position)
                    first = max(first, position + 1)
                else:
                    break
                left = positions(log)
                must = [at for at, when in stored.items() if at >= first and clocks.wall - when <= age]
                may = [at for at, when in stored.items() if at >= first and clocks.wall - when <= age + slack * 3]
                assert set(must) <= set(left)
                if what == "pass":
                    assert set(left) <= set(may)
                stored = {at: stored[at] for at in left}


KEPT_FOR_LONGER = QueueOptions(keep="until_acknowledged", keep_at_least=AGE)


async def test_acknowledged_records_stay_until_they_are_old_enough(directory: Path, clocks: Clocks) -> None:
    """Done and replayable: what every consumer has acknowledged is removed at its age, and nothing else is."""
    async with opened(directory, clocks) as log:
        await log.create_queue("q", options=KEPT_FOR_LONGER)
        async with log.consumer("q", "fast") as fast, log.consumer("q", "slow") as slow:
            await log.append_records("q", None, [b"a", b"b"])
            clocks.pass_by(10)
            await log.append("q", b"c")
            assert await fast.acknowledge(2) == 3
            assert await slow.acknowledge(0) == 1
            clocks.pass_by(AGE - 11)
            assert await expire(log) == 0
            assert await fast.seek(0) == 0
            assert (await fast.batch(max_wait=0)).payloads() == [b"a", b"b", b"c"]  # type: ignore[union-attr]  # they are there
            await fast.acknowledge(2)
            clocks.pass_by(2)
            assert await expire(log) == 1
            assert log.first_position("q") == 1, "the slow consumer has not acknowledged the second record"
            clocks.pass_by(AGE)
            assert await expire(log) == 0
            await slow.acknowledge(2)
            clocks.pass_by(2)
            assert await expire(log) == 1
            assert log.queue_summary("q").records == 0
        assert log.stats().expired_records == 0, "nobody was still waiting for them"


async def test_without_a_consumer_nothing_is_removed_whatever_its_age(directory: Path, clocks: Clocks) -> None:
    """As for any queue that keeps its records until they are acknowledged."""
    async with opened(directory, clocks) as log:
        await log.create_queue("q", options=KEPT_FOR_LONGER)
        await log.append("q", b"a")
        clocks.pass_by(10 * AGE)
        assert await expire(log) == 0
        assert log.queue_summary("q").records == 1


async def test_acknowledged_records_age_across_a_restart(directory: Path, clocks: Clocks) -> None:
    """The option, the position and the time are on the disk."""
    async with opened(directory, clocks) as log:
        await log.create_queue("q", options=KEPT_FOR_LONGER)
        await log.append("q", b"a")
        async with log.consumer("q", "c") as consumer:
            await consumer.acknowledge(0)
    clocks.pass_by(AGE + 1)
    async with opened(directory, clocks) as log:
        assert log.queue_options("q") == KEPT_FOR_LONGER
        assert log.queue_summary("q").records == 1
        assert await expire(log) == 1
        assert log.queue_summary("q").records == 0


async def test_without_the_option_what_is_acknowledged_goes_at_once(directory: Path, clocks: Clocks) -> None:
    """Taking it away removes what only its age still kept."""
    async with opened(directory, clocks) as log:
        await log.create_queue("q", options=KEPT_FOR_LONGER)
        await log.append_records("q", None, [b"a", b"b"])
        async with log.consumer("q", "c") as consumer:
            await consumer.acknowledge(0)
            assert log.queue_summary("q").records == 2
            await log.configure_queue("q", QueueOptions(keep="until_acknowledged"))
            assert log.queue_summary("q").records == 1
        assert await expire(log) == 0


async def test_a_place_on_the_disk_that_spans_long_is_read(directory: Path, clocks: Clocks) -> None:
    """Records of a slow queue expire one by one, even if hundreds of them are in one place on the disk."""
    limits = Limits(memory_bytes=1 << 20, beyond_memory="disk")
    async with opened(directory, clocks, limits=limits, segment_bytes=4 * 32_768) as log:
        await log.create_queue("slow", options=QueueOptions(max_age=10_000.0))
        await log.create_queue("fast")
        for _ in range(90):
            await log.append("slow", bytes(1_000))
            clocks.pass_by(100.0)
        for _ in range(40):
            await log.append_records("fast", None, [bytes(1_000)] * 100)
        while log.memory_first("slow") < 90:
            await log.append_records("fast", None, [bytes(1_000)] * 100)
            await asyncio.sleep(0.01)
        clocks.pass_by(1_500.0)  # the oldest is 10,500 s old now
        for expected in (5, 15):
            await expire(log)
            while log._engine.expiry is not None and log._engine.expiry._reads:
                await asyncio.sleep(0.01)
            await expire(log)
            assert log.first_position("slow") == expected
            assert log.queue_summary("slow").records == 90 - expected
            clocks.pass_by(1_000.0)
