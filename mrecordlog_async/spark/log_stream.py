"""The streaming readers: Spark's calls, in its order. The offset is the positions of all queues.

    {"version": 4, "logs": {"4f…": {"server": "a", "at": ["9f…", 17], "queues": {"orders": [id, next]}, "first": {…}}}}

`first` has where reading began in queues that the offset before does not have: a batch that Spark runs again has the
same records. One trigger:

    latestOffset → survey all servers → release what start has → plan → end
    commit(end of the batch before)
    partitions(start, end) → tasks: read(partition) → the sink commits → Spark writes commits/N

Spark keeps one instance for all triggers of a query, and sends copies to tasks.

| pyspark | `latestOffset` | limits | a run that ends | what is released |
|---|---|---|---|---|
| 4.2 and later | gets start and limit | always | Spark's own | up to start, and at `commit(end)` |
| 4.0, 4.1 | gets nothing | from the second batch of a run on | one batch | at `commit(end)`, with the next batch |

Spark 4.0 and 4.1 pass the newest offset of the checkpoint to `partitions`, twice, before anything else at a start. So
the reader knows where the last batch ended: at the end of the last `partitions`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from mrecordlog_async.protocol.bulk_schemas import PlanRequest, PlanStart, QueuePlan
from mrecordlog_async.spark.bounds import check_start, refuse_unknown_queues, resolved
from mrecordlog_async.spark.consumer.holder import rule_of
from mrecordlog_async.spark.consuming import ConsumerOfDrain
from mrecordlog_async.spark.log_server import FETCH_BYTES, FETCH_RECORDS, LogListing, LogServer, ReadTask
from mrecordlog_async.spark.losses import ServersHeldError, UnreadLossError
from mrecordlog_async.spark.migration import logs_of
from mrecordlog_async.spark.planning import PlannedBatch, Survey, batch_of, everything, split
from mrecordlog_async.spark.runners import rows_of
from mrecordlog_async.spark.server_set import ServerSet
from mrecordlog_async.spark.services.connection import ServerDownError
from mrecordlog_async.spark.settings.option_values import WhenDown
from mrecordlog_async.spark.settings.options import Options
from mrecordlog_async.spark.state import DrainState, ReadRange
from mrecordlog_async.spark.surveying import DrainSettings, Surveyor

logger = logging.getLogger("mrecordlog_async.spark")

Json = dict[str, Any]

RETRY_SECONDS = 0.5

ADVICE = "to continue with what is left, set failOnDataLoss to false"


class TaskPartition(InputPartition):
    """A task as Spark carries it."""

    def __init__(self, task: ReadTask) -> None:
        super().__init__(None)
        self.task = task


def encoded(batch: PlannedBatch) -> Json:
    """Return the offset at which *batch* ends, with sorted keys: Spark compares offsets as text."""
    first = {each.listing.log: _begun(each) for each in batch.surveys}
    logs: Json = {}
    for log, each in sorted(batch.state.logs.items()):
        queues = {name: list(at) for name, at in sorted(each.queues.items())}
        logs[log] = {"server": each.server, "at": each.at and list(each.at), "queues": queues}
        if first.get(log):
            logs[log]["first"] = dict(sorted(first[log].items()))
    return {"version": 4 if any(first.values()) else 3, "logs": logs}


def _begun(found: Survey) -> dict[str, int]:
    """Return where reading begins in queues that the state before does not have, or has elsewhere."""
    known = {} if found.stored is None else found.stored.queues
    begun: dict[str, int] = {}
    for each in found.ranges:
        at = known.get(each.queue)
        if at is None or at.id != each.id or each.start < at.next:
            begun.setdefault(each.queue, each.start)
    return begun


class LogStreamBase(DataSourceStreamReader):
    """What the readers of all Sparks share."""

    def __init__(self, options: Options) -> None:
        """Request nothing yet."""
        self._options = options
        held = options.consumer
        rule = rule_of(options.subscription)
        consumer = ConsumerOfDrain(held, options.consumer_owner or "", rule, options.take_over) if held else None
        tokens = {**options.tokens, **({"": options.token} if options.token else {})}
        settings = DrainSettings(
            options.records_per_trigger,
            options.bytes_per_trigger,
            everything if options.subscription.includes_all else options.subscription.includes,
            options.truncate or consumer is not None,
            allow_loss=not options.fail_on_data_loss,
            accept_went_back=options.accept_went_back or not options.fail_on_data_loss,
            skip_down=True,  # what becomes of the query is decided here
        )
        self._logs = Surveyor(ServerSet(options.servers, tokens, consumer), settings, logger.warning)
        check_start(options.starting)
        if options.starting != "earliest":
            self._logs.begins = self._begins
        self._planned: tuple[Json, list[ReadTask]] = ({}, [])
        self._start: tuple[Json, DrainState] = ({}, DrainState())
        self._surveys: Mapping[str, Survey] = {}

    def _begins(self, server: LogServer, listing: LogListing) -> Mapping[str, int]:
        """Return where the options say that reading begins in a log that is new in the checkpoint."""
        refuse_unknown_queues(self._options.starting, "startingOffsets", {server.name: listing})
        begins, moved = resolved(server, listing, self._options.starting)
        if moved and self._options.fail_on_data_loss:
            raise UnreadLossError(f"{'; '.join(moved[:3])}; {ADVICE}")
        return begins

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._options,)

    def initialOffset(self) -> Json:  # noqa: N802  # Spark's name
        """Return the constant {}: Spark calls this several times and does not keep the result."""
        return {}

    def end_after(self, start: Json, *, records: int | None, size: int | None, releases: bool) -> Json:
        """Return where the next batch ends; *start* itself if nothing is new.

        Args:
            start: where the last batch ended.
            records: records of the next one at most; None for no limit.
            size: their payload bytes at most.
            releases: release what *start* has: Spark has committed it.

        Raises:
            UnreadLossError: records were removed before they were read.
            ServersHeldError: no log may be read.
            ServerDownError, ServiceRefusedError: a server does not respond, and the options do not skip it.
        """
        state = self._state_of(start)
        self._logs.limits = records, size
        surveys, down = self._looked(state)
        self._surveys = readable = self._logs.readable(state, surveys, down)
        held = self._logs.trouble.held
        if held and not readable:
            raise ServersHeldError("; ".join(f"server {name!r}: {why}" for name, why in held.items()))
        batch = batch_of(state, list(readable.values()), records, size)
        if batch.lost and self._options.fail_on_data_loss:
            raise UnreadLossError(f"{'; '.join(batch.lost[:3])}; {ADVICE}")
        for sentence in batch.lost:
            logger.warning("lost, as allowed: %s", sentence)
        if releases:
            self._logs.release({name: (each.listing, each.stored) for name, each in readable.items()})
        if not batch.is_due:
            return start
        end = encoded(batch)
        self._planned = end, batch.tasks(self._cores)
        return end

    @property
    def _cores(self) -> int:
        return self._options.parallelism or self._options.partitions_min or 4

    def _state_of(self, offset: Json) -> DrainState:
        if self._start[0] != offset:
            self._start = offset, DrainState(logs=logs_of(offset) if offset else {})
        return self._start[1]

    def _looked(self, state: DrainState) -> tuple[dict[str, Survey], dict[str, str]]:
        """Survey all servers; wait for those that are down, unless the options say to continue without."""
        deadline = _clock() + self._options.server_wait_seconds
        while True:
            surveys, down = self._logs.look(state)
            if not down or self._options.when_down is not WhenDown.FAIL:
                return surveys, down
            if _clock() >= deadline:
                name, why = min(down.items())
                raise ServerDownError(name, "its address", why)
            _sleep(RETRY_SECONDS)

    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        """Divide a batch among tasks, also one that Spark runs again. Raises UnreadLossError, ServerDownError."""
        planned, tasks = self._planned
        if planned != end:
            tasks = self._again(start, end)
        return [TaskPartition(each) for each in tasks]

    def _again(self, start: Json, end: Json) -> list[ReadTask]:
        """Plan exactly what is between two offsets."""
        known, wanted = self._state_of(start), logs_of(end)
        surveys, _ = self._looked(known)
        tasks = list[ReadTask]()
        for log, state in wanted.items():
            before = known.logs.get(log)
            first = end["logs"][log].get("first", {})
            starts = []
            for name, at in state.queues.items():
                old = None if before is None else before.queues.get(name)
                begun = first.get(name, old.next if old is not None and old.id == at.id else at.next)
                if begun < at.next:
                    starts.append(PlanStart(name, begun, at.id, at.next))
            server = next((each.server for each in surveys.values() if each.listing.log == log), None)
            if starts and server is None:
                raise UnreadLossError(f"no server has the log {log}, which a batch that runs again needs")
            if starts and server is not None:
                tasks += split(server, log, self._ranges(server, log, starts), self._cores)
        return tasks

    def _ranges(self, server: LogServer, log: str, starts: list[PlanStart]) -> list[ReadRange]:
        """Return the ranges of a batch that runs again. Raises UnreadLossError unless they are whole or need not be."""
        request = PlanRequest(None, None, None, FETCH_RECORDS, FETCH_BYTES)
        ranges, lost = list[ReadRange](), list[str]()
        for asked, plan in zip(starts, server.plan(starts, request, log), strict=True):
            if plan.status != "ok" or plan.start != asked.start:
                lost.append(_loss(server.name, asked, plan))
            if plan.status in ("ok", "truncated") and plan.id == asked.id:
                ranges += [ReadRange(plan.queue, plan.id, *_of_piece(each)) for each in plan.pieces]
        if lost and self._options.fail_on_data_loss:
            raise UnreadLossError(f"{'; '.join(lost[:3])}; {ADVICE}")
        return ranges

    def commit(self, end: Json) -> None:
        """Release what Spark has committed, except in a log that is read anew: its positions were those of another."""
        logs = logs_of(end)
        found = {
            name: (each.listing, logs[each.listing.log])
            for name, each in self._surveys.items()
            if each.listing.log in logs and each.stored is not None
        }
        self._logs.release(found)

    def stop(self) -> None:
        """Close the connections. Spark ends the process instead of calling this; nothing depends on it."""
        self._logs.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        assert isinstance(partition, TaskPartition)
        return rows_of(partition.task)


def _of_piece(piece: Any) -> tuple[int, int, int, int]:
    return piece.start, piece.stop, piece.records, piece.bytes


def _loss(server: str, asked: PlanStart, plan: QueuePlan) -> str:
    shown = f"server {server!r}, queue {asked.queue!r}"
    return f"{shown}: positions {asked.start} to {(asked.stop or 0) - 1} are no longer there ({plan.status})"


class StartlessLogStream(LogStreamBase):
    """The reader for Spark 4.0 and 4.1, whose `latestOffset` gets neither a start nor a limit."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._at: Json | None = None  # where the last batch ended that Spark has planned

    def latestOffset(self) -> Json:  # type: ignore[override]  # pyspark declares that of 4.2  # noqa: N802
        """Return where the next batch ends. The first one of a run has no limits: the run may be one batch."""
        options, is_first = self._options, self._at is None
        records, size = (None, None) if is_first else (options.records_per_trigger, options.bytes_per_trigger)
        return self.end_after(self._at or {}, records=records, size=size, releases=False)

    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        """Divide a batch among tasks; with the same offset twice, take note of where Spark continues."""
        self._at = end
        return super().partitions(start, end) if start != end else []


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
else:

    class LogStream42(LogStreamBase, SupportsTriggerAvailableNow):
        """The reader for Spark 4.2 and later, which says where the next batch begins, and what it may hold."""

        def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's names
            """Return the limit in records; the limit in bytes applies as well."""
            return ReadMaxRows(self._options.records_per_trigger)

        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
            """Let the run stop where the queues end at its first look, which knows what the checkpoint has."""
            self._logs.ends = {}

        def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802
            """Return where the next batch ends; *start* itself if nothing is new. Errors: see `end_after`."""
            records: int | None = self._options.records_per_trigger
            size: int | None = self._options.bytes_per_trigger
            if isinstance(limit, ReadAllAvailable):
                records = size = None
            elif isinstance(limit, ReadMaxRows):
                records = limit.max_rows
            elif isinstance(limit, ReadMaxBytes):
                size = limit.max_bytes
            return self.end_after(start, records=records, size=size, releases=bool(start))


_clock: Callable[[], float] = time.monotonic
_sleep: Callable[[float], None] = time.sleep
