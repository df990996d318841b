"""Consumers that a program declares: they exist before it has the log, and are never moved."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from mrecordlog_async import (
    ConsumerNameError,
    Limits,
    LogFullError,
    MultiRecordLog,
    QueueNameError,
    QueueNotFoundError,
    QueueOptions,
    ReadOnlyLog,
)
from mrecordlog_async.embedding import check_embed, embedded
from tests.cli.running import mrecordlog

QUEUES = {"audit": QueueOptions(keep="until_acknowledged")}
BOTH = {"audit": ["search", "archive"]}


def declared(directory: Path, consumers: dict[str, list[str]] = BOTH, **options: Any) -> Any:
    """Open a log whose queue removes what its consumers have acknowledged."""
    return MultiRecordLog.open(directory, queues=QUEUES, consumers=consumers, **options)


def positions(log: MultiRecordLog, queue: str = "audit") -> dict[str, int]:
    """Return where the consumers of a queue are."""
    return {name: one.position for name, one in log.consumers(queue).items()}


async def test_every_declared_worker_gets_every_record_whoever_attaches_first(directory: Path) -> None:
    """A worker that acknowledges before another one has attached for the first time takes nothing from it."""
    acknowledged, got = asyncio.Event(), asyncio.Queue[list[bytes]]()

    async def search(log: MultiRecordLog) -> None:
        async with log.consumer("audit", "search") as consumer:
            async for batch in consumer.batches(max_records=10):
                await consumer.acknowledge(batch)
                acknowledged.set()

    async def archive(log: MultiRecordLog) -> None:
        await acknowledged.wait()  # it starts slowly
        async with log.consumer("audit", "archive") as consumer:
            async for batch in consumer.batches(max_records=10):
                got.put_nowait(batch.payloads())
                await consumer.acknowledge(batch)

    payloads = [b"%d" % number for number in range(10)]
    async with embedded(check_embed(directory, QUEUES, BOTH, [search, archive], {}, ())) as log:
        await log.append_records("audit", None, payloads)
        assert await got.get() == payloads


async def test_queues_and_their_consumers_are_created_in_one_batch(directory: Path) -> None:
    """No crash leaves a queue that lacks its consumers; opening again changes nothing and writes nothing."""
    async with declared(directory) as log:
        assert (positions(log), log.stats().commits) == ({"search": 0, "archive": 0}, 1)
        await log.append_records("audit", None, [b"1", b"2"])
        async with log.consumer("audit", "search") as consumer:
            await consumer.acknowledge(0)
    async with declared(directory) as log:
        assert (positions(log), log.stats().commits) == ({"search": 1, "archive": 0}, 0)


async def test_a_new_consumer_of_an_old_queue_begins_with_what_it_retains(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A program that is given another consumer loses nothing that is still there; nothing is said about it."""
    async with declared(directory, {"audit": ["search"]}) as log:
        await log.append_records("audit", None, [b"0", b"1", b"2"])
        async with log.consumer("audit", "search") as consumer:
            await consumer.acknowledge(0)
    async with declared(directory) as log:
        assert positions(log) == {"search": 1, "archive": 1}
    assert not caplog.records


async def test_a_consumer_from_before_it_was_declared_stays_where_it_is(directory: Path) -> None:
    """A worker that attached before the program declared its consumer goes on there."""
    async with MultiRecordLog.open(directory, queues=QUEUES) as log:
        await log.append_records("audit", None, [b"0", b"1"])
        async with log.consumer("audit", "search") as consumer:
            await consumer.acknowledge(0)
    for _ in range(2):
        async with declared(directory) as log:
            assert positions(log)["search"] == 1


@pytest.mark.parametrize("consumers", [BOTH, {"aud*": ["search", "archive"]}], ids=["queue", "pattern"])
async def test_a_deleted_consumer_that_is_still_declared_begins_again_at_the_end(
    directory: Path, caplog: pytest.LogCaptureFixture, consumers: dict[str, list[str]]
) -> None:
    """Deleting it gave up what it had not read; the log says where it begins."""
    async with declared(directory, consumers) as log:
        await log.append_records("audit", None, [b"0", b"1"])
        await log.delete_consumer("audit", "archive")
    async with declared(directory, consumers) as log:
        assert positions(log) == {"search": 0, "archive": 2}
    assert [record.getMessage() for record in caplog.records] == [
        "queue 'audit': the declared consumer 'archive' had been deleted; it is created again at position 2, the end "
        "of the queue"
    ]
    async with declared(directory, consumers):
        assert len(caplog.records) == 1


