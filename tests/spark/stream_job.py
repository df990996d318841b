"""A program of a user that streams into a Delta table without a drain: `python -m tests.spark.stream_job drain …`.

Its sink is `foreachBatch`, which may get a batch twice. So each batch is one transaction of the table, with the id of
the program and the number of the batch, and one that the table has is skipped. It has the arguments of a drain, and
stops before the steps of a release where a campaign wants it (see `stopping_drain`).
"""

from __future__ import annotations

import argparse
import sys
import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from mrecordlog_async.spark.drain.command import Stop
from mrecordlog_async.spark.session import spark_session
from tests.spark import stops
from tests.spark.stopping_drain import StoppingSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

POLL_SECONDS = 1


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
    if not arguments.without_checkpoint:
        found["checkpoint"] = str(arguments.checkpoint)
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
    parser.add_argument("--without-checkpoint", action="store_true", help="do not tell the source where it is")
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
