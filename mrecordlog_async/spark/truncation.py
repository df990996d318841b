"""The only place of a drain that truncates a log: one server at a time, after one more look at its log.

A queue is truncated up to the end of its proven batches, if

1. it is still the log that was read, with its incarnation of the queue, and did not go back since (see `history`),
2. it holds as many records before that position as the output has rows of them.

Of a queue whose consumer is behind, only what all consumers have acknowledged is truncated. The rest stays due, with as
many rows as the log then holds records. Queues that another client truncated or deleted in the meantime are left for a
later call.
"""

from __future__ import annotations

from collections.abc import Mapping

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.model import QueueSummary
from mrecordlog_async.spark.batches import OFFSETS, Batches, newest
from mrecordlog_async.spark.checkpoint import Checkpoint, Mark
from mrecordlog_async.spark.client import PlanStart, ServiceClient
from mrecordlog_async.spark.history import lost_state, needs_openings
from mrecordlog_async.spark.kept import KeptRecords
from mrecordlog_async.spark.ledger import Ledger
from mrecordlog_async.spark.proof import Listed, went_back
from mrecordlog_async.spark.responses import QueuePlan

Due = Mapping[str, list[int]]
"""One server's part of `Ledger.due`: queue → [id, start, stop, rows]."""


class ProofError(RecordLogError):
    """The output does not match the checkpoint, or does not match the log; nothing was truncated."""


class LogWentBackError(RecordLogError):
    """The log is older than what was read from it: a copy was restored, or unsynced records were lost."""