async def test_a_queue_that_is_deleted_and_created_again_has_its_consumers(directory: Path) -> None:
    """While the log is open too: the new queue has them before its first record."""
    async with declared(directory) as log:
        await log.append("audit", b"old")
        await log.delete_queue("audit", past_consumers=True)
        await log.append("audit", b"new", create=True)
        assert positions(log) == {"search": 0, "archive": 0}


@pytest.mark.parametrize("later", [{"audit": ["search"]}, {"audit": []}, {}], ids=["fewer", "none", "nothing"])
async def test_a_consumer_that_is_not_declared_any_more_is_kept_and_named(
    directory: Path, caplog: pytest.LogCaptureFixture, later: dict[str, list[str]]
) -> None:
    """It holds records back, so every opening says how to delete it, until that is done."""
    async with declared(directory) as log:
        await log.append("audit", b"0")
        await log.create_consumer("audit", "drain")  # nobody declared it: not a word about it
    for _ in range(2):
        caplog.clear()
        async with declared(directory, later) as log:
            assert positions(log) == {"search": 0, "archive": 0, "drain": 0}
        expected = sorted({"search", "archive"} - set(later.get("audit", [])))
        assert [record.getMessage() for record in caplog.records] == [
            f"queue 'audit': the consumer {name!r} was declared and no longer is; it stays, and so do the records that "
            f"it has not acknowledged; delete it with `await log.delete_consumer('audit', {name!r})`, or with "
            f"`mrecordlog consumers {directory} audit --delete {name}` while the log is closed"
            for name in expected
        ]
    async with declared(directory, later) as log:
        for name in expected:
            await log.delete_consumer("audit", name)
    caplog.clear()
    async with declared(directory, later) as log:
        assert set(positions(log)) == {"search", "archive", "drain"} - set(expected)
    assert not caplog.records
    async with declared(directory) as log:  # a new consumer again, not one that somebody deleted
        assert positions(log) == {"search": 0, "archive": 0, "drain": 0}


