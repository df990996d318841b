"""The streaming reader: Spark's calls, in its order.

One trigger (see `offsets` for the decisions):

    latestOffset(start)   list → identify the logs → check start → truncate or acknowledge up to start → enrol what is
                          new → plan → end
    commit(end of the batch before)
    partitions(start, end) → tasks: read(partition) → the sink commits → Spark writes commits/N

`start` is the end of the last batch whose commit file exists, both in a running query and after a restart. Spark never
requests anything before it again, so to release it there is as safe as in `commit`, and it is in time: `commit` is
called one batch late, and not at all after the last one. Spark's asyncProgressTracking writes commit files late, and
therefore excludes truncate and consumer.

Spark keeps one instance for all triggers of a query, in a separate Python process, and sends pickled copies to the
tasks. A truncate or an acknowledgement that gets no response is logged and retried at the next trigger; it does not
fail the query. A failed sync does, and another holder of the consumer.

A log that is not what the checkpoint continues is held back (`history`): the others go on, and a warning and
`reportLatestOffset` say so. If no other log is left, the query fails; a run that ends fails once it has read the rest.

What becomes of the others if a service is down is decided in `outages`. A batch that was begun needs its services: its
tasks wait for them (`serverWait`, two minutes).
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

from mrecordlog_async.spark.checkpoints.shared_storage import check_marker
from mrecordlog_async.spark.consumer.committed import LISTED_MAX, Committed
from mrecordlog_async.spark.positions.history import restarted
from mrecordlog_async.spark.positions.offsets import (
    Checked,
    DataLossError,
    HeldBackError,
    Listing,
    advanced,
    assemble,
    backlog,
    check,
    enrol,
    joined,
    refuse_unknown_queues,
)
from mrecordlog_async.spark.positions.proof import Listed
from mrecordlog_async.spark.services.connection import ServerDownError, ServiceRefusedError, retries
from mrecordlog_async.spark.services.fleet import Fleet, ReopenedError
from mrecordlog_async.spark.services.held_logs import HeldLogs
from mrecordlog_async.spark.services.responses import QueuePlan
from mrecordlog_async.spark.settings.checkpoint import Checkpoint, Offset
from mrecordlog_async.spark.settings.option_values import Bound, OptionError, Subscription, WhenDown
from mrecordlog_async.spark.settings.options import Options
from mrecordlog_async.spark.source.listed_plans import Limits, ReadBefore
from mrecordlog_async.spark.source.moments import starting_positions
from mrecordlog_async.spark.source.planning import advance, ends_of_gone, partitions
from mrecordlog_async.spark.source.reader import PlannedPartition, read_partition

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
        # Whether the queues that the options name were looked up on all servers.
        self._looked = options.subscription.names is None and not isinstance(options.starting, Mapping)
        self._settled: dict[str, Any] | None = None  # the offset up to which the logs were last released
        self._waiting_since: float | None = None  # a batch waits for more records
        self._plans: dict[tuple[str, str], QueuePlan] = {}  # of the batch that begins next
        self._read_before = ReadBefore()
        self._idle: tuple[dict[str, Any], dict[str, Listed]] = {}, {}  # an offset after which nothing was left to do
        self._again = options.read_again or {}  # server → queues that went back and are not reread yet
        self._held = HeldLogs(options)

    # The driver's side.

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return the constant {}: Spark calls this several times and does not keep the result."""
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit in records; the limit in bytes applies as well."""
        return ReadMaxRows(self._options.records_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember where the queues end now: the run stops there."""
        _, standing = self._fleet.repeated(lambda: self._fleet.standing(Checkpoint()))
        self._target = {log: _ends(listed.queues) for log, listed in standing.logs.items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Truncate what is committed, and return where the next batch ends; *start* itself if nothing is new.

        Raises:
            DataLossError: records were deleted before they were read, or a log went back.
            OptionError: a log is named twice or renamed, a queue that the options name does not exist, or
                startingTimestamp is in the future.
            ServerDownError, ServiceRefusedError: a service could not be reached, or refused a request.
        """
        reopened, changing, refused = 0, "", False
        while reopened < REOPENED_MAX:
            try:
                end = self._fleet.repeated(lambda: self._next(start, limit))
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
            self._fleet.wait_for_down()
        if self._target is not None:  # the run would end as if it had read everything
            reason = f"its log was opened again {REOPENED_MAX} times while a batch was planned"
            raise ServerDownError(changing, self._fleet.client(changing).url, reason)
        return start

    def _misses_servers(self) -> bool:
        """Return whether a run would end now without servers that it must not end without."""
        return self._target is not None and self._options.when_down is WhenDown.FAIL_AT_END and bool(self._fleet.down)

    def _next(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        found = self._fleet.survey()
        if self._is_idle(start, found):
            return start
        before = Checkpoint.decode(start)
        known, surveys, again = self._readable(before, found)
        self._aim_at_late(surveys)
        known.positions = restarted(known, again)
        checked = self._check(known, surveys)
        if checked.back and self._options.read_again is not None:
            raise DataLossError("; ".join(checked.back))
        self._fleet.report_losses(checked.lost)
        for log in again:  # `_enrol` returns the same; a consumer moves back to it
            checked.positions[log] = _firsts(surveys[log].queues)
        released = self._committed.release(checked, surveys)
        self._committed.move_back(checked, surveys)
        self._settled = start  # commit(start), which Spark calls next, has nothing left to do
        first_positions = self._enrol(before, known, surveys)
        # Only intact positions advance: a corrected one must be in the checkpoint before anything is read from it.
        begun = _begun(checked.intact, before.positions)
        plans = advance(self._fleet, begun, surveys, self._target, self._limits(limit), self._read_before)
        self._plans = {(log, plan.queue): plan for log, plan in plans}
        if self._waits_for_more(plans, surveys):
            plans = []
        self._read_before.note(plans, surveys)
        ends: Offset = {}
        for log, plan in plans:
            ends.setdefault(log, {})[plan.queue] = [plan.id, plan.stop]
        positions = assemble(before.positions, checked.positions, ends, first_positions)
        self._note_latest(joined(checked.positions, first_positions), surveys, plans)
        if positions is before.positions and not again:
            if self._target is not None:
                self._held.fail_at_end()
            if not (self._plans or released or self._held.sentences or self._fleet.down or checked.lost):
                self._idle = start, found
            return start
        # These logs are reread from here on: the new offset has positions from their first records.
        self._held.accept(again)
        listed = {each.server for each in surveys.values()}
        self._again = {server: queues for server, queues in self._again.items() if server not in listed}
        stated = _stated(known, positions, surveys)
        self._note_origins(stated, surveys)
        return stated.encode()

    def _note_origins(self, end: Checkpoint, surveys: Mapping[str, Listed]) -> None:
        """Note in *end* which of the logs are there by a DNS name: only these can vanish from it."""
        for log in surveys:
            place = self._fleet.place_of(log)
            if place is not None:
                end.origins[log] = place.origin
            else:
                end.origins.pop(log, None)

    def _aim_at_late(self, surveys: Mapping[str, Listed]) -> None:
        """Let a run that ends read the logs, too, whose servers were down when it began."""
        if self._target is not None:
            for log, listed in surveys.items():
                self._target.setdefault(log, _ends(listed.queues))

    def _is_idle(self, start: dict[str, Any], found: dict[str, Listed]) -> bool:
        """Return whether *start* was the answer to the same listings, with nothing left to release.

        Comparing 5,000 queues one by one takes 30 times as long, with every trigger of a stream that waits.
        """
        before, listed = self._idle
        return (
            listed.keys() == found.keys()
            and all(found[server] is listed[server] for server in found)
            and not self._fleet.down  # it is reported
            and self._options.consumer is None  # its owner may have changed
            and before == start
        )

    def _readable(
        self, known: Checkpoint, found: dict[str, Listed] | None = None
    ) -> tuple[Checkpoint, dict[str, Listed], set[str]]:
        """List the logs, and attach to the consumers of new queues; then list again what these hold.

        Returns:
            The checkpoint by the ids of logs, the listings by log, and the logs that are reread (see `HeldLogs`).

        Raises:
            ConsumerRefusedError: a consumer belongs to another owner.
            HeldBackError: no log is left.
        """
        now, standing = self._fleet.standing(known, found)
        again = self._held.take_out(standing)
        for _ in range(LISTED_MAX):
            if not self._committed.attach(standing.logs):
                break
            now, standing = self._fleet.standing(known)
            again = self._held.take_out(standing)
        return now, standing.logs, again

    def _waits_for_more(self, plans: list[tuple[str, QueuePlan]], surveys: Mapping[str, Listed]) -> bool:
        """Return whether the next batch waits for more records; a run that ends, or a batch that is full, does not."""
        options = self._options
        records = sum(plan.records for _, plan in plans)
        if not 0 < records < options.records_min or self._target is not None or _is_full(plans, surveys):
            self._waiting_since = None
            return False
        now = _clock()
        if self._waiting_since is None:
            self._waiting_since = now
        if now - self._waiting_since < options.delay_seconds:
            return True
        self._waiting_since = None
        return False

    def _enrol(self, before: Checkpoint, known: Checkpoint, surveys: dict[str, Listed]) -> Offset:
        """Return the first positions of queues that are new: they enter the checkpoint before a record is read.

        before: the checkpoint with the logs that the options forget.
        """
        # A log that takes the place of one that was forgotten is read from its first record.
        replaced = set(before.servers.values()) - set(known.servers.values())
        begun = {log: dict[str, list[int]]() for log, listed in surveys.items() if listed.server in replaced}
        start = begun | known.positions
        starting = _by_log(self._options.starting, surveys)
        starting = starting_positions(starting, self._fleet, surveys, [log for log in surveys if log not in start])
        listings = {log: listed.queues for log, listed in surveys.items()}
        names = {log: listed.server for log, listed in surveys.items()}
        if not self._looked:
            self._looked = self._refuse_unknown(known, {names[log]: listing for log, listing in listings.items()})
        first_positions, lost = enrol(start, self._targeted(listings), starting, names)
        self._fleet.report_losses(lost)
        return self._committed.admitted(first_positions, surveys)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return where the queues ended at the last listing, and what progress reports and metrics are made of.

        waiting: server → records after the batch. bytes: payload bytes of the batch. retries: requests that this
        process has sent again. held: sentences about logs that are held back. down: server → why it is skipped.
        """
        return self._latest

    def _check(self, known: Checkpoint, surveys: dict[str, Listed]) -> Checked:
        """Compare the checkpoint with what the logs have; look up queues that are gone."""
        ended = ends_of_gone(self._fleet, known, surveys)
        includes = self._options.subscription.includes
        # Only once: rereading may end at the same position.
        again = {log: self._again[listed.server] for log, listed in surveys.items() if listed.server in self._again}
        return check(known.positions, surveys, ended=ended, includes=includes, again=again)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Divide the positions from *start* to *end* among tasks.

        Raises:
            OptionError: a log that the options forget is there: its part of the batch would never be read.
        """
        return self._fleet.repeated(lambda: self._partitions(start, end))

    def _partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        last = Checkpoint.decode(end)
        if self._committed.must_begin:  # a batch that runs again after a restart must not run for another holder
            self._readable(last)
        first = Checkpoint.decode(start).positions
        kept = last.without(self._fleet.forgotten(last))
        moved = advanced(first, kept.positions)
        found = partitions(self._fleet, moved, last.servers, self._plans, last.origins)
        return [PlannedPartition(partition) for partition in found]

    def commit(self, end: dict[str, Any]) -> None:
        """Truncate, or acknowledge, up to *end*: the batch that ends there has its commit file.

        If `latestOffset(end)` was called before, which is usual, that has done it and nothing is requested here.
        """
        if self._committed.releases and end != self._settled:
            with suppress(ReopenedError, HeldBackError):  # the next trigger does it, or reports it
                self._fleet.repeated(lambda: self._release(end))

    def _release(self, end: dict[str, Any]) -> None:
        known, surveys, again = self._readable(Checkpoint.decode(end))
        for log in again:
            del surveys[log]
        self._committed.release(self._check(known, surveys), surveys)

    def expect_kept(self) -> None:
        """Log no warning about queues that keep what is released."""
        self._committed.expect_kept()

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

    def _refuse_unknown(self, known: Checkpoint, listings: Mapping[str, Listing]) -> bool:
        """Return whether all servers have been asked for the queues that the options name.

        Raises:
            OptionError: startingOffsets, or a run that ends, names queues that do not exist. A continuous run logs
                that a subscribed one does not exist, and waits for it.
        """
        options, start = self._options, known.by_server()
        if isinstance(options.starting, Mapping):
            refuse_unknown_queues(start, listings, (), Subscription(), options.starting)
        if self._fleet.down or self._held.sentences:
            return False
        try:
            refuse_unknown_queues(start, listings, listings, options.subscription)
        except OptionError as error:
            if self._target is not None:
                raise
            logger.warning("%s; the queue is read once it exists", error)
        return True

    def _targeted(self, listings: Mapping[str, Listing]) -> Mapping[str, Listing]:
        """Return the queues that may be enrolled: in an AvailableNow run those that existed when it started."""
        target = self._target
        if target is None:
            return listings
        return {
            log: {
                queue: summary for queue, summary in listing.items() if target[log].get(queue, [None])[0] == summary.id
            }
            for log, listing in listings.items()
            if log in target
        }

    def _note_latest(self, begun: Offset, surveys: Mapping[str, Listed], plans: list[tuple[str, QueuePlan]]) -> None:
        names = {log: listed.server for log, listed in surveys.items()}
        waiting = {names[log]: backlog(begun.get(log, {}), listed.queues) for log, listed in surveys.items()}
        for log, plan in plans:
            name = names[log]
            waiting[name] = max(0, waiting[name] - plan.records)  # records arrived since the listing
        latest = Checkpoint({log: _ends(listed.queues) for log, listed in surveys.items()}, names)
        self._latest = latest.encode() | {
            "waiting": waiting,
            "bytes": sum(plan.bytes for _, plan in plans),
            "retries": retries.count,
            "held": self._held.sentences,
            "down": dict(self._fleet.down),
        }


def _begun(intact: Offset, start: Offset) -> Offset:
    """Return what *start* has of *intact*: a log's id must be in the checkpoint before anything is read from it."""
    return {
        log: queues if queues.keys() <= start[log].keys() else {q: at for q, at in queues.items() if q in start[log]}
        for log, queues in intact.items()
        if log in start
    }


def _is_full(plans: list[tuple[str, QueuePlan]], surveys: Mapping[str, Listed]) -> bool:
    """Return whether the limits of a batch left out records that were listed."""
    return any(plan.stop < surveys[log].queues[plan.queue].next_position for log, plan in plans)


def _by_log(starting: Bound, surveys: Mapping[str, Listed]) -> Bound:
    """Return *starting*, whose positions are by the names of servers, by log."""
    if not isinstance(starting, Mapping):
        return starting
    return {log: starting[listed.server] for log, listed in surveys.items() if listed.server in starting}


def _stated(known: Checkpoint, positions: Offset, surveys: Mapping[str, Listed]) -> Checkpoint:
    """Return *positions* with the states of their logs, as they were listed; the others keep the states they had."""
    end = Checkpoint(positions, dict(known.servers), dict(known.at), dict(known.origins))
    for log, listed in surveys.items():
        end.servers[log] = listed.server
        if listed.at is not None:
            end.at[log] = listed.at
    return end


def _firsts(listing: Listing) -> dict[str, list[int]]:
    return {queue: [summary.id, summary.first_position] for queue, summary in listing.items()}


def _ends(listing: Listing) -> dict[str, list[int]]:
    return {queue: [summary.id, summary.next_position] for queue, summary in listing.items()}
