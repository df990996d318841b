"""The streaming reader: Spark's calls, in its order.

One trigger (see `offsets` for the decisions):

    latestOffset(start)   list → check start → truncate or acknowledge up to start → enrol what is new → plan → end
    commit(end of the batch before)
    partitions(start, end) → tasks: read(partition) → the sink commits → Spark writes commits/N

`start` is the end of the last batch whose commit file exists, both in a running query and after a restart. Spark never
requests anything before it again, so to release it there is as safe as in `commit`, and it is in time: `commit` is
called one batch late, and not at all after the last one. Spark's asyncProgressTracking writes commit files late, and
therefore excludes truncate and consumer.

Spark keeps one instance for all triggers of a query, in a separate Python process, and sends pickled copies to the
tasks. A truncate or an acknowledgement that gets no response is logged and retried at the next trigger; it does not
fail the query. A failed sync does, and another holder of the consumer.

The stream waits for a service that has responded once (`serverWait`, two minutes): its restart does not end the stream.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
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

from mrecordlog_async.spark.checkpoint import Checkpoint, Mark, Offset
from mrecordlog_async.spark.connection import retries
from mrecordlog_async.spark.consumer.committed import Committed
from mrecordlog_async.spark.fleet import Fleet, Limits, ReopenedError
from mrecordlog_async.spark.moments import starting_positions
from mrecordlog_async.spark.offsets import (
    Checked,
    DataLossError,
    Listing,
    advanced,
    assemble,
    backlog,
    check,
    enrol,
    refuse_unknown_queues,
)
from mrecordlog_async.spark.option_values import OptionError
from mrecordlog_async.spark.options import Options
from mrecordlog_async.spark.proof import Listed, refuse_renamed
from mrecordlog_async.spark.reader import PlannedPartition, read_partition
from mrecordlog_async.spark.responses import QueuePlan
from mrecordlog_async.spark.shared_storage import check_marker

logger = logging.getLogger("mrecordlog_async.spark")

_clock: Callable[[], float] = time.monotonic

REOPENED_MAX = 5
"""How often one trigger starts over because a log was opened in the middle of it."""


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads services as a stream; with `truncate` or `consumer`, releases what the checkpoint has committed."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._fleet = Fleet(options, patience_seconds=options.server_wait_seconds)
        self._committed = Committed(options, self._fleet)
        self._target: Offset | None = None  # of an AvailableNow run: read up to here
        self._latest: dict[str, Any] | None = None
        self._looked = False  # whether the queues that the options name were looked up
        self._settled: dict[str, Any] | None = None  # the offset up to which the logs were last released
        self._waiting_since: float | None = None  # a batch waits for more records
        self._again = options.read_again or {}  # queues that went back and are not reread yet

    # The driver's side.

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return the constant {}: Spark calls this several times and does not keep the result."""
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit in records; the limit in bytes applies as well."""
        return ReadMaxRows(self._options.records_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember where the queues end now: the run stops there."""
        self._target = {server: _ends(listing) for server, listing in self._fleet.listings().items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Truncate what is committed, and return where the next batch ends; *start* itself if nothing is new.

        Raises:
            DataLossError: records were deleted before they were read, or a log went back.
            OptionError: a log is named twice or renamed, a queue that the options name does not exist, or
                startingTimestamp is in the future.
            ServerDownError, ServiceRefusedError: a service could not be reached, or refused a request.
        """
        for _ in range(REOPENED_MAX):
            try:
                return self._next(start, limit)
            except ReopenedError:
                logger.info("a log was reopened between two requests; listing it again")
        return start

    def _next(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        known = Checkpoint.decode(start)
        surveys = self._committed.survey()
        checked = self._check(known, surveys)
        if checked.back and self._options.read_again is not None:
            raise DataLossError("; ".join(checked.back))
        self._fleet.report_losses(checked.lost)
        self._committed.release(checked, surveys)
        self._committed.move_back(checked, surveys)
        self._settled = start  # commit(start), which Spark calls next, has nothing left to do
        first_positions = self._enrol(known.positions, surveys)
        # Only intact positions advance: a corrected one must be in the checkpoint before anything is read from it.
        plans = self._fleet.advance(checked.intact, surveys, self._target, self._limits(limit))
        if self._waits_for_more(sum(plan.records for _, plan in plans)):
            plans = []
        ends: Offset = {}
        for server, plan in plans:
            ends.setdefault(server, {})[plan.queue] = [plan.id, plan.stop]
        positions = assemble(known.positions, checked.positions, ends, first_positions)
        self._note_latest(assemble(known.positions, checked.positions, {}, first_positions), surveys, plans)
        if positions is known.positions:
            return start
        # These logs are reread from here on: the new offset has positions from their first records.
        self._again = {server: queues for server, queues in self._again.items() if server not in surveys}
        return _marked(known, positions, surveys, checked.intact, plans).encode()

    def _waits_for_more(self, records: int) -> bool:
        """Return whether the next batch waits for more records; a run that ends does not wait."""
        options = self._options
        if not records or records >= options.records_min or self._target is not None:
            self._waiting_since = None
            return False
        now = _clock()
        if self._waiting_since is None:
            self._waiting_since = now
        if now - self._waiting_since < options.delay_seconds:
            return True
        self._waiting_since = None
        return False

    def _enrol(self, positions: Offset, surveys: dict[str, Listed]) -> Offset:
        """Return the first positions of queues that are new: they enter the checkpoint before a record is read."""
        fresh = [server for server in surveys if server not in positions]
        starting = starting_positions(self._options.starting, self._fleet, surveys, fresh)
        listings = {server: listed.queues for server, listed in surveys.items()}
        if not self._looked:
            self._refuse_unknown(positions, listings)
            self._looked = True
        first_positions, lost = enrol(positions, self._targeted(listings), starting)
        self._fleet.report_losses(lost)
        return self._committed.admitted(first_positions, surveys)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return where the queues ended at the last listing, and what progress reports and metrics are made of.

        waiting: server → records after the batch. bytes: payload bytes of the batch. retries: requests that this
        process has sent again.
        """
        return self._latest

    def _check(self, known: Checkpoint, surveys: dict[str, Listed]) -> Checked:
        """Compare the checkpoint with what the servers have; for logs that were opened since, request proof."""
        refuse_renamed(known.logs, ((server, listed.log) for server, listed in surveys.items()))
        answers = self._fleet.prove(known, surveys)
        includes = self._options.subscription.includes
        again = self._again  # only once: rereading may end at the same position
        return check(known.positions, surveys, marks=known.marks, answers=answers, includes=includes, again=again)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Divide the positions from *start* to *end* among tasks."""
        self._committed.begin()
        moved = advanced(Checkpoint.decode(start).positions, Checkpoint.decode(end).positions)
        return [PlannedPartition(partition) for partition in self._fleet.partitions(moved)]

    def commit(self, end: dict[str, Any]) -> None:
        """Truncate, or acknowledge, up to *end*: the batch that ends there has its commit file.

        If `latestOffset(end)` was called before, which is usual, that has done it and nothing is requested here.
        """
        if self._committed.releases and end != self._settled:
            surveys = self._committed.survey()
            with suppress(ReopenedError):  # the next trigger does it
                self._committed.release(self._check(Checkpoint.decode(end), surveys), surveys)

    def stop(self) -> None:
        """Close the connections. Spark ends the process instead of calling this; nothing depends on it."""
        self._fleet.close()

    # The tasks' side.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition.

        Raises:
            ShortResponseError, ServerDownError, ServiceRefusedError: not all rows could be read; Spark reruns the task.
            NotSharedError: this machine does not mount the output (see `shared_storage`).
        """
        assert isinstance(partition, PlannedPartition)
        if self._options.shared_marker is not None:
            check_marker(self._options.shared_marker)
        return read_partition(self._fleet, partition.value, payload=self._options.payload)

    # One trigger.

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

    def _refuse_unknown(self, positions: Offset, listings: Mapping[str, Listing]) -> None:
        """Raise OptionError if a run that ends names queues that do not exist; a continuous one logs it and waits."""
        options, names = self._options, self._fleet.names
        named = [options.starting] if isinstance(options.starting, Mapping) else []
        try:
            refuse_unknown_queues(positions, listings, names, options.subscription, *named)
        except OptionError as error:
            if self._target is not None or named:
                raise
            logger.warning("%s; the queue is read once it exists", error)

    def _targeted(self, listings: Mapping[str, Listing]) -> Mapping[str, Listing]:
        """Return the queues that may be enrolled: in an AvailableNow run those that existed when it started."""
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

    def _note_latest(self, begun: Offset, surveys: Mapping[str, Listed], plans: list[tuple[str, QueuePlan]]) -> None:
        latest = {server: _ends(listed.queues) for server, listed in surveys.items()}
        waiting = {server: backlog(begun.get(server, {}), listed.queues) for server, listed in surveys.items()}
        for server, plan in plans:
            waiting[server] = max(0, waiting[server] - plan.records)  # records arrived since the listing
        logs = {server: listed.log for server, listed in surveys.items()}
        marks = {server: {queue: Mark(listed.opening) for queue in listed.queues} for server, listed in surveys.items()}
        self._latest = Checkpoint(latest, marks, logs).encode() | {
            "waiting": waiting,
            "bytes": sum(plan.bytes for _, plan in plans),
            "retries": retries.count,
        }


def _marked(
    known: Checkpoint,
    positions: Offset,
    surveys: Mapping[str, Listed],
    intact: Offset,
    plans: list[tuple[str, QueuePlan]],
) -> Checkpoint:
    """Return *positions* with their marks: each queue's is the opening under which it was last checked."""
    marks = {server: dict(queues) for server, queues in known.marks.items()}
    logs = dict(known.logs)
    for server, listed in surveys.items():
        logs[server] = listed.log
        before, now = known.marks.get(server, {}), marks.setdefault(server, {})
        for queue in positions.get(server, {}):
            if queue in listed.queues:
                kept = queue in intact.get(server, {}) and queue in before
                now[queue] = Mark(listed.opening, before[queue].tail if kept else None)
    for server, plan in plans:
        if plan.records:
            marks[server][plan.queue] = Mark(surveys[server].opening, plan.tail)
    return Checkpoint(positions, marks, logs)


def _ends(listing: Listing) -> dict[str, list[int]]:
    return {queue: [summary.id, summary.next_position] for queue, summary in listing.items()}
