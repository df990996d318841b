"""Releases committed records from the logs: truncates them, or acknowledges them as a consumer.

The order is the same for both: the file systems of the checkpoint are synced first, so that a power cut cannot take
back a commit after the log has dropped its records.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from mrecordlog_async.protocol.bulk_schemas import QueueTruncated
from mrecordlog_async.spark.consumer.holder import Holder
from mrecordlog_async.spark.positions.offsets import Checked, truncations
from mrecordlog_async.spark.positions.proof import Listed
from mrecordlog_async.spark.services.connection import ServerDownError, ServiceRefusedError
from mrecordlog_async.spark.services.fleet import Fleet
from mrecordlog_async.spark.settings.offset import Positions
from mrecordlog_async.spark.settings.options import Options
from mrecordlog_async.spark.table_files import syncfs

logger = logging.getLogger("mrecordlog_async.spark")

LISTED_MAX = 5
"""Times that one trigger lists again because it attached to new queues."""

SHARING = "To share the queue, make this stream a consumer as well: set consumer=NAME (--consumer NAME)"


class Committed:
    """Releases what the checkpoint has committed, if *options* say so. A copy in a task holds and releases nothing."""

    def __init__(self, options: Options, fleet: Fleet) -> None:
        self._options = options
        self._fleet = fleet
        self._kept = KeptRecords()
        self._holder = Holder(options.consumer, options, fleet) if options.consumer is not None else None
        if self._holder is not None:
            fleet.listings.before_listing = self._holder.add_rule

    def __reduce__(self) -> tuple[type[Committed], tuple[Options, Fleet]]:
        return Committed, (self._options, self._fleet)

    @property
    def releases(self) -> bool:
        """True if anything is released."""
        return self._options.truncate or self._holder is not None

    def expect_kept(self) -> None:
        """Log no warning about queues that keep what is released here: the query has logged it."""
        self._kept.expect()
        if self._holder is not None:
            self._holder.expect_kept()

    @property
    def must_begin(self) -> bool:
        """True if the stream is a consumer and has not attached to anything yet."""
        return self._holder is not None and not self._holder.has_begun

    def attach(self, logs: dict[str, Listed]) -> bool:
        """Attach to the consumers of new queues, as `Holder.attach` does."""
        return self._holder is not None and self._holder.attach(logs)

    def admitted(self, first_positions: Positions, logs: Mapping[str, Listed]) -> Positions:
        """Return the *first_positions* of queues that may enter the checkpoint: those whose consumer is held.

        Raises:
            ConsumerRefusedError: a consumer is ahead of its first position.
        """
        if self._holder is None:
            return first_positions
        found = self._holder.held(first_positions)
        self._holder.compare(found, logs)
        return found

    def release(self, checked: Checked, logs: Mapping[str, Listed]) -> bool:
        """Truncate or acknowledge what the checkpoint has committed; return False if nothing was due.

        A service that does not respond is logged, and the next call releases more.

        Raises:
            ConsumerRefusedError, ConsumerLostError: another program uses the consumer.
            OSError: the sync failed. It may have lost pages, and the next sync would not report it.
        """
        due: Positions = {}
        if self._holder is not None:
            self._holder.compare(checked.intact, logs)
            due = self._holder.due(checked.intact, logs)
        elif self._options.truncate:
            due = truncations(checked.intact, {log: listed.queues for log, listed in logs.items()})
        if not due:
            return False
        # Before the first request: what a log drops cannot be read again, so the commit must be durable by then.
        sync_file_systems(self._options.sync_directories)
        for log, queues in due.items():
            try:
                self._release_one(log, queues, logs[log])
            except (ServerDownError, ServiceRefusedError) as error:
                # Releasing less is safe: the logs hold more than they must, and the next trigger repeats it.
                logger.warning("releasing what is committed failed; retrying at the next trigger: %s", error)
        return True

    def compare(self, checked: Checked, logs: Mapping[str, Listed]) -> None:
        """Check what `release` checks, and release nothing. Raises ConsumerRefusedError."""
        if self._holder is not None:
            self._holder.compare(checked.intact, logs)

    def move_back(self, checked: Checked, logs: Mapping[str, Listed]) -> None:
        """Keep what is reread, or read after a loss that was accepted, from being dropped for this consumer."""
        if self._holder is not None:
            self._holder.compare(checked.positions, logs, refuse=False)

    def _release_one(self, log: str, queues: dict[str, list[int]], listed: Listed) -> None:
        if self._holder is not None:
            self._holder.acknowledge(log, queues, listed.opening)
            return
        for answer in self._fleet.client(log).truncate(queues, opening=listed.opening, log=listed.log):
            if answer.status != "ok":
                self._kept.report(listed.server or log, answer)


def sync_file_systems(directories: tuple[str, ...]) -> None:
    """Sync the file systems of *directories* to the medium. Raises OSError.

    Spark never calls fsync: without this, a power failure after a truncate loses records in both output and log.
    """
    for directory in directories:
        handle = os.open(directory, os.O_RDONLY)
        try:
            syncfs(handle)
        finally:
            os.close(handle)


class KeptRecords:
    """Logs which queues were not truncated as far as a stream has stored them."""

    def __init__(self) -> None:
        self._expected = False
        self._logged = set[tuple[str, str]]()  # (server, queue)

    def expect(self) -> None:
        """Log no warning about consumers that are behind: another stream of the same job has logged it."""
        self._expected = True

    def report(self, server: str, outcome: QueueTruncated) -> None:
        """Log that *server* did not truncate a queue; for a consumer that is behind only once, as that may last."""
        if outcome.status != "consumer_behind":
            logger.warning("queue %r of %r was not truncated: %s", outcome.queue, server, outcome.status)
        elif not self._expected and (server, outcome.queue) not in self._logged:
            self._logged.add((server, outcome.queue))
            logger.warning("server %r keeps records of %s. %s", server, outcome.detail, SHARING)
