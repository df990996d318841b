"""Writing rows into a service, from a table or a stream.

With a column `position` a row is stored exactly once: a block that is already there is recognised by position and
content, so a task that runs twice, an answer that was lost and a whole job that is repeated change nothing. Rows must
come in order, each queue in one task:

    frame.repartition(n, "queue").sortWithinPartitions("queue", "position").write.format("mrecordlog")…

Spark does not sort streams: to write one with positions, do this in `foreachBatch`.

Without the column the log assigns positions as rows arrive, and what is sent again is stored again: at least once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.model import Run
from mrecordlog_async.spark.blocks import MalformedRowsError, RowRun, row_runs
from mrecordlog_async.spark.client import ServiceClient
from mrecordlog_async.spark.connection import ServiceRefusedError
from mrecordlog_async.spark.fleet import Fleet
from mrecordlog_async.spark.option_values import OptionError
from mrecordlog_async.spark.options import Options

logger = logging.getLogger("mrecordlog_async.spark")

APPEND_BYTES = 4 << 20
APPEND_RECORDS = 65_536

IN_ORDER = 'frame.repartition(n, "queue").sortWithinPartitions("queue", "position")'


class PositionConflictError(RecordLogError):
    """A position is taken by another record, or by one that was written out of order."""


@dataclass
class Written(WriterCommitMessage):
    """What a task wrote. Of its records, repeated were there before, truncated stood where the log has let go already.

    Whether a truncated one was the same record cannot be seen any more.
    """

    records: int = 0
    repeated: int = 0
    truncated: int = 0


class LogWriter(DataSourceArrowWriter):
    """Writes a table."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Store the rows of one task."""
        return write_rows(self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Report what was stored: every task's rows are in the log already."""
        _report(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Report that what was stored stays: appends cannot be undone."""
        logger.warning("the write failed; rows of finished tasks stay in the log")


class LogStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a stream."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Store the rows of one task."""
        return write_rows(self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Report what was stored: every task's rows are in the log already."""
        _report(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Say that what was stored stays; with positions the next attempt recognises it."""
        logger.warning("batch %d failed; rows of finished tasks stay in the log", batchId)


def check_columns(columns: Mapping[str, str], queue: str | None) -> None:
    """Raise OptionError for rows that cannot be written: *columns* is name → type."""
    if "server" in columns:
        raise OptionError(
            "the column 'server' is not stored: a write goes to the server of the option. Choose the rows of one "
            "server, and drop the column"
        )
    unknown = sorted(set(columns) - {"queue", "position", "payload"})
    if unknown:
        raise OptionError(f"unknown columns {', '.join(unknown)}: a row has payload, queue and, if wanted, position")
    if "payload" not in columns:
        raise OptionError("there is no column 'payload'")
    if "queue" not in columns and queue is None:
        raise OptionError("there is no column 'queue'; name one queue for all rows with the option 'queue'")
    if "queue" in columns and queue is not None:
        raise OptionError("the rows have a column 'queue' already; leave out the option 'queue', or drop the column")
    if columns["payload"] not in ("binary", "string"):
        raise OptionError(f"'payload' must be binary or string, not {columns['payload']}")
    if columns.get("position", "bigint") not in ("bigint", "int", "smallint", "tinyint"):
        raise OptionError(f"'position' must be a whole number, not {columns['position']}")


def write_rows(options: Options, batches: Iterable[pa.RecordBatch]) -> Written:
    """Store rows, block by block, in the order they come."""
    (server,) = options.servers
    client = Fleet(options).client(server.name)
    appender = Appender(client, create=options.create_queues)
    try:
        for batch in batches:
            for row_run in row_runs(batch, options.queue):
                appender.add(row_run)
        appender.flush()
        return appender.written
    finally:
        client.close()


class Appender:
    """Gathers runs that follow each other and appends them together."""

    def __init__(self, client: ServiceClient, *, create: bool) -> None:
        self.written = Written()
        self._client = client
        self._create = create
        self._waiting: list[RowRun] = []
        self._bytes = 0
        self._records = 0
        self._due: dict[str, int] = {}  # queue → the position after the last row seen

    def add(self, row_run: RowRun) -> None:
        """Take the next rows."""
        self._check_order(row_run)
        if self._waiting and not self._follows(row_run):
            self.flush()
        for run in _pieces(row_run.run):
            position = None if row_run.position is None else run.first_position
            self._waiting.append(RowRun(row_run.queue, position, run))
            self._bytes += len(run.payload)
            self._records += run.record_count
            if self._bytes >= APPEND_BYTES or self._records >= APPEND_RECORDS:
                self.flush()

    def flush(self) -> None:
        """Store what waits."""
        waiting, self._waiting = self._waiting, []
        self._bytes = self._records = 0
        if waiting:
            self._put(waiting[0].queue, waiting[0].position, [row_run.run for row_run in waiting])

    def _check_order(self, row_run: RowRun) -> None:
        if row_run.position is None:
            return
        if row_run.position < 0:
            raise MalformedRowsError(f"queue {row_run.queue!r}: position {row_run.position} is below 0")
        if row_run.position < self._due.get(row_run.queue, 0):
            raise MalformedRowsError(
                f"queue {row_run.queue!r}: position {row_run.position} comes after {self._due[row_run.queue] - 1}; "
                f"write {IN_ORDER}"
            )
        self._due[row_run.queue] = row_run.run.next_position

    def _follows(self, row_run: RowRun) -> bool:
        last = self._waiting[-1]
        if row_run.queue != last.queue:
            return False
        return row_run.position is None or row_run.position == last.run.next_position

    def _put(self, queue: str, position: int | None, runs: list[Run]) -> None:
        """Append, and work out what a refusal means: the rows, or some of them, may be there already."""
        records = sum(run.record_count for run in runs)
        try:
            answer = self._client.append(queue, runs, position=position, create=self._create)
        except ServiceRefusedError as error:
            if position is None or error.code != "position_in_past":
                raise
            self._put_overlapping(queue, position, runs, records, int(error.problem["next_position"]))
            return
        self.written.records += records
        self.written.repeated += records if answer["duplicate"] else 0

    def _put_overlapping(self, queue: str, position: int, runs: list[Run], records: int, next_position: int) -> None:
        if position < next_position < position + records:
            before = [run.cut(position, next_position) for run in runs if run.first_position < next_position]
            behind = [run.cut(next_position, run.next_position) for run in runs if run.next_position > next_position]
            self._put(queue, position, before)
            self._put(queue, next_position, behind)
            return
        first = self._client.queue(queue).first_position
        if position + records <= first:
            # They were stored, read and truncated in the meantime; the log does not assign a position twice.
            logger.warning("queue %r: positions %d … were truncated already and are not stored again", queue, position)
            self.written.records += records
            self.written.truncated += records
            return
        raise PositionConflictError(
            f"queue {queue!r}: positions {position} to {position + records - 1} are taken, and not by these records "
            f"(the next position is {next_position}). Is the queue written by somebody else, or by another task of "
            f"this job? Each queue goes through one task: {IN_ORDER}"
        )


def _pieces(run: Run) -> Iterator[Run]:
    """Cut a run into parts of about `APPEND_BYTES`."""
    rest = run
    while True:
        part = rest.cut_bytes(APPEND_BYTES)
        yield part
        if part.next_position == rest.next_position:
            return
        rest = rest.cut(part.next_position, rest.next_position)


def _report(messages: Iterable[WriterCommitMessage | None]) -> None:
    written = [message for message in messages if isinstance(message, Written)]
    records, repeated = sum(each.records for each in written), sum(each.repeated for each in written)
    truncated = sum(each.truncated for each in written)
    logger.info("stored %d records, %d more were there before", records - repeated - truncated, repeated)
    if truncated:
        logger.warning(
            "%d records were not stored: the log had given their positions away and truncated them. That is right for "
            "rows that are written a second time; a log that is to be restored must be empty",
            truncated,
        )
