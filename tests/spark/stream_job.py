"""A program of a user that streams into a Delta table without a drain: `python -m tests.spark.stream_job drain …`.

Its sink is `foreachBatch`, which may get a batch twice. So each batch is one transaction of the table, with the id of
the program and the number of the batch, and one that the table has is skipped. It has the arguments of a drain, and
stops before the steps of a release where a campaign wants it (see `stopping_drain`).
"""

from __future__ import annotations

import argparse
import sys
import uuid
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.types import StructType

from mrecordlog_async.protocol.bulk_schemas import QueueTruncated, TruncateOne
from mrecordlog_async.protocol.consumer_schemas import AcknowledgeOne
from mrecordlog_async.spark.consuming import ConsumerHolder
from mrecordlog_async.spark.data_source import RecordLogDataSource
from mrecordlog_async.spark.drain_command import Stop
from mrecordlog_async.spark.log_server import LogListing, LogServer
from mrecordlog_async.spark.session import spark_session
from tests.spark import stops

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TRUNCATE_STEPS = ("truncate", "half of the truncate")
ACKNOWLEDGE_STEPS = ("acknowledge", "half of the acknowledge")

POLL_SECONDS = 1

T = TypeVar("T")


def in_halves(steps: Sequence[str], due: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield *due* in two parts, with a step before each."""
    half = (len(due) + 1) // 2
    for step, part in zip(steps, (due[:half], due[half:]), strict=True):
        stops.step(step)
        if part:
            yield part


_truncate, _acknowledge = LogServer.truncate, ConsumerHolder.acknowledge


def truncate(server: LogServer, due: Sequence[TruncateOne], listing: LogListing) -> list[QueueTruncated]:
    """Truncate as a server does, in two requests."""
    return [each for part in in_halves(TRUNCATE_STEPS, due) for each in _truncate(server, part, listing)]


def acknowledge(holder: ConsumerHolder, due: Sequence[AcknowledgeOne], listing: LogListing) -> None:
    """Acknowledge as a consumer does, in two requests."""
    for part in in_halves(ACKNOWLEDGE_STEPS, due):
        _acknowledge(holder, part, listing)


class StoppingSource(RecordLogDataSource):
    """The data source; its stream stops at the steps of a truncate."""

    @classmethod
    def name(cls) -> str:
        return "stopping"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        # In the source's own process.
        LogServer.truncate = truncate  # type: ignore[method-assign, assignment]
        ConsumerHolder.acknowledge = acknowledge  # type: ignore[method-assign, assignment]
        return super().streamReader(schema)


def store(table: str, owner: str, frame: DataFrame, batch: int) -> None:
    """Add a batch to the table, unless it is there."""
    if DeltaTable.is_deltatable(table):
        stored = DeltaTable(table).transaction_version(owner)
        if stored is not None and stored >= batch:
            return
    transaction = CommitProperties(app_transactions=[Transaction(owner, batch)])
    write_deltalake(table, frame.toArrow(), mode="append", commit_properties=transaction)
    stops.step("stored")


def options_of(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the options of the data source."""
    found = {"servers": ",".join(arguments.server), "failOnServerDown": "atEnd"}
    if arguments.consumer is None:
        return found | {"truncate": "true"}
    return found | {"consumer": arguments.consumer, "consumerOwner": owner_of(arguments.checkpoint)}


def owner_of(checkpoint: Path) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, str(checkpoint)))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("command")
    parser.add_argument("--output", required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--server", action="append", required=True)
    parser.add_argument("--master")
    parser.add_argument("--consumer")
    parser.add_argument("--every")
    arguments = parser.parse_args()
    stop = Stop()
    spark = spark_session("a program", master=arguments.master, settings={"spark.ui.enabled": "false"})
    spark.sparkContext.setLogLevel("OFF")
    stop.install()
    spark.dataSource.register(StoppingSource)
    rows = spark.readStream.format(StoppingSource.name()).options(**options_of(arguments)).load()
    writer = rows.writeStream.foreachBatch(partial(store, arguments.output, owner_of(arguments.checkpoint)))
    writer = writer.option("checkpointLocation", str(arguments.checkpoint))
    if arguments.every is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=arguments.every.replace("ms", " milliseconds"))
    try:
        query = writer.start()
        while not query.awaitTermination(POLL_SECONDS):
            if stop():
                query.stop()
                return 0
    except Exception as error:  # whatever ends the query: the campaign starts the program again
        print(f"ended: {type(error).__name__}: {str(error)[:300]!r}", flush=True)
        return 0 if stop() else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
