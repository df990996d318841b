"""A drain that stops before its steps where a campaign wants it: `python -m tests.spark.stopping_drain drain …`.

It is the command with two classes replaced: Spark's processes import the source and the sink from here, and these call
`stops.step` before each step of a commit and of a truncate.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.types import StructType

from mrecordlog_async.protocol.bulk_schemas import QueueTruncated
from mrecordlog_async.protocol.consumer_schemas import AcknowledgedOne
from mrecordlog_async.spark.__main__ import main
from mrecordlog_async.spark.delta import sink
from mrecordlog_async.spark.delta.place import TablePlace
from mrecordlog_async.spark.delta.sink import DeltaSink, DeltaWriter, SinkOptions, StoredRows
from mrecordlog_async.spark.delta.table import DrainTable
from mrecordlog_async.spark.drain import job as drain
from mrecordlog_async.spark.rows.stream_writer import StreamArrowWriter
from mrecordlog_async.spark.services.client import ServiceClient
from mrecordlog_async.spark.source.source import RecordLogDataSource
from tests.spark import stops

COMMIT_STEPS = ("commit", "sync of the entry", "end of the commit", "sync of the checkpoint")
TRUNCATE_STEPS = ("truncate", "half of the truncate")
ACKNOWLEDGE_STEPS = ("acknowledge", "half of the acknowledge")
STEPS = ("files of a task", *COMMIT_STEPS, *TRUNCATE_STEPS)

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")


def in_halves(steps: Sequence[str], queues: Mapping[K, V], send: Callable[[dict[K, V]], list[T]]) -> list[T]:
    """Send a request about *queues* in two parts, with a step before each."""
    names = list(queues)
    half = (len(names) + 1) // 2
    found: list[T] = []
    for step, part in zip(steps, (names[:half], names[half:]), strict=True):
        stops.step(step)
        found += send({name: queues[name] for name in part}) if part else []
    return found


_truncate, _acknowledge = ServiceClient.truncate, ServiceClient.acknowledge


def truncate(client: ServiceClient, queues: Mapping[str, Sequence[int]], **named: Any) -> list[QueueTruncated]:
    """Truncate as a client does, in two requests."""
    return in_halves(TRUNCATE_STEPS, queues, lambda part: _truncate(client, part, **named))


def acknowledge(
    client: ServiceClient, consumer: str, queues: Mapping[str, tuple[int, int, int]], **named: Any
) -> list[AcknowledgedOne]:
    """Acknowledge as a consumer does, in two requests."""
    return in_halves(ACKNOWLEDGE_STEPS, queues, lambda part: _acknowledge(client, consumer, part, **named))


class StoppingSource(RecordLogDataSource):
    """The data source; its stream stops at the steps of a truncate."""

    @classmethod
    def name(cls) -> str:
        return "stopping"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        for replaced in (truncate, acknowledge):
            setattr(ServiceClient, replaced.__name__, replaced)  # in the source's own process
        return super().streamReader(schema)


class StoppingWriter(DeltaWriter):
    """The sink's writer; it stops at the steps of a task and of a commit."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StoredRows:
        found = super().write(iterator)
        stops.step("files of a task")
        return found

    def _table(self, place: TablePlace) -> DrainTable:
        return DrainTable(place, step=stops.step)


class StoppingSink(DeltaSink):
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamArrowWriter:
        return StoppingWriter(SinkOptions.decode(self.options), schema)


def source_rows(session: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """Return the stream of `drain_query.source_rows`, read with `StoppingSource`."""
    session.dataSource.register(StoppingSource)
    parallelism = str(session.sparkContext.defaultParallelism)
    return session.readStream.format("stopping").options(parallelism=parallelism, **options).load()


def run() -> int:
    """Run the command with what this module replaces."""
    sink.DeltaSink = StoppingSink  # type: ignore[misc]  # the drain registers what it finds here
    vars(drain)["source_rows"] = source_rows
    return main()


if __name__ == "__main__":
    from tests.spark import stopping_drain  # Spark's processes import its classes under this name

    sys.exit(stopping_drain.run())
