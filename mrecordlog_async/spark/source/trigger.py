"""One trigger of a stream: from the offset where the last batch ended to the offset where the next one ends.

Each step relies on those before it:

1. list the queues of every server; if nothing has changed since an idle trigger, that is all
2. identify the logs, leave out those that are held back, attach to the consumers of new queues
3. check the offset against the logs: what is intact, what is lost
4. release what the offset covers: after the check, which says what is intact
5. enrol new queues: after the release, so that a start that fails here has released what it may
6. plan how far the batch reaches: from intact positions that are in the checkpoint already, or where new queues begin
7. state the end: an offset that differs from the start only if Spark has something to write

`positions.offsets` has the decisions of steps 3, 5 and 7 as plain functions.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mrecordlog_async.spark.consumer.committed import LISTED_MAX, Committed
from mrecordlog_async.spark.positions.history import restarted
from mrecordlog_async.spark.positions.offsets import (
    Checked,
    DataLossError,
    Listing,
    assemble,
    backlog,
    check,
    enrol,
    joined,
    newest_queue_ids,
    refuse_unknown_queues,
)
from mrecordlog_async.spark.positions.proof import Listed
from mrecordlog_async.spark.services.connection import retries
from mrecordlog_async.spark.services.fleet import Fleet
from mrecordlog_async.spark.services.held_logs import HeldLogs
from mrecordlog_async.spark.services.responses import PlannedQueue
from mrecordlog_async.spark.settings.offset import Offset, Positions
from mrecordlog_async.spark.settings.option_values import Bound, OptionError, Subscription
from mrecordlog_async.spark.settings.options import Options
from mrecordlog_async.spark.source.listed_plans import ReadBefore, TriggerLimits
from mrecordlog_async.spark.source.moments import starting_positions
from mrecordlog_async.spark.source.planning import advance, ends_of_gone

logger = logging.getLogger("mrecordlog_async.spark")


@dataclass(slots=True)
class StreamState:
    """The parts of a stream, and what one trigger leaves for the next one. A copy in a task uses none of it."""

    options: Options
    fleet: Fleet
    committed: Committed  # releases what the checkpoint has committed
    held: HeldLogs  # the logs that are held back
    named_exist: bool  # whether the queues that the options name were looked up on all servers
    read_again: Positions  # server → queues that went back and are not reread yet
    target: Positions | None = None  # of a run that ends: log → where its queues ended when it began
    released_to: dict[str, Any] | None = None  # the offset up to which the logs were last released
    waiting_since: float | None = None  # when a batch began to wait for more records
    read_before: ReadBefore = field(default_factory=ReadBefore)  # what is known of the queues of the batch before
    # An offset, the listings after which nothing was left to do, and whether the offset was committed
    idle: tuple[dict[str, Any], dict[str, Listed], bool] = field(default_factory=lambda: ({}, {}, False))
    latest: dict[str, Any] | None = None  # the last report, as `LogStreamReader.reportLatestOffset` returns it

    @classmethod
    def of(cls, options: Options, fleet: Fleet) -> StreamState:
        """Return the state of a stream that begins."""
        named_exist = options.subscription.names is None and not isinstance(options.starting, Mapping)
        committed, held = Committed(options, fleet), HeldLogs(options)
        return cls(options, fleet, committed, held, named_exist, options.read_again or {})


class Trigger:
    """One trigger. Each of its steps finds something, which has a field here.

    committed: whether the checkpoint is known to have committed *start*; otherwise step 4 releases nothing.
    at_once: read new queues in the same batch; otherwise they enter the checkpoint first, in a separate batch.
    """

    def __init__(
        self, state: StreamState, start: dict[str, Any], *, committed: bool = True, at_once: bool = False
    ) -> None:
        self._state = state
        self._committed = committed
        self._at_once = at_once
        self.start = start  # where the last batch ended, as Spark has it
        self.before = Offset()  # the same as a value
        self.offset = Offset()  # the same by the ids of the logs that are listed now, without those that are forgotten
        self.logs: dict[str, Listed] = {}  # log → its listing; those that can be read
        self.reread: set[str] = set()  # logs that went back, which is accepted: read again from their first records
        self.checked = Checked()  # which positions of `offset` are intact, and what is lost
        self.first_positions: Positions = {}  # of the queues that are new
        self.planned: list[tuple[str, PlannedQueue]] = []  # (log, plan) of each queue that has something to read
        self.batch: list[tuple[str, PlannedQueue]] = []  # those of the next batch; none if it waits for more records
        self._listings: dict[str, Listed] = {}
        self._released = False

    # 1

    def finds_nothing_new(self) -> bool:
        """List the queues; return whether *start* was the answer to the same listings, with nothing left to release.

        Comparing 5,000 queues one by one takes 30 times as long, with every trigger of a stream that waits.
        """
        state = self._state
        self._listings = state.fleet.survey()
        start, listings, committed = state.idle
        return (
            listings.keys() == self._listings.keys()
            and all(self._listings[server] is listings[server] for server in listings)
            and not state.fleet.down  # it is reported
            and state.options.consumer is None  # its owner may have changed
            and committed == self._committed
            and start == self.start
        )

    def run(self, limits: TriggerLimits, now: float) -> dict[str, Any]:
        """Take the other steps; return the offset where the next batch ends, *start* itself if nothing is new.

        Args:
            limits: what the batch may hold.
            now: the time, of any clock.
        """
        self.identify(self._listings)  # 2
        self._aim_at_late()
        self._check()  # 3
        self._release()  # 4
        self._enrol()  # 5
        self._plan(limits, now)  # 6
        return self._end()  # 7

    def release_only(self) -> None:
        """Release up to *start*, and begin no batch. Logs that are reread wait for the next trigger."""
        self.identify()
        for log in self.reread:
            del self.logs[log]
        self.checked = self._compared()
        self._state.committed.release(self.checked, self.logs)

    # 2

    def identify(self, listings: dict[str, Listed] | None = None) -> None:
        """Find out which log is where, and attach to the consumers of new queues; then list again what these hold.

        Raises:
            ConsumerRefusedError: a consumer belongs to another owner.
            HeldBackError: no log is left.
        """
        self.before = Offset.decode(self.start)
        self._stand(listings)
        for _ in range(LISTED_MAX):
            # Records may have been dropped between the listing and the attach: what is attached to is listed again.
            if not self._state.committed.attach(self.logs):
                return
            self._stand(None)

    def _stand(self, listings: dict[str, Listed] | None) -> None:
        self.offset, standing = self._state.fleet.standing(self.before, listings)
        self.reread = self._state.held.take_out(standing)
        self.logs = standing.logs

    def _aim_at_late(self) -> None:
        """Let a run that ends read the logs, too, whose servers were down when it began."""
        if self._state.target is not None:
            for log, listed in self.logs.items():
                self._state.target.setdefault(log, ends(listed.queues))

    # 3

    def _check(self) -> None:
        self.offset.positions = restarted(self.offset, self.reread)
        self.checked = self._compared()
        if self.checked.back and self._state.options.read_again is not None:
            raise DataLossError("; ".join(self.checked.back))
        self._state.fleet.report_losses(self.checked.lost)
        for log in self.reread:  # step 5 finds the same positions; a consumer moves back to them in step 4
            self.checked.positions[log] = _firsts(self.logs[log].queues)

    def _compared(self) -> Checked:
        """Compare the offset with what the logs have; look up queues that are gone."""
        state = self._state
        ended = ends_of_gone(state.fleet, self.offset, self.logs)
        includes = state.options.subscription.includes
        # Only once: rereading may end at the same position.
        again = {log: state.read_again[one.server] for log, one in self.logs.items() if one.server in state.read_again}
        return check(self.offset.positions, self.logs, ended=ended, includes=includes, again=again)

    # 4

    def _release(self) -> None:
        """Release up to *start*, if Spark has committed it: then it requests nothing before it again."""
        if self._committed:
            self._released = self._state.committed.release(self.checked, self.logs)
            self._state.released_to = self.start  # commit(start), which Spark calls next, has nothing left to do
        else:
            self._state.committed.compare(self.checked, self.logs)
        self._state.committed.move_back(self.checked, self.logs)

    # 5

    def _enrol(self) -> None:
        """Find the first positions of queues that are new: they enter the checkpoint before a record is read."""
        state, logs = self._state, self.logs
        # A log that takes the place of one that was forgotten is read from its first record.
        replaced = set(self.before.servers.values()) - set(self.offset.servers.values())
        begun = {log: dict[str, list[int]]() for log, listed in logs.items() if listed.server in replaced}
        start = begun | self.offset.positions
        starting = _by_log(state.options.starting, logs)
        starting = starting_positions(starting, state.fleet, logs, [log for log in logs if log not in start])
        listings = {log: listed.queues for log, listed in logs.items()}
        names = {log: listed.server for log, listed in logs.items()}
        if not state.named_exist:
            state.named_exist = self._refuse_unknown({names[log]: listing for log, listing in listings.items()})
        newest = newest_queue_ids(self.before.positions, state.options.subscription, self.reread)
        found, lost = enrol(start, self._targeted(listings), starting, names, newest)
        state.fleet.report_losses(lost)
        self.first_positions = state.committed.admitted(found, logs)

    def _refuse_unknown(self, listings: Mapping[str, Listing]) -> bool:
        """Return whether all servers have been asked for the queues that the options name.

        Raises:
            OptionError: startingOffsets, or a run that ends, names queues that do not exist. A continuous run logs
                that a subscribed one does not exist, and waits for it.
        """
        state, start = self._state, self.offset.by_server()
        if isinstance(state.options.starting, Mapping):
            refuse_unknown_queues(start, listings, (), Subscription(), state.options.starting)
        if state.fleet.down or state.held.sentences:
            return False
        try:
            refuse_unknown_queues(start, listings, listings, state.options.subscription)
        except OptionError as error:
            if state.target is not None:
                raise
            logger.warning("%s; the queue is read once it exists", error)
        return True

    def _targeted(self, listings: Mapping[str, Listing]) -> Mapping[str, Listing]:
        """Return the queues that may be enrolled: in a run that ends those that existed when it started."""
        target = self._state.target
        if target is None:
            return listings
        return {
            log: {
                queue: summary for queue, summary in listing.items() if target[log].get(queue, [None])[0] == summary.id
            }
            for log, listing in listings.items()
            if log in target
        }

    # 6

    def _plan(self, limits: TriggerLimits, now: float) -> None:
        """Find out how far the batch reaches."""
        state = self._state
        # Only intact positions advance: a corrected one must be in the checkpoint before anything is read from it.
        begun = _begun(self.checked.intact, self.before.positions)
        if self._at_once:  # where they begin is in the offset of the batch that reads them (`Offset.first`)
            begun = joined(begun, self.first_positions)
        self.planned = advance(state.fleet, begun, self.logs, state.target, limits, state.read_before)
        self.batch = [] if self._waits_for_more(now) else self.planned
        state.read_before.note(self.batch, self.logs)

    def _waits_for_more(self, now: float) -> bool:
        """Return whether the next batch waits for more records; a run that ends, or a batch that is full, does not."""
        state = self._state
        records = sum(plan.records for _, plan in self.planned)
        if not 0 < records < state.options.records_min or state.target is not None or self._is_full():
            state.waiting_since = None
            return False
        if state.waiting_since is None:
            state.waiting_since = now
        if now - state.waiting_since < state.options.delay_seconds:
            return True
        state.waiting_since = None
        return False

    def _is_full(self) -> bool:
        """Return whether the limits of the batch left out records that were listed."""
        return any(plan.stop < self.logs[log].queues[plan.queue].next_position for log, plan in self.planned)

    # 7

    def _end(self) -> dict[str, Any]:
        """Return the offset where the batch ends; *start* itself if it would be the same, because Spark compares."""
        state = self._state
        stops: Positions = {}
        first: dict[str, dict[str, int]] = {}
        for log, plan in self.batch:
            stops.setdefault(log, {})[plan.queue] = [plan.id, plan.stop]
            if plan.queue in self.first_positions.get(log, {}):
                first.setdefault(log, {})[plan.queue] = self.first_positions[log][plan.queue][1]
        positions = assemble(self.before.positions, self.checked.positions, stops, self.first_positions)
        self._report()
        if positions is self.before.positions and not self.reread:
            if state.target is not None:
                state.held.fail_at_end()
            self._note_idle()
            return self.start
        # These logs are reread from here on: the new offset has positions from their first records.
        state.held.accept(self.reread)
        listed = {one.server for one in self.logs.values()}
        state.read_again = {server: queues for server, queues in state.read_again.items() if server not in listed}
        end = self._stated(positions)
        end.first = first
        return end.encode()

    def _note_idle(self) -> None:
        state = self._state
        if not (self.planned or self._released or state.held.sentences or state.fleet.down or self.checked.lost):
            state.idle = self.start, self._listings, self._committed

    def _stated(self, positions: Positions) -> Offset:
        """Return *positions* with the states of their logs, as listed; the other logs keep the states they had."""
        before = self.offset
        end = Offset(positions, dict(before.servers), dict(before.at), dict(before.origins))
        for log, listed in self.logs.items():
            end.servers[log] = listed.server
            if listed.at is not None:
                end.at[log] = listed.at
            endpoint = self._state.fleet.found_at(log)
            if endpoint is not None:  # it is there by a DNS name: only such a log can vanish from the fleet
                end.origins[log] = endpoint.origin
            else:
                end.origins.pop(log, None)
        return end

    def _report(self) -> None:
        """Note what `reportLatestOffset` returns."""
        begun = joined(self.checked.positions, self.first_positions)
        names = {log: listed.server for log, listed in self.logs.items()}
        waiting = {names[log]: backlog(begun.get(log, {}), listed.queues) for log, listed in self.logs.items()}
        for log, plan in self.batch:
            name = names[log]
            waiting[name] = max(0, waiting[name] - plan.records)  # records arrived since the listing
        latest = Offset({log: ends(listed.queues) for log, listed in self.logs.items()}, names)
        self._state.latest = latest.encode() | {
            "waiting": waiting,
            "bytes": sum(plan.bytes for _, plan in self.batch),
            "retries": retries.count,
            "held": self._state.held.sentences,
            "down": dict(self._state.fleet.down),
        }


def _begun(intact: Positions, start: Positions) -> Positions:
    """Return what *start* has of *intact*: a log's id must be in the checkpoint before anything is read from it."""
    return {
        log: queues if queues.keys() <= start[log].keys() else {q: at for q, at in queues.items() if q in start[log]}
        for log, queues in intact.items()
        if log in start
    }


def _by_log(starting: Bound, logs: Mapping[str, Listed]) -> Bound:
    """Return *starting*, whose positions are by the names of servers, by log."""
    if not isinstance(starting, Mapping):
        return starting
    return {log: starting[listed.server] for log, listed in logs.items() if listed.server in starting}


def _firsts(listing: Listing) -> dict[str, list[int]]:
    return {queue: [summary.id, summary.first_position] for queue, summary in listing.items()}


def ends(listing: Listing) -> dict[str, list[int]]:
    """Return queue → [id, next position] of a listing."""
    return {queue: [summary.id, summary.next_position] for queue, summary in listing.items()}
