"""Batch reads without a JVM: services and directories."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSourceReader

from mrecordlog_async import MultiRecordLog
from mrecordlog_async.errors import CorruptionError
from mrecordlog_async.log import OpeningLog
from mrecordlog_async.spark.positions.offsets import DataLossError
from mrecordlog_async.spark.services.connection import ServiceRefusedError
from mrecordlog_async.spark.settings.option_values import OptionError
from mrecordlog_async.spark.settings.options import Options
from mrecordlog_async.spark.source.directory import DirectoryReader
from mrecordlog_async.spark.source.reader import LogReader, PlannedPartition
from tests.spark.conftest import NewService
from tests.spark.services import ThreadedService, numbered


def read(reader: DataSourceReader) -> list[tuple[Any, ...]]:
    """Plan with the reader, and read with a pickled copy."""
    sent = cloudpickle.dumps((reader, list(reader.partitions())))  # type: ignore[no-untyped-call]  # Spark's copy
    copy, partitions = cloudpickle.loads(sent)
    return [
        tuple(value for name, value in row.items() if name not in ("queue_id", "timestamp"))
        for part in partitions
        for batch in copy.read(part)
        for row in batch.to_pylist()
    ]


def reader_of(service: ThreadedService, **options: str) -> LogReader:
    return LogReader(Options.parse({"servers": service.url, "retries": "0", **options}))


def positions(rows: list[tuple[Any, ...]], queue: str = "q") -> list[int]:
    return [row[2] for row in rows if row[1] == queue]


# Services.


def test_everything_retained_is_read(service: ThreadedService) -> None:
    """A read returns every retained record, across gaps."""
    service.append("q", numbered("q", 0, 5))
    service.append("q", [b"far"], 10**12)
    service.truncate("q", 1)
    assert positions(read(reader_of(service))) == [2, 3, 4, 10**12]


def test_a_table_is_fixed_when_it_is_planned(service: ThreadedService) -> None:
    """Later records are not in the table; if planned ones are deleted, the read fails and says what to do."""
    service.append("q", numbered("q", 0, 5))
    reader = reader_of(service)
    partitions = reader.partitions()
    service.append("q", numbered("q", 5, 9))
    rows = [row for part in partitions for batch in reader.read(part) for row in batch.to_pylist()]
    assert [row["position"] for row in rows] == [0, 1, 2, 3, 4]
    service.truncate("q", 0)
    with pytest.raises(
        ServiceRefusedError, match=r"410: .*records before 1 are truncated.*; make the DataFrame or the"
    ):
        list(reader.read(partitions[0]))
    service.call(service.log.delete_queue("q"))
    with pytest.raises(ServiceRefusedError, match=r"404: .*; make the DataFrame or the view again"):
        list(reader.read(partitions[0]))
    service.tokens = frozenset({b"0123456789abcdef"})
    service.stop()
    service.start()
    with pytest.raises(ServiceRefusedError, match=r"401: ((?!DataFrame).)*$"):
        list(reader.read(partitions[0]))


def test_offsets_bound_a_table(service: ThreadedService) -> None:
    """The start is included, the end is not; a start that is truncated is a loss, or moved."""
    service.append("q", numbered("q", 0, 10))
    bounds = {"startingOffsets": '{"default": {"q": 3}}', "endingOffsets": '{"default": {"q": 5}}'}
    assert positions(read(reader_of(service, **bounds))) == [3, 4]
    beyond = {"endingOffsets": '{"default": {"q": 11}}'}
    with pytest.raises(DataLossError):
        reader_of(service, **beyond).partitions()
    assert len(read(reader_of(service, failOnDataLoss="false", **beyond))) == 10


def test_partitions_are_as_small_as_asked(service: ThreadedService) -> None:
    """minPartitions and maxRecordsPerPartition are obeyed, and each record is read once."""
    service.append("q", numbered("q", 0, 1_000))
    for options, count in (({"minPartitions": "4"}, 4), ({"maxRecordsPerPartition": "100"}, 10)):
        reader = reader_of(service, **options)
        assert len(reader.partitions()) == count
        assert positions(read(reader)) == list(range(1_000))


def test_queues_are_read_in_the_order_of_their_ids(service: ThreadedService) -> None:
    """As the service has them next to each other on its disk, once they left its memory."""
    for queue in ("c", "a", "d", "b"):
        service.append(queue, numbered(queue, 0, 100))
    for options in ({}, {"maxRecordsPerPartition": "70"}):
        partitions = [part for part in reader_of(service, **options).partitions() if isinstance(part, PlannedPartition)]
        found = [(each.queue, each.start) for part in partitions for each in part.value.ranges]
        assert [queue for queue, start in found if start == 0] == ["c", "a", "d", "b"]
        assert found == sorted(found, key=lambda each: ("cadb".index(each[0]), each[1]))


def test_a_token_beyond_ascii_is_sent_as_the_service_reads_it(new_service: NewService) -> None:
    """In UTF-8, as by the command line; even one that Latin-1 does not have."""
    for token in ("0123456789abcdef-ü", "0123456789abcdef-€"):
        service = new_service(token)
        service.append("q", numbered("q", 0, 2))
        reader = LogReader(Options.parse({"servers": service.url, "token": token}))
        assert len(reader.partitions()) == 1


def test_a_server_that_is_down_may_be_left_out(new_service: NewService) -> None:
    """A server that is down is skipped only with failOnServerDown=false."""
    first, second = new_service(), new_service()
    first.append("q", numbered("q", 0, 3))
    second.stop()
    options = {"servers": f"a={first.url},b={second.url}", "retries": "0"}
    with pytest.raises(Exception, match="cannot be reached"):
        LogReader(Options.parse(options)).partitions()
    assert len(read(LogReader(Options.parse({**options, "failOnServerDown": "false"})))) == 3
    second.start()


# Directories.


def write_segments(directory: Path) -> dict[str, list[tuple[int, bytes]]]:
    """Write a log of several small segments with two queues: one truncated, one deleted and recreated."""
    return asyncio.run(_write_segments(directory))


async def _write_segments(directory: Path) -> dict[str, list[tuple[int, bytes]]]:
    async with MultiRecordLog.open(directory, segment_bytes=4 * 32_768) as log:
        for queue in ("a", "b"):
            await log.create_queue(queue)
        for round in range(20):
            await log.append_records("a", None, [bytes([round]) * 1_000] * 20)
            await log.append_records("b", None, [b"b%d" % round])
        await log.truncate("a", 50)
        await log.delete_queue("b")
        await log.create_queue("b")
        await log.append_record("b", 7, b"anew")
        return {queue: [(at, payload) for at, payload in log.range(queue)] for queue in log.list_queues()}


def test_a_directory_is_read_segment_by_segment(tmp_path: Path) -> None:
    """Each segment with live records is one partition; together they are the log."""
    expected = write_segments(tmp_path / "wal")
    reader = DirectoryReader(Options.parse({"path": str(tmp_path / "wal")}))
    assert len(reader.partitions()) > 2
    found = read(reader)
    for queue, records in expected.items():
        assert [(row[2], row[3]) for row in found if row[1] == queue] == records
    assert {row[0] for row in found} == {""}


def test_a_directory_is_bounded_as_a_service_is(tmp_path: Path) -> None:
    """Subscription and offsets apply to a directory too; its server name is empty."""
    write_segments(tmp_path / "wal")
    given = {"path": str(tmp_path / "wal"), "subscribe": "a"}
    bounds = {"startingOffsets": '{"": {"a": 60}}', "endingOffsets": '{"": {"a": 62}}'}
    assert positions(read(DirectoryReader(Options.parse({**given, **bounds}))), "a") == [60, 61]
    with pytest.raises(DataLossError):
        DirectoryReader(Options.parse({**given, "startingOffsets": '{"": {"a": 5}}'})).partitions()


def test_an_empty_directory_has_no_rows(tmp_path: Path) -> None:
    """A log without records is a table without rows."""
    asyncio.run(_close(MultiRecordLog.open(tmp_path / "wal")))
    assert read(DirectoryReader(Options.parse({"path": str(tmp_path / "wal")}))) == []


async def _close(opening: OpeningLog) -> None:
    await (await opening).close()


def test_damage_after_the_plan_fails_the_task(tmp_path: Path) -> None:
    """A segment that changed since planning is never silently read up to the damage."""
    write_segments(tmp_path / "wal")
    reader = DirectoryReader(Options.parse({"path": str(tmp_path / "wal")}))
    partitions = reader.partitions()
    segment = next((tmp_path / "wal").glob(f"wal-*{partitions[0].value.share.segment}"))
    with segment.open("r+b") as file:
        file.seek(50_000)
        file.write(b"\xff\xff\xff")
    with pytest.raises(CorruptionError, match="was intact when"):
        list(reader.read(partitions[0]))
    segment.unlink()
    with pytest.raises(
        DataLossError, match="was removed: its records were truncated; make the DataFrame or the view again"
    ):
        list(reader.read(partitions[0]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "q,misspelt"}, "no server has a queue 'misspelt'"),
        ({"startingOffsets": '{"default": {"misspelt": 5}}'}, "no queue 'misspelt'"),
        ({"endingOffsets": '{"default": {"misspelt": 5}}'}, "no queue 'misspelt'"),
    ],
)
def test_a_queue_that_is_not_there_is_named(service: ThreadedService, options: dict[str, str], message: str) -> None:
    """A queue that does not exist is refused, because it would be read as empty."""
    service.append("q", numbered("q", 0, 5))
    with pytest.raises(OptionError, match=message):
        reader_of(service, **options).partitions()


def test_many_sparse_records_are_not_joined_into_one_request(service: ThreadedService) -> None:
    """Ranges with gaps cannot be cut by position, so the service's small pieces stay separate."""
    for at in range(40):
        service.append("q", [b"x"] * 500, at * 10_000)
    (whole,) = reader_of(service, minPartitions="1").partitions()
    assert isinstance(whole, PlannedPartition)
    assert [each.records for each in whole.value.ranges] == [8_000, 8_000, 4_000]
    assert len(positions(read(reader_of(service)))) == 20_000


@pytest.mark.parametrize("payload", ["true", "false"])
def test_rows_have_the_time_at_which_they_were_stored(service: ThreadedService, payload: str) -> None:
    """The time is the log's own, in steps of 0.1 s, and it is the same after a restart."""
    service.append("q", numbered("q", 0, 3))
    for again in (False, True):
        if again:
            service.stop()
            service.start()
        reader = LogReader(Options.parse({"servers": service.url, "payload": payload}))
        rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
        assert [row["timestamp"] for row in rows] == [service.log.time_of("q", at) for at in range(3)]
