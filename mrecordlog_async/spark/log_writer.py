"""Writing rows into a service, from a table or a stream.

With a column `position` a row is stored exactly once. Rows that are already stored are recognised by position and
content, so neither a task that runs twice, nor a lost response, nor a repeated job changes anything. Rows must be in
order, and each queue in one task:

    frame.repartition(n, "queue").sortWithinPartitions("queue", "position").write.format("mrecordlog")…

Spark does not sort streams: to write positions from a stream, do this in `foreachBatch`.

Without the column the log assigns positions as rows arrive. What is sent again is stored again: at least once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.model import Run
from mrecordlog_async.protocol import calls
from mrecordlog_async.servers.names import Endpoint
from mrecordlog_async.spark.blocks import MalformedRowsError, RowRun, row_runs
from mrecordlog_async.spark.connection import ServiceRefusedError
from mrecordlog_async.spark.log_server import LogServer, Patience
from mrecordlog_async.spark.options import OptionError, Options

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:
    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter
    except ImportError:
        from pyspark.sql.datasource import DataSourceStreamWriter

        class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
            """Writer for Spark 4.0, where a DataSourceArrowWriter gets Arrow batches even in a stream."""


logger = logging.getLogger("mrecordlog_async.spark")

APPEND_BYTES = 4 << 20
APPEND_RECORDS = 65_536

TOO_LARGE = 413
"""The status of an append that is larger than the service, or a proxy in front of it, accepts."""

ASSIGNED = {"queue_id", "timestamp"}
"""Columns of a read that a write ignores: the log assigns them."""

IN_ORDER = 'frame.repartition(n, "queue").sortWithinPartitions("queue", "position")'


class PositionConflictError(RecordLogError):
    """A position is already taken by a different record, for example because rows were written out of order."""


@dataclass
class Written(WriterCommitMessage):
    """Records that a task wrote."""

    records: int = 0  # how many records the task was given
    repeated: int = 0  # how many of them were already stored
    # How many were not stored, because the log has truncated their positions. Whether those held the same records can
    # no longer be checked
    truncated: int = 0


class _Writes:
    """The tasks' side of both writers."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Store the rows of one task. Raises MalformedRowsError, PositionConflictError."""
        return write_rows(self._options, iterator)


