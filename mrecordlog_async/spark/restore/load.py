"""A Delta table into a log, exactly once: `mrecordlog load-table`, or `python -m mrecordlog_async.spark load`.

Rows carry their position, so repeating a task or the whole job stores nothing twice. Use it to restore a log from what
was drained, or to move a log: positions stay the same, and with them the progress of every consumer.

Every row is counted once: stored, already there, truncated in the log, or refused (see `restoring`).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mrecordlog_async.model import POSITION_MAX
from mrecordlog_async.spark.checkpoints.identity import RefusedError
from mrecordlog_async.spark.delta.place import LOG, local_path
from mrecordlog_async.spark.drain.command import failures_as_sentences, read_token
from mrecordlog_async.spark.restore.restoring import REFUSED_SCHEMA, restored
from mrecordlog_async.spark.services.fleet import Fleet
from mrecordlog_async.spark.session import job_session
from mrecordlog_async.spark.settings.option_values import DEFAULT_SERVER
from mrecordlog_async.spark.settings.options import Options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = ("queue", "position", "payload")


@dataclass(frozen=True, slots=True)
class Loaded:
    """Result of a load."""

    stored: int  # rows that were new
    present: int  # rows that were already in the log
    skipped: int = 0  # rows at positions that the log has truncated
    # Rows without queue, payload or a whole position of at least 0; and rows whose position holds another record or
    # none in the log, with those after them (see `restoring`)
    refused: int = 0
    # Queue → the position of its first row that differs from the log
    conflicts: Mapping[str, int] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """The number of rows in the table."""
        return self.stored + self.present + self.skipped + self.refused

    def line(self, seconds: float) -> str:
        """Return one line for the user."""
        text = f"stored {self.stored:,} of {self.rows:,} records in {seconds:.1f} s"
        text += f"; {self.present:,} were already stored" if self.present else ""
        text += f"; {self.skipped:,} skipped: the log was truncated past them" if self.skipped else ""
        return text + (f"; {self.refused:,} refused: {self._why_refused()}" if self.refused else "")

    def _why_refused(self) -> str:
        if not self.conflicts:
            return "they have no queue, no payload, or no position that is a whole number of at least 0"
        queue, position = min(self.conflicts.items())
        more = f", and {len(self.conflicts) - 1:,} more queues differ" if len(self.conflicts) > 1 else ""
        return (
            f"queue {queue!r} differs from position {position} on{more}; what the log has there was not changed. Load "
            "into a new log to have all rows"
        )


def run_load(
    session: SparkSession,
    source: str,
    url: str,
    *,
    from_server: str | None = None,
    token: str | None = None,
    skip_truncated: bool = False,
) -> Loaded:
    """Store the rows of the table *source* in the service at *url*, and count the outcomes.

    The rows are counted before the first one is stored, against what the service lists at that time. If others write at
    the same time, the counts are inexact; nothing else is affected.

    Args:
        session: the Spark session that runs the job.
        source: a Delta table on this machine with the columns queue, position and payload, and optionally server.
        url: the service to load into, http://host:port.
        from_server: load only rows of this server.
        token: bearer token of the service.
        skip_truncated: skip rows at positions that the log has truncated, instead of refusing to load.

    Returns:
        How many rows were stored, present, skipped and refused.

    Raises:
        RefusedError: nothing was stored: there is no table, a column is missing, the rows come from several servers,
            or the log has truncated their positions and *skip_truncated* is not set. *from_server* needs the column
            server.
        ServerDownError, ServiceRefusedError: the service could not be reached, or refused a request.
    """
    rows = _rows(_frame(session, source), from_server)
    options = {"servers": url} | ({"token": token} if token else {})
    parsed = Options.parse(options)
    bounds = _bounds(parsed)
    # Counted before the first row is stored: after that, a row that was new looks like one that was there.
    placed = _placed(session, rows, bounds)
    loaded = _counted(placed)
    if loaded.skipped and not skip_truncated:
        raise RefusedError(_where_truncated(placed, loaded.skipped))
    tasks = session.sparkContext.defaultParallelism
    wanted = placed.where(f"not {_UNUSABLE} and position >= first").select(*COLUMNS)
    # Each queue in one task, and in order: the log assigns positions in order.
    ordered = wanted.repartition(tasks, "queue").sortWithinPartitions("queue", "position")
    ends = {queue: following for queue, _, following in bounds}
    refused = ordered.mapInArrow(partial(restored, parsed, ends), REFUSED_SCHEMA).collect()
    return _without(loaded, [tuple(row) for row in refused])


_UNUSABLE = (
    "(queue is null or cast(queue as string) = '' or position is null or payload is null "
    f"or position < 0 or position > {POSITION_MAX} or position % 1 <> 0)"
)
"""Rows that no log can store."""


def _frame(session: SparkSession, source: str) -> DataFrame:
    """Read a Delta table. Raises RefusedError for anything else, and for a table that is elsewhere."""
    path = local_path(source)
    if path is None:
        raise RefusedError(f"{source} is not on a disk of this machine: copy the table to one")
    if not Path(path, LOG).is_dir():
        raise RefusedError(
            f"{source} is not a Delta table. Rows of other files can be written with Spark: "
            'frame.write.format("mrecordlog"), with the columns queue, position and payload'
        )
    try:
        from mrecordlog_async.spark.delta.sink import FORMAT, DeltaSink
    except ImportError as error:
        raise RefusedError(
            f"{source} is a Delta table, which needs the package {error.name}: pip install 'mrecordlog_async[spark]'"
        ) from None
    session.dataSource.register(DeltaSink)
    return session.read.format(FORMAT).load(path)


def _bounds(options: Options) -> list[tuple[str, int, int]]:
    """Return the name, the first and the next position of each queue in the log."""
    with closing(Fleet(options)) as fleet:
        return [(each.queue, each.first_position, each.next_position) for each in fleet.client(DEFAULT_SERVER).queues()]


def _placed(session: SparkSession, rows: DataFrame, bounds: list[tuple[str, int, int]]) -> DataFrame:
    """Add to each row the first and next position of its queue in the log; 0 and 0 if the queue does not exist."""
    from pyspark.sql.functions import broadcast

    known = session.createDataFrame(bounds, "queue string, first bigint, next bigint")
    return rows.join(broadcast(known), "queue", "left").na.fill(0, ["first", "next"])


def _counted(placed: DataFrame) -> Loaded:
    found = placed.selectExpr(
        f"count_if(not {_UNUSABLE} and position >= next)",
        f"count_if(not {_UNUSABLE} and position >= first and position < next)",
        f"count_if(not {_UNUSABLE} and position < first)",
        f"count_if({_UNUSABLE})",
    ).first()
    assert found is not None
    return Loaded(*found)


def _without(loaded: Loaded, refused: list[tuple[str, int | None, int, int, int]]) -> Loaded:
    """Count the rows of queues that tasks *refused* as refused only, and repeated ones as there (`REFUSED_SCHEMA`)."""
    if not refused:
        return loaded
    present, stored, again = (sum(column) for column in zip(*(each[2:] for each in refused), strict=True))
    return replace(
        loaded,
        stored=loaded.stored - stored - again,
        present=loaded.present - present + again,
        refused=loaded.refused + stored + present,
        conflicts={queue: position for queue, position, *_ in refused if position is not None},
    )


def _where_truncated(placed: DataFrame, count: int) -> str:
    found = placed.where("position >= 0 and position < first").select("queue", "first").first()
    assert found is not None
    return (
        f"{count:,} rows are at positions that the log has truncated, some below position {found[1]} of queue "
        f"{found[0]!r}; nothing was stored. Load into a new log, or skip these rows with --skip-truncated"
    )


def _rows(frame: DataFrame, from_server: str | None) -> DataFrame:
    missing = set(COLUMNS) - set(frame.columns)
    if missing:
        raise RefusedError(
            f"the table has no column {', '.join(sorted(missing))}; a load needs queue, position and payload"
        )
    if "server" in frame.columns:
        if from_server is not None:
            frame = frame.where(frame["server"] == from_server)
        else:
            found = [row[0] for row in frame.select("server").distinct().limit(2).collect()]
            if len(found) > 1:
                raise RefusedError(
                    f"the table holds rows of several servers ({found[0]!r}, {found[1]!r}, …), whose positions would "
                    "collide: choose one with --from-server"
                )
    elif from_server is not None:
        raise RefusedError(
            f"the table has no column server, so there are no rows of server {from_server!r} to choose; leave out "
            "--from-server to load all rows"
        )
    _refuse_recreated(frame)
    return frame.select(*COLUMNS)


def _refuse_recreated(frame: DataFrame) -> None:
    """Raise RefusedError if a queue was deleted and created again, and *frame* has rows of both."""
    from pyspark.sql.functions import expr

    if "queue_id" not in frame.columns:
        return
    ends = frame.where("queue is not null").groupBy("queue").agg(expr("min(queue_id) one"), expr("max(queue_id) two"))
    found = ends.where("one < two").first()
    if found is not None:
        raise RefusedError(
            f"queue {found[0]!r} was deleted and created again, and the table holds rows of both (queue_id {found[1]} "
            f"and {found[2]}), whose positions would collide; nothing was stored. Copy the rows of one queue_id per "
            "queue to another table, and load that"
        )


# The command.


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return its exit code: 1 if rows were refused, 0 otherwise."""
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
    facts = {"records": loaded.rows, **asdict(loaded), "seconds": seconds}
    print(json.dumps(facts) if arguments.json else loaded.line(seconds), flush=True)
    with failures_as_sentences():
        session.stop()
    return 1 if loaded.refused else 0
