"""A consumer of a fleet reads every server, and ends only when nothing more can come from any."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from mrecordlog_async import (
    ConsumerFencedError,
    ConsumerNotFoundError,
    ConsumerOwnedError,
    LogClosedError,
    MultiRecordLog,
    QueueNotFoundError,
    QueueOptions,
    RecordTruncatedError,
)
from mrecordlog_async.batches import BatchLimits
from mrecordlog_async.client import FleetConsumer, RecordLogClient, RecordLogFleet
from mrecordlog_async.client.fleet import consumer as consuming
from mrecordlog_async.client.fleet.consumer import AvailableOfFleet
from mrecordlog_async.client.fleet.reader import FleetBatch
from mrecordlog_async.model import Batch, Run
from mrecordlog_async.options import PersistPolicy
from tests.client.fleet.running import running
from tests.served import serving
from tests.serving import Process

KEPT = QueueOptions(keep="until_acknowledged")


async def rest(consumer: FleetConsumer) -> list[bytes]:
    """Take and acknowledge everything until the end."""
    found: list[bytes] = []
    async for batch in consumer.batches(max_wait=0):
        found += batch.payloads()
        assert await consumer.acknowledge(batch)
    return found


async def test_all_servers_are_read_and_the_end_is_the_end_of_all(tmp_path: Path) -> None:
    """What is acknowledged is removed on its server; a sealed queue on one of two servers is not the end."""
    async with running(tmp_path) as here, here.fleet.consumer("q", "lake") as consumer:
        await here.fleet.create_queue("q", options=KEPT)
        for number in range(40):
            await here.fleet.append_record("q", b"%d" % number, key=str(number))
        await here.served[0].log.seal_queue("q")
        reading = asyncio.create_task(rest(consumer))
        while sum(one.log.queue_summary("q").records for one in here.served):
            await asyncio.sleep(0.01)
        assert not reading.done()
        await here.served[1].log.append_record("q", None, b"late")
        await here.fleet.seal_queue("q")
        assert sorted(await reading) == sorted([*(b"%d" % number for number in range(40)), b"late"])
        assert await consumer.batch() is None


async def test_a_server_that_is_away_holds_up_nothing_but_its_own_records(tmp_path: Path) -> None:
    """Others are read on; what could not be acknowledged there is, once it is back, and is not handed out again."""
    async with running(tmp_path) as here:
        for number, one in enumerate(here.served):
            await one.log.append_record("q", None, b"first of %d" % number, create=True)
        async with here.fleet.consumer("q", "lake") as consumer:
            given = {}
            for _ in here.served:
                batch = await consumer.batch(max_wait=0)
                assert batch is not None
                given[batch.server] = batch
            here.cut(0)
            assert await consumer.acknowledge(given["wal-1"])
            assert not await consumer.acknowledge(given["wal-0"])
            await here.served[0].log.append_record("q", None, b"second of 0")
            await here.served[1].log.append_record("q", None, b"second of 1")
            batch = await consumer.batch(max_wait=0)
            assert batch is not None and batch.payloads() == [b"second of 1"]
            batches = consumer.batches(max_wait=0)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(batches), 0.01)
            await here.mend(0)
            assert (await anext(batches)).payloads() == [b"second of 0"]
            while here.served[0].log.consumers("q")["lake"].position != 1:
                await asyncio.sleep(0.01)


async def test_a_pattern_is_a_rule_on_every_server(tmp_path: Path) -> None:
    """Queues that are created later have the consumer from their first record on, and are read."""
    async with running(tmp_path) as here, here.fleet.consumer("click*", "lake") as consumer:
        assert [one.log.inspection.consumer_rules() for one in here.served] == [[("click*", "lake")]] * 2
        await here.served[1].log.append_record("clicks of today", None, b"a", create=True)
        await here.served[1].log.append_record("orders", None, b"b", create=True)
        await here.fleet._membership.look()
        batch = await consumer.batch(max_wait=0)
        assert batch is not None
        assert (batch.server, batch.queue, batch.payloads()) == ("wal-1", "clicks of today", [b"a"])


async def test_another_holder_ends_this_one(tmp_path: Path) -> None:
    """The error is raised by batch and acknowledge: somebody else has the records now."""
    async with running(tmp_path) as here:
        await here.served[0].log.append_record("q", None, b"a", create=True)
        async with here.fleet.consumer("q", "lake") as first:
            batch = await first.batch(max_wait=0)
            assert batch is not None
            async with here.fleet.consumer("q", "lake"):
                with pytest.raises(ConsumerFencedError):
                    await first.acknowledge(batch)
                with pytest.raises(ConsumerFencedError):
                    await first.batch(max_wait=0)
        owner = "0f" * 16
        async with here.fleet.consumer("q", "lake", owner=owner, take_over=True):
            with pytest.raises(ConsumerOwnedError):
                await here.fleet.consumer("q", "lake", owner="1f" * 16).__aenter__()


async def test_a_consumer_that_cannot_be_entered_leaves_nothing_behind(tmp_path: Path) -> None:
    """One of the servers refuses it: what reads the other one ends."""
    async with running(tmp_path) as here:
        await here.fleet.create_queue("q")
        async with RecordLogClient(here.served[1].url) as client, client.consumer("q", "lake", owner="0f" * 16):
            pass
        with pytest.raises(ConsumerOwnedError):
            await here.fleet.consumer("q", "lake").__aenter__()
        assert not [task for task in asyncio.all_tasks() if task.get_name() == "consumer lake of a fleet"]


async def test_a_consumer_that_is_entered_again_hands_out_what_was_not_acknowledged(tmp_path: Path) -> None:
    """As one of a single service does; even after an end, and after a server that refused it lets it in."""
    async with running(tmp_path) as here:
        await here.served[0].log.append_record("q", None, b"a", create=True)
        await here.served[1].log.create_queue("q")
        async with RecordLogClient(here.served[1].url) as client, client.consumer("q", "lake", owner="0f" * 16):
            consumer = here.fleet.consumer("q", "lake")
            with pytest.raises(ConsumerOwnedError):
                await consumer.__aenter__()
            await client.delete_consumer("q", "lake")
        async with asyncio.timeout(20):
            async with consumer:
                batch = await consumer.batch(max_wait=0)
                assert batch is not None and batch.payloads() == [b"a"]
            await here.fleet.seal_queue("q")
            for left in ([b"a"], []):
                async with consumer:
                    assert await rest(consumer) == left


async def test_a_consumer_ends_with_its_fleet_also_while_a_server_is_away(tmp_path: Path) -> None:
    """The call that waits for a batch gets the error; nothing looks at the servers any more."""
    async with running(tmp_path, 1) as here:
        await here.served[0].log.create_queue("q")
        consumer = await here.fleet.consumer("q", "lake").__aenter__()
        here.cut(0)
        await here.fleet.look()
        waiting = asyncio.create_task(consumer.batch())
        await asyncio.sleep(0)
        await here.fleet.close()
        with pytest.raises(LogClosedError):
            await asyncio.wait_for(waiting, 60)
        await consumer.__aexit__(None, None, None)


async def test_a_batch_that_waits_while_the_block_is_left_ends(tmp_path: Path) -> None:
    """Nothing reads for it any more. It raises what the next call does, even if the consumer is entered again."""
    async with running(tmp_path, 1) as here:
        consumer = here.fleet.consumer("q", "lake")
        for enters_again in (False, True):
            async with consumer:
                waiting = [asyncio.create_task(consumer.batch()) for _ in range(2)]
                await asyncio.sleep(0)
            if enters_again:
                await consumer.__aenter__()
            async with asyncio.timeout(60):
                for one in waiting:
                    with pytest.raises(RuntimeError, match="the consumer is not attached"):
                        await one
        await here.served[0].log.append("q", b"a", create=True)
        await here.fleet.look()
        batch = await consumer.batch()
        assert batch is not None and batch.payloads() == [b"a"]
        await consumer.__aexit__(None, None, None)


async def test_a_consumer_of_a_fleet_that_was_not_entered_does_not_wait() -> None:
    """Nobody looks for its servers."""
    async with RecordLogFleet("http://127.0.0.1:1").consumer("q", "lake") as consumer:
        with pytest.raises(LogClosedError, match="not entered"):
            await asyncio.wait_for(consumer.batch(), 60)


async def test_a_queue_that_was_made_again_is_read_from_its_beginning(tmp_path: Path) -> None:
    """An acknowledgement of the deleted queue's records does not count for the new ones."""
    async with running(tmp_path, 1) as here:
        log = here.served[0].log
        for payload in (b"a", b"b", b"c"):
            await log.append_record("q", None, payload, create=True)
        async with here.fleet.consumer("q", "lake") as consumer:
            old = await consumer.batch(max_wait=0)
            assert old is not None
            await log.delete_queue("q", past_consumers=True)
            await log.append_record("q", None, b"new", create=True)
            new = None
            while new is None or new.queue_id == old.queue_id:
                await here.fleet._membership.look()
                new = await consumer.batch(max_wait=0)
            assert new.payloads() == [b"new"]
            assert await consumer.acknowledge(old)
            assert log.consumers("q")["lake"].position == 0
            assert await consumer.acknowledge(new)
            assert log.consumers("q")["lake"].position == 1


