"""Which batches are proven to be in the output, and may therefore be released from the log.

A batch is proven when

1. its manifest entry parses, its files have the manifest's sizes and their rows can be read,
2. the rows of each queue are at the positions by which the batch advanced that queue, and no other queue has rows,
3. the log still holds as many records at these positions, and is the log that was read (see `truncation`).

Only then, and in this order: the file systems of output and checkpoint are synced, the ledger records the batch
durably, and the log is truncated. What fails 1 or 2 at a start runs again, because nothing of it was truncated. In a
running query that ends the query, and so does whatever fails 3.
"""

from __future__ import annotations

import logging
import time

from mrecordlog_async.spark.batches import COMMITS, MANIFEST, OFFSETS, Batches, newest, numbers
from mrecordlog_async.spark.checkpoint import Offset
from mrecordlog_async.spark.connection import ServerDownError, ServiceRefusedError
from mrecordlog_async.spark.fleet import Fleet
from mrecordlog_async.spark.identity import RefusedError
from mrecordlog_async.spark.kept import KeptRecords
from mrecordlog_async.spark.lake import UnreadableError
from mrecordlog_async.spark.ledger import LEDGER, Ledger
from mrecordlog_async.spark.truncation import ProofError, Truncation, refuse_older_log

logger = logging.getLogger("mrecordlog_async.spark")

SHARING = "To share the queue, drain into a Delta table, as a consumer as well (--format delta --consumer NAME)"

DOWN_SECONDS = 30.0
"""How long a server that could not be reached gets no request; a start and an end try it anyway."""


