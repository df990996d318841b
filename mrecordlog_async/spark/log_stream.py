"""The streaming readers: Spark's calls, in its order. The offset is the positions of all queues (`offsets`).

One trigger:

    latestOffset → survey all servers → release what start has → plan → end
    commit(end of the batch before)
    partitions(start, end) → tasks: read(partition) → the sink commits → Spark writes commits/N

Spark keeps one instance for all triggers of a query, and sends copies to tasks. A truncate or an acknowledgement that
gets no response is logged and repeated with a later batch; a sync that fails ends the query.

| pyspark | `latestOffset` | limits | a run that ends | what is released |
|---|---|---|---|---|
| 4.2 and later | gets start and limit | always | Spark's own | up to start, and at `commit(end)` |
| 4.0, 4.1 | gets nothing | see below | one batch | at `commit(end)`, with the next batch |

Spark 4.0 and 4.1 call, in this order:

    the first start of a query     latestOffset() → E0, partitions({}, E0), …
    every other start              partitions(E, E), with the newest offset of the checkpoint
        a batch was begun          partitions(S, E): it runs again
    then, again and again          latestOffset() → F; if F is not E: commit(E), partitions(E, F)

So the reader knows where the last batch ended: at the end of the last `partitions`. It does not know whether its query
ends after one batch, because `trigger(availableNow=True)` is one batch there. So the first batch of a run has no
limits, except in a consumer's query that goes on.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from mrecordlog_async.protocol.bulk_schemas import PlanStart
from mrecordlog_async.spark.bounds import check_start, refuse_unknown_queues, refuse_unsubscribed, resolved
from mrecordlog_async.spark.connection import ServerDownError, ServiceRefusedError
from mrecordlog_async.spark.consuming import ConsumerOfDrain, rule_of
from mrecordlog_async.spark.log_server import FETCH_RECORDS, LogListing, LogServer, Patience, ReadTask
from mrecordlog_async.spark.log_table import ADVICE, ranges_of, tasks_of
from mrecordlog_async.spark.losses import ServersHeldError, UnreadLossError, arrange, forgotten, held_back
from mrecordlog_async.spark.offsets import Json, encoded, first_of, logs_of
from mrecordlog_async.spark.options import OptionError, Options, WhenDown
from mrecordlog_async.spark.planning import (
    Ends,
    PlannedBatch,
    Survey,
    batch_of,
    everything,
    evidence_against,
    without_ranges,
)
from mrecordlog_async.spark.runners import rows_of
from mrecordlog_async.spark.server_set import ServerSet
from mrecordlog_async.spark.state import DrainState, LogState, QueueAt
from mrecordlog_async.spark.surveying import DrainSettings, Surveyor
from mrecordlog_async.spark.table_files import syncfs

logger = logging.getLogger("mrecordlog_async.spark")

RETRY_SECONDS = 0.2

FIRST_WAIT_TIMES = 1.25
"""The first look waits this many times as long as a service may be silent."""


class TaskPartition(InputPartition):
    """A task as Spark carries it."""

    def __init__(self, task: ReadTask) -> None:
        super().__init__(None)
        self.task = task


class LogStreamBase(DataSourceStreamReader):
    """What the readers of all Sparks share."""

    def __init__(self, options: Options) -> None:
        """Request nothing yet. Raises OptionError for a start in the future."""
        self._options = options
        check_start(options.starting)
        self._logs = _surveyor(options)
        if options.starting != "earliest":
            self._logs.begins = self._begins
        self._planned: tuple[Json, Json, list[ReadTask]] = ({}, {}, [])
        self._state: tuple[Json, DrainState] = ({}, DrainState())
        self._accepting: tuple[Json, set[str]] = ({}, set())  # logs that went back, and the offset that accepts it
        self._surveys: Mapping[str, Survey] = {}
        self._released: Json | None = None  # up to which offset the logs were last released
        self._reached = set[str]()
        self._missed = dict[str, float]()  # servers that a DNS name does not have → since when a run waits for them
        self._named_exist = options.subscription.names is None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._options,)

    def _begins(self, server: LogServer, listing: LogListing) -> Mapping[str, int]:
        """Return where the options say that reading begins in a log that is new in the checkpoint."""
        known = self._state[1].logs.items()
        if server.name in {each.server for log, each in known if log.startswith(self._options.forget)}:
            return {name: each.first_position for name, each in listing.queues.items()}  # it replaces that log
        refuse_unknown_queues(self._options.starting, "startingOffsets", {server.name: listing})
        begins, moved = resolved(server, listing, self._options.starting)
        if moved and self._options.fail_on_data_loss:
            raise UnreadLossError(f"{'; '.join(moved[:3])}; {ADVICE}")
        for sentence in moved:
            logger.warning("lost, as allowed: %s", sentence)
        return begins

    def initialOffset(self) -> Json:  # noqa: N802  # Spark's name
        """Return the constant {}: Spark calls this several times and does not keep the result."""
        return {}

    # Where a batch ends.

    def end_after(self, start: Json, *, records: int | None, size: int | None, releases: bool) -> Json:
        """Return where the next batch ends; *start* itself if nothing is new.

        Args:
            start: where the last batch ended.
            records: records of the next one at most; None for no limit.
            size: their payload bytes at most.
            releases: release what *start* has: Spark has committed it.

        Raises:
            UnreadLossError: records were removed before they were read.
            ServersHeldError: no log may be read, or a run that ends has read the others.
            ServerDownError, ServiceRefusedError: a server does not respond, and the options do not skip it.
            OptionError: a queue that the options name does not exist.
            ForgetError: a server has a log that the options forget.
            ConsumerNotOursError: another reader has the consumer.
            OSError: what Spark has committed could not be synced.
        """
        self._logs.limits = records, size
        if start == self._accepting[0]:
            self._logs.accepted |= self._accepting[1]
        while True:
            state = self._state_of(start)
            batch = self._batch(state, records, size, releases=releases)
            if releases:
                self._released = start
            is_changed = state.logs.keys() - batch.state.logs.keys() or any(each.is_changed for each in batch.surveys)
            if is_changed or (
                not self._logs.waits_for_more(batch)
                if batch.records
                else any(_has_new(each, self._logs.ends) for each in batch.surveys)
            ):
                end = encoded(batch.state.logs, {each.listing.log: _begun(each) for each in batch.surveys})
                self._planned = start, end, tasks_of(batch.parts, self._options)
                self._logs.batches += 1
                self._accepting = end, {each.listing.log for each in batch.surveys if _is_read_again(each)}
                return end
            if self._logs.ends is None or not (self._misses_servers() or self._logs.is_outdated):
                return start
            _sleep(RETRY_SECONDS)

    def _batch(self, state: DrainState, records: int | None, size: int | None, *, releases: bool) -> PlannedBatch:
        surveys, down = self._looked(state)
        known = state
        if not down:
            self._refuse_unsubscribed(state, {name: each.listing for name, each in surveys.items()})
            known = forgotten(state, self._options.forget, [each.listing for each in surveys.values()])
        self._surveys = readable = self._logs.readable(known, surveys, down)
        held = self._logs.trouble.held
        if held and not readable:
            raise ServersHeldError(held)
        batch = batch_of(known, [_corrected(each) for each in readable.values()], records, size)
        self._logs.took(batch)
        if batch.lost and self._options.fail_on_data_loss:
            raise UnreadLossError(f"{'; '.join(batch.lost[:3])}; {ADVICE}")
        for sentence in batch.lost:
            logger.warning("lost, as allowed: %s", sentence)
        if releases:
            self._logs.release({name: (each.listing, each.stored) for name, each in readable.items()})
        return batch

    def _misses_servers(self) -> bool:
        """Return whether a run that has read everything else waits for servers that are down.

        Raises:
            ServersHeldError: a log is held back.
            ServerDownError, ServiceRefusedError: a server was down for too long.
        """
        if any(each.is_late for each in self._logs.threads.values()):
            return True  # whether it is down is known once its request has ended
        trouble = self._logs.trouble
        if trouble.held:
            raise ServersHeldError(trouble.held)
        if self._options.when_down is not WhenDown.FAIL_AT_END:
            return False
        for name in trouble.down:
            thread = self._logs.threads.get(name)  # None where a DNS name does not have it
            since = self._missed.setdefault(name, _clock()) if thread is None else thread.absence.since
            is_new = thread is not None and name not in self._reached
            if is_new or since is None or _clock() >= since + self._options.server_wait_seconds:
                raise self._failure(name, trouble.down)
        return bool(trouble.down)

    def _refuse_unsubscribed(self, state: DrainState, listings: Mapping[str, LogListing]) -> None:
        """Refuse names that no server has or had, in a run that ends; an endless one waits for them."""
        names = self._options.subscription.names
        if self._named_exist or names is None:
            return
        try:
            read = {queue for log in state.logs.values() for queue in log.queues}
            refuse_unsubscribed(names - read, listings, all_there=True)
        except OptionError as error:
            if self._logs.ends is not None:
                raise
            logger.warning("%s; the queue is read once it exists", error)
        self._named_exist = True

    def _state_of(self, offset: Json) -> DrainState:
        if self._state[0] != offset:
            before, logs = self._state[1].logs, logs_of(offset)
            # A survey of a log that did not change since stays current: it is recognized by the object.
            same = {log: before[log] for log, each in logs.items() if before.get(log) == each}
            self._state = offset, DrainState(logs=logs | same)
        return self._state[1]

    def _looked(self, state: DrainState) -> tuple[dict[str, Survey], dict[str, str]]:
        """Survey all servers; wait for those that are down, unless the options say to continue without."""
        deadline = _clock() + self._options.server_wait_seconds
        while True:
            surveys, down = self._logs.look(state)
            self._reached |= surveys.keys()
            for name in sorted(down.keys() & self._logs.threads.keys()):
                if (why := self._logs.threads[name].refused) is not None:
                    raise why  # it is not down: no run would ever read it
            if self._options.when_down is not WhenDown.FAIL:
                if not self._reached:
                    self._refuse_all(down)
                return surveys, down
            for name in down:
                refused = isinstance(self._logs.failures.get(name), ServiceRefusedError)
                is_new = name in self._logs.threads and name not in self._reached
                if refused or is_new or _clock() >= deadline:
                    raise self._failure(name, down)
            if len(surveys) == len(self._logs.threads) and not down:
                return surveys, down
            if down:  # others responded about an older offset, and are asked again
                _sleep(RETRY_SECONDS)

    def _refuse_all(self, down: Mapping[str, str]) -> None:
        """Raise what a service refused, where no server has ever responded otherwise."""
        for name in down:
            if isinstance(failure := self._logs.failures.get(name), ServiceRefusedError):
                raise failure

    def _failure(self, name: str, down: Mapping[str, str]) -> ServerDownError | ServiceRefusedError:
        """Return why a server is down, one that responds too late as well."""
        found = self._logs.failures.get(name)
        return found or ServerDownError(name, "the address in the option servers", down[name])

    # The same batch again.

    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        """Divide a batch among tasks, also one that Spark runs again.

        Raises:
            UnreadLossError: records of it were removed, or no server has a log of it.
            ServersHeldError: a log of it went back, or has two live copies.
            ForgetError: a server has a log that the options forget.
            ServerDownError, ServiceRefusedError: a server that it needs did not come back.
        """
        begun, planned, tasks = self._planned
        if (begun, planned) != (start, end):
            tasks = self._again(start, end)
        return [TaskPartition(each) for each in tasks]

    def _again(self, start: Json, end: Json) -> list[ReadTask]:
        """Plan exactly what is between two offsets."""
        known, ends, starts = self._state_of(start), logs_of(end), dict[str, list[PlanStart]]()
        for log, state in ends.items():
            before, first = known.logs.get(log, LogState()), first_of(end, log)
            for name, at in state.queues.items():
                old = before.queues.get(name)
                begun = old.next if old is not None and old.id == at.id else first.get(name, at.next)
                if begun < at.next:
                    starts.setdefault(log, []).append(PlanStart(name, begun, at.id, at.next))
        parts = [
            (each.server, log, ranges_of(each.server, each.listing, starts[log], self._options))
            for log, each in self._servers_of(known, {log: ends[log] for log in starts}).items()
        ]
        # Under the names that the batch had, whatever the servers are called now: a sink may have some of its rows.
        return [replace(each, server=ends[each.log].server) for each in tasks_of(parts, self._options)]

    def _servers_of(self, known: DrainState, wanted: Mapping[str, LogState]) -> dict[str, Survey]:
        """Return log → the survey of its server. A batch that was begun waits for its servers, whatever is set.

        Args:
            known: what Spark had before the batch.
            wanted: log → where the batch ends in it.
        """
        deadline = _clock() + self._options.server_wait_seconds
        while True:
            surveys, down = self._looked(known)
            listings = {name: each.listing for name, each in surveys.items()}
            kept = forgotten(DrainState(logs=dict(wanted)), self._options.forget, list(listings.values()))
            found = self._standing(kept, surveys)
            if found.keys() == kept.logs.keys():
                return {log: each for log, each in found.items() if not self._went_back(each, wanted[log])}
            missing = min(kept.logs.keys() - found.keys())
            for name, error in self._logs.vanished(kept, surveys).items():
                down[name], self._logs.failures[name] = error.reason, error
            if not down and len(surveys) == len(self._logs.threads):
                raise UnreadLossError(
                    f"no server has the log {missing}, which a batch that runs again needs: serve it again, under any "
                    "name; or, if it is lost, set forget to its id"
                )
            if down and _clock() >= deadline:
                raise self._failure(min(down), down)
            _sleep(RETRY_SECONDS)

    def _standing(self, wanted: DrainState, surveys: Mapping[str, Survey]) -> dict[str, Survey]:
        """Return log → its survey, of those wanted. Raises ServersHeldError if one has two live copies."""
        standing = arrange(wanted, {name: each.listing for name, each in surveys.items()})
        for name, why in standing.held.items():
            log = surveys[name].listing.log
            if log in wanted.logs and log not in standing.servers:
                raise ServersHeldError({name: why})
        return {log: surveys[name] for log, name in standing.servers.items() if log in wanted.logs}

    def _went_back(self, found: Survey, end: LogState) -> bool:
        """Return whether a log went back behind the *end* of a batch that runs again, which is accepted.

        Other records are at its positions. Nothing is read from there: the next batches read all that the log holds.
        Raises ServersHeldError if it is not accepted.
        """
        evidence = evidence_against(found.server, end, found.listing, found.listing)
        if evidence and not self._logs.settings.accept_went_back:
            raise ServersHeldError({found.server.name: held_back(evidence)})
        return bool(evidence)

    # After a batch.

    def commit(self, end: Json) -> None:
        """Release what Spark has committed, except in a log that is read anew: its positions were those of another.

        If `end_after(end)` has done it, nothing is requested here. Raises OSError, ConsumerNotOursError.
        """
        if end == self._released:
            return
        logs = logs_of(end)
        found = {name: (each.listing, logs.get(each.listing.log)) for name, each in self._surveys.items()}
        self._logs.release({name: at for name, at in found.items() if self._surveys[name].stored is not None})
        self._released = end

    def stop(self) -> None:
        """Close the connections. Spark ends the process instead of calling this; nothing depends on it."""
        self._logs.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task. Raises RangeDiffersError, ServerDownError, ServiceRefusedError."""
        assert isinstance(partition, TaskPartition)
        return rows_of(partition.task, payload=self._options.payload)


