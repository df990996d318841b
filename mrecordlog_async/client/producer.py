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
from collections import deque
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from mrecordlog_async.errors import (
    LogClosedError,
    LogFailedError,
    LogFullError,
    QueueNameError,
    QueueNotFoundError,
    RecordLogError,
    RecordTooLargeError,
)
from mrecordlog_async.model import copy_payload, copy_payloads
from mrecordlog_async.protocol.attempts import ServiceUnreachableError
from mrecordlog_async.protocol.responses import ServiceError
from mrecordlog_async.record_log import Payload
from mrecordlog_async.support.coroutine_mark import coroutine_function

BATCH_BYTES = 4 * 1024 * 1024
BATCH_RECORDS = 50_000

CONTENT_STATUSES = frozenset({400, 413, 415, 422})
"""Statuses of refusals caused by the content of a body: other records of the same batch may be accepted."""


class Call(NamedTuple):
    """One append, and the future that its caller awaits."""

    payloads: list[bytes]
    future: asyncio.Future[int | None]


class Appends(Protocol):
    """The methods of `RecordLogClient` that a producer needs; the client imports this module."""

    async def create_queue(self, queue: str, *, exist_ok: bool = False) -> bool:
        """See `RecordLogClient`."""

    async def next_position(self, queue: str) -> int:
        """See `RecordLogClient`."""

    async def append_new(self, queue: str, position: int, payloads: Iterable[Payload]) -> int:
        """See `RecordLogClient`."""


class Producer:
    """Append to one queue as its only writer. Created by `RecordLogClient.producer`; use it as `async with`.

    Calls of many tasks share requests, and leaving the block waits for all of them. After a lost response a batch is
    sent again with the same position, so every record is stored once.

    Attributes:
        queue: Name of the queue.
        next_position: Position of the next record; None before `async with` and after the queue was deleted.
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
        if self._entered:
            raise RuntimeError("a producer is entered once: make another one with client.producer(queue)")
        if self._create:
            await self._client.create_queue(self.queue, exist_ok=True)
        self.next_position = await self._client.next_position(self.queue)
        self._entered = True
        return self

    @property
    def failed(self) -> bool:
        """True if it sends nothing more: it is unknown what was stored, or another producer writes to the queue."""
        return self._failure is not None

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
        self._closed = True
        if self._sending is not None:
            await asyncio.wait((self._sending,))

    async def _put_one(self, payload: bytes) -> int:
        position = await self._put([payload])
        assert position is not None, "one record has a position"
        return position

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
        return await asyncio.shield(future)  # a cancelled caller leaves; its batch has other callers too

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
        # No await since `_waiting` was seen empty: a call that is added later starts the next task.
        self._sending = None

    async def _send(self, calls: Sequence[Call]) -> None:
        """Store *calls*, or pass on the refusal of the service; raise if it is unknown what was stored."""
        try:
            last = await self._store([payload for call in calls for payload in call.payloads])
        except RecordLogError as error:
            if not certainly_not_stored(error):
                raise
            if isinstance(error, QueueNotFoundError):
                self.next_position = None  # a recreated queue starts at 0
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
            try:
                self.next_position = await self._client.next_position(self.queue)
            except ServiceUnreachableError as error:  # its request was not the append: nothing of that was sent
                raise ServiceUnreachableError(error.address, error.seconds, error.reason) from error
        return await self._client.append_new(self.queue, self.next_position, payloads)

    def _acknowledge(self, calls: Sequence[Call], last: int) -> None:
        self.next_position = last + 1
        position = last + 1 - sum(len(call.payloads) for call in calls)
        for payloads, future in calls:
            position += len(payloads)
            if not future.done():
                future.set_result(position - 1)

    def _take(self) -> list[Call]:
        """Return the calls of the next batch. A call is never split, so it stays all or none."""
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
    """Return whether a producer may continue after *error*: nothing was stored, and no other producer writes."""
    match error:
        case LogFullError() | RecordTooLargeError() | QueueNotFoundError() | QueueNameError() | LogClosedError():
            return True
        case LogFailedError():
            return error.written == "no"
        case ServiceUnreachableError():
            return not error.sent
        case ServiceError(status=503):
            return True  # written by the service; a 503 of a proxy becomes ServiceUnreachableError
        case ServiceError():
            return 300 <= error.status < 500
    return False


def is_about_content(error: RecordLogError) -> bool:
    """Return whether *error* is about single records, so that others of the same batch may be accepted."""
    return isinstance(error, RecordTooLargeError) or (
        isinstance(error, ServiceError) and error.status in CONTENT_STATUSES
    )


def _refuse(calls: Iterable[Call], error: BaseException) -> None:
    for call in calls:
        if not call.future.done():
            call.future.set_exception(_for_one(error))
            call.future.exception()  # marks it as retrieved: a caller that was cancelled never asks


def _for_one(error: BaseException) -> BaseException:
    """Return a copy of *error* for one caller, because each collects its own traceback."""
    return error.copy() if isinstance(error, RecordLogError) else error