async def test_a_program_that_declares_nothing_is_told_nothing(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Commands and tools open a log without a declaration: they change no consumer and print no warning."""
    async with declared(directory):
        pass
    async with MultiRecordLog.open(directory) as log:
        assert positions(log) == {"search": 0, "archive": 0}
        await log.delete_consumer("audit", "archive")
    async with MultiRecordLog.open(directory) as log:
        assert positions(log) == {"search": 0}
    assert not caplog.records


def rules_in(directory: Path) -> list[tuple[str, str]]:
    """Return the rules that a reader of the directory sees."""
    with ReadOnlyLog.open(directory) as log:
        return log.consumer_rules()


async def test_a_pattern_gives_all_queues_the_consumer_now_and_later(directory: Path) -> None:
    """As `create_consumer` does: those that exist, those that are declared with it, and those that come."""
    async with MultiRecordLog.open(directory, queues=["orders-0", "other"]) as log:
        await log.append("orders-0", b"0")
    consumers = {"orders-*": ["billing"], "orders-1": ["audit"]}
    for _ in range(2):
        async with MultiRecordLog.open(directory, queues=["orders-1"], consumers=consumers) as log:
            await log.create_queue("orders-2", exist_ok=True)
            found = {queue: positions(log, queue) for queue in log.list_queues()}
            assert found == {
                "orders-0": {"billing": 0},
                "orders-1": {"audit": 0, "billing": 0},
                "orders-2": {"billing": 0},
                "other": {},
            }
            assert log.inspection.consumer_rules() == [("orders-*", "billing")]
    assert await asyncio.to_thread(rules_in, directory) == [("orders-*", "billing")]


WRONG: list[tuple[Any, type[Exception], str]] = [
    (
        ["audit"],
        TypeError,
        r"consumers must map queues to names of consumers, as in \{'audit': \['search'\]\}, not list",
    ),
    ("audit", TypeError, "consumers must map queues"),
    ({"audit": "search"}, TypeError, r"consumers\['audit'\] must be a list of names, not 'search'; pass \['search'\]"),
    ({"audit": b"search"}, TypeError, r"must be a list of names, not b'search'"),
    ({"audit": None}, TypeError, r"consumers\['audit'\] must be a list of names, not None"),
    ({"audit": {"search": {}}}, TypeError, r"consumers\['audit'\] must be a list of names, not \{"),
    ({"audit": [b"search"]}, ConsumerNameError, "must be a str, not bytes"),
    ({"audit": [""]}, ConsumerNameError, "is empty"),
    ({7: ["search"]}, QueueNameError, "must be a str, not int"),
]


@pytest.mark.parametrize(("wrong", "error", "text"), WRONG, ids=lambda value: repr(value)[:40])
def test_what_does_not_declare_consumers_is_refused_before_anything_is_created(
    directory: Path, wrong: Any, error: type[Exception], text: str
) -> None:
    """By the log and by the embeds, with what to pass instead."""
    with pytest.raises(error, match=text):
        MultiRecordLog.open(directory, queues=QUEUES, consumers=wrong)
    with pytest.raises(error, match=text):
        check_embed(directory, QUEUES, wrong, (), {}, ())
    assert not directory.exists()


async def test_consumers_of_a_queue_that_does_not_exist_are_refused(directory: Path) -> None:
    """A misspelt name would declare nothing: no queue and no consumer is created."""
    with pytest.raises(QueueNotFoundError, match=r"queue 'audti' does not exist; add it to queues="):
        await MultiRecordLog.open(directory, queues=QUEUES, consumers={"audit": ["search"], "audti": ["search"]})
    async with MultiRecordLog.open(directory) as log:
        assert log.list_queues() == []


@pytest.mark.parametrize("name", [".", "a\nb", "x" * 256], ids=["dot", "control", "long"])
async def test_a_name_that_no_new_consumer_can_have_is_refused(directory: Path, name: str) -> None:
    """The directory is released, and nothing is created."""
    with pytest.raises(ConsumerNameError):
        await declared(directory, {"audit": [name]})
    async with MultiRecordLog.open(directory) as log:
        assert log.list_queues() == []


async def test_more_consumers_than_the_log_may_have_are_refused_as_a_whole(directory: Path) -> None:
    """Each counts twice: itself and its declaration. What exists is opened under any limit."""
    with pytest.raises(LogFullError) as caught:
        await declared(directory, limits=Limits(consumers=3))
    assert caught.value.resource == "consumers"
    async with declared(directory, limits=Limits(consumers=4)) as log:
        assert positions(log) == {"search": 0, "archive": 0}
    async with declared(directory, limits=Limits(consumers=1)) as log:
        assert positions(log) == {"search": 0, "archive": 0}


async def test_thousands_of_declared_queues_have_their_consumers(directory: Path) -> None:
    """They are created in groups, each queue together with its consumers."""
    names = [f"q{number}" for number in range(2_500)]
    consumers = dict.fromkeys(names, ("a", "b"))
    async with MultiRecordLog.open(directory, queues=names, consumers=consumers) as log:
        assert all(set(positions(log, name)) == {"a", "b"} for name in names)
    async with MultiRecordLog.open(directory, queues=names, consumers=consumers) as log:
        assert log.stats().commits == 0


def test_in_a_copy_of_the_log_a_declared_consumer_is_not_taken_for_a_deleted_one(
    directory: Path, tmp_path: Path
) -> None:
    """`dump` and `load` carry consumers, and not that they are declared: the next opening declares them again."""
    copy = tmp_path / "copy"

    async def open_and_close(place: Path) -> dict[str, int]:
        async with declared(place) as log:
            if not log.next_position("audit"):
                await log.append("audit", b"0")
            return positions(log)

    asyncio.run(open_and_close(directory))
    assert mrecordlog("load", copy, stdin=mrecordlog("dump", directory).out).code == 0
    assert asyncio.run(open_and_close(copy)) == {"search": 0, "archive": 0}