@pytest.mark.asyncio(loop_factories=["uvloop"])  # processes take long to start
async def test_a_consumer_survives_a_kill_under_a_weaker_policy(tmp_path: Path) -> None:
    """Such a log knows no holder from before: the consumer attaches again, because the log was opened since."""
    with Process(tmp_path / "wal", ["--persist", "never"]) as process:
        async with RecordLogFleet(process.address) as fleet:
            while not fleet.servers():
                await fleet._membership.look()
            await fleet.append_record("q", b"a")
            async with fleet.consumer("q", "lake") as consumer:
                batch = await consumer.batch(max_wait=0)
                assert batch is not None and await consumer.acknowledge(batch)
                await asyncio.to_thread(process.kill)
                await asyncio.to_thread(process.start)
                stored = await fleet.append_record("q", b"b")
                batch = await consumer.batch(max_wait=0)
                while batch is not None and batch.last_position != stored.position:
                    batch = await consumer.batch(max_wait=0)
                assert batch is not None and batch.payloads()[-1] == b"b"


@pytest.mark.asyncio(loop_factories=["uvloop"])  # processes take long to start
@pytest.mark.parametrize(("policy", "new"), [("never", 3), ("always", 1)], ids=["power cut", "restored"])
async def test_a_batch_of_records_that_the_log_has_lost_acknowledges_no_others(
    tmp_path: Path, policy: str, new: int
) -> None:
    """A power cut under a weaker policy, or a restored copy, gives their positions to other records."""
    directory, copy = tmp_path / "wal", tmp_path / "copy"
    with Process(directory, ["--persist", policy]) as process:
        async with RecordLogFleet(process.address) as fleet:
            await fleet.append_record("q", b"kept")
            async with fleet.consumer("q", "lake") as consumer:
                batch = await consumer.batch(max_wait=0)
                assert batch is not None and await consumer.acknowledge(batch)
                await asyncio.to_thread(shutil.copytree, directory, copy)
                for _ in range(3):
                    await fleet.append_record("q", b"lost")
                while batch is not None and batch.last_position < 3:
                    batch = await consumer.batch(max_wait=0)
                assert batch is not None
                await asyncio.to_thread(process.kill)
                await asyncio.to_thread(shutil.rmtree, directory)
                await asyncio.to_thread(shutil.copytree, copy, directory)
                await asyncio.to_thread(process.start)
                wanted = [b"new %d" % number for number in range(new)]
                for payload in wanted:
                    await fleet.append_record("q", payload)
                assert not await consumer.acknowledge(batch)
                client = fleet.client(batch.log_id)
                assert (await client.consumers("q"))["lake"].position == 1
                found: list[bytes] = []
                while len(found) < new:
                    batch = await consumer.batch(max_wait=0)
                    assert batch is not None
                    found += batch.payloads()
                assert found == wanted and await consumer.acknowledge(batch)
                assert (await client.consumers("q"))["lake"].records == 0