class LogWriter(_Writes, DataSourceArrowWriter):
    """Writes a table."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log what was stored; the rows of every task are already in the log."""
        _report(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log that what was stored stays: appends cannot be undone."""
        logger.warning("the write failed; the rows of finished tasks stay in the log")


class LogStreamWriter(_Writes, DataSourceStreamArrowWriter):
    """Writes the batches of a stream."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Log what was stored; the rows of every task are already in the log."""
        _report(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Log that what was stored stays; with positions the next attempt recognises it."""
        logger.warning("batch %d failed; the rows of finished tasks stay in the log", batchId)


def check_columns(columns: Mapping[str, str], queue: str | None) -> None:
    """Check that rows can be written. columns: name → type. queue: that of all rows, if the option `queue` is set.

    Raises:
        OptionError: a column is missing, unknown or of the wrong type.
    """
    if "server" in columns:
        raise OptionError(
            "the column 'server' is not stored: a write goes to the server that the option servers names. Filter the "
            "rows of one server, and drop the column. INSERT INTO always has it; write a DataFrame: "
            'spark.sql("SELECT …").write.format("mrecordlog")…'
        )
    unknown = sorted(set(columns) - {"queue", "position", "payload"} - ASSIGNED)
    if unknown:
        raise OptionError(f"unknown columns {', '.join(unknown)}; drop them: rows have payload, queue and position")
    if "payload" not in columns:
        raise OptionError("the rows have no column 'payload'; rename or select the column with the bytes")
    if "queue" not in columns and queue is None:
        raise OptionError(
            "the rows have no column 'queue'; add it, or name one queue for all rows with the option queue"
        )
    if "queue" in columns and queue is not None:
        raise OptionError("the rows have a column 'queue' and the option queue is set; drop the column or the option")
    if columns["payload"] not in ("binary", "string"):
        raise OptionError(f"the column 'payload' must be binary or string, not {columns['payload']}; cast it")
    if columns.get("position", "bigint") not in ("bigint", "int", "smallint", "tinyint"):
        raise OptionError(f"the column 'position' must be a whole number, not {columns['position']}; cast it")


def write_rows(options: Options, batches: Iterable[pa.RecordBatch]) -> Written:
    """Store rows in the order in which they arrive. Raises MalformedRowsError, PositionConflictError."""
    (endpoint,) = options.servers
    assert isinstance(endpoint, Endpoint), "the options were checked"
    token = options.tokens.get(endpoint.name, options.token)
    patience = Patience(options.timeout_seconds, options.retries)
    with closing(LogServer(endpoint.name, endpoint, token, patience=patience)) as server:
        appender = Appender(server, create=options.create_queues)
        for batch in batches:
            for row_run in row_runs(batch, options.queue):
                appender.add(row_run)
        appender.flush()
        return appender.written


class Appender:
    """Gathers consecutive runs of one queue and appends them together."""

    def __init__(self, server: LogServer, *, create: bool) -> None:
        self.written = Written()
        self._server = server
        self._create = create
        self._waiting: list[RowRun] = []
        self._bytes = 0
        self._records = 0
        self._bytes_max = APPEND_BYTES  # of one append; less once the service has refused one as too large
        self._due: dict[str, int] = {}  # queue → the position after the last row seen

    def add(self, row_run: RowRun) -> None:
        """Accept the next rows. Raises MalformedRowsError if they are out of order."""
        self._check_order(row_run)
        if self._waiting and not self._follows(row_run):
            self.flush()
        for run in _pieces(row_run.run, self._bytes_max):
            position = None if row_run.position is None else run.first_position
            self._waiting.append(RowRun(row_run.queue, position, run))
            self._bytes += len(run.payload)
            self._records += run.record_count
            if self._bytes >= self._bytes_max or self._records >= APPEND_RECORDS:
                self.flush()

    def flush(self) -> None:
        """Store the rows gathered so far."""
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
                f"queue {row_run.queue!r}: position {row_run.position} follows position "
                f"{self._due[row_run.queue] - 1}; sort the rows: {IN_ORDER}"
            )
        self._due[row_run.queue] = row_run.run.next_position

    def _follows(self, row_run: RowRun) -> bool:
        last = self._waiting[-1]
        if row_run.queue != last.queue:
            return False
        return row_run.position is None or row_run.position == last.run.next_position

    def _put(self, queue: str, position: int | None, runs: list[Run]) -> None:
        """Append *runs*; if the service refuses the position, some or all of the rows may be stored already."""
        records = sum(run.record_count for run in runs)
        try:
            response = self._server.send(calls.append_runs(queue, position, runs, create=self._create))
        except ServiceRefusedError as error:
            if error.status == TOO_LARGE and records > 1:
                self._put_halves(queue, position, runs, records)
                return
            if position is None or error.code != "position_in_past":
                raise
            self._put_overlapping(queue, position, runs, records, int(error.problem["next_position"]))
            return
        self.written.records += records
        self.written.repeated += records if response.duplicate else 0

    def _put_halves(self, queue: str, position: int | None, runs: list[Run], records: int) -> None:
        """Store what is too large for one append in two, and gather less from here on."""
        self._bytes_max = max(1, min(self._bytes_max, sum(len(run.payload) for run in runs) // 2))
        first, rest = _cut_at(runs, records // 2)
        self._put(queue, position, first)
        self._put(queue, None if position is None else position + records // 2, rest)

    def _put_overlapping(self, queue: str, position: int, runs: list[Run], records: int, next_position: int) -> None:
        if position < next_position < position + records:
            before, after = _cut_at(runs, next_position - position)
            self._put(queue, position, before)
            self._put(queue, next_position, after)
            return
        first = min(self._server.send(calls.queue_summary(queue)).first_position, position + records)
        if position < first:
            # They were stored, read and truncated in the meantime: the log does not assign a position twice.
            logger.warning(
                "queue %r: positions %d to %d were truncated and are not stored again", queue, position, first - 1
            )
            self.written.records += first - position
            self.written.truncated += first - position
            _, kept = _cut_at(runs, first - position)
            if kept:
                self._put(queue, first, kept)
            return
        raise PositionConflictError(
            f"queue {queue!r}: positions {position} to {position + records - 1} are taken by different records, and "
            f"the next position is {next_position}. Make sure that nothing else writes to the queue, and that each "
            f"queue is in one task: {IN_ORDER}"
        )


def _cut_at(runs: Iterable[Run], records: int) -> tuple[list[Run], list[Run]]:
    """Return the first *records* of *runs*, and the rest."""
    first, rest = list[Run](), list[Run]()
    for run in runs:
        middle = run.first_position + min(records, run.record_count)
        first += [run.cut(run.first_position, middle)] if middle > run.first_position else []
        rest += [run.cut(middle, run.next_position)] if middle < run.next_position else []
        records -= middle - run.first_position
    return first, rest


def _pieces(run: Run, bytes_max: int) -> Iterator[Run]:
    """Cut a run into parts of about *bytes_max* bytes."""
    rest = run
    while True:
        part = rest.cut_bytes(bytes_max)
        yield part
        if part.next_position == rest.next_position:
            return
        rest = rest.cut(part.next_position, rest.next_position)


def _report(messages: Iterable[WriterCommitMessage | None]) -> None:
    written = [message for message in messages if isinstance(message, Written)]
    records, repeated = sum(each.records for each in written), sum(each.repeated for each in written)
    truncated = sum(each.truncated for each in written)
    logger.info("stored %d records; %d more were already stored", records - repeated - truncated, repeated)
    if truncated:
        logger.warning(
            "%d records were not stored: the log had truncated their positions. That is right for rows that were "
            "written before; to restore a log, write to an empty one",
            truncated,
        )
