"""`Lane`: the way of records into one queue of one server, each with a position, so that repeats are recognized.

It is a `Producer` that is opened on first use, and again after it has failed: then it continues at the queue's next
position. A record whose outcome is unknown is never sent again by another producer, and cannot take a place later: the
positions that it was sent with are taken by then, or it is stored at one of them.

Where the record is certainly not stored, the caller need not know: it is sent again at the next position.

* A late request of this lane's own last producer stored another record at the position.
* Another writer did, or deleted the queue, in a lane that *shares* its queue with others.

If the same bytes are at the position, the outcome is unknown: a proxy may have sent the request twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from mrecordlog_async.client.fleet.decisions import AttemptOutcome, outcome_of
from mrecordlog_async.client.fleet.server import Server
from mrecordlog_async.client.producer import Producer
from mrecordlog_async.errors import PositionInPastError, QueueNotFoundError, RecordLogError
from mrecordlog_async.options import QueueOptions
from mrecordlog_async.protocol.attempts import OutcomeUnknownError, ServiceUnreachableError


class _Calls:
    """Requests of a producer to one server. Only records that were sent are worth a long wait for their response."""

    def __init__(self, server: Server) -> None:
        self.create_queue = server.client.create_queue
        self.next_position = server.client.next_position
        self.append_new = server.appends.append_new


class Lane:
    """Appends to one queue of one server. Calls share requests, in the order in which they were made."""

    def __init__(self, server: Server, queue: str, options: QueueOptions | None, *, shares: bool) -> None:
        """*options*: those of the queue, if it is created. *shares*: others append to the queue too."""
        self._server = server
        self._queue = queue
        self._options = options
        self._shares = shares
        self._producer: Producer | None = None
        self._opening = asyncio.Lock()
        self._has_failed = False

    async def append(self, payloads: Sequence[bytes]) -> int | None:
        """Append *payloads*, all or none; return the position of the last one."""
        while True:
            producer = await self._open()
            try:
                return await producer.append_records(payloads)
            except RecordLogError as error:
                again = (self._shares or self._has_failed) and _found_another(error)
                again = again or (self._shares and isinstance(error, QueueNotFoundError))
                if (producer.failed or again) and self._producer is producer:
                    self._producer = None
                self._has_failed = self._has_failed or producer.failed
                if not again:
                    raise

    async def create(self) -> None:
        """Create the queue if it does not exist."""
        await self._server.client.create_queue(self._queue, exist_ok=True, options=self._options)

    async def close(self) -> None:
        """Wait until every record is stored or refused."""
        if self._producer is not None:
            await self._producer.close()

    async def _open(self) -> Producer:
        async with self._opening:
            if self._producer is None:
                try:
                    await self.create()
                    self._producer = await Producer(_Calls(self._server), self._queue).__aenter__()
                except RecordLogError as error:
                    raise _before_sending(error, self._server) from error
            return self._producer


def _before_sending(error: RecordLogError, server: Server) -> RecordLogError:
    """Return *error* as one after which no record is stored: none was sent yet, whatever became of the queue."""
    if outcome_of(error) is not AttemptOutcome.UNKNOWN:
        return error
    return ServiceUnreachableError(str(server.endpoint), 0.0, str(error))


def _found_another(error: RecordLogError) -> bool:
    """Return whether other bytes have the position that this record was sent with, so it is stored nowhere."""
    cause = error.__cause__ if isinstance(error, OutcomeUnknownError) else error
    return isinstance(cause, PositionInPastError) and not cause.outcome_unknown
