"""One server of a drain, and the thread in which its requests run: one that is slow holds up no other."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.protocol.bulk_schemas import TruncateOne
from mrecordlog_async.servers.names import Endpoint
from mrecordlog_async.servers.outages import Absence
from mrecordlog_async.spark.connection import ServerDownError, ServiceRefusedError
from mrecordlog_async.spark.consuming import ConsumerHolder
from mrecordlog_async.spark.log_server import REOPENED_MAX, ListingOutdatedError, LogListing, LogServer
from mrecordlog_async.spark.planning import Survey, Wish, due_of, everything, survey
from mrecordlog_async.spark.state import DrainState, LogState

logger = logging.getLogger("mrecordlog_async.spark")

AGAIN_SECONDS = 10.0
"""Pause before a truncate is repeated that a consumer of the queue held up."""


class ServerThread:
    """One server of a drain, and the thread in which its requests run, one after the other."""

    def __init__(self, server: LogServer, holder: ConsumerHolder | None = None) -> None:
        """Start no thread yet. holder: of the consumer as which to acknowledge, instead of truncating."""
        self.server, self.holder = server, holder
        self.is_late = False
        self.absence = Absence()
        self.refused: ServiceRefusedError | None = None  # why nothing could be planned of a log that was listed
        self._asked_at = float("-inf")
        self._pool = ThreadPoolExecutor(1, f"mrecordlog-{server.name}")
        self._pending: Future[Survey] | None = None
        self._last: Survey | None = None
        self._whole: LogListing | None = None
        self._said = set[str]()  # queues that were reported as not truncated
        self._sent: dict[int, tuple[int, float]] = {}  # queue id → the last position to drop, and when that was sent

    def asked(self, state: DrainState, wish: Wish, now: float) -> Future[Survey] | None:
        """Return the survey that is under way, or begin one; None while the server is down and not due for a look."""
        if self._pending is None:
            if self.absence.since is not None and now < self._asked_at + self.absence.pause(now):
                return None
            self._asked_at = now
            self._pending = self._pool.submit(self._survey, state, wish)
        return self._pending

    def taken(self) -> None:
        """Note that the survey was taken: the next one asks the server again."""
        self._pending, self.is_late = None, False

    def _survey(self, state: DrainState, wish: Wish) -> Survey:
        self.refused = None
        for _ in range(REOPENED_MAX):
            try:
                return self._surveyed(state, wish)
            except ListingOutdatedError:
                continue
            except ServiceRefusedError as error:
                if error.code != "reopened":
                    raise
        reason = f"{REOPENED_MAX} times its log changed before a batch was planned"
        raise ServerDownError(self.server.name, str(self.server.endpoint), reason)

    def _surveyed(self, state: DrainState, wish: Wish) -> Survey:
        whole = self.server.listing() if self.holder is None else self.holder.listing()
        last = self._last
        if last is not None and last.is_idle and whole is self._whole and last.known is state.logs.get(whole.log):
            return last  # most looks of an idle drain
        listing = _subscribed(whole, wish)
        if self.holder is not None:
            if self.holder.attach(whole, listing.queues):
                whole = self.server.listing()
                listing = _subscribed(whole, wish)
            listing = dataclasses.replace(listing, queues=self.holder.held(listing.queues))
        if wish.ends is not None and whole.log not in wish.ends:
            wish.ends[whole.log] = {each.id: each.next_position for each in whole.queues.values()}
        try:
            found = survey(self.server, listing, whole, state, wish)
        except ServiceRefusedError as error:
            if error.code != "reopened":
                self.server.listing()  # a service that ends refuses this as well: it is down
                self.refused = error
            raise
        if self.holder is not None and not found.evidence:
            # Where it is accepted that a log went back, its consumers are moved back as well.
            moves_back = found.stored is None and found.known is not None
            self.holder.compare(found.stored, listing, moves_back=moves_back)
        self._whole, self._last = whole, found
        return found

    def due(self, listing: LogListing, stored: LogState, now: float) -> Callable[[], Future[None]] | None:
        """Return what truncates or acknowledges, in the server's thread, what the output has; None if nothing is due.

        What a consumer of the queue held up is not sent again for a while.
        """
        holder = self.holder
        if holder is not None:
            acknowledged = holder.due(stored, listing)
            return (lambda: self._pool.submit(holder.acknowledge, acknowledged, listing)) if acknowledged else None
        due = due_of(stored, listing)
        new = [
            each
            for each in due
            if (sent := self._sent.get(each.id or 0)) is None
            or sent[0] < each.position
            or now >= sent[1] + AGAIN_SECONDS
        ]
        if not new:
            return None

        def send() -> Future[None]:
            self._sent |= {each.id or 0: (each.position, now) for each in new}
            return self._pool.submit(self._truncate, listing, new)

        return send

    def _truncate(self, listing: LogListing, due: Sequence[TruncateOne]) -> None:
        try:
            found = self.server.truncate(due, listing)
        except RecordLogError:
            for asked in due:
                self._sent.pop(asked.id or 0, None)
            raise
        for asked, each in zip(due, found, strict=True):
            if each.status == "ok":
                self._sent.pop(asked.id or 0, None)
            elif each.detail and asked.queue not in self._said:  # once: a consumer that is behind may stay so
                self._said.add(asked.queue)
                logger.warning(
                    "server %r, queue %r is not truncated: %s; to share the queue, be a consumer as well: --consumer "
                    "NAME (consumer=NAME in Spark)",
                    self.server.name,
                    asked.queue,
                    each.detail,
                )

    def moved(self, endpoint: Endpoint) -> None:
        """Call the server at another address: a DNS name has it there now."""
        self._pool.submit(self.server.move, endpoint)
        self.absence.end()

    def close(self) -> None:
        """Close the connection and end the thread, once its request has ended."""
        self._pool.submit(self.server.close)
        self._pool.shutdown(wait=False)


def _subscribed(whole: LogListing, wish: Wish) -> LogListing:
    """Return the queues of *whole* that are read; itself if these are all."""
    if wish.includes is everything:
        return whole
    return dataclasses.replace(whole, queues={name: each for name, each in whole.queues.items() if wish.includes(name)})