class Truncation:
    """Truncates the log of *server* up to what *ledger* says is due; reports to *kept* what consumers keep."""

    def __init__(self, batches: Batches, ledger: Ledger, server: str, client: ServiceClient, kept: KeptRecords) -> None:
        self._batches = batches
        self._ledger = ledger
        self._server = server
        self._client = client
        self._kept = kept

    def run(self) -> bool:
        """Truncate what is due; return False if the ledger did not change.

        Raises:
            LogWentBackError: the log is older than what was read from it.
            ProofError: the log holds a different number of records than the output.
            ServerDownError, ServiceRefusedError: the service did not truncate.
        """
        listed = self._client.listing()
        queues = listed.queues
        refuse_older_log(self._ledger, self._server, queues)
        log = Listed(queues, listed.log, listed.opening, listed.opened or {}, listed.at)
        due = self._still_due()
        # Of the queues that still exist, those that are truncated already are done; the others are compared first.
        there = {queue: at for queue, at in due.items() if queue in queues and queues[queue].id == at[0]}
        done = {queue for queue, at in there.items() if queues[queue].first_position >= at[2]}
        asked = self._counted({queue: at for queue, at in there.items() if queue not in done}, log)
        truncated, cut = self._truncate(asked, log)
        # A queue that is not listed stays due until it leaves the checkpoint: the address may be another log's for now.
        return self._ledger.settle(self._server, {**due, **self._rest(due, cut, log)}, done | truncated)

    def _still_due(self) -> Due:
        """Return what is due of queues that the checkpoint still has, and does not reread from an earlier position."""
        due: Due = self._ledger.due[self._server]
        for batch in (self._ledger.batch, newest(self._batches.checkpoint, OFFSETS)):
            known = (self._batches.end(batch) or {}).get(self._server, {})
            due = {queue: at for queue, at in due.items() if queue in known and _reaches(known[queue], at)}
        return due

    def _truncate(self, asked: Mapping[str, list[int]], log: Listed) -> tuple[set[str], dict[str, int]]:
        """Truncate queue → [id, last position].

        Returns:
            The queues where it succeeded; and queue → first position of those that were truncated up to a consumer.
        """
        done, cut = set[str](), dict[str, int]()
        for outcome in self._client.truncate(asked, opening=log.opening, log=log.log) if asked else ():
            if outcome.status == "ok":
                done.add(outcome.queue)
                continue
            self._kept.report(self._server, outcome)
            if outcome.status == "consumer_behind":
                cut[outcome.queue] = outcome.first_position
        return done, cut

    def _rest(self, due: Due, cut: Mapping[str, int], log: Listed) -> dict[str, list[int]]:
        """Return what is still due of the queues in *cut*, which now begin at these positions.

        Before the truncate the output had a row for each record of the log, so the log's records are the rows that are
        left. If rows of truncated records stayed in the count, they would hide as many records that the output lacks.
        """
        moved = {queue: due[queue] for queue, first_position in cut.items() if first_position > due[queue][1]}
        plans = self._plans(moved, log) if moved else []
        return {
            plan.queue: [plan.id, plan.start, plan.stop, plan.records]
            for plan in plans
            if plan.status == "ok" and plan.stop == due[plan.queue][2]
        }

    # The log compared with the output.

    def _counted(self, due: Due, log: Listed) -> dict[str, list[int]]:
        """Return which part of *due* may be truncated: queue → [id, last position].

        The log is as it was read, and the output has all of it. Queues that were truncated or deleted meanwhile are
        left for the next call. Raises LogWentBackError, ProofError.
        """
        if not due:
            return {}
        plans = self._plans(due, log)
        counted = {}
        for plan in plans:
            queue_id, _, stop, _ = due[plan.queue]
            if plan.status == "ok" and plan.start < stop:
                self._refuse_miscounted(plan, due[plan.queue])
                counted[plan.queue] = [queue_id, stop - 1]
        return counted

    def _plans(self, due: Due, log: Listed) -> list[QueuePlan]:
        """Return how many records the log holds of each queue of *due*. Raises LogWentBackError."""
        end = self._batches.checkpoint_at(self._ledger.batch) or Checkpoint()
        lost = self._lost_state(end, log)
        if lost is not None:
            raise LogWentBackError("; ".join(f"server {self._server!r}, queue {queue!r}: {lost}" for queue in due))
        marks = _marks(end, log.log, due)
        tails = any(mark.opening != log.opening for mark in marks.values())
        # From the first retained record on: a truncate would also delete records before start, which were never read.
        starts = [PlanStart(queue, at[0], None, at[2]) for queue, at in due.items()]
        plans = self._client.plan(starts, opening=log.opening, tails=tails, log=log.log)
        found = {plan.queue: plan.tail for plan in plans if plan.status == "ok"}
        back = [
            f"server {self._server!r}, queue {plan.queue!r}: {how}: it went back"
            for plan in plans
            if plan.status == "ok" and (how := _went_back(plan, due[plan.queue], marks.get(plan.queue), log, found))
        ]
        if back:
            raise LogWentBackError("; ".join(back))
        return plans

    def _refuse_miscounted(self, plan: QueuePlan, due: list[int]) -> None:
        _, start, stop, rows = due
        cut = plan.start > start  # another client has truncated some of it
        if plan.stop != stop or not (rows == plan.records or (cut and rows > plan.records)):
            raise ProofError(
                f"server {self._server!r}, queue {plan.queue!r}: the log holds {plan.records} records before position "
                f"{stop}, but {self._batches.output.path} holds {rows} rows from position {start} on; none of them "
                "was truncated. A new output and a new checkpoint store everything that the log still holds"
            )

    def _lost_state(self, end: Checkpoint, log: Listed) -> str | None:
        """Return the evidence that the log lacks its state at the end of the last proven batch."""
        at = end.at.get(log.log)
        if at is None:
            return None
        openings = self._client.history().openings if needs_openings(at, log.at) else []
        return lost_state(at, log.at, openings)


def _marks(end: Checkpoint, log: str, due: Due) -> dict[str, Mark]:
    """Return the marks of the last proven batch for the queues of *due* that end where it ended."""
    positions, marks = end.positions.get(log, {}), end.marks.get(log, {})
    return {queue: marks[queue] for queue, at in due.items() if queue in marks and positions[queue] == [at[0], at[2]]}


def refuse_older_log(ledger: Ledger, server: str, listing: Mapping[str, QueueSummary]) -> None:
    """Raise LogWentBackError if the log of *server* has again what was truncated."""
    found = []
    for queue, (queue_id, position) in ledger.released.get(server, {}).items():
        summary = listing.get(queue)
        if summary is not None and summary.id == queue_id and summary.first_position < position:
            found.append(
                f"server {server!r}, queue {queue!r}: the log was truncated up to position {position}, and begins "
                f"at {summary.first_position} again: it went back"
            )
    if found:
        raise LogWentBackError("; ".join(found))


def _went_back(
    plan: QueuePlan, due: list[int], mark: Mark | None, log: Listed, tails: Mapping[str, int | None]
) -> str | None:
    _, start, stop, rows = due
    if plan.start < start and plan.records > rows:  # a drain reads from the first record on: older ones came back
        return f"it was read from position {start} on, and begins at {plan.start}"
    return went_back(log.queues[plan.queue], stop, mark, log, tails)


def _reaches(position: list[int], due: list[int]) -> bool:
    return position[0] == due[0] and position[1] >= due[2]
