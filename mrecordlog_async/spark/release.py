"""Which batches are proven to be in the output, and which part of the log may therefore be truncated.

This is the only place of a drain that truncates. A batch is proven when

1. its manifest entry parses, its files have the manifest's sizes and their rows can be read,
2. the rows of each queue lie in the positions by which the batch moved that queue's offset, and no other queue has any,
3. there are as many as the log still holds at these positions, and the log is the one that was read (see `proof`),

and then the file systems of output and checkpoint are synced, the ledger says so durably, and only then the log is
truncated. What fails 1 or 2 at a start runs again, because nothing of it was truncated; in a running query, and what
fails 3 anywhere, ends it. The ledger is `<checkpoint>/_mrecordlog/ledger`.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.model import QueueSummary
from mrecordlog_async.spark.batches import COMMITS, MANIFEST, OFFSETS, Batches, newest, numbers
from mrecordlog_async.spark.checkpoint import Checkpoint, Mark, Offset
from mrecordlog_async.spark.client import PlanStart, QueuePlan, ServerDownError, ServiceRefusedError
from mrecordlog_async.spark.fleet import Fleet
from mrecordlog_async.spark.identity import RefusedError
from mrecordlog_async.spark.lake import OWN, Contents, UnreadableError
from mrecordlog_async.spark.offsets import advanced
from mrecordlog_async.spark.proof import Listed, went_back

logger = logging.getLogger("mrecordlog_async.spark")

LEDGER = f"{OWN}/ledger"

DOWN_SECONDS = 30.0
"""How long a server that could not be reached is left alone; a start and an end ask it anyway."""

PerQueue = dict[str, dict[str, list[int]]]
"""server → queue → whole numbers, as JSON carries them."""


class ProofError(RecordLogError):
    """The output does not hold what the checkpoint says it does, or not what the log has; nothing was truncated."""


class LogWentBackError(RecordLogError):
    """The log again has records that were truncated: it is an older copy, and positions were assigned twice."""


@dataclass(slots=True)
class Ledger:
    """What is proven. batch: the last one that is.

    due: server → queue → [id, start, stop, rows]: positions that the output holds in that many rows; the log may drop
    them.
    released: server → queue → [id, next]: what the log was truncated up to, and said so.
    """

    batch: int = -1
    due: PerQueue = field(default_factory=dict)
    released: PerQueue = field(default_factory=dict)


class Release:
    """Proves batches and releases them from the log. For one thread."""

    def __init__(self, batches: Batches, fleet: Fleet, *, truncate: bool) -> None:
        self._batches = batches
        self._fleet = fleet
        self._truncate = truncate
        self._down_until: dict[str, float] = {}
        self._again: Offset = {}
        self._accepted_at = -1
        self.ledger = Ledger()
        self.rows = 0
        """How many rows were proven since the start."""
        self.full_batches = 0
        """How many batches with rows were."""

    @property
    def batch(self) -> int:
        """The last batch that is proven."""
        return self.ledger.batch

    def recover(self, *, adopt: bool = False) -> str | None:
        """Read the last batches of a run that ended in any way, and make Spark rerun what the output does not hold.

        Returns a sentence about what will run again, or None. Raises RefusedError if the output lost batches that were
        proven, and SyncFailedError.
        """
        checkpoint, output = self._batches.checkpoint, self._batches.output
        self.ledger = self._load()
        planned, stored, committed = (
            newest(checkpoint, OFFSETS),
            newest(output, MANIFEST),
            newest(checkpoint, COMMITS),
        )
        proven = self.ledger.batch
        if checkpoint.read(LEDGER) is None:
            if max(stored, committed) >= 0 and not adopt:
                raise RefusedError(
                    f"{checkpoint.path}/{LEDGER} is missing; it records how far the log was truncated. Restore it, "
                    "or use a new output and a new checkpoint, which store everything that the log still holds"
                )
            self._save()
        if min(stored, planned, committed) < proven:
            which = output.path if stored < proven else checkpoint.path
            raise RefusedError(
                f"{which} ends with batch {min(stored, planned, committed)}, but batch {proven} was stored and the log "
                "truncated after it: this is an older or incomplete copy. Use the newest; where it is lost, a new "
                "output and a new checkpoint store everything that the log still holds"
            )
        self._sync()
        self._batches.forget_cached(proven + 1)
        if adopt and proven < 0:  # written before there was a ledger: shown as far back as Spark keeps the offsets
            oldest = min(numbers(checkpoint, OFFSETS), default=0)
            self.ledger.batch = proven = oldest if oldest > 0 else -1
        for batch in range(proven + 1, planned + 1):
            reason = self._wrong_with(batch, last=batch == planned)
            if reason is not None:
                return self._run_again(batch, reason, adopt=adopt)
        if committed > proven and not self._batches.is_committed(committed):
            checkpoint.remove(COMMITS, [str(committed)])
            return f"batch {committed} is confirmed again: a power cut left its commit file empty"
        return None

    def advance(self, *, last: bool = False) -> int:
        """Prove the batches that Spark has committed since, and truncate the log up to them. Returns their rows.

        A server that cannot be reached ends the call, unless it is the last one; a later call tries it again.
        Raises ProofError, LogWentBackError, SyncFailedError.
        """
        committed, before = newest(self._batches.checkpoint, COMMITS), self.rows
        if committed > self.ledger.batch and not self._batches.is_committed(committed):
            committed -= 1  # being written just now
        for batch in range(self.ledger.batch + 1, committed + 1):
            self._add(batch)
        if committed > self.ledger.batch:
            self.ledger.batch = committed
            self._sync()
            self._save()
        if self._truncate and self.ledger.due:
            self._release(last=last)
        return self.rows - before

    def finish(self) -> None:
        """Prove and truncate a last time; servers that were down are tried once more."""
        self._down_until.clear()
        self.advance(last=True)

    # Proving.

    def _add(self, batch: int) -> None:
        try:
            found = self._contents(batch, whole=False)
        except UnreadableError as error:
            raise ProofError(f"batch {batch} is not in {self._batches.output.path}: {error}") from error
        due = self.ledger.due
        self.full_batches += bool(found)
        for server, queue, queue_id, start, stop in self._ranges(batch):
            held = found.get((server, queue))
            rows = held.rows if held is not None else 0
            self.rows += rows
            if batch <= self._accepted_at and queue in self._again.get(server, {}):
                continue
            known = due.setdefault(server, {}).get(queue)
            if known is not None and known[0] == queue_id and known[2] == start:
                due[server][queue] = [queue_id, known[1], stop, known[3] + rows]
            else:  # what is still due of a queue that was deleted meanwhile, nobody can truncate any more
                due[server][queue] = [queue_id, start, stop, rows]

    def _contents(self, batch: int, *, whole: bool) -> Contents:
        """Return what the files of *batch* hold; raise UnreadableError if that does not match its offsets."""
        files = self._batches.files(batch)
        if files is None:
            raise UnreadableError(f"its entry in {MANIFEST} is missing or damaged")
        ranges = {(server, queue): (start, stop) for server, queue, _, start, stop in self._ranges(batch)}
        found = self._batches.output.contents(files, whole=whole)
        for (server, queue), held in found.items():
            start, stop = ranges.get((server, queue), (0, 0))
            if not start <= held.first <= held.last < stop or held.rows > stop - start:
                raise UnreadableError(
                    f"it read positions {start} to {stop - 1} of queue {queue!r} of server {server!r}, but its files "
                    f"hold {held.rows} rows at {held.first} to {held.last}"
                )
        return found

    def _ranges(self, batch: int) -> Iterator[tuple[str, str, int, int, int]]:
        start, end = self._batches.end(batch - 1), self._batches.end(batch)
        if start is None or end is None:
            raise UnreadableError(f"its offsets in {self._batches.checkpoint.path} are missing or damaged")
        return advanced(start, end)

    def _wrong_with(self, batch: int, *, last: bool) -> str | None:
        """Return why *batch* has to run again after a stop of any kind, or None if it does not."""
        if self._batches.end(batch) is None:
            return "its offsets are missing or damaged"
        begun = batch <= max(newest(self._batches.output, MANIFEST), newest(self._batches.checkpoint, COMMITS))
        if last and not begun:
            return None  # planned only: Spark runs it as it is
        try:
            found = self._contents(batch, whole=True)
            missing = [queue for server, queue, *_ in self._ranges(batch) if (server, queue) not in found]
        except UnreadableError as error:
            return str(error)
        return f"it has no rows of queue {missing[0]!r}" if missing else None

    def _run_again(self, batch: int, reason: str, *, adopt: bool) -> str:
        output = self._batches.output
        if adopt or self._batches.files_up_to(batch - 1) is None:
            raise RefusedError(
                f"batch {batch} is not in {output.path} ({reason}), and its manifest cannot be taken back to before "
                "it: use a new output and a new checkpoint, which store everything that the log still holds"
            )
        self._batches.drop(batch, keep_offset=self._batches.end(batch) is not None)
        return f"batch {batch} and later ones run again; none of their records was truncated: {reason}"

    # Releasing.

    def _release(self, *, last: bool) -> None:
        for server in list(self.ledger.due):
            if server not in self._fleet.names or self._down_until.get(server, 0.0) > time.monotonic():
                continue
            try:
                if self._release_server(server):
                    self._save()
            except (OSError, ServerDownError, ServiceRefusedError) as error:
                self._down_until[server] = time.monotonic() + DOWN_SECONDS
                logger.warning("truncating what is stored failed; retrying: %s", error)
                if not last:  # the query goes on: what it commits must be proven before Spark forgets its offsets
                    return

    def _release_server(self, server: str) -> bool:
        """Truncate what is due; return False if the ledger did not change."""
        client = self._fleet.client(server)
        listed = client.listing()
        listing = {summary.queue: summary for summary in listed.queues}
        self._refuse_older_log(server, listing)
        due, before = self._still_due(server), self.ledger.due[server]
        there = {queue: at for queue, at in due.items() if queue in listing and listing[queue].id == at[0]}
        done = {queue for queue, at in there.items() if listing[queue].first_position >= at[2]}
        held = {queue: at for queue, at in there.items() if queue not in done}
        log = Listed(listing, listed.log, listed.opening, listed.opened or {})
        asked = {queue: [held[queue][0], held[queue][2] - 1] for queue in self._counted(server, held, log)}
        for answer in client.truncate(asked, opening=listed.opening) if asked else ():
            if answer.status == "ok":
                done.add(answer.queue)
            else:
                logger.warning("queue %r of %r was not truncated: %s", answer.queue, server, answer.status)
        self.ledger.released.setdefault(server, {}).update({queue: [due[queue][0], due[queue][2]] for queue in done})
        # What is not listed stays due until the checkpoint leaves the queue out: the address may be another log's.
        kept = {queue: at for queue, at in due.items() if queue not in done}
        if kept:
            self.ledger.due[server] = kept
        else:
            del self.ledger.due[server]
        return kept != before

    def _still_due(self, server: str) -> dict[str, list[int]]:
        """Return what is due of queues that the checkpoint still has, and no longer reads from further below."""
        due = self.ledger.due[server]
        for batch in (self.ledger.batch, newest(self._batches.checkpoint, OFFSETS)):
            known = (self._batches.end(batch) or {}).get(server, {})
            due = {queue: at for queue, at in due.items() if queue in known and _reaches(known[queue], at)}
        return due

    def accept(self, again: Offset) -> None:
        """Accept the queues in *again* as they are: their log went back, and is reread from its first record.

        What was read from them before is not released: other records may have its positions by now.
        """
        self._again, self._accepted_at = again, newest(self._batches.checkpoint, OFFSETS)
        for known in (self.ledger.released, self.ledger.due):
            for server, queues in again.items():
                for queue in queues:
                    known.get(server, {}).pop(queue, None)
        self._save()

    def refuse_older_logs(self) -> None:
        """Raise LogWentBackError where a log has again what was truncated; servers that are down are left out."""
        for server, released in self.ledger.released.items():
            if not released or server not in self._fleet.names:
                continue
            try:
                listing = {summary.queue: summary for summary in self._fleet.client(server).listing().queues}
            except (OSError, ServerDownError, ServiceRefusedError):
                continue  # the query reports it
            self._refuse_older_log(server, listing)

    def _refuse_older_log(self, server: str, listing: Mapping[str, QueueSummary]) -> None:
        found = []
        for queue, (queue_id, position) in self.ledger.released.get(server, {}).items():
            summary = listing.get(queue)
            if summary is not None and summary.id == queue_id and summary.first_position < position:
                found.append(
                    f"server {server!r}, queue {queue!r}: the log was truncated up to position {position}, and begins "
                    f"at {summary.first_position} again: it went back"
                )
        if found:
            raise LogWentBackError("; ".join(found))

    def _counted(self, server: str, due: Mapping[str, list[int]], log: Listed) -> list[str]:
        """Return the queues of *due* that may be truncated: the log is as it was read, and the output has all of it.

        Those that were truncated or deleted meanwhile are left for the next call. Raises LogWentBackError, ProofError.
        """
        if not due:
            return []
        marks = self._marks(server)
        tails = any(mark.opening != log.opening for queue, mark in marks.items() if queue in due)
        # From the very first record on: one below start, which no batch of this query read, must not go either.
        starts = [PlanStart(queue, at[0], None, at[2]) for queue, at in due.items()]
        plans = self._fleet.client(server).plan(starts, opening=log.opening, tails=tails)
        found = {plan.queue: plan.tail for plan in plans if plan.status == "ok"}
        back = [
            f"server {server!r}, queue {plan.queue!r}: {how}: it went back"
            for plan in plans
            if plan.status == "ok"
            and (how := self._went_back(plan, due[plan.queue], marks.get(plan.queue), log, found))
        ]
        if back:
            raise LogWentBackError("; ".join(back))
        counted = []
        for plan in plans:
            _, start, stop, rows = due[plan.queue]
            if plan.status != "ok" or plan.start >= stop:
                continue
            cut = plan.start > start  # another client has truncated
            if plan.stop != stop or not (rows == plan.records or (cut and rows > plan.records)):
                raise ProofError(
                    f"server {server!r}, queue {plan.queue!r}: the log holds {plan.records} records before position "
                    f"{stop}, but {self._batches.output.path} holds {rows} rows from position {start} on; none of them "
                    "was truncated. A new output and a new checkpoint store everything that the log still holds"
                )
            counted.append(plan.queue)
        return counted

    def _went_back(
        self, plan: QueuePlan, due: list[int], mark: Mark | None, log: Listed, tails: Mapping[str, int | None]
    ) -> str | None:
        _, start, stop, rows = due
        if plan.start < start and plan.records > rows:  # a drain reads every queue from its first record on
            return f"it was read from position {start} on, and begins at {plan.start}"
        return went_back(log.queues[plan.queue], stop, mark, log, tails)

    def _marks(self, server: str) -> dict[str, Mark]:
        """Return what the last proven batch saw of the queues that are due up to where it ended."""
        end = self._batches.checkpoint_at(self.ledger.batch) or Checkpoint()
        positions, marks = end.positions.get(server, {}), end.marks.get(server, {})
        due = self.ledger.due[server]
        return {queue: marks[queue] for queue, at in due.items() if positions.get(queue) == [at[0], at[2]]}

    # The ledger.

    def _sync(self) -> None:
        self._batches.output.sync()
        self._batches.checkpoint.sync()

    def _load(self) -> Ledger:
        content = self._batches.checkpoint.read(LEDGER)
        if content is None:
            return Ledger()
        try:
            found: dict[str, Any] = json.loads(content)
            ledger = Ledger(int(found["batch"]), found["due"], found["released"])
            _check_numbers(ledger.due, 4)
            _check_numbers(ledger.released, 2)
            return ledger
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RefusedError(
                f"{self._batches.checkpoint.path}/{LEDGER} is damaged ({error!r}): restore it, or use a new output and "
                "a new checkpoint, which store everything that the log still holds"
            ) from None

    def _save(self) -> None:
        self._forget_gone()
        self._batches.checkpoint.write(LEDGER, json.dumps(asdict(self.ledger)).encode())

    def _forget_gone(self) -> None:
        """Leave out queues that the checkpoint no longer has in this incarnation."""
        end: Offset | None = self._batches.end(self.ledger.batch)
        if end is None:
            return
        for server, queues in self.ledger.released.items():
            known = end.get(server, {})
            for queue in [queue for queue, (queue_id, _) in queues.items() if known.get(queue, [0])[0] != queue_id]:
                del queues[queue]


def _reaches(position: list[int], due: list[int]) -> bool:
    return position[0] == due[0] and position[1] >= due[2]


def _check_numbers(known: PerQueue, count: int) -> None:
    """Raise ValueError, TypeError or AttributeError unless every queue has *count* whole numbers."""
    for queues in known.values():
        for queue, at in queues.items():
            if len(at) != count or not all(isinstance(each, int) for each in at):
                raise ValueError(f"{queue!r} has {at!r}")