def _surveyor(options: Options) -> Surveyor:
    subscription, consumer = options.subscription, None
    if options.consumer is not None:
        rule = rule_of(subscription.names, subscription.pattern)
        consumer = ConsumerOfDrain(options.consumer, options.consumer_owner, rule, options.take_over)
    settings = DrainSettings(
        options.records_per_trigger,
        options.bytes_per_trigger,
        everything if subscription.includes_all else subscription.includes,
        options.truncate or consumer is not None,
        allow_loss=not options.fail_on_data_loss,
        accept_went_back=options.accept_went_back or not options.fail_on_data_loss,
        skip_down=True,  # what becomes of the query is decided by the reader
        forget=options.forget,
        min_records=options.records_min,
        max_delay_seconds=options.delay_seconds,
    )
    retries = options.retries if options.when_down is WhenDown.FAIL else 0
    servers = ServerSet(
        options.servers,
        options.all_tokens,
        consumer,
        patience=Patience(options.timeout_seconds, retries),
        in_tasks=Patience(options.timeout_seconds, options.retries, options.server_wait_seconds),
    )
    logs = Surveyor(servers, settings, logger.warning)
    logs.first_wait_seconds = FIRST_WAIT_TIMES * options.timeout_seconds
    logs.piece_records = min(FETCH_RECORDS, options.records_per_partition or FETCH_RECORDS)
    logs.before_release = lambda: sync_file_systems(options.sync_directories)
    return logs