async def test_a_queue_that_was_made_again_while_a_batch_waited_is_read(tmp_path: Path) -> None:
    """Nobody fenced its holder: no request was under way when the queue was deleted, and the new one has a rule."""
    async with running(tmp_path, 1) as here:
        served = here.served[0]
        await served.log.append_record("q", None, b"a", create=True)
        async with here.fleet.consumer("*", "lake") as consumer:
            first = await consumer.batch(max_wait=0)
            while not served.service.tails:
                await asyncio.sleep(0)
            await served.log.append_record("q", None, b"b")
            while consumer._offered.empty():
                await asyncio.sleep(0)
            await served.log.delete_queue("q", past_consumers=True)
            await served.log.append_record("q", None, b"new", create=True)
            second, third = await consumer.batch(max_wait=0), await consumer.batch(max_wait=0)
        assert [one and one.payloads() for one in (first, second, third)] == [[b"a"], [b"b"], [b"new"]]


@pytest.mark.parametrize("queue", ["q", "*"])
async def test_a_server_that_is_forgotten_ends_only_its_own_readers(tmp_path: Path, queue: str) -> None:
    """Even if a request waits there: a machine that is switched off closes no connection."""
    async with running(tmp_path) as here:
        for number, one in enumerate(here.served):
            await one.log.append_record("q", None, b"%d" % number, create=True)
        async with here.fleet.consumer(queue, "lake") as consumer:
            for _ in here.served:
                batch = await consumer.batch(max_wait=0)
                assert batch is not None and await consumer.acknowledge(batch)
            while not all(one.service.tails for one in here.served):
                await asyncio.sleep(0)
            await here.fleet.forget(here.served[0].log.inspection.public_id)
            await here.served[1].log.append_record("q", None, b"more")
            batch = await consumer.batch(max_wait=0)
            assert batch is not None and batch.payloads() == [b"more"]
            # It was only thought to be gone.
            await here.fleet._membership.look()
            await here.served[0].log.append_record("q", None, b"back")
            batch = await consumer.batch(max_wait=0)
            assert batch is not None and batch.payloads() == [b"back"]


