"""The streaming reader: Spark's questions, answered in its order.

One trigger (see `plan` for the decisions):

    latestOffset(start)   list → check start → truncate up to start → pin what is new → plan → end
    commit(end of the batch before)
    partitions(start, end) → tasks: read(partition) → the sink commits → Spark writes commits/N

`start` is the end of the last batch whose commit file exists, in a running query and after a restart alike: Spark will
never ask for less again, so truncating there is as safe as in `commit`, and comes in time: `commit` is called one batch
late, and after the last batch not at all. (Spark's asyncProgressTracking writes commit files late: not with truncate.)

Spark keeps one instance for all triggers of a query in a Python process of its own, and sends pickled copies to the
tasks. A truncate that fails is logged and tried again at the next trigger; it fails no query. A sync that fails does.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from mrecordlog_async.spark.client import ServerDownError, ServiceError
from mrecordlog_async.spark.fleet import Fleet, Limits
from mrecordlog_async.spark.lake import syncfs
from mrecordlog_async.spark.options import Options
from mrecordlog_async.spark.plan import Listing, Offset, assemble, canonical, check, moving, pin, truncations
from mrecordlog_async.spark.reader import PlannedPartition, read_partition
from mrecordlog_async.spark.shared import check_marker

logger = logging.getLogger("mrecordlog_async.spark")


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads services as a stream, and truncates what the checkpoint has if told to."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._fleet = Fleet(options)
        self._target: Offset | None = None  # of an AvailableNow run: read up to here
        self._latest: Offset | None = None

    # The driver's side.

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return the constant {}: it is asked several times and not kept in the checkpoint."""
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit in records; the one in bytes is applied beside it."""
        return ReadMaxRows(self._options.records_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember where the queues end now: the run stops there."""
        listings = self._fleet.listings()
        self._target = {server: _ends(listing) for server, listing in listings.items()}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Truncate what is committed, and return where the next batch ends; *start* itself if nothing is new."""
        listings = self._fleet.listings()
        self._latest = {server: _ends(listing) for server, listing in listings.items()}
        checked = check(start, listings, self._fleet.names)
        self._fleet.report_losses(checked.lost)
        self._truncate(checked.sound, listings)
        pinned, lost = pin(start, self._targeted(listings), self._options.starting)
        self._fleet.report_losses(lost)
        # Only what is sound moves: a position that was corrected must be in the checkpoint before it is read from.
        ends = self._fleet.advance(checked.sound, listings, self._target, self._limits(limit))
        return assemble(start, checked.positions, ends, pinned)

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        """Return where the queues ended at the last listing; Spark shows it in a query's progress."""
        return canonical(self._latest) if self._latest is not None else None

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Cut the positions from *start* to *end* into what tasks read."""
        return [PlannedPartition(partition) for partition in self._fleet.partitions(moving(start, end))]

    def commit(self, end: Offset) -> None:
        """Truncate up to *end*: the batch that ends there has its commit file."""
        if self._options.truncate:
            listings = self._fleet.listings()
            self._truncate(check(end, listings, self._fleet.names).sound, listings)

    def stop(self) -> None:
        """Close the connections. Spark ends the process instead of calling this; nothing depends on it."""
        self._fleet.close()

    # The tasks' side.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition; all of them, or an error that makes Spark run the task again."""
        assert isinstance(partition, PlannedPartition)
        if self._options.shared_marker is not None:
            check_marker(self._options.shared_marker)
        return read_partition(self._fleet, partition.value, payload=self._options.payload)

    # Helpers.

    def _limits(self, limit: ReadLimit) -> Limits:
        options = self._options
        match limit:
            case ReadAllAvailable():
                return Limits()
            case ReadMaxRows(max_rows=records):
                return Limits(records, options.bytes_per_trigger)
            case ReadMaxBytes(max_bytes=size):
                return Limits(options.records_per_trigger, size)
        return Limits(options.records_per_trigger, options.bytes_per_trigger)

    def _targeted(self, listings: Mapping[str, Listing]) -> Mapping[str, Listing]:
        """Return the queues that may be begun: in an AvailableNow run those that were there when it started."""
        target = self._target
        if target is None:
            return listings
        return {
            server: {
                queue: summary
                for queue, summary in listing.items()
                if target[server].get(queue, [None])[0] == summary.id
            }
            for server, listing in listings.items()
            if server in target
        }

    def _truncate(self, sound: Offset, listings: Mapping[str, Listing]) -> None:
        if not self._options.truncate:
            return
        due = truncations(sound, listings)
        if not due:
            return
        # Outside of the try: a failed sync may have lost pages, and the next one would not tell.
        sync_file_systems(self._options.sync_directories)
        try:
            for server, queues in due.items():
                for answer in self._fleet.client(server).truncate(queues):
                    if answer.status != "ok":
                        logger.warning("queue %r of %r was not truncated: %s", answer.queue, server, answer.status)
        except (OSError, ServerDownError, ServiceError) as error:
            logger.warning("truncating what is committed failed, it is tried again: %s", error)


def sync_file_systems(directories: tuple[str, ...]) -> None:
    """Bring the file systems of *directories* to the medium.

    Spark calls fsync nowhere: without this a power cut after a truncate takes the output and the log has let go of it.
    """
    for directory in directories:
        handle = os.open(directory, os.O_RDONLY)
        try:
            syncfs(handle)
        finally:
            os.close(handle)


def _ends(listing: Listing) -> dict[str, list[int]]:
    return {queue: [summary.id, summary.next_position] for queue, summary in listing.items()}
