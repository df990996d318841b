"""Who holds a consumer, when the holder was last seen, and who takes over from one that died."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from mrecordlog_async import ConsumerHeldError, MultiRecordLog
from mrecordlog_async.client import RecordLogClient
from mrecordlog_async.engine import consuming
from tests.served import Served


class Clock:
    """Seconds that the test lets pass."""

    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock by which holders are seen."""
    found = Clock()
    monkeypatch.setattr(consuming, "monotonic", found)
    return found


@pytest.fixture(params=["log", "client"])
async def owner_of(request: pytest.FixtureRequest, clock: Clock, served: Served) -> Any:
    """The log, or a client of its service: what has consumers."""
    if request.param == "log":
        yield served.log
    else:
        async with RecordLogClient(served.url) as client:
            yield client


async def idle(of: Any) -> float | None:
    """Return for how long the holder was not seen."""
    found = of.consumers("q")
    found = await found if asyncio.iscoroutine(found) else found
    seconds: float | None = found["c"].idle_seconds
    return seconds


async def test_a_worker_takes_over_only_once_the_holder_was_not_seen(owner_of: Any, clock: Clock) -> None:
    """While it works it keeps the consumer; the error says how long ago it was seen."""
    await owner_of.append("q", b"a")
    async with owner_of.consumer("q", "c", if_idle_for=10.0) as first:
        clock.now += 9.5
        with pytest.raises(ConsumerHeldError, match=r"was seen 9 s ago; try again once that is 10 s") as held:
            await owner_of.consumer("q", "c", if_idle_for=10.0).__aenter__()
        assert (held.value.idle_seconds, held.value.if_idle_for) == (9.5, 10.0)
        await first.acknowledge(0)
        assert await idle(owner_of) == 0
        clock.now += 10.5
        async with owner_of.consumer("q", "c", if_idle_for=10.0) as second:
            assert second.epoch > first.epoch
            assert second.position == 1


async def test_a_holder_that_waits_for_records_is_there(owner_of: Any, clock: Clock) -> None:
    """However long no record comes."""
    async with owner_of.consumer("q", "c") as holder:
        waiting = asyncio.ensure_future(holder.batch(max_wait=0))
        while await idle(owner_of) != 0 or clock.now < 1_100:
            await asyncio.sleep(0)
            clock.now += 1
        with pytest.raises(ConsumerHeldError, match="was seen 0 s ago"):
            await owner_of.consumer("q", "c", if_idle_for=1.0).__aenter__()
        await owner_of.append("q", b"a")
        assert (await waiting).payloads() == [b"a"]
        clock.now += 5
        assert await idle(owner_of) == 5


async def test_of_two_that_find_it_idle_one_attaches(owner_of: Any, clock: Clock) -> None:
    """They do not fence each other off in turns."""
    async with owner_of.consumer("q", "c"):
        clock.now += 60
    results = await asyncio.gather(
        *(owner_of.consumer("q", "c", if_idle_for=30.0).__aenter__() for _ in range(5)), return_exceptions=True
    )
    assert sum(isinstance(result, ConsumerHeldError) for result in results) == 4


async def test_of_several_that_start_at_once_one_attaches(owner_of: Any, clock: Clock) -> None:
    """The consumer does not exist yet, as when an application starts for the first time."""
    results = await asyncio.gather(
        *(owner_of.consumer("q", "c", if_idle_for=30.0).__aenter__() for _ in range(5)), return_exceptions=True
    )
    assert sum(isinstance(result, ConsumerHeldError) for result in results) == 4


async def test_a_consumer_that_nobody_holds_is_free_at_once(owner_of: Any, clock: Clock) -> None:
    """One that was just created, and one that does not exist yet."""
    await owner_of.create_consumer("q", "c")
    assert await idle(owner_of) is None
    async with owner_of.consumer("q", "c", if_idle_for=1e6):
        assert await idle(owner_of) == 0
    async with owner_of.consumer("q", "new", if_idle_for=1e6):
        pass


async def test_a_holder_from_before_a_restart_counts_as_seen_when_the_log_was_opened(
    directory: Path, clock: Clock
) -> None:
    """Over HTTP it goes on after a restart of the service: it must have the time to show up."""
    async with MultiRecordLog.open(directory, queues=["q"]) as log, log.consumer("q", "c"):
        pass
    clock.now += 3_600
    async with MultiRecordLog.open(directory) as log:
        clock.now += 4
        assert log.consumers("q")["c"].idle_seconds == 4
        with pytest.raises(ConsumerHeldError):
            await log.consumer("q", "c", if_idle_for=5.0).__aenter__()
        clock.now += 1
        async with log.consumer("q", "c", if_idle_for=5.0):
            pass


async def test_consumers_that_were_deleted_are_forgotten(log: MultiRecordLog, clock: Clock) -> None:
    """What is kept of holders does not grow with those that there were."""
    changes = log._consumers
    for number in range(3 * consuming.SEEN_SLACK):
        async with log.consumer("q", f"c{number}"):
            pass
        await log.delete_consumer("q", f"c{number}")
    assert len(changes._seen) <= consuming.SEEN_SLACK + 1
    assert not changes._waiting


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), "10"])
async def test_a_time_that_is_none_is_refused(log: MultiRecordLog, seconds: Any) -> None:
    """Before anything is changed."""
    with pytest.raises(ValueError, match="if_idle_for must be a number of seconds"):
        await log.consumer("q", "c", if_idle_for=seconds).__aenter__()
    assert log.consumers("q") == {}
