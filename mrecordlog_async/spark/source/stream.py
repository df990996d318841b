"""The streaming readers: Spark's calls, in its order.

One trigger:

    latestOffset   → `end_after(start)`: the steps of `trigger` → end
    commit(end of the batch before)
    partitions(start, end) → tasks: read(partition) → the sink commits → Spark writes commits/N

`start` is where the last batch ended that Spark has planned. If its commit file is known to exist, Spark never requests
anything before it again. So to release it there is as safe as in `commit`, and it is in time: `commit` is called one
batch late, and not at all after the last one. Spark's asyncProgressTracking writes commit files late, and therefore
excludes truncate and consumer.

Spark keeps one instance for all triggers of a query, in a separate Python process, and sends pickled copies to the
tasks. A truncate or an acknowledgement that gets no response is logged and retried at the next trigger; it does not
fail the query. A failed sync does, and another holder of the consumer.

A log that is not what the checkpoint continues is held back (`history`): the others are read on, and a warning and
`report` say so. If no other log is left, the query fails; a run that ends fails once it has read the rest.

What becomes of the others if a service is down is decided in `outages`. A batch that was begun needs its services: its
tasks wait for them (`serverWait`, two minutes).

There are two readers, for a Spark that says where the next batch begins, and for one that does not. Which of them Spark
gets depends on what pyspark offers, not on its version:

| pyspark | `latestOffset` | limits | a run that ends | what is released |
|---|---|---|---|---|
| 4.2 and later | gets start and limit | always | Spark's own | up to start, and at `commit(end)` |
| 4.0, 4.1 | gets nothing | see below | one batch | the same, where `option("checkpoint")` proves start |

Spark 4.0 and 4.1 call, in this order:

    the first start of a query     latestOffset() → E0, partitions({}, E0), …
    every other start              partitions(E, E), with the newest offset of the checkpoint
        a batch was begun          partitions(S, E): it runs again
    then, again and again          latestOffset() → F; if F is not E: commit(E), partitions(E, F)

So the reader knows where the last batch ended: it is the end of the last `partitions`. It does not know whether its
query ends after one batch, because `trigger(availableNow=True)` is one batch there. So without `checkpoint` and
`consumer` the first batch of a run takes all that there is, and even reads queues that are new. With one of them, the
limits hold from the first batch on, and a warning says what a run of one batch leaves.

A Spark that does not say where it continues looks like a new query. Then the first batch, without limits, is right too:
what it reads begins where Spark stands, and where it begins in a queue that is new is in its end (`Offset.first`).
"""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from mrecordlog_async.spark.checkpoints.named import NamedCheckpoint
from mrecordlog_async.spark.checkpoints.shared_storage import check_marker
from mrecordlog_async.spark.checkpoints.source_report import write_report
from mrecordlog_async.spark.positions.offsets import HeldBackError, advanced
from mrecordlog_async.spark.services.connection import ServerDownError, ServiceRefusedError
from mrecordlog_async.spark.services.fleet import Fleet, ReopenedError
from mrecordlog_async.spark.services.responses import PlannedQueue
from mrecordlog_async.spark.settings.offset import Offset
from mrecordlog_async.spark.settings.option_values import OptionError, WhenDown
from mrecordlog_async.spark.settings.options import Options
from mrecordlog_async.spark.source.listed_plans import TriggerLimits
from mrecordlog_async.spark.source.planning import partitions
from mrecordlog_async.spark.source.reader import PlannedPartition, read_partition
from mrecordlog_async.spark.source.trigger import StreamState, Trigger, ends

logger = logging.getLogger("mrecordlog_async.spark")

Json = dict[str, Any]

_clock: Callable[[], float] = time.monotonic

REOPENED_MAX = 5
"""Times that one trigger starts over because a log was opened in the middle of it."""


