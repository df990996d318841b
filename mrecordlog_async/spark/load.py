"""Parquet into a log, exactly once: `mrecordlog load-parquet`, or `python -m mrecordlog_async.spark load`.

Rows carry their position, so repeating a task or the whole job stores nothing twice. Use it to restore a log from what
was drained, or to move a log: positions stay the same, and with them the progress of every consumer.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from mrecordlog_async.spark.fleet import Fleet
from mrecordlog_async.spark.identity import RefusedError
from mrecordlog_async.spark.job_command import failures_as_sentences, read_token
from mrecordlog_async.spark.option_values import DEFAULT_SERVER
from mrecordlog_async.spark.options import Options
from mrecordlog_async.spark.session import job_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = ("queue", "position", "payload")


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a load did.

    Attributes:
        stored: rows that were new.
        present: rows that were already in the log.
        skipped: rows at positions that the log has truncated.
    """

    stored: int
    present: int
    skipped: int = 0

    @property
    def rows(self) -> int:
        """The number of rows in the files."""
        return self.stored + self.present + self.skipped

    def line(self, seconds: float) -> str:
        """Return one line for the user."""
        text = f"stored {self.stored:,} of {self.rows:,} records in {seconds:.1f} s"
        text += f"; {self.present:,} were already stored" if self.present else ""
        return text + (f"; {self.skipped:,} skipped: the log was truncated past them" if self.skipped else "")


def run_load(
    session: SparkSession,
    source: str,
    url: str,
    *,
    from_server: str | None = None,
    token: str | None = None,
    skip_truncated: bool = False,
) -> Loaded:
    """Store the rows of the Parquet files in *source* in the service at *url*, and count the outcomes.

    The rows are counted before the first one is stored, against what the service lists at that time. If others write at
    the same time, the counts are inexact; nothing else is affected.

    Args:
        session: the Spark session that runs the job.
        source: a Delta table on this machine, or a directory of Parquet files: with the columns queue, position and
            payload, and optionally server.
        url: the service to load into, http://host:port.
        from_server: load only rows of this server.
        token: bearer token of the service.
        skip_truncated: skip rows at positions that the log has truncated, instead of refusing to load.

    Returns:
        How many rows were stored, present and skipped.

    Raises:
        RefusedError: nothing was stored: a column is missing, the rows come from several servers, or the log has
            truncated their positions and *skip_truncated* is not set.
        ServerDownError, ServiceRefusedError: the service could not be reached, or refused a request.
    """
    rows = _rows(_frame(session, source), from_server)
    options = {"servers": url} | ({"token": token} if token else {})
    placed = _placed(session, rows, Options.parse(options))
    loaded = _counted(placed)
    if loaded.skipped:
        if not skip_truncated:
            raise RefusedError(_where_truncated(placed, loaded.skipped))
        placed = placed.where("position >= first")
    tasks = session.sparkContext.defaultParallelism
    ordered = placed.select(*COLUMNS).repartition(tasks, "queue").sortWithinPartitions("queue", "position")
    ordered.write.format("mrecordlog").options(**options).mode("append").save()
    return loaded


def _frame(session: SparkSession, source: str) -> DataFrame:
    """Read a Delta table, or a directory of Parquet files."""
    try:
        from deltalake import DeltaTable

        from mrecordlog_async.spark.delta.place import local_path
        from mrecordlog_async.spark.delta.sink import FORMAT, DeltaSink
    except ImportError:
        return session.read.parquet(source)
    path = local_path(source)
    if path is None or not DeltaTable.is_deltatable(path):
        return session.read.parquet(source)
    session.dataSource.register(DeltaSink)
    return session.read.format(FORMAT).load(path)


def _placed(session: SparkSession, rows: DataFrame, options: Options) -> DataFrame:
    """Add to each row the first and next position of its queue in the log; 0 and 0 if the queue does not exist."""
    from pyspark.sql.functions import broadcast

    fleet = Fleet(options)
    try:
        listed = [
            (each.queue, each.first_position, each.next_position) for each in fleet.client(DEFAULT_SERVER).queues()
        ]
    finally:
        fleet.close()
    known = session.createDataFrame(listed, "queue string, first bigint, next bigint")
    return rows.join(broadcast(known), "queue", "left").na.fill(0, ["first", "next"])


def _counted(placed: DataFrame) -> Loaded:
    found = placed.selectExpr(
        "count_if(position >= next)",
        "count_if(position >= first and position < next)",
        "count_if(position < first)",
    ).first()
    assert found is not None
    return Loaded(*found)


def _where_truncated(placed: DataFrame, count: int) -> str:
    found = placed.where("position < first").select("queue", "first").first()
    assert found is not None
    return (
        f"{count:,} rows are at positions that the log has truncated, some below position {found[1]} of queue "
        f"{found[0]!r}; nothing was stored. Load into a new log, or skip these rows with --skip-truncated"
    )


def _rows(frame: DataFrame, from_server: str | None) -> DataFrame:
    missing = set(COLUMNS) - set(frame.columns)
    if missing:
        raise RefusedError(
            f"the files have no column {', '.join(sorted(missing))}; a load needs queue, position and payload"
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
    return frame.select(*COLUMNS)


# The command.


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    token = read_token(arguments.token_file)
    with failures_as_sentences():
        session = job_session("mrecordlog load", arguments.master)
        begun = time.monotonic()
        loaded = run_load(
            session,
            arguments.source,
            arguments.url,
            from_server=arguments.from_server,
            token=token,
            skip_truncated=arguments.skip_truncated,
        )
        seconds = time.monotonic() - begun
        session.stop()
    facts = {"records": loaded.rows, **asdict(loaded), "seconds": seconds}
    sys.stdout.write((json.dumps(facts) if arguments.json else loaded.line(seconds)) + "\n")
    return 0
