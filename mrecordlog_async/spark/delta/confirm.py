"""The batch that a crash left in the table without a commit file, if it cannot run again: the commit file is written.

Usually such a batch runs again, and is skipped because the table has a batch of the same content. But if one of its
logs is lost and forgotten, or records of it were deleted and that is allowed, it would have other content. What it
holds follows from its offsets where positions have no gaps, so the table's digest shows that nothing of it is missing.
"""

from __future__ import annotations

from mrecordlog_async.spark.checkpoints.batches import COMMITS, OFFSETS, SparkBatches, newest
from mrecordlog_async.spark.checkpoints.lake import Lake
from mrecordlog_async.spark.delta.content import QueueRows
from mrecordlog_async.spark.delta.place import TablePlace
from mrecordlog_async.spark.delta.table import CONTENT, DrainTable, NewBatch, explained
from mrecordlog_async.spark.positions.offsets import advanced
from mrecordlog_async.spark.settings.offset import Offset
from mrecordlog_async.spark.settings.options import Options

COMMITTED = b'v1\n{"nextBatchWatermarkMs":0}'
"""Spark's commit file of a batch of a query without a watermark."""


def confirm(checkpoint: Lake, place: TablePlace, query: str, options: Options) -> list[str]:
    """Confirm the batch that was begun, if the table has it and it may lack records now; after `start.prepare`.

    Returns one sentence if it was confirmed. options: those of the data source, which say what may be lost.

    Raises:
        TableError, SyncFailedError, WriteFailedError: the table cannot be used, or the disk failed.
    """
    number = newest(checkpoint, OFFSETS)
    batches = SparkBatches(checkpoint)
    start, end = batches.offset_at(number - 1), batches.offset_at(number)
    if number <= newest(checkpoint, COMMITS) or start is None or end is None or not _may_lack(start, end, options):
        return []
    batch = NewBatch(query, number, _content(start, end), [])
    table = DrainTable(place)
    with explained(place):
        found = [table.loaded.transaction_version(name) for name in (query, query + CONTENT)]
        schema, partition_by = table.loaded.schema(), table.loaded.metadata().partition_columns
    if found != [number, batch.digest]:
        return []
    table.store(batch, schema, partition_by, checkpoint.sync)  # is skipped, and its entry made durable
    checkpoint.remove(COMMITS, [str(number)])  # a checksum may be left of it
    checkpoint.write(f"{COMMITS}/{number}", COMMITTED)
    return [f"batch {number} is in the table as it was planned, and is confirmed without its logs"]


def _may_lack(start: Offset, end: Offset, options: Options) -> bool:
    """Return whether the batch between two offsets may have fewer records when it runs again."""
    logs = {log for log, *_ in advanced(start.positions, end.positions, end.first)}
    return bool(logs) and (not options.fail_on_data_loss or any(log.startswith(options.forget) for log in logs))


def _content(start: Offset, end: Offset) -> list[QueueRows]:
    """Return what a batch holds if its positions have no gaps."""
    return [
        QueueRows(
            end.servers[log], queue, queue_id, stop - first, first, stop - 1, (first + stop - 1) * (stop - first) // 2
        )
        for log, queue, queue_id, first, stop in advanced(start.positions, end.positions, end.first)
    ]
