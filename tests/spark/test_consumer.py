"""A stream that is a consumer: it acknowledges what its checkpoint has committed, and shares its queues with others."""

from __future__ import annotations

import errno
import pickle
import uuid
from pathlib import Path
from typing import Any

import pytest

from mrecordlog_async.model import ConsumerSummary
from mrecordlog_async.options import QueueOptions
from mrecordlog_async.protocol.calls import ServiceCall
from mrecordlog_async.spark import log_stream
from mrecordlog_async.spark.consuming import ConsumerNotOursError
from mrecordlog_async.spark.log_server import LogServer
from tests.spark.query import Query, rows_of, through_json
from tests.spark.services import ThreadedService, numbered

SHARED = QueueOptions(keep="until_acknowledged")
OWNER, OTHER = str(uuid.uuid4()), str(uuid.uuid4())


def shared(service: ThreadedService, *queues: str) -> ThreadedService:
    """Create queues that keep records until they are acknowledged, with ten records each."""
    for queue in queues:
        service.call(service.log.create_queue(queue, options=SHARED))
        service.append(queue, numbered(queue, 0, 10))
    return service


def stream(service: ThreadedService, consumer: str = "lake", owner: str = OWNER, **options: str) -> Query:
    return Query(service.url, consumer=consumer, consumerOwner=owner, **options)


def consumers(service: ThreadedService, queue: str) -> dict[str, ConsumerSummary]:
    async def find() -> dict[str, ConsumerSummary]:
        return dict(service.log.consumers(queue))

    return service.call(find())


def acknowledge_all(service: ThreadedService, queue: str, consumer: str) -> None:
    """Be a worker that takes everything and acknowledges it."""

    async def work() -> None:
        async with service.log.consumer(queue, consumer) as held:
            batch = await held.batch(max_wait=0)
            assert batch is not None
            await held.acknowledge(batch)

    service.call(work())


def test_streams_and_workers_share_a_queue(service: ThreadedService) -> None:
    """Each reads everything at its own pace; the log drops what all of them have acknowledged."""
    shared(service, "q", "r")
    lake, audit = stream(service, maxRecordsPerTrigger="8"), stream(service, "audit", OTHER)
    service.call(service.log.create_consumer("q", "worker"))
    lake.drain()
    assert (service.positions("q"), service.positions("r")) == ((0, 10), (10, 10))  # audit has not met r yet
    audit.drain()
    for query in (lake, audit):
        assert sorted(query.rows)[:10] == rows_of("default", "q", 0, 10)
    assert service.positions("q") == (0, 10)
    assert {name: one.records for name, one in consumers(service, "q").items()} == {"audit": 0, "lake": 0, "worker": 10}
    acknowledge_all(service, "q", "worker")
    service.append("q", numbered("q", 10, 12))
    lake.drain()
    assert service.positions("q") == (10, 12)
    audit.drain()
    acknowledge_all(service, "q", "worker")
    assert service.positions("q") == (12, 12)
    assert sorted(lake.rows)[:12] == sorted(audit.rows)[:12] == rows_of("default", "q", 0, 12)


def test_another_owner_is_refused_until_it_takes_over(service: ThreadedService) -> None:
    """A new checkpoint on the same consumer is refused; after a take-over the earlier query ends."""
    shared(service, "q")
    first = stream(service)
    first.drain()
    service.append("q", numbered("q", 10, 20))
    second = stream(service, owner=OTHER)
    with pytest.raises(ConsumerNotOursError, match=f"'lake' belongs to another reader.*{OWNER}.*--take-over"):
        second.step()
    first.restart()
    first.step()  # read, but not acknowledged
    second = stream(service, owner=OTHER, takeOver="true")
    second.step()
    with pytest.raises(ConsumerNotOursError, match=r"queue 'q'.*no longer held"):
        first.step()
    assert service.positions("q") == (10, 20)
    first.restart()
    with pytest.raises(ConsumerNotOursError):
        first.step()
    second.drain()
    assert (first.rows[10:], second.rows) == (rows_of("default", "q", 10, 20), rows_of("default", "q", 10, 20))
    assert service.positions("q") == (20, 20)


