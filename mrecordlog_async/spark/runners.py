"""Carries out the tasks of a batch: in this process, or on Spark.

A task fetches the ranges of one log and writes them. Without a function of the user, both are one step, and no row
passes through Java. On Spark, work is given through DataFrames only, so that a driver without a context (Spark Connect)
works too; what tasks need travels in the function itself, and no plan or event log has it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.spark.blocks import READ_SCHEMA, record_batches
from mrecordlog_async.spark.log_server import LogServer, ReadTask
from mrecordlog_async.spark.output import BatchFailedError, OutputRefusedError, RowWriter, WrittenFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Run = Callable[[Sequence[ReadTask], RowWriter], list[WrittenFile]]
"""Carries out tasks; returns the files that they wrote. Raises BatchFailedError, OutputRefusedError."""

Change = Callable[["DataFrame"], "DataFrame"]
"""A function of the user: the rows of a batch to the rows of the table."""

DATE = "date"
"""The day on which a record was stored, in UTC: a column of tables that are partitioned by it."""

DAY = pa.field(DATE, pa.date32())

FILES = pa.schema([("file", pa.string())])


class SparkEndedError(RecordLogError):
    """Spark does not respond any more: its Java was killed, or the server of Spark Connect has ended."""


def row_schema(partition_by: Iterable[str]) -> pa.Schema:
    """Return the columns of rows that no function has changed."""
    return READ_SCHEMA.append(DAY) if DATE in partition_by else READ_SCHEMA


def rows_of(task: ReadTask, *, payload: bool = True) -> Generator[pa.RecordBatch, None, None]:
    """Yield the rows of one task; without *payload*, the other columns alone."""
    server = LogServer.of_task(task)
    try:
        yield from record_batches(task.server, server.fetch(task, payload=payload), payload=payload)
    finally:
        server.close()


def stored(task: ReadTask, writer: RowWriter) -> list[WrittenFile]:
    """Fetch and write the rows of one task."""
    return writer.write(_with_day(rows_of(task), writer.schema))


def _with_day(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for each in batches:
        columns = {name: each.column(name) for name in each.schema.names}
        if DATE in schema.names:
            columns[DATE] = pc.cast(pc.floor_temporal(columns["timestamp"], unit="day"), pa.date32())
        yield pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def in_process(tasks: Sequence[ReadTask], writer: RowWriter) -> list[WrittenFile]:
    """Carry out *tasks* in this process, one after the other."""
    try:
        return [file for task in tasks for file in stored(task, writer)]
    except (BatchFailedError, OutputRefusedError):
        raise
    except RecordLogError as error:
        raise BatchFailedError(str(error)) from error


def on_spark(session: SparkSession) -> Run:
    """Return what carries out tasks on Spark: each fetches, writes, and yields what a commit needs of its files."""

    def run(tasks: Sequence[ReadTask], writer: RowWriter) -> list[WrittenFile]:
        def store(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for index in batch.column(0).to_pylist():
                    yield _as_rows(stored(tasks[index], writer))

        with failures_as_sentences():
            rows = session.range(0, len(tasks), 1, len(tasks)).mapInArrow(store, "file string").collect()
        return [json.loads(row.file) for row in rows]

    return run


def transformed(session: SparkSession, change: Change) -> Run:
    """Return what carries out tasks on Spark, with *change* between fetching and writing."""

    def run(tasks: Sequence[ReadTask], writer: RowWriter) -> list[WrittenFile]:
        def fetch(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for index in batch.column(0).to_pylist():
                    yield from rows_of(tasks[index])

        def store(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield _as_rows(writer.write(each.cast(writer.schema) for each in batches))

        with failures_as_sentences():
            rows = session.range(0, len(tasks), 1, len(tasks)).mapInArrow(fetch, _spark_schema())
            files = change(rows).mapInArrow(store, "file string").collect()
        return [json.loads(row.file) for row in files]

    return run


def schema_after(session: SparkSession, change: Change) -> pa.Schema:
    """Return the columns of the rows that *change* returns. Raises BatchFailedError."""
    with failures_as_sentences():
        found = change(session.createDataFrame([], _spark_schema())).toArrow().schema
    utc = pa.timestamp("us", tz="UTC")
    return pa.schema([each.with_type(utc) if _has_zone(each.type) else each.with_nullable(True) for each in found])


def _has_zone(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) and kind.tz is not None


def parallelism(session: SparkSession) -> int:
    """Return how many tasks run at a time, on Spark Connect too. Spark also loads what the first query needs."""
    from pyspark.sql.functions import spark_partition_id

    with failures_as_sentences():
        return session.range(1 << 20).select(spark_partition_id()).distinct().count()


def _spark_schema() -> str:
    return "server string, queue string, queue_id bigint, position bigint, timestamp timestamp, payload binary"


def _as_rows(files: Sequence[WrittenFile]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"file": json.dumps(each)} for each in files], FILES)


@contextmanager
def failures_as_sentences() -> Iterator[None]:
    """Replace Spark's pages about a failed task by one sentence.

    Raises:
        BatchFailedError: a task failed as often as Spark lets it.
        OutputRefusedError: a task refused to write.
        SparkEndedError: Spark does not respond any more.
    """
    try:
        yield
    except RecordLogError:
        raise
    except Exception as error:
        text = str(error)
        if isinstance(error, _kinds_of_failure()) and GONE not in text:
            kind, sentence = cause_of(text)
            raise (OutputRefusedError if kind == "OutputRefusedError" else BatchFailedError)(sentence) from error
        if not isinstance(error, (*_kinds_of_failure(), *_kinds_of_end())):
            raise
        raise SparkEndedError(
            "Spark does not respond any more: its Java was killed or ran out of memory, or the server of Spark Connect "
            "has ended. Start again: what was not committed is read again"
        ) from error


GONE = "StatusCode.UNAVAILABLE"
"""In the error of a client of Spark Connect whose server does not respond."""


def cause_of(text: str) -> tuple[str, str]:
    """Return the kind and the sentence of this package's own error in Spark's text; or "", and what that text says."""
    if ours := re.findall(r"mrecordlog_async\.[\w.]*?(\w+Error): (.+)", text):
        kind, sentence = ours[-1]
        return kind, sentence
    if "Python worker exited unexpectedly" in text:
        return "", "a Python process of Spark ended during the job: it was killed or ran out of memory"
    if java := re.findall(r"java\.[\w.]*IOException: (.+?)(?: SQLSTATE|$)", text, re.MULTILINE):
        return "", f"Spark could not use its temporary files: {java[-1]}. Check the disks and their free space"
    python = re.findall(r"^([A-Za-z_][\w.]*(?:Error|Exception): .+)", text, re.MULTILINE)
    if python and "Traceback (most recent call last)" in text:
        return "", str(python[-1])
    return "", text.strip().partition("\n")[0]


def _kinds_of_failure() -> tuple[type[Exception], ...]:
    kinds: tuple[type[Exception], ...] = ()
    with suppress(ImportError):  # its absence may be the failure
        from pyspark.errors import PySparkException

        kinds += (PySparkException,)
    with suppress(ImportError):  # a client of Spark Connect has no py4j
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has none

        kinds += (Py4JJavaError,)
    return kinds


def _kinds_of_end() -> tuple[type[Exception], ...]:
    kinds: tuple[type[Exception], ...] = (ConnectionError, EOFError)
    with suppress(ImportError):
        from py4j.protocol import Py4JError

        kinds += (Py4JError,)
    with suppress(ImportError):
        from grpc import RpcError  # type: ignore[import-untyped]  # it has none

        kinds += (RpcError,)
    return kinds