async def test_what_is_handed_out_and_not_acknowledged_comes_again(tmp_path: Path) -> None:
    """To the next holder of the name, even after the fleet was closed."""
    async with serving(tmp_path / "wal", persist_policy=PersistPolicy.always()) as served:
        await served.log.append_record("q", None, b"a", create=True)
        for _ in range(2):
            async with RecordLogFleet(served.url) as fleet, fleet.consumer("q", "lake") as consumer:
                batch = await consumer.batch(max_wait=0)
                assert batch is not None and batch.payloads() == [b"a"]


async def test_a_fleet_waits_for_an_acknowledgement_at_the_server_that_has_the_record(tmp_path: Path) -> None:
    """Even if that server is away in between; positions of the other one do not count."""
    async with running(tmp_path) as here:
        stored = [await here.fleet.append_record("q", b"", key=f"{number}") for number in range(20)]
        first = next(one for one in stored if here.index(one) == 0)
        for one in here.served:
            await one.log.create_consumer("q", "lake", start=0)
        waiting = asyncio.create_task(here.fleet.wait_acknowledged(first, "lake"))
        while not here.served[0].service.tails:
            await asyncio.sleep(0)
        async with here.served[1].log.consumer("q", "lake") as other:
            await other.acknowledge(here.served[1].log.next_position("q") - 1)
        here.cut(0)
        with pytest.raises(TimeoutError):
            await here.fleet.wait_acknowledged(first, "lake", timeout=0.1)
        with pytest.raises(ValueError, match="timeout must be at least 0 seconds"):
            await here.fleet.wait_acknowledged(first, "lake", timeout=float("nan"))
        async with here.served[0].log.consumer("q", "lake") as lake:
            await lake.acknowledge(first.position or 0)
        assert not waiting.done()
        await here.mend(0)
        await waiting


async def delete_consumer(log: MultiRecordLog) -> None:
    await log.delete_consumer("q", "lake")


async def delete_queue(log: MultiRecordLog) -> None:
    await log.delete_queue("q", past_consumers=True)


async def test_a_fleet_does_not_wait_for_what_nobody_will_acknowledge(tmp_path: Path) -> None:
    """Passed by a truncate, or deleted: as the log says it. If nothing was stored, there is nothing to wait for."""
    async with running(tmp_path, 1) as here:
        (served,) = here.served
        stored = [await here.fleet.append_record("q", b"") for _ in range(2)]
        await served.log.create_consumer("q", "lake", start=0)
        await served.log.truncate("q", 0, past_consumers=True)
        with pytest.raises(RecordTruncatedError):
            await here.fleet.wait_acknowledged(stored[0], "lake")
        for delete, error in ((delete_consumer, ConsumerNotFoundError), (delete_queue, QueueNotFoundError)):
            await served.log.create_consumer("q", "lake", exist_ok=True)
            waiting = asyncio.create_task(here.fleet.wait_acknowledged(stored[1]._replace(position=2), "lake"))
            while not served.service.tails:
                await asyncio.sleep(0)
            await delete(served.log)
            with pytest.raises(error):
                await waiting
        await here.fleet.wait_acknowledged(stored[0]._replace(position=None), "lake")
        await here.fleet.forget(stored[0].log_id)
        with pytest.raises(KeyError):
            await here.fleet.wait_acknowledged(stored[0], "lake")


async def test_a_timeout_returns_an_empty_batch_and_loses_nothing(tmp_path: Path) -> None:
    """It is not the end and acknowledges nothing; a record that comes later is handed out by a later call."""
    async with running(tmp_path) as here, here.fleet.consumer("q", "lake") as consumer:
        await here.fleet.create_queue("q")
        nothing = await consumer.batch(timeout=0.01)
        assert nothing is not None and not nothing and nothing.server == ""
        assert await consumer.acknowledge(nothing)
        await here.fleet.append_record("q", b"a")
        found = None
        while not found:
            found = await consumer.batch(max_wait=0, timeout=0.01)
            assert found is not None
        assert found.payloads() == [b"a"]
        assert await consumer.acknowledge(found)
        await here.fleet.seal_queue("q")
        assert await consumer.batch(timeout=20) is None