def test_a_consumer_ahead_of_the_checkpoint_is_refused(service: ThreadedService) -> None:
    """An older checkpoint, or another program with the same consumer; a take-over reads again what is still there."""
    shared(service, "q", "r")
    service.call(service.log.create_consumer("q", "slow"))
    acknowledge_all(service, "q", "lake")
    lake = stream(service)
    with pytest.raises(ConsumerNotOursError, match=r"queue 'q': .* acknowledged up to position 10, and .* before 0"):
        lake.drain()
    assert consumers(service, "q")["lake"].position == 10
    lake.options["takeOver"] = "true"
    lake.drain()
    assert sorted(lake.rows) == rows_of("default", "q", 0, 10) + rows_of("default", "r", 0, 10)
    service.append("q", numbered("q", 10, 15))
    old = through_json(lake.committed)
    del lake.options["takeOver"]
    lake.drain()
    lake.committed = old
    with pytest.raises(ConsumerNotOursError, match=r"acknowledged up to position 15, and .* before 10"):
        lake.drain()


def test_a_checkpoint_ahead_of_the_consumer_acknowledges(service: ThreadedService) -> None:
    """A stream that had no consumer yet, or was killed before it acknowledged."""
    shared(service, "q")
    lake = Query(service.url)
    lake.drain()
    lake.options |= {"consumer": "lake", "consumerOwner": OWNER}
    lake.drain()
    assert (service.positions("q"), len(lake.rows)) == ((10, 10), 10)


def test_a_batch_that_runs_again_attaches_first(service: ThreadedService) -> None:
    """After a restart, Spark may begin with `partitions`; what it sends to tasks holds nothing."""
    shared(service, "q")
    lake = stream(service)
    lake.step(die_before_commit=True)
    end = lake.planned or {}
    service.call(service.log.inspection.attach_consumer("q", "lake", owner=OTHER, take_over=True))
    with pytest.raises(ConsumerNotOursError):
        lake.reader.partitions(lake.committed, end)
    lake.options["takeOver"] = "true"
    lake.restart()
    (partition,) = lake.reader.partitions(lake.committed, end)
    copy = pickle.loads(pickle.dumps(lake.reader))
    assert sum(batch.num_rows for batch in copy.read(partition)) == 10
    copy.stop()


def test_a_deleted_consumer_ends_the_query(service: ThreadedService) -> None:
    """It no longer keeps records; the next start creates it again."""
    shared(service, "q")
    lake = stream(service)
    lake.step()
    service.call(service.log.delete_consumer("*", "lake"))
    with pytest.raises(ConsumerNotOursError, match="start again"):
        lake.step()
    lake.drain()
    assert service.positions("q") == (10, 10)


def test_records_that_go_before_the_attach_are_not_missed(
    service: ThreadedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program may acknowledge the last records that it needs after the listing: it is listed once more."""
    shared(service, "q")
    service.acknowledge("q", "other", 1)
    send = LogServer.send

    def attach_later(server: LogServer, call: ServiceCall[Any], log: str = "") -> Any:
        if call.path == "/v1/attach":
            service.acknowledge("q", "other", 4)
        return send(server, call, log)

    monkeypatch.setattr(LogServer, "send", attach_later)
    lake = stream(service, subscribe="q")  # no rule gives it the consumer before
    lake.drain()
    assert lake.rows == rows_of("default", "q", 5, 10)


def test_nothing_is_acknowledged_if_the_sync_fails(
    service: ThreadedService, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What is acknowledged may be dropped: the checkpoint is on the medium first, as before a truncate."""
    shared(service, "q")

    def fail(handle: int) -> None:
        raise OSError(errno.EIO, "I/O error")

    monkeypatch.setattr(log_stream, "syncfs", fail)
    lake = stream(service, syncDirs=str(tmp_path))
    with pytest.raises(OSError, match="I/O error"):
        lake.drain()
    assert consumers(service, "q")["lake"].position == 0


def test_a_truncate_past_a_consumer_is_refused_and_said_once(
    service: ThreadedService, caplog: pytest.LogCaptureFixture
) -> None:
    """A stream without a consumer truncates, but only what the consumers of a queue have acknowledged."""
    shared(service, "q", "r")
    service.call(service.log.create_consumer("q", "worker"))
    lake = Query(service.url, truncate="true")
    lake.drain()
    for _ in range(3):
        assert not lake.step()
    assert (service.positions("q"), service.positions("r")) == ((0, 10), (10, 10))
    (line,) = [one.getMessage() for one in caplog.records if one.name == "mrecordlog_async.spark"]
    assert "consumer 'worker' is at 0" in line and "consumer=NAME" in line
    acknowledge_all(service, "q", "worker")
    lake.drain()
    assert service.positions("q") == (10, 10)
