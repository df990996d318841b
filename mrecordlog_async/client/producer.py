"""`Producer`: the one writer of a queue through a service; it stores each record once or raises an error.

1. It requests the queue's next position once, and from then on assigns the position of every batch.
2. One batch is sent at a time; records appended meanwhile form the next batch, as in the log itself. Many tasks may
   append at once and share requests.
3. After a lost response, a full log or a restart of the service, the same batch is sent again with the same position.
   The service recognizes a repeat: it compares the content with the retained records, or with the queue's last append
   since the log was opened.
4. A permanent refusal (a record that is too large) is raised to the caller whose record caused it; the others are
   stored, and the producer continues.
5. If it is unknown whether a batch was stored, its callers get the error, nothing more is sent, and the producer has
   failed. So it is if a response was lost, and no later one settled it within the client's `retry_seconds`; and if
   the first response reports exactly these records as stored before. It also fails after PositionInPastError. A new
   producer continues after the last stored record.

A queue may have one producer at a time. Records of another one are detected by their position. Other records raise
PositionInPastError. The same records raise OutcomeUnknownError, because a proxy that sent the request twice gives the
same response. One case is not detected: the response to a batch was lost, and another producer has stored exactly the
same bytes at that position.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from mrecordlog_async.client.outbox import Outbox
from mrecordlog_async.client.sender import Sender
from mrecordlog_async.model import copy_payload, copy_payloads
from mrecordlog_async.record_log import Payload
from mrecordlog_async.support.coroutine_mark import coroutine_function


class Producer:
    """Append to one queue as its only writer. Created by `RecordLogClient.producer`; use it as `async with`.

    Calls of many tasks share requests, and leaving the block waits for all of them. After a lost response a batch is
    sent again with the same position, so every record is stored once.

    Attributes:
        queue: Name of the queue.
    """

    def __init__(self, sender: Sender, queue: str, *, create: bool = False) -> None:
        """Use `RecordLogClient.producer`."""
        self.queue = queue
        self._outbox = Outbox(sender, queue, create=create)
        self._sending: asyncio.Task[None] | None = None

    @property
    def next_position(self) -> int | None:
        """Position of the next record; None before `async with` and after the queue was deleted."""
        return self._outbox.next_position

    @property
    def failed(self) -> bool:
        """True if it sends nothing more: it is unknown what was stored, or another producer writes to the queue."""
        return self._outbox.failure is not None

    async def __aenter__(self) -> Producer:
        await self._outbox.enter()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @coroutine_function
    def append_record(self, payload: Payload) -> Coroutine[Any, Any, int]:
        """Append *payload* and wait until it is stored. Cancelling stops the waiting, not the sending.

        Args:
            payload: The record; it may be empty.

        Returns:
            Its position.

        Raises:
            RecordTooLargeError: The record was not stored: it exceeds a limit.
            LogFullError: The record was not stored: the log had no room within `retry_seconds`.
            QueueNotFoundError: The record was not stored: the queue was deleted.
            ServiceError: The service refused the record. After an unreadable response or a 5xx status other than 503 it
                may have been stored, and this producer has failed; otherwise it was not stored.
            PositionInPastError: The record was not stored: another producer writes to the queue. This one has failed.
            OutcomeUnknownError: The record may have been stored: a response was lost, or the same bytes were already
                there, from another producer or a proxy that sent the request twice. This producer has failed.
            ServiceUnreachableError: If `sent` is true, the record may have been stored and this producer has failed;
                otherwise it was not stored.
            LogFailedError: If `written` is "no", the record was not stored; otherwise it may have been, and this
                producer has failed.
            LogClosedError: The producer is closed, or was not entered.
        """
        return self._put_one(copy_payload(payload))  # at once, as in the log

    @coroutine_function
    def append_records(self, payloads: Iterable[Payload]) -> Coroutine[Any, Any, int | None]:
        """Append *payloads*, all or none, and wait until they are stored.

        Args:
            payloads: The records; they get consecutive positions.

        Returns:
            The position of the last one, None if there are none.

        Raises:
            RecordLogError: The errors of `append_record`.
        """
        return self._put(copy_payloads(payloads))

    async def close(self) -> None:
        """Wait until every appended record is stored or refused. Later appends raise LogClosedError."""
        self._outbox.end()
        if self._sending is not None:
            await asyncio.wait((self._sending,))

    async def _put_one(self, payload: bytes) -> int:
        position = await self._put([payload])
        assert position is not None, "one record has a position"
        return position

    async def _put(self, payloads: list[bytes]) -> int | None:
        self._outbox.check("async with")
        if not payloads:
            return None
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._outbox.add(payloads, future)
        if self._sending is None:
            self._sending = asyncio.create_task(self._send_all(), name=f"producer of {self.queue}")
            self._sending.add_done_callback(_retrieve)
        return await asyncio.shield(future)  # a cancelled caller leaves; its batch has other callers too

    async def _send_all(self) -> None:
        try:
            while await self._outbox.send_batch():
                pass
        except BaseException as error:
            self._outbox.fail(error)
            if not isinstance(error, Exception):
                raise
        # No await since nothing was seen waiting: a call that is added later starts the next task.
        self._sending = None


def _retrieve(task: asyncio.Task[None]) -> None:
    """Mark the error of *task* as retrieved: only the end of the process is one, and the appends have got it."""
    if not task.cancelled():
        task.exception()