def sync_file_systems(directories: Iterable[str]) -> None:
    """Sync the file systems of *directories* to the medium. Raises OSError.

    Spark never calls fsync: without this, a power failure after a truncate loses records in both output and log.
    """
    for directory in directories:
        handle = os.open(directory, os.O_RDONLY)
        try:
            syncfs(handle)
        finally:
            os.close(handle)


def _corrected(found: Survey) -> Survey:
    """Return *found*; of a log that went back, which is accepted, only where it is read again from.

    These positions enter the checkpoint before anything is read from there: a batch that runs again begins there too.
    """
    return without_ranges(found) if _is_read_again(found) else found


def _is_read_again(found: Survey) -> bool:
    return found.known is not None and found.stored is None


def _has_new(found: Survey, ends: Ends | None) -> bool:
    """Return whether a queue was listed that the output does not know: from now on its unread records are missed.

    ends: where a run ends; a queue that was created since does not belong to it.
    """
    known = {} if found.known is None else found.known.queues
    of_run = None if ends is None else ends.get(found.listing.log, {})
    new = (each for name, each in found.listing.queues.items() if name not in known)
    return any(of_run is None or each.id in of_run for each in new)


def _begun(found: Survey) -> dict[str, int]:
    """Return where reading begins in queues that the state before does not have."""
    known = {} if found.stored is None else found.stored.queues
    begun: dict[str, int] = {}
    for each in found.ranges:
        at = known.get(each.queue)
        if at is None or at.id != each.id:
            begun.setdefault(each.queue, each.start)
    return begun


