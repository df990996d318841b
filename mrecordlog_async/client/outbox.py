"""`Outbox`: what the one writer of a queue has to send. Producers of tasks and of threads have one each.

1. A batch takes what waits, and gets the queue's next position before it is sent. One batch is sent at a time.
2. An exception of a signal handler may end the sending at any line. What was begun stays: the next `send_batch` sends
   it again at the same position, as after a lost response, and the service recognizes a repeat.
3. So each step is one assignment, and what follows from it can be done twice: `_Batch.parts` is what is left of a
   batch, `_BatchPart.settled` what became of a part, `PendingAppend.batch` says that a batch has taken an append.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from mrecordlog_async.client.interrupts import has_failed
from mrecordlog_async.client.sender import Sender
from mrecordlog_async.errors import (
    LogClosedError,
    LogFailedError,
    LogFullError,
    QueueNameError,
    QueueNotFoundError,
    RecordLogError,
    RecordTooLargeError,
)
from mrecordlog_async.protocol import calls
from mrecordlog_async.protocol.attempts import ServiceUnreachableError
from mrecordlog_async.protocol.responses import ServiceError

BATCH_BYTES = 4 * 1024 * 1024
BATCH_RECORDS = 50_000

CONTENT_STATUSES = frozenset({400, 413, 415, 422})
"""Statuses of refusals caused by the content of a body: other records of the same batch may be accepted."""

INTERRUPTED = "an exception ended the sending"


class Outcome(Protocol):
    """What the caller of one append gets: a future of asyncio, or its counterpart for threads."""

    def done(self) -> bool:
        """Return whether it is known."""

    def set_result(self, position: int, /) -> None:
        """Note where the last record is stored."""

    def set_exception(self, error: BaseException, /) -> None:
        """Note why it is not."""

    def exception(self) -> BaseException | None:
        """Return that error. A future counts it as retrieved then: a caller that was cancelled never asks."""


@dataclass(slots=True, eq=False)
class PendingAppend:
    """One append. It is never split, so it stays all or none."""

    payloads: list[bytes]
    outcome: Outcome
    batch: _Batch | None = None  # that has taken it


@dataclass(slots=True, eq=False)
class _BatchPart:
    """Appends that one request sends."""

    appends: list[PendingAppend]
    begun: bool = False  # it may have been sent
    settled: int | RecordLogError | None = None  # its last position, or why it is not stored

    def payloads(self) -> list[bytes]:
        return [payload for append in self.appends for payload in append.payloads]

    def halves(self) -> list[_BatchPart]:
        middle = len(self.appends) // 2
        return [_BatchPart(self.appends[:middle]), _BatchPart(self.appends[middle:])]


@dataclass(slots=True, eq=False)
class _Batch:
    """The parts that are not settled; one, unless the service refused a record among others."""

    parts: list[_BatchPart] = field(default_factory=list)


class Outbox:
    """Appends to one queue as its only writer. One task or thread at a time may send.

    Attributes:
        queue: Name of the queue.
        next_position: Position of the next record; None before `enter` and after the queue was deleted.
        failure: Why nothing more is sent.
    """

    def __init__(self, sender: Sender, queue: str, *, create: bool) -> None:
        self.queue = queue
        self.next_position: int | None = None
        self.failure: BaseException | None = None
        self._sender = sender
        self._create = create
        self._waiting: deque[PendingAppend] = deque()
        self._batch = _Batch()  # the latest
        self._entered = False
        self._closed = False

    async def enter(self) -> None:
        """Find out where the queue ends, and take records from now on."""
        if self._entered:
            raise RuntimeError("a producer is entered once: make another one with client.producer(queue)")
        if self._create:
            await self._sender.send(calls.create_queue(self.queue, exist_ok=True, options=None))
        self.next_position = (await self._sender.send(calls.queue_summary(self.queue))).next_position
        self._entered = True

    def check(self, entering: str) -> None:
        """Raise the failure, or LogClosedError if no record is taken. entering: how the producer is entered."""
        if self.failure is not None:
            raise for_one(self.failure)
        if self._closed or not self._entered:
            raise LogClosedError(f"the producer is closed, or was not entered with `{entering}`")

    def add(self, payloads: list[bytes], outcome: Outcome) -> None:
        """Have *payloads* sent, after everything that waits."""
        self._waiting.append(PendingAppend(payloads, outcome))

    def end(self) -> None:
        """Take no more records."""
        self._closed = True

    def fail(self, error: BaseException) -> None:
        """Send nothing more: everybody who waits gets *error*."""
        self.failure = error
        for part in self._batch.parts:
            _refuse(part.appends, error)
        self._batch.parts = []
        while self._waiting:
            _refuse([self._waiting[0]], error)
            self._waiting.popleft()

    def unsettled(self) -> list[Outcome]:
        """Return the outcomes that are not known, in order."""
        begun = [append for part in self._batch.parts for append in part.appends]
        outcomes = [append.outcome for append in (*begun, *self._waiting.copy())]
        return [outcome for outcome in outcomes if not outcome.done()]

    async def send_batch(self) -> bool:
        """Send the batch that an exception has interrupted, or the next one; return False if there is none."""
        if self.failure is not None:  # a thread has added a record meanwhile, or the failing was interrupted
            self.fail(self.failure)
        if not self._batch.parts:
            self._take()
        if not self._batch.parts:
            return False
        while self._batch.parts:
            await self._settle(self._batch, self._batch.parts[0])
        return True

    def _take(self) -> None:
        """Make a batch of what waits."""
        while self._waiting and self._waiting[0].batch is self._batch:  # as an exception interrupted this
            self._waiting.popleft()
        taken, records, size = list[PendingAppend](), 0, 0
        for append in self._waiting.copy():
            records += len(append.payloads)
            size += sum(map(len, append.payloads))
            if taken and (records > BATCH_RECORDS or size > BATCH_BYTES):
                break
            taken.append(append)
        if not taken:
            return
        batch = _Batch([_BatchPart(taken)])
        for append in taken:
            append.batch = batch
        self._batch = batch
        for _ in taken:
            self._waiting.popleft()

    async def _settle(self, batch: _Batch, part: _BatchPart) -> None:
        """Store *part* or refuse it, and take it out of *batch*; replace it by halves if that may store others."""
        if part.settled is None:
            try:
                part.settled = await self._store(part)
            except RecordLogError as error:
                if not has_failed(error):
                    raise
                if not certainly_not_stored(error):
                    self.fail(error)
                    return
                if len(part.appends) > 1 and is_about_content(error):
                    # Halves: one bad record among n costs about 2 log2(n) requests, and the order stays.
                    batch.parts = [*part.halves(), *batch.parts[1:]]
                    return
                part.settled = error
        if isinstance(part.settled, int):
            _acknowledge(part.appends, part.settled)
            self.next_position = part.settled + 1
        else:
            _refuse(part.appends, part.settled)
            if isinstance(part.settled, QueueNotFoundError):
                self.next_position = None  # a recreated queue starts at 0
        batch.parts = batch.parts[1:]

    async def _store(self, part: _BatchPart) -> int:
        """Store *part* at the next position; return that of its last record."""
        if self.next_position is None:
            try:
                self.next_position = (await self._sender.send(calls.queue_summary(self.queue))).next_position
            except ServiceUnreachableError as error:  # its request was not the append: nothing of that was sent
                raise ServiceUnreachableError(error.address, error.seconds, error.reason) from error
        lost = INTERRUPTED if part.begun else ""
        part.begun = True
        return await self._sender.send(calls.append_new(self.queue, self.next_position, part.payloads(), lost=lost))


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


def for_one(error: BaseException) -> BaseException:
    """Return a copy of *error* for one caller, because each collects its own traceback."""
    return error.copy() if isinstance(error, RecordLogError) else error


def _acknowledge(appends: Iterable[PendingAppend], last: int) -> None:
    position = last + 1 - sum(len(append.payloads) for append in appends)
    for append in appends:
        position += len(append.payloads)
        if not append.outcome.done():
            append.outcome.set_result(position - 1)


def _refuse(appends: Iterable[PendingAppend], error: BaseException) -> None:
    for append in appends:
        if not append.outcome.done():
            append.outcome.set_exception(for_one(error))
            append.outcome.exception()