class LogStream(DataSourceStreamReader):
    """Reads services as a stream; with `truncate` or `consumer`, releases what the checkpoint has committed."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._fleet = Fleet(options, patience_seconds=options.server_wait_seconds)
        self._state = StreamState.of(options, self._fleet)
        self._plans: dict[tuple[str, str], PlannedQueue] = {}  # of the batch that begins next

    # The driver's side.

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return the constant {}: Spark calls this several times and does not keep the result."""
        return {}

    @abstractmethod
    def latestOffset(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # noqa: N802
        """Return where the next batch ends; what is passed depends on the Spark."""

    def stop_where_logs_end(self) -> None:
        """Remember where the queues end now: the run stops there."""
        _, standing = self._fleet.outages.repeated(lambda: self._fleet.standing(Offset()))
        self._state.target = {log: ends(listed.queues) for log, listed in standing.logs.items()}

    def end_after(
        self, start: dict[str, Any], limits: TriggerLimits, *, committed: bool = True, at_once: bool = False
    ) -> dict[str, Any]:
        """Truncate what is committed, and return where the next batch ends; *start* itself if nothing is new.

        Args:
            start: where the last batch ended.
            limits: what the next one may hold.
            committed: whether the checkpoint is known to have committed *start*; otherwise nothing is released.
            at_once: read new queues in this batch, instead of only recording where they begin.

        Raises:
            DataLossError: records were deleted before they were read, or a log went back.
            OptionError: a log is named twice or renamed, a queue that the options name does not exist, or
                startingTimestamp is in the future.
            ServerDownError, ServiceRefusedError: a service could not be reached, or refused a request.
        """
        reopened, changing, refused = 0, "", False
        while reopened < REOPENED_MAX:
            try:
                end = self._fleet.outages.repeated(
                    lambda: self._next(Trigger(self._state, start, committed=committed, at_once=at_once), limits)
                )
            except ReopenedError as error:
                logger.info("a log was reopened between two requests; listing it again")
                reopened, changing = reopened + 1, error.server
                continue
            except ServiceRefusedError:
                if refused:
                    raise
                # A server that refuses its listing, too, is down, as for a run that begins now: the options decide.
                refused = True
                continue
            if end is not start or not self._misses_servers():
                return end
            self._fleet.outages.wait()
        if self._state.target is not None:  # the run would end as if it had read everything
            reason = f"its log was opened again {REOPENED_MAX} times while a batch was planned"
            raise ServerDownError(changing, self._fleet.client(changing).url, reason)
        return start

    def _misses_servers(self) -> bool:
        """Return whether a run would end now without servers that it must not end without."""
        return (
            self._state.target is not None
            and self._options.when_down is WhenDown.FAIL_AT_END
            and bool(self._fleet.down)
        )

    def _next(self, trigger: Trigger, limits: TriggerLimits) -> dict[str, Any]:
        if trigger.finds_nothing_new():
            return trigger.start
        end = trigger.run(limits, _clock())
        self._plans = {(log, plan.queue): plan for log, plan in trigger.planned}
        return end

    @property
    def report(self) -> dict[str, Any] | None:
        """The ends of the queues at the last listing, and the facts for progress reports and metrics.

        waiting: server → records after the batch. bytes: payload bytes of the batch. retries: requests that this
        process has sent again. held: sentences about logs that are held back. down: server → why it is skipped.
        """
        return self._state.latest

    @property
    def limits(self) -> TriggerLimits:
        """The limits of a batch that the options set."""
        return TriggerLimits(self._options.records_per_trigger, self._options.bytes_per_trigger)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Divide the positions from *start* to *end* among tasks.

        Raises:
            OptionError: a log that the options forget is there: its part of the batch would never be read.
        """
        return self._fleet.outages.repeated(lambda: self._partitions(start, end))

    def _partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        last = Offset.decode(end)
        if self._state.committed.must_begin:  # a batch that runs again after a restart must not run for another holder
            Trigger(self._state, end).identify()
        first = Offset.decode(start).positions
        kept = last.without(self._fleet.forgotten(last))
        moved = advanced(first, kept.positions, kept.first)
        found = partitions(self._fleet, moved, last.servers, self._plans, last.origins)
        return [PlannedPartition(partition) for partition in found]

    def commit(self, end: dict[str, Any]) -> None:
        """Truncate, or acknowledge, up to *end*: the batch that ends there has its commit file.

        If `end_after(end)` has done it, which is usual, nothing is requested here.
        """
        if self._state.committed.releases and end != self._state.released_to:
            with suppress(ReopenedError, HeldBackError):  # the next trigger does it, or reports it
                self._fleet.outages.repeated(lambda: Trigger(self._state, end).release_only())

    def expect_kept(self) -> None:
        """Log no warning about queues that keep what is released."""
        self._state.committed.expect_kept()

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


class StartlessStreamReader(LogStream):
    """The reader for Spark 4.0 and 4.1, whose `latestOffset` gets neither a start nor a limit."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._checkpoint = NamedCheckpoint(options.checkpoint) if options.checkpoint is not None else None
        self._at: Json | None = None  # where the last batch ended that Spark has planned
        self._begun = False  # whether Spark has requested an offset
        self._bytes = 0
        self._ended = False

    def latestOffset(self) -> Json:  # type: ignore[override]  # pyspark declares that of 4.2  # noqa: N802
        """Return where the next batch ends; the end of the last one if nothing is new. Errors: `LogStream.end_after`.

        Raises:
            OptionError: the option checkpoint does not name the checkpoint of this query.
        """
        if self._ended:
            assert self._at is not None, "the run has read what there was"
            return self._at
        start, first = self._at or {}, not self._begun
        if self._checkpoint is not None and self._at is None:
            self._checkpoint.refuse_batches()
        if first and self._options.stop_at_end:
            self.stop_where_logs_end()
        committed = self._checkpoint is not None and self._checkpoint.has_committed(start)
        end = self.end_after(start, self._limits(first), committed=committed, at_once=first)
        self._begun = True
        self._ended = self._options.stop_at_end and end is start
        self._say(first, is_new=end is not start)
        return end

    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        """Divide a batch among tasks; with the same offset twice, take note of where Spark continues.

        Raises:
            OptionError: the option checkpoint does not name the checkpoint of this query, or Spark's wrapper for
                availableNow asked where a run ends before it said where that begins.
        """
        if start == end and end and self._at is None and self._begun:
            raise OptionError(
                "spark.sql.streaming.triggerAvailableNowWrapper.enabled asks for the end of a run before this Spark "
                "says where it begins: set it to false, then a run is one batch; or use `mrecordlog drain`"
            )
        if self._checkpoint is not None:
            self._checkpoint.refuse_without(end)
        self._at = end
        return super().partitions(start, end) if start != end else []

    def _limits(self, first: bool) -> TriggerLimits:
        """Return what the next batch may hold. A drain never runs a single batch, whose limits would leave records."""
        is_known = self._checkpoint is not None or (self._options.consumer is not None and self._at is not None)
        is_of_drain = self._options.report_to is not None
        return self.limits if is_known or is_of_drain or not first else TriggerLimits()

    def _say(self, first: bool, *, is_new: bool) -> None:
        """Report to the drain, which this Spark does not do; warn of what the limits of a first batch mean."""
        report = self.report or {}
        size = report.get("bytes", 0) if is_new else 0
        self._bytes += size
        if self._options.report_to is not None:
            said: Json = {name: report[name] for name in ("waiting", "retries", "held", "down") if name in report}
            write_report(self._options.report_to, {**said, "planned_bytes": self._bytes, "ended": self._ended})
        elif first and is_new:
            self._warn_of_limits(sum(plan.records for plan in self._plans.values()), size, report["waiting"])

    def _warn_of_limits(self, records: int, size: int, waiting: dict[str, int]) -> None:
        if not self.limits.hold(records, size):
            logger.warning(
                "the first batch of this run has %d records and %d bytes, more than maxRecordsPerTrigger or "
                "maxBytesPerTrigger: set the option checkpoint to the checkpointLocation of this query, then they hold "
                "for this batch, too",
                records,
                size,
            )
        elif any(waiting.values()):
            logger.warning(
                "maxRecordsPerTrigger or maxBytesPerTrigger leave %d records for later batches. With "
                "trigger(availableNow=True) this Spark ends a run after one batch: to read all in one run, raise both, "
                "or use `mrecordlog drain`",
                sum(waiting.values()),
            )


try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError as missing:
    if not str(missing.name).startswith("pyspark"):
        raise
    PASSES_LIMITS = False
else:
    PASSES_LIMITS = True

    class LogStreamReader(LogStream, SupportsTriggerAvailableNow):
        """The reader for Spark 4.2 and later, which says where the next batch begins, and what it may hold."""

        def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's names
            """Return the limit in records; the limit in bytes applies as well."""
            return ReadMaxRows(self.limits.records or 0)

        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
            """Remember where the queues end now: the run stops there."""
            self.stop_where_logs_end()

        def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802
            """Return where the next batch ends; *start* itself if nothing is new. Errors: `LogStream.end_after`."""
            return self.end_after(start, self._limits_of(limit))

        def reportLatestOffset(self) -> Json | None:  # noqa: N802
            """Return `LogStream.report`."""
            return self.report

        def _limits_of(self, limit: ReadLimit) -> TriggerLimits:
            match limit:
                case ReadAllAvailable():
                    return TriggerLimits()
                case ReadMaxRows(max_rows=records):
                    return self.limits._replace(records=records)
                case ReadMaxBytes(max_bytes=size):
                    return self.limits._replace(bytes=size)
            return self.limits


def stream_reader(options: Options) -> LogStream:
    """Return the reader of a stream for the installed pyspark."""
    return LogStreamReader(options) if PASSES_LIMITS else StartlessStreamReader(options)
