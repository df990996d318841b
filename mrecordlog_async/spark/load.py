"""Parquet into a log, exactly once: `mrecordlog load-parquet`, or `python -m mrecordlog_async.spark load`.

Rows carry their position, so whatever is repeated (a task, the whole job) stores nothing twice. Meant for restoring a
log from what was drained, and for moving one: positions, and with them every consumer's place, stay the same.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING

from mrecordlog_async.spark.drain import JobFailedError, cause_of, read_token
from mrecordlog_async.spark.identity import RefusedError
from mrecordlog_async.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def run_load(
    session: SparkSession, source: str, url: str, *, from_server: str | None = None, token: str | None = None
) -> int:
    """Store the rows of the Parquet files in *source* in the service at *url*; return how many there were.

    Raises RefusedError where rows of several servers would meet in one queue, or carry no positions.
    """
    rows = _rows(session.read.parquet(source), from_server)
    tasks = session.sparkContext.defaultParallelism
    ordered = rows.repartition(tasks, "queue").sortWithinPartitions("queue", "position")
    options = {"servers": url} | ({"token": token} if token else {})
    ordered.write.format("mrecordlog").options(**options).mode("append").save()
    return rows.count()


def _rows(frame: DataFrame, from_server: str | None) -> DataFrame:
    missing = {"queue", "position", "payload"} - set(frame.columns)
    if missing:
        raise RefusedError(
            f"the files have no column {', '.join(sorted(missing))}: nothing could be stored exactly once"
        )
    if "server" in frame.columns:
        if from_server is not None:
            frame = frame.where(frame["server"] == from_server)
        else:
            found = [row[0] for row in frame.select("server").distinct().limit(2).collect()]
            if len(found) > 1:
                raise RefusedError(
                    f"the files hold rows of several servers ({found[0]!r}, {found[1]!r}, …), whose positions would "
                    "collide: choose one with --from-server"
                )
    return frame.select("queue", "position", "payload")


# The command.


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    from pyspark.errors import PySparkException

    session = spark_session(
        "mrecordlog load", master=arguments.master, settings={"spark.ui.showConsoleProgress": "false"}
    )
    session.sparkContext.setLogLevel("ERROR")
    begun = time.monotonic()
    token = read_token(arguments.token_file)
    try:
        records = run_load(session, arguments.source, arguments.url, from_server=arguments.from_server, token=token)
    except PySparkException as error:
        raise JobFailedError(cause_of(str(error))) from error
    seconds = time.monotonic() - begun
    session.stop()
    text = f"loaded {records:,} records in {seconds:.1f} s"
    sys.stdout.write((json.dumps({"records": records, "seconds": seconds}) if arguments.json else text) + "\n")
    return 0
