"""`Producer`: one writer of one queue through a service, storing each record once or saying that it does not know.

1. It asks for the queue's next position once, and from then on gives every batch its position.
2. One batch is under way; what is appended meanwhile gathers and is the next batch, as in the log itself. Many tasks
   may append at once; they share requests as they share syncs.
3. A lost response, a full log or a restart of the service: the same batch is sent again with the same position. The
   service recognizes a repeat by its content: by the retained records, or by the queue's last append while it runs.
4. A refusal that nothing can change (a record that is too large) goes to the caller whose records it is about; the
   others are stored, and the producer continues.
5. When it is not known whether a batch was stored (its response was lost, and no later one settled it within the
   client's retry_seconds), its callers get the error, nothing later is sent, and the producer has failed. The same
   after PositionInPastError. A new producer continues after what was stored.

A queue has one producer at a time. Records of another one are found by their position: PositionInPastError, also where
they have the same content, and also when they were truncated since. One case is left: the response to a batch was lost,
and another producer has stored exactly the same bytes at that position.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import NamedTuple, Protocol

from mrecordlog_async.client.responses import ServiceError
from mrecordlog_async.client.retry import ServiceUnreachableError
from mrecordlog_async.client.transport import Payload, copied
from mrecordlog_async.errors import (
    LogClosedError,
    LogFailedError,
    LogFullError,
    QueueNameError,
    QueueNotFoundError,
    RecordLogError,
    RecordTooLargeError,
)

BATCH_BYTES = 4 * 1024 * 1024
BATCH_RECORDS = 50_000

CONTENT_STATUSES = frozenset({400, 413, 415, 422})
"""Refusals that are about what a body holds: other records of the same batch may pass."""


class Call(NamedTuple):
    """One append, and who waits for it."""

    payloads: list[bytes]
    future: asyncio.Future[int | None]


class Appends(Protocol):
    """What a producer needs of `RecordLogClient`, which imports this module."""

    async def create_queue(self, queue: str, *, exist_ok: bool = False) -> bool:
        """See `RecordLogClient`."""

    async def next_position(self, queue: str) -> int:
        """See `RecordLogClient`."""

    async def append_new(self, queue: str, position: int, payloads: Iterable[Payload]) -> int:
        """See `RecordLogClient`."""


class Producer:
    """Append to one queue as its only writer. Made by `RecordLogClient.producer`; use it as `async with`.

    Calls of many tasks share requests. Leaving the block waits for all of them. The module describes what happens when
    responses are lost.
    """

    def __init__(self, client: Appends, queue: str, *, create: bool = False) -> None:
        self.queue = queue
        self.next_position: int | None = None
        self._client = client
        self._create = create
        self._waiting: deque[Call] = deque()
        self._sending: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._closed = False
        self._entered = False

    async def __aenter__(self) -> Producer:
        if self._create:
            await self._client.create_queue(self.queue, exist_ok=True)
        self.next_position = await self._client.next_position(self.queue)
        self._entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def append_record(self, payload: Payload) -> int:
        """Append *payload* and wait until it is stored. Cancelling stops the waiting, not the sending.

        Args:
            payload: The record; it may be empty.

        Returns:
            Its position.

        Raises:
            RecordTooLargeError: This record was not stored; others may be.
            LogFullError: As above; the log had no room within the client's `retry_seconds`.
            QueueNotFoundError: As above; the queue was deleted.
            ServiceError: As above; the service refused it.
            PositionInPastError: It was not stored. Another producer writes to the queue, and this one has ended.
            OutcomeUnknownError: It may have been stored. This producer has ended; a new one continues from there.
            ServiceUnreachableError: This producer has ended if `sent` is true; otherwise nothing was stored.
            LogFailedError: This producer has ended unless `written` is "no".
            LogClosedError: The producer is closed, or was not entered.
        """
        position = await self._put([copied(payload)])
        assert position is not None, "one record has a position"
        return position

    async def append_records(self, payloads: Iterable[Payload]) -> int | None:
        """Append *payloads*, all or none, and wait until they are stored.

        Args:
            payloads: The records; they get consecutive positions.

        Returns:
            The position of the last one, None if there are none.

        Raises:
            RecordLogError: The errors of `append_record`.
        """
        return await self._put([copied(payload) for payload in payloads])

    async def close(self) -> None:
        """Wait until all appended records are stored or have failed. Later appends raise LogClosedError."""
        self._closed = True
        if self._sending is not None:
            await asyncio.wait((self._sending,))

    async def _put(self, payloads: list[bytes]) -> int | None:
        if self._failure is not None:
            raise _for_one(self._failure)
        if self._closed or not self._entered:
            raise LogClosedError("the producer is closed, or was not entered with `async with`")
        if not payloads:
            return None
        future: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(Call(payloads, future))
        if self._sending is None:
            self._sending = asyncio.create_task(self._send_all(), name=f"producer of {self.queue}")
        return await asyncio.shield(future)

    async def _send_all(self) -> None:
        """Send batches until nothing waits."""
        while self._waiting:
            calls = self._take()
            try:
                await self._send(calls)
            except BaseException as error:
                self._fail(error, calls)
                if not isinstance(error, Exception):
                    raise
                break
        self._sending = None

    async def _send(self, calls: Sequence[Call]) -> None:
        """Store *calls*, or refuse those that the service refuses; raise when what was stored is not known."""
        try:
            last = await self._store([payload for call in calls for payload in call.payloads])
        except RecordLogError as error:
            if not certainly_not_stored(error):
                raise
            if isinstance(error, QueueNotFoundError):
                self.next_position = None  # a queue that is created again starts at 0 again
            if len(calls) == 1 or not is_about_content(error):
                _refuse(calls, error)
                return
        else:
            self._acknowledge(calls, last)
            return
        # Halves: one bad record among n costs about 2 log2(n) requests, and the order stays.
        middle = len(calls) // 2
        await self._send(calls[:middle])
        await self._send(calls[middle:])

    async def _store(self, payloads: list[bytes]) -> int:
        """Store *payloads* at the next position; return that of the last."""
        if self.next_position is None:
            self.next_position = await self._client.next_position(self.queue)
        return await self._client.append_new(self.queue, self.next_position, payloads)

    def _acknowledge(self, calls: Sequence[Call], last: int) -> None:
        self.next_position = last + 1
        position = last + 1 - sum(len(call.payloads) for call in calls)
        for payloads, future in calls:
            position += len(payloads)
            if not future.done():
                future.set_result(position - 1)

    def _take(self) -> list[Call]:
        """Take calls for one batch; a call is never split, so it stays all or none."""
        calls = [self._waiting.popleft()]
        records, size = len(calls[0].payloads), sum(map(len, calls[0].payloads))
        while self._waiting:
            payloads = self._waiting[0].payloads
            records += len(payloads)
            size += sum(map(len, payloads))
            if records > BATCH_RECORDS or size > BATCH_BYTES:
                break
            calls.append(self._waiting.popleft())
        return calls

    def _fail(self, error: BaseException, calls: Sequence[Call]) -> None:
        self._failure = error
        _refuse((*calls, *self._waiting), error)
        self._waiting.clear()


def certainly_not_stored(error: RecordLogError) -> bool:
    """Tell whether a producer may go on after *error*: nothing was stored, and nobody else writes to the queue."""
    match error:
        case LogFullError() | RecordTooLargeError() | QueueNotFoundError() | QueueNameError() | LogClosedError():
            return True
        case LogFailedError():
            return error.written == "no"
        case ServiceUnreachableError():
            return not error.sent
        case ServiceError(status=503):
            return True  # the service wrote it; a proxy's becomes ServiceUnreachableError
        case ServiceError():
            return 300 <= error.status < 500
    return False


def is_about_content(error: RecordLogError) -> bool:
    """Tell whether other records of the same batch may pass."""
    return isinstance(error, RecordTooLargeError) or (
        isinstance(error, ServiceError) and error.status in CONTENT_STATUSES
    )


def _refuse(calls: Iterable[Call], error: BaseException) -> None:
    for call in calls:
        if not call.future.done():
            call.future.set_exception(_for_one(error))
            call.future.exception()  # a caller that was cancelled does not ask


def _for_one(error: BaseException) -> BaseException:
    """Return *error* for one caller: each collects its own traceback."""
    return error.copy() if isinstance(error, RecordLogError) else error
