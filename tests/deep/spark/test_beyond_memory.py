"""Spark reads a log whose records left memory as it reads one that has all of them there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

import pytest
from deltalake import DeltaTable

from mrecordlog_async import Limits, QueueOptions
from mrecordlog_async.model import TICK_NS, time_of_tick
from mrecordlog_async.spark.connection import ServiceRefusedError
from mrecordlog_async.spark.drain_call import DrainOptions, drain
from mrecordlog_async.spark.log_table import LogTable
from mrecordlog_async.spark.losses import ServersHeldError, UnreadLossError
from mrecordlog_async.spark.options import Options
from mrecordlog_async.spark.output import BatchFailedError
from mrecordlog_async.support.clock import Clock
from tests import damage
from tests.spark.conftest import NewService
from tests.spark.services import ThreadedService

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MIB = 1 << 20
SMALL = Limits(memory_bytes=MIB, beyond_memory="disk")
QUEUES = ("c", "a", "d", "b")
APPENDS = 200
RECORDS = 20 * APPENDS
"""Of each queue. One in seven appends leaves a gap in the positions of queue d."""
START = 17_000_000_000
"""Of the clock, in ticks of 0.1 s. Each append is 1 s after the one before."""


class Twins(NamedTuple):
    """Two services with the same records: one keeps 1 MiB of them in memory, the other one all."""

    small: ThreadedService
    large: ThreadedService


def payload(queue: str, number: int) -> bytes:
    """Return a record of some 300 bytes."""
    return f"{queue}:{number}:".encode() + bytes(200 + number % 200)


async def fill(service: ThreadedService, keep: str) -> None:
    """Append to the queues in turn, and wait until memory is below its limit."""
    now = START
    with patch.object(service.log._engine.opened.journal, "clock", Clock(wall_ns=lambda: now * TICK_NS)):
        for queue in QUEUES:
            options = QueueOptions(keep="until_acknowledged") if keep == "until_acknowledged" else QueueOptions()
            await service.log.create_queue(queue, options=options)
        for number in range(APPENDS):
            now += 10
            for queue in QUEUES:
                start = service.log.next_position(queue) + (100 if queue == "d" and number % 7 == 0 else 0)
                payloads = [payload(queue, 20 * number + each) for each in range(20)]
                await service.log.append_records(queue, start, payloads)
    while service.log.limits.beyond_memory == "disk" and service.log.resource_usage().memory_bytes > MIB:
        await asyncio.sleep(0.01)


def on_disk(service: ThreadedService) -> int:
    """Return how many payload bytes are on the disk alone."""

    async def found() -> int:
        return service.log.resource_usage().disk_only_bytes

    return service.call(found())


@pytest.fixture(params=["until_truncated"])
def twins(new_service: NewService, request: pytest.FixtureRequest) -> Twins:
    """Fill both services."""
    return filled(Twins(new_service(limits=SMALL), new_service()), request.param)


@pytest.fixture(scope="module")
def read_twins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twins]:
    """Fill both services once, for the tests that only read."""
    place = tmp_path_factory.mktemp("read")
    twins = Twins(ThreadedService(place / "small", limits=SMALL), ThreadedService(place / "large"))
    yield filled(twins, "until_truncated")
    for service in twins:
        service.end()


def filled(twins: Twins, keep: str) -> Twins:
    """Fill both services, and return them."""
    for service in twins:
        service.call(fill(service, keep))
    assert on_disk(twins.small) > 2 * MIB
    return twins


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    """Return the rows without the id of the queue and the server, sorted."""
    names = [name for name in frame.columns if name not in ("server", "queue_id")]
    found = [
        tuple(bytes(each) if isinstance(each, bytearray) else each for each in row)
        for row in frame.select(names).collect()
    ]
    return sorted(found)


READS: dict[str, tuple[dict[str, str], Callable[[DataFrame], DataFrame]]] = {
    "everything": ({}, lambda frame: frame),
    "positions alone": ({"payload": "false"}, lambda frame: frame),
    "a part of the positions": (
        {
            "startingOffsets": '{"default": {"a": 100, "b": 3999, "c": 1, "d": 500}}',
            "endingOffsets": '{"default": {"a": 3000, "b": 4000, "c": 2, "d": 1501}}',
        },
        lambda frame: frame,
    ),
    "a filter": ({"subscribe": "a,d"}, lambda frame: frame.where("position >= 1000 and position < 1020")),
    "small partitions": ({"maxRecordsPerPartition": "333"}, lambda frame: frame),
    "a part of the times": (
        {
            "startingTimestamp": time_of_tick(START + 355).isoformat(),
            "endingTimestamp": time_of_tick(START + 1_500).isoformat(),
        },
        lambda frame: frame,
    ),
}


@pytest.mark.parametrize("what", READS)
def test_a_table_is_the_same(spark: SparkSession, read_twins: Twins, what: str) -> None:
    """Payloads, positions across gaps, times, and bounds that lie within a piece of the disk."""
    options, narrowed = READS[what]
    small, large = (
        rows(narrowed(spark.read.format("mrecordlog").options(servers=service.url, **options).load()))
        for service in read_twins
    )
    assert small == large and len(small) >= 20
    if what == "everything":
        assert len(small) == len(QUEUES) * RECORDS


def test_a_stream_that_starts_at_a_time_is_the_same(spark: SparkSession, twins: Twins, tmp_path: Path) -> None:
    """In batches with limits, and again after a restart."""
    found = []
    for number, service in enumerate(twins):
        options = {"servers": service.url, "startingTimestamp": time_of_tick(START + 705).isoformat()}
        stream = spark.readStream.format("mrecordlog").options(**options, maxRecordsPerTrigger="3000").load()
        place = str(tmp_path / str(number))
        for last in (False, True):
            if last:
                service.append("a", [b"later"])
            writer = stream.writeStream.format("parquet").option("checkpointLocation", f"{place}/checkpoint")
            writer.trigger(availableNow=True).start(f"{place}/out").awaitTermination()
        found.append(rows(spark.read.parquet(f"{place}/out").where("payload != 'later'")))
        assert spark.read.parquet(f"{place}/out").where("payload = 'later'").count() == 1
    assert found[0] == found[1]
    assert len(found[0]) == len(QUEUES) * (RECORDS - 20 * 70)


@pytest.mark.parametrize("twins", ["until_truncated", "until_acknowledged"], indirect=True)
def test_a_drain_empties_the_log(
    spark: SparkSession, twins: Twins, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """By truncates, and as a consumer; then the disk is given back, as is that of a log in memory."""
    consumer = "lake" if "until_acknowledged" in request.node.name else None
    found = []
    for number, service in enumerate(twins):
        output = str(tmp_path / str(number) / "table")
        options = DrainOptions(f"default={service.url}", output, max_records=5_000, consumer=consumer)
        outcome = drain(options, spark)
        assert (outcome.records, outcome.left) == (len(QUEUES) * RECORDS, {"default": 0})
        table = DeltaTable(output).to_pyarrow_table(columns=["queue", "position", "payload", "timestamp"])
        found.append(sorted(tuple(row.values()) for row in table.to_pylist()))
    assert found[0] == found[1]
    assert on_disk(twins.small) == 0
    assert [*twins.small.directory.glob("*.runs")] == []


def damage_segment(directory: Path, at: int) -> None:
    """Damage a gathered file and its segment."""
    file = sorted(directory.glob("*.runs"))[at]
    damage.flip_byte(file, 5_000)
    damage.flip_byte(directory / file.name.removesuffix(".runs"), 30_000)


@pytest.mark.parametrize("at", [0, 3])
def test_damage_stops_a_task_and_names_the_file(twins: Twins, at: int) -> None:
    """At the beginning of a range, or after a part of the response: at once, and not as a server that is down."""
    damage_segment(twins.small.directory, at)
    reader = LogTable(Options.parse({"servers": twins.small.url}))
    partitions = reader.partitions()
    with pytest.raises(ServiceRefusedError, match=r"500: .*wal-\d+ at offset") as raised:
        for partition in partitions:
            for _ in reader.read(partition):
                pass
    assert "damaged" in str(raised.value)
    narrow = {
        "subscribe": "a",
        "startingOffsets": '{"default": {"a": 3900}}',
        "endingOffsets": '{"default": {"a": 4000}}',
    }
    other = LogTable(Options.parse({"servers": twins.small.url, **narrow}))
    assert sum(batch.num_rows for partition in other.partitions() for batch in other.read(partition)) == 100


def test_a_drain_says_what_is_damaged_and_goes_on_past_it(spark: SparkSession, twins: Twins, tmp_path: Path) -> None:
    """Nothing is released meanwhile. Past the damage it needs the word that records may be lost."""
    service, output = twins.small, str(tmp_path / "table")
    damage_segment(service.directory, 3)
    options = DrainOptions(f"default={service.url}", output, max_records=1_000)
    damaged = r"is damaged; `mrecordlog verify` lists .*truncate the queue past it"
    with pytest.raises((BatchFailedError, ServersHeldError), match=damaged):  # a fetch meets it, or a plan
        drain(options, spark)
    stored = service.positions("a")[0]
    assert 0 < stored < 3_900, "it stored what lies before the damage"
    for queue in QUEUES:
        service.truncate(queue, 3_899)
    with pytest.raises(UnreadLossError, match="allow-data-loss"):
        drain(options, spark)
    assert drain(replace(options, allow_data_loss=True), spark).left == {"default": 0}
    table = DeltaTable(output).to_pyarrow_table(columns=["queue", "position"])
    found = sorted(row["position"] for row in table.to_pylist() if row["queue"] == "a")
    assert found == [*range(stored), *range(3_900, RECORDS)]
