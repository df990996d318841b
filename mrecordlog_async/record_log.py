"""`RecordLog`: what a log in this process and the client of a service have in common, for code that works with both.

    async def store(log: RecordLog, payload: bytes) -> int:
        return await log.append("orders", payload, create=True)

`MultiRecordLog` and `RecordLogClient` satisfy it. Reads are not part of it, except for tails and consumers: those of
the log return at once from memory, those of the client wait for a response.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, overload
from uuid import UUID

from mrecordlog_async.model import Batch, Record, Start
from mrecordlog_async.options import QueueOptions

Payload = bytes | bytearray | memoryview
"""Any bytes-like object. What is not `bytes` is copied when the method is called."""


class RecordBatches(Protocol):
    """Records of one queue as they arrive, one by one or in batches. A call that is cancelled loses nothing."""

    def __aiter__(self) -> AsyncIterator[Record]: ...

    async def __anext__(self) -> Record: ...

    @property
    def position(self) -> int | None:
        """The lowest position that may be handed out next; None if that is not known yet."""

    def batch(
        self, *, max_records: int = ..., max_bytes: int = ..., max_wait: float | None = ..., timeout: float | None = ...
    ) -> Coroutine[Any, Any, Batch | None]:
        """Return the next records together, an empty batch after *timeout*; None once no more can come."""

    def batches(
        self, *, max_records: int = ..., max_bytes: int = ..., max_wait: float | None = ...
    ) -> AsyncIterator[Batch]:
        """Iterate over batches until no more can come."""

    def available(self, *, max_records: int = ..., max_bytes: int = ...) -> AsyncIterator[Batch]:
        """Iterate over batches of the records that are there now."""


class RecordConsumer(RecordBatches, Protocol):
    """The holder of a durable position on one queue."""

    queue: str
    consumer: str

    @property
    def epoch(self) -> int:
        """Number of this holder."""

    @property
    def queue_id(self) -> int:
        """Incarnation of the queue."""

    async def acknowledge(self, done: Batch | Record | int) -> int:
        """Acknowledge everything up to and including *done*; return the consumer's position."""

    async def seek(self, position: Start) -> int:
        """Continue at *position*, forward or back, durably; return it."""


class RecordLog(Protocol):
    """Queues of records: the changes, tails and consumers that a log and a client have in common.

    Arguments, results and errors are those of the same methods of `MultiRecordLog`.
    """

    async def create_queue(self, queue: str, *, exist_ok: bool = ..., options: QueueOptions | None = ...) -> bool:
        """Create *queue*; return whether it was created."""

    async def create_queues(
        self, names: Iterable[str], *, exist_ok: bool = ..., options: QueueOptions | None = ...
    ) -> int:
        """Create queues, all or none; return how many were created."""

    async def delete_queue(self, queue: str, *, queue_id: int | None = ..., past_consumers: bool = ...) -> None:
        """Delete *queue* and all its records."""

    @overload
    def append(self, queue: str, payload: Payload, *, create: bool = ...) -> Coroutine[Any, Any, int]: ...

    @overload
    def append(
        self, queue: str, payload: Payload, position: int | None, *, create: bool = ...
    ) -> Coroutine[Any, Any, int | None]: ...

    # A protocol needs no method next to its overloads; the API reference shows no overloads without one.
    def append(
        self, queue: str, payload: Payload, position: int | None = ..., *, create: bool = ...
    ) -> Coroutine[Any, Any, int | None]:
        """Append *payload* to *queue*; return its position, or None if it was already stored at *position*."""

    def append_json(self, queue: str, value: object, *, create: bool = ...) -> Coroutine[Any, Any, int]:
        """Append *value* as JSON to *queue*; return its position."""

    @overload
    def append_record(
        self, queue: str, position: None, payload: Payload, *, create: bool = ...
    ) -> Coroutine[Any, Any, int]: ...

    @overload
    def append_record(
        self, queue: str, position: int | None, payload: Payload, *, create: bool = ...
    ) -> Coroutine[Any, Any, int | None]: ...

    def append_record(
        self, queue: str, position: int | None, payload: Payload, *, create: bool = ...
    ) -> Coroutine[Any, Any, int | None]:
        """Append *payload* to *queue*: `append` with the position before the payload."""

    def append_records(
        self, queue: str, position: int | None, payloads: Iterable[Payload], *, create: bool = ...
    ) -> Coroutine[Any, Any, int | None]:
        """Append *payloads* at consecutive positions, all or none; return the last one."""

    async def truncate(
        self, queue: str, position: int, *, queue_id: int | None = ..., past_consumers: bool = ...
    ) -> int:
        """Remove the records of *queue* up to and including *position*; return their number."""

    async def configure_queue(self, queue: str, options: QueueOptions) -> None:
        """Replace the options of *queue*."""

    async def seal_queue(self, queue: str, *, queue_id: int | None = ...) -> int:
        """Seal *queue* for good; return its next position."""

    async def create_consumer(
        self, queue: str, consumer: str, *, start: Start | None = ..., exist_ok: bool = ...
    ) -> bool:
        """Create *consumer* on *queue*; return whether it was created."""

    async def delete_consumer(self, queue: str, consumer: str) -> None:
        """Delete *consumer* of *queue*."""

    async def seek_consumer(self, queue: str, consumer: str, position: Start) -> int:
        """Have *consumer* continue at *position*; return it."""

    def consumer(
        self,
        queue: str,
        consumer: str,
        *,
        create: bool = ...,
        start: Start | None = ...,
        owner: UUID | str | None = ...,
        take_over: bool = ...,
        if_idle_for: float | None = ...,
    ) -> AbstractAsyncContextManager[RecordConsumer]:
        """Return the holder of *consumer*, to be used as `async with`."""

    def tail(self, queue: str, start: Start | None = ...) -> RecordBatches:
        """Follow *queue* from *start*."""

    async def wait_for(self, queue: str, position: int) -> bool:
        """Wait until *position* has been assigned in *queue*; False if that will not happen."""

    async def close(self) -> None:
        """Close the log, or the connections of the client."""
