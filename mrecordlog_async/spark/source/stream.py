"""A stream, whatever Spark it is for: what happens at Spark's calls, in their order. `readers` has what differs.

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
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from mrecordlog_async.spark.checkpoints.shared_storage import check_marker
from mrecordlog_async.spark.positions.offsets import HeldBackError, advanced
from mrecordlog_async.spark.services.connection import ServerDownError, ServiceRefusedError
from mrecordlog_async.spark.services.fleet import Fleet, ReopenedError
from mrecordlog_async.spark.services.responses import PlannedQueue
from mrecordlog_async.spark.settings.offset import Offset
from mrecordlog_async.spark.settings.option_values import WhenDown
from mrecordlog_async.spark.settings.options import Options
from mrecordlog_async.spark.source.listed_plans import TriggerLimits
from mrecordlog_async.spark.source.planning import partitions
from mrecordlog_async.spark.source.reader import PlannedPartition, read_partition
from mrecordlog_async.spark.source.trigger import StreamState, Trigger, ends

logger = logging.getLogger("mrecordlog_async.spark")

_clock: Callable[[], float] = time.monotonic

REOPENED_MAX = 5
"""Times that one trigger starts over because a log was opened in the middle of it."""


class LogStream(DataSourceStreamReader):
    """Reads services as a stream; with `truncate` or `consumer`, releases what the checkpoint has committed."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._fleet = Fleet(options, patience_seconds=options.server_wait_seconds)
        self._state = StreamState.of(options, self._fleet)
        self._held = self._state.held
        self._plans: dict[tuple[str, str], PlannedQueue] = {}  # of the batch that begins next

    # The driver's side.

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return the constant {}: Spark calls this several times and does not keep the result."""
        return {}

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
        """Where the queues ended at the last listing, and what progress reports and metrics are made of.

        waiting: server → records after the batch. bytes: payload bytes of the batch. retries: requests that this
        process has sent again. held: sentences about logs that are held back. down: server → why it is skipped.
        """
        return self._state.latest

    @property
    def limits(self) -> TriggerLimits:
        """What the options say that a batch may hold."""
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