class Release:
    """Proves batches and releases them from the log. For one thread."""

    def __init__(self, batches: Batches, fleet: Fleet, *, truncate: bool) -> None:
        self._batches = batches
        self._fleet = fleet
        self._truncate = truncate
        self._kept = KeptRecords(SHARING)
        self._down_until: dict[str, float] = {}
        self._again: Offset = {}
        self._accepted_at = -1
        self.ledger = Ledger()
        self.rows = 0
        """How many rows were proven since the start."""
        self.full_batches = 0
        """How many proven batches had rows."""

    @property
    def batch(self) -> int:
        """The last batch that is proven."""
        return self.ledger.batch

    # At the start.

    def recover(self, *, adopt: bool = False) -> str | None:
        """Read the last batches of a run that ended in any way, and make Spark rerun what the output does not hold.

        Args:
            adopt: accept a checkpoint without a ledger; its batches are proven as far back as Spark keeps offsets.

        Returns:
            A sentence about what runs again; None if nothing does.

        Raises:
            RefusedError: the output or the checkpoint lost batches that were proven, or the ledger.
            SyncFailedError: what the last run wrote could not be synced.
        """
        checkpoint = self._batches.checkpoint
        self._load_ledger(adopt=adopt)
        self._refuse_incomplete()
        # The page cache may still show what a failed sync lost: only what the medium returns counts.
        self._sync()
        self._batches.forget_cached(self.batch + 1)
        if adopt and self.batch < 0:  # there was no ledger: proven is what Spark no longer keeps the offsets of
            self.ledger.batch = min(numbers(checkpoint, OFFSETS), default=0) or -1
        planned, committed = newest(checkpoint, OFFSETS), newest(checkpoint, COMMITS)
        for batch in range(self.batch + 1, planned + 1):
            reason = self._wrong_with(batch, last=batch == planned)
            if reason is not None:
                return self._run_again(batch, reason, adopt=adopt)
        if committed > self.batch and not self._batches.is_committed(committed):
            checkpoint.remove(COMMITS, [str(committed)])
            return f"batch {committed} is confirmed again: a power cut left its commit file empty"
        return None

    def _load_ledger(self, *, adopt: bool) -> None:
        """Read the ledger, and begin a new one for a new checkpoint or an adopted one. Raises RefusedError."""
        checkpoint, output = self._batches.checkpoint, self._batches.output
        self.ledger = Ledger.read(checkpoint)
        if checkpoint.read(LEDGER) is not None:
            return
        if max(newest(output, MANIFEST), newest(checkpoint, COMMITS)) >= 0 and not adopt:
            raise RefusedError(
                f"{checkpoint.path}/{LEDGER} is missing; it records how far the log was truncated. Restore it, "
                "or use a new output and a new checkpoint, which store everything that the log still holds"
            )
        self._save()

    def _refuse_incomplete(self) -> None:
        """Raise RefusedError if output or checkpoint lacks a batch that was proven: Spark would run it again."""
        checkpoint, output = self._batches.checkpoint, self._batches.output
        stored = newest(output, MANIFEST)
        last = min(stored, newest(checkpoint, OFFSETS), newest(checkpoint, COMMITS))
        if last < self.batch:
            which = output.path if stored < self.batch else checkpoint.path
            raise RefusedError(
                f"{which} ends with batch {last}, but batch {self.batch} was stored and the log truncated after it: "
                "this is an older or incomplete copy. Use the newest one; if it is lost, a new output and a new "
                "checkpoint store everything that the log still holds"
            )

    def _wrong_with(self, batch: int, *, last: bool) -> str | None:
        """Return why *batch* has to run again after a stop of any kind, or None if it does not."""
        if self._batches.end(batch) is None:
            return "its offsets are missing or damaged"
        begun = batch <= max(newest(self._batches.output, MANIFEST), newest(self._batches.checkpoint, COMMITS))
        if last and not begun:
            return None  # only planned: Spark runs it anyway
        try:
            found = self._batches.contents(batch, whole=True)
            missing = [queue for server, queue, *_ in self._batches.ranges(batch) if (server, queue) not in found]
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

    def accept(self, again: Offset) -> None:
        """Accept the queues in *again* as they are: their log went back, and is reread from its first record.

        What was read from them before is not released: other records may have its positions by now.
        """
        self._again, self._accepted_at = again, newest(self._batches.checkpoint, OFFSETS)
        self.ledger.forget(again)
        self._save()

    def refuse_older_logs(self) -> None:
        """Raise LogWentBackError if a log again has records that were truncated; servers that are down are skipped."""
        for server, released in self.ledger.released.items():
            if not released or server not in self._fleet.names:
                continue
            try:
                listing = self._fleet.client(server).listing().queues
            except (OSError, ServerDownError, ServiceRefusedError):
                continue  # the query reports it
            refuse_older_log(self.ledger, server, listing)

    # While the query runs, and after it.

    def advance(self, *, last: bool = False) -> int:
        """Prove the batches that Spark has committed since, and truncate the log up to them.

        Args:
            last: try every server. Otherwise one that cannot be reached ends the call, and a later call tries again.

        Returns:
            The rows of the batches that were proven now.

        Raises:
            ProofError: the output does not hold what the checkpoint says, or not what the log has.
            LogWentBackError: a log is older than what was read from it.
            SyncFailedError: output or checkpoint could not be synced.
        """
        committed, before = newest(self._batches.checkpoint, COMMITS), self.rows
        if committed > self.batch and not self._batches.is_committed(committed):
            committed -= 1  # Spark is writing its commit file at this moment
        for batch in range(self.batch + 1, committed + 1):
            self._prove(batch)
        if committed > self.batch:
            # The order makes a power failure harmless: the rows are on the medium before the ledger says so, and the
            # ledger says so before the log drops the records.
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

    def _prove(self, batch: int) -> None:
        """Count the rows of *batch* in the output, and note them in the ledger."""
        try:
            found = self._batches.contents(batch, whole=False)
        except UnreadableError as error:
            raise ProofError(f"batch {batch} is not in {self._batches.output.path}: {error}") from error
        self.full_batches += bool(found)
        for server, queue, queue_id, start, stop in self._batches.ranges(batch):
            held = found.get((server, queue))
            rows = held.rows if held is not None else 0
            self.rows += rows
            if batch > self._accepted_at or queue not in self._again.get(server, {}):
                self.ledger.add(server, queue, (queue_id, start, stop), rows)

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
        """Truncate the log of *server* up to what is due; return False if the ledger did not change."""
        return Truncation(self._batches, self.ledger, server, self._fleet.client(server), self._kept).run()

    def _sync(self) -> None:
        self._batches.output.sync()
        self._batches.checkpoint.sync()

    def _save(self) -> None:
        end = self._batches.end(self.batch)
        if end is not None:
            self.ledger.forget_deleted(end)
        self.ledger.write(self._batches.checkpoint)