class StartlessLogStream(LogStreamBase):
    """The reader for Spark 4.0 and 4.1, whose `latestOffset` gets neither a start nor a limit."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._at: Json | None = None  # where the last batch ended that Spark has planned
        self._has_begun = False  # whether Spark has requested an offset

    def latestOffset(self) -> Json:  # type: ignore[override]  # pyspark declares that of 4.2  # noqa: N802
        """Return where the next batch ends; the end of the last one if nothing is new. Errors: see `end_after`."""
        options, start, is_first = self._options, self._at or {}, not self._has_begun
        self._has_begun = True
        limits = options.records_per_trigger, options.bytes_per_trigger
        goes_on = options.consumer is not None and self._at is not None
        records, size = limits if goes_on or not is_first else (None, None)
        end = self.end_after(start, records=records, size=size, releases=False)
        if is_first and end is not start:
            self._warn_of_limits(*limits)
        return end

    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        """Divide a batch among tasks; with the same offset twice, take note of where Spark continues.

        Raises:
            OptionError: Spark's wrapper for availableNow asked where a run ends before it said where that begins.
        """
        if start == end and end and self._at is None and self._has_begun:
            raise OptionError(
                "spark.sql.streaming.triggerAvailableNowWrapper.enabled asks for the end of a run before this Spark "
                "says where it begins: set it to false, then a run is one batch; or use `mrecordlog drain`"
            )
        self._at = end
        return super().partitions(start, end) if start != end else []

    def _warn_of_limits(self, records: int, size: int) -> None:
        planned = [each for task in self._planned[2] for each in task.ranges]
        read, waiting = sum(each.records for each in planned), sum(self._logs.backlog.values())
        if read > records or sum(each.bytes for each in planned) > size:
            logger.warning(
                "the first batch of this run has %d records: with this Spark, maxRecordsPerTrigger and "
                "maxBytesPerTrigger hold from the second batch of a run on",
                read,
            )
        elif waiting:
            logger.warning(
                "maxRecordsPerTrigger or maxBytesPerTrigger leave %d records for later batches. With "
                "trigger(availableNow=True) this Spark ends a run after one batch: to read all in one run, raise both, "
                "or use `mrecordlog drain`",
                waiting,
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

        def reportLatestOffset(self) -> Json | None:  # noqa: N802
            """Return where the logs end, for Spark's progress reports; None before the first look.

            Besides the positions it has `waiting`: server → records that the batch leaves; `down`: server → why it is
            skipped; `held`: server → why its log is held back.
            """
            logs, trouble = self._logs, self._logs.trouble
            if not (self._surveys or trouble.down or trouble.held):
                return None
            ends = dict[str, LogState]()
            for name, each in self._surveys.items():
                queues = {queue: QueueAt(at.id, at.next_position) for queue, at in each.listing.queues.items()}
                ends[each.listing.log] = LogState(name, each.listing.at, queues)
            return {**encoded(ends, {}), "waiting": logs.backlog, "down": trouble.down, "held": trouble.held}


def stream_reader(options: Options) -> LogStreamBase:
    """Return the reader of a stream for the installed pyspark."""
    return LogStream42(options) if PASSES_LIMITS else StartlessLogStream(options)


_clock: Callable[[], float] = time.monotonic
_sleep: Callable[[float], None] = time.sleep