async def test_available_is_what_all_servers_have_now(tmp_path: Path) -> None:
    """Queues that were just created too; each record once, though it is asked for again without an acknowledgement."""
    async with running(tmp_path) as here, here.fleet.consumer("click*", "lake") as consumer:
        assert [batch async for batch in consumer.available()] == []
        for number in range(60):
            name = f"clicks-{number % 3}"
            await here.served[number % 2].log.append_record(name, None, b"%d" % number, create=True)
        found = [payload async for batch in consumer.available(max_records=4) for payload in batch.payloads()]
        assert sorted(found) == sorted(b"%d" % number for number in range(60))
        assert [batch async for batch in consumer.available()] == []
        await here.served[1].log.append_record("clicks-0", None, b"later")
        assert [batch.payloads() async for batch in consumer.available()] == [[b"later"]]


async def test_available_ends_though_records_come_faster_than_they_are_taken(tmp_path: Path) -> None:
    """Each batch is answered by new records on both servers."""
    async with running(tmp_path) as here:
        for one in here.served:
            await one.log.append_records("q", None, [b"a"] * 10, create=True)
        async with here.fleet.consumer("q", "lake") as consumer:
            count = 0
            async for batch in consumer.available(max_records=1):
                count += len(batch)
                for one in here.served:
                    await one.log.append_records("q", None, [b"b"] * 2)
        assert count >= 20


async def test_available_leaves_out_a_server_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once if it is away before the first batch, after a time if it goes away later; and it says which."""
    async with running(tmp_path) as here:
        for number, one in enumerate(here.served):
            await one.log.append_records("q", None, [b"%d" % number] * 20, create=True)
        async with here.fleet.consumer("q", "lake") as consumer:
            monkeypatch.setattr(consuming, "AWAY_SECONDS", 0.0)
            batches = consumer.available(max_records=1)
            await anext(batches)
            here.cut(0)
            assert [batch.server async for batch in batches].count("wal-1") >= 19
            assert batches.left_out == {here.served[0].log.inspection.public_id}
            monkeypatch.undo()
            await here.served[1].log.append_record("q", None, b"later")
            batches = consumer.available()
            assert [batch.payloads() async for batch in batches] == [[b"later"]]
            assert batches.left_out == {here.served[0].log.inspection.public_id}
            await here.mend(0)
            batches = consumer.available()
            assert "wal-0" in {batch.server async for batch in batches} and not batches.left_out


async def test_available_waits_for_a_server_that_is_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its other records come when it is back, and it is not said to be left out."""
    clock = iter(range(100))
    monkeypatch.setattr(consuming, "monotonic", lambda: next(clock))
    extents = iter([(0, 2), None, None, (1, 5), (1, 5)])
    empty = Batch.empty("q", 1, 1)
    given = iter([Batch("q", 1, [Run.of(0, [b"a"])]), empty, empty, Batch("q", 1, [Run.of(1, [b"b"])])])

    async def find_extents() -> consuming.Extents:
        return {("log", "q"): next(extents)}

    async def batch(**limits: object) -> FleetBatch:
        return FleetBatch(next(given), "log", "wal-0", 1)

    batches = AvailableOfFleet(batch, BatchLimits(1, 1, 0), find_extents)
    monkeypatch.setattr(consuming, "LOOK_SECONDS", 1.5)
    assert [one.payloads() async for one in batches] == [[b"a"], [b"b"]]
    assert batches.left_out == set()
    assert list(extents) == [(1, 5)]  # looked at before each batch but the first


async def test_available_does_not_wait_for_records_that_were_truncated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were there when the first batch was asked for; even while another server hands out batch after batch."""
    monkeypatch.setattr(consuming, "LOOK_SECONDS", 0.05)
    async with running(tmp_path) as here:
        (first, busy) = (one.log for one in here.served)
        await first.append_records("q", None, [b"a"] * 20, create=True)
        await busy.append_record("q", None, b"b", create=True)
        async with here.fleet.consumer("q", "lake") as consumer, asyncio.timeout(60):
            batches, count = consumer.available(max_records=1), 0
            async for batch in batches:
                count += batch.server == "wal-0"
                await first.truncate("q", 19, past_consumers=True)
                await busy.append_record("q", None, b"b")
        assert count <= 3  # what was read ahead
        assert not batches.left_out
