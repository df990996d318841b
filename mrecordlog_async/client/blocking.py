"""`BlockingRecordLogClient`: the HTTP service from code without asyncio, such as Flask, Django, Celery and scripts.

    from mrecordlog_async.client import BlockingRecordLogClient

    with BlockingRecordLogClient("http://127.0.0.1:8080") as client:
        client.append("orders", b"two coffees", create=True)
        for position, payload in client.range("orders"):
            print(position, payload)

The methods are those of `RecordLogClient` without `await`. They run on an event loop in a thread that the first call
starts, so all threads of a process share its connections, and concurrent appends share syncs in the service.

A forked child starts its own thread with its own connections at its first call: servers may make the client before
they fork their workers. Tails and producers belong to the process that made them.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar, overload
from uuid import UUID

from mrecordlog_async.batches import BATCH_BYTES, BATCH_RECORDS, BATCH_SECONDS
from mrecordlog_async.client.client import RecordLogClient
from mrecordlog_async.client.consumer import ClientConsumer
from mrecordlog_async.client.loop_thread import CLOSED, LoopThread
from mrecordlog_async.client.producer import Producer
from mrecordlog_async.client.tail import ClientTail
from mrecordlog_async.errors import LogClosedError
from mrecordlog_async.model import Batch, ConsumerSummary, QueueSummary, Record, Run, Start, Times
from mrecordlog_async.options import QueueOptions
from mrecordlog_async.protocol.calls import Payload
from mrecordlog_async.protocol.log_schemas import LogResponse
from mrecordlog_async.protocol.schemas import StatsResponse
from mrecordlog_async.servers.names import shown_url

T = TypeVar("T")
Taken = TypeVar("Taken", bound=Record | Batch | None)


class BlockingRecordLogClient:
    """Call one service from any thread. Use it as `with`, or call `close` at the end.

    Every method does what the method of `RecordLogClient` with the same name does, and raises the same errors.

    Args:
        url: As for `RecordLogClient`.
        options: Keyword arguments of `RecordLogClient`: `token`, `retry_seconds`, `timeout_seconds`,
            `response_seconds`, `connections`, `log_id`.

    Raises:
        TypeError, ValueError: What `RecordLogClient` refuses at once, such as a token with a line break.
        LogClosedError: This client is closed.
    """

    def __init__(self, url: str, **options: Any) -> None:
        RecordLogClient(url, **options)  # refuses what it refuses now, and not in the first call
        self.url = url
        self._options = options
        self._lock = threading.Lock()
        self._running: _Running | None = None
        self._closed = False
        _clients.add(self)

    def __repr__(self) -> str:
        return f"<BlockingRecordLogClient {shown_url(self.url)!r}>"

    def __enter__(self) -> BlockingRecordLogClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections and end the thread. Calls of other threads raise LogClosedError."""
        with self._lock:
            self._closed = True
            running, self._running = self._running, None
        if running is not None:
            running.end()

    # Changes.

    def create_queue(self, queue: str, *, exist_ok: bool = False, options: QueueOptions | None = None) -> bool:
        """Create *queue*; see `RecordLogClient.create_queue`."""
        return self._call(lambda client: client.create_queue(queue, exist_ok=exist_ok, options=options))

    def delete_queue(self, queue: str, *, queue_id: int | None = None, past_consumers: bool = False) -> None:
        """Delete *queue* and all its records; see `RecordLogClient.delete_queue`."""
        self._call(lambda client: client.delete_queue(queue, queue_id=queue_id, past_consumers=past_consumers))

    def configure_queue(self, queue: str, options: QueueOptions) -> None:
        """Replace all options of *queue*; see `RecordLogClient.configure_queue`."""
        self._call(lambda client: client.configure_queue(queue, options))

    def seal_queue(self, queue: str, *, queue_id: int | None = None) -> int:
        """Seal *queue* for good; see `RecordLogClient.seal_queue`."""
        return self._call(lambda client: client.seal_queue(queue, queue_id=queue_id))

    @overload
    def append(self, queue: str, payload: Payload, *, create: bool = False) -> int: ...

    @overload
    def append(self, queue: str, payload: Payload, position: int | None, *, create: bool = False) -> int | None: ...

    def append(self, queue: str, payload: Payload, position: int | None = None, *, create: bool = False) -> int | None:
        """Append *payload* to *queue*; see `RecordLogClient.append`."""
        return self._call(lambda client: client.append(queue, payload, position, create=create))

    @overload
    def append_record(self, queue: str, position: None, payload: Payload, *, create: bool = False) -> int: ...

    @overload
    def append_record(
        self, queue: str, position: int | None, payload: Payload, *, create: bool = False
    ) -> int | None: ...

    def append_record(self, queue: str, position: int | None, payload: Payload, *, create: bool = False) -> int | None:
        """Append *payload* to *queue*; see `RecordLogClient.append_record`."""
        return self._call(lambda client: client.append_record(queue, position, payload, create=create))

    def append_records(
        self, queue: str, position: int | None, payloads: Iterable[Payload], *, create: bool = False
    ) -> int | None:
        """Append *payloads* to *queue*, all or none; see `RecordLogClient.append_records`."""
        records = list(payloads)  # a generator of the caller runs in the caller's thread
        return self._call(lambda client: client.append_records(queue, position, records, create=create))

    def truncate(self, queue: str, position: int, *, queue_id: int | None = None, past_consumers: bool = False) -> int:
        """Drop the records of *queue* up to and including *position*; see `RecordLogClient.truncate`."""
        return self._call(
            lambda client: client.truncate(queue, position, queue_id=queue_id, past_consumers=past_consumers)
        )

    def producer(self, queue: str, *, create: bool = False) -> BlockingProducer:
        """Return a producer for *queue*, to be used as `with`; see `RecordLogClient.producer`."""
        running = self._start()
        return BlockingProducer(self, running.thread, running.client.producer(queue, create=create))

    # Consumers.

    def consumer(
        self,
        queue: str,
        consumer: str,
        *,
        create: bool = True,
        start: Start | None = None,
        owner: UUID | str | None = None,
        take_over: bool = False,
    ) -> BlockingConsumer:
        """Return the holder of *consumer*, to be used as `with`; see `RecordLogClient.consumer`."""
        running = self._start()
        inner = running.client.consumer(queue, consumer, create=create, start=start, owner=owner, take_over=take_over)
        return BlockingConsumer(self, running.thread, inner)

    def create_consumer(self, queue: str, consumer: str, *, start: Start | None = None, exist_ok: bool = False) -> bool:
        """Create *consumer* on *queue*, or on all queues that match a pattern; see `RecordLogClient`."""
        return self._call(lambda client: client.create_consumer(queue, consumer, start=start, exist_ok=exist_ok))

    def delete_consumer(self, queue: str, consumer: str) -> None:
        """Delete *consumer* of *queue*; see `RecordLogClient.delete_consumer`."""
        self._call(lambda client: client.delete_consumer(queue, consumer))

    def seek_consumer(self, queue: str, consumer: str, position: Start) -> int:
        """Have *consumer* continue at *position*, and fence its holder; see `RecordLogClient.seek_consumer`."""
        return self._call(lambda client: client.seek_consumer(queue, consumer, position))

    def consumers(self, queue: str) -> dict[str, ConsumerSummary]:
        """Return where the consumers of *queue* stand, by name."""
        return self._call(lambda client: client.consumers(queue))

    def all_consumers(self) -> list[ConsumerSummary]:
        """Return where the consumers of all queues stand, by queue and name."""
        return self._call(lambda client: client.all_consumers())

    def consumer_rules(self) -> list[tuple[str, str]]:
        """Return the rules that give new queues a consumer, as (pattern, consumer)."""
        return self._call(lambda client: client.consumer_rules())

    # Reads.

    def queue_options(self, queue: str) -> QueueOptions:
        """Return the options of *queue*."""
        return self._call(lambda client: client.queue_options(queue))

    def range(
        self, queue: str, start: Start | None = None, stop: int | None = None, *, limit: int | None = None
    ) -> Iterator[Record]:
        """Yield the records of *queue* from *start* to *stop* - 1; see `RecordLogClient.range`."""
        for run in self.runs(queue, start, stop, limit=limit):  # a wait per run, not per record
            yield from run.records()

    def iter_from(self, queue: str, position: int) -> Iterator[Record]:
        """Yield the records of *queue* from *position* on; see `RecordLogClient.iter_from`."""
        return self.range(queue, position)

    def runs(
        self, queue: str, start: Start | None = None, stop: int | None = None, *, limit: int | None = None
    ) -> Iterator[Run]:
        """Yield the records that `range` yields as whole runs; see `RecordLogClient.runs`."""
        running = self._start()
        yield from running.thread.iterate(running.client.runs(queue, start, stop, limit=limit))

    def timed_runs(
        self,
        queue: str,
        start: Start | None = None,
        stop: int | None = None,
        *,
        limit: int | None = None,
        follow: bool = False,
    ) -> Iterator[tuple[list[Run], Times]]:
        """Yield what `runs` yields, with the times of the records; see `RecordLogClient.timed_runs`."""
        running = self._start()
        pages = running.client.timed_runs(queue, start, stop, limit=limit, follow=follow)
        yield from running.thread.iterate(pages)

    def tail(self, queue: str, start: Start | None = None) -> BlockingTail:
        """Follow *queue* from *start*; see `RecordLogClient.tail`."""
        running = self._start()
        return BlockingTail(self, running.thread, running.client.tail(queue, start))

    def position_at(self, queue: str, time: datetime) -> int:
        """Return the position of the first retained record that was stored at *time* or later."""
        return self._call(lambda client: client.position_at(queue, time))

    def time_of(self, queue: str, position: int) -> datetime | None:
        """Return when the record of *queue* at *position* was stored, to 0.1 s."""
        return self._call(lambda client: client.time_of(queue, position))

    def wait_for(self, queue: str, position: int) -> bool:
        """Wait until *position* has been assigned in *queue*; see `RecordLogClient.wait_for`."""
        return self._call(lambda client: client.wait_for(queue, position))

    def queue_exists(self, queue: str) -> bool:
        """Return whether *queue* exists."""
        return self._call(lambda client: client.queue_exists(queue))

    def list_queues(self) -> list[str]:
        """Return the names of all queues, sorted."""
        return self._call(lambda client: client.list_queues())

    def summary(
        self, *, order: Literal["bytes", "records", "segment", "age"] | None = None, limit: int | None = None
    ) -> dict[str, QueueSummary]:
        """Return positions and sizes of every queue, by name; see `RecordLogClient.summary`."""
        return self._call(lambda client: client.summary(order=order, limit=limit))

    def queue_summary(self, queue: str) -> QueueSummary:
        """Return positions and sizes of *queue*."""
        return self._call(lambda client: client.queue_summary(queue))

    def first_position(self, queue: str) -> int:
        """Return the lowest position of *queue* that is not truncated."""
        return self._call(lambda client: client.first_position(queue))

    def next_position(self, queue: str) -> int:
        """Return the position that the next record of *queue* gets."""
        return self._call(lambda client: client.next_position(queue))

    def last_position(self, queue: str) -> int | None:
        """Return the last position assigned in *queue*; None if it never had a record."""
        return self._call(lambda client: client.last_position(queue))

    def last_record(self, queue: str) -> Record | None:
        """Return the newest retained record of *queue*; None if it holds none."""
        return self._call(lambda client: client.last_record(queue))

    def log_info(self) -> LogResponse:
        """Return which log the service has; see `RecordLogClient.log_info`."""
        return self._call(lambda client: client.log_info())

    def stats(self) -> StatsResponse:
        """Return the statistics of the service and its log."""
        return self._call(lambda client: client.stats())

    def wait_ready(self) -> None:
        """Wait until the service stores records; see `RecordLogClient.wait_ready`."""
        self._call(lambda client: client.wait_ready())

    def _call(self, call: Callable[[RecordLogClient], Coroutine[Any, Any, T]]) -> T:
        running = self._start()
        return running.thread.call(call(running.client))

    def _start(self) -> _Running:
        """Return the thread and the client of this process; start them at the first call."""
        running = self._running
        if running is not None:
            return running
        with self._lock:
            if self._closed:
                raise LogClosedError(CLOSED)
            if self._running is None:
                starting = _Running(self.url, self._options)
                starting.end = weakref.finalize(self, starting.stop)
                starting.end.atexit = False  # `_end_with_interpreter` does it
                self._running = starting  # whole: the process may fork at any time
            return self._running


class _Running:
    """The thread of one process, and the client on its loop."""

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        self.client = RecordLogClient(url, **options)
        self.thread = LoopThread("mrecordlog client")

        self.end: weakref.finalize[[], BlockingRecordLogClient]

    def stop(self) -> None:
        """Close the client and end the thread."""
        if self.thread.is_current():  # the garbage collector may run there
            threading.Thread(target=self.stop, name="mrecordlog close").start()
            return
        self.thread.call(self.client.close())
        self.thread.stop()


_clients: weakref.WeakSet[BlockingRecordLogClient] = weakref.WeakSet()
_of_parents: list[_Running] = []
"""Loops that a forked child inherited. They are kept: closing one would take descriptors out of the parent's epoll."""


def _leave_to_parent() -> None:
    """Have every client of this forked child begin again at its next call."""
    for client in list(_clients):
        client._lock = threading.Lock()  # another thread may have held it
        if client._running is not None:
            client._running.end.detach()
            _of_parents.append(client._running)
            client._running = None


os.register_at_fork(after_in_child=_leave_to_parent)


@atexit.register
def _end_with_interpreter() -> None:
    """End every client of this process that is still open, after the program's own functions for its exit."""
    for client in list(_clients):
        if (running := client._running) is not None:
            running.thread.exit()
            running.end()


class _Blocking(Generic[T]):
    """An object of the client, and the thread that its calls run on."""

    def __init__(self, owner: BlockingRecordLogClient, thread: LoopThread, inner: T) -> None:
        self._owner = owner  # or it would be closed if nobody else kept it
        self._thread = thread
        self._inner = inner


class _Taking:
    """One call of a reader that takes records, and what it has taken. Its thread and the loop's both write to it."""

    def __init__(self) -> None:
        self.tail: ClientTail | None = None
        self.found: Any = None  # a record, a batch, or None
        self.interrupted = False  # an exception ended it in its thread: nobody got what it found

    def return_found(self) -> None:
        """Have the next call take again what this one found."""
        if self.tail is not None and self.found is not None:
            found = self.found
            self.tail.hand_out_again(found.position if isinstance(found, Record) else found.first_position)


class _BlockingReader(_Blocking[T], Iterator[Record]):
    """The calls that a tail and a consumer share. Any thread may call."""

    _inner: Any

    def __init__(self, owner: BlockingRecordLogClient, thread: LoopThread, inner: T) -> None:
        super().__init__(owner, thread, inner)
        self._turn = asyncio.Lock()  # of the thread's loop
        self._interrupted: deque[_Taking] = deque()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record:
        try:
            return self._take(partial(anext, self._inner))  # type: ignore[no-any-return]  # a record
        except StopAsyncIteration:
            raise StopIteration from None

    def batch(
        self,
        *,
        max_records: int = BATCH_RECORDS,
        max_bytes: int = BATCH_BYTES,
        max_wait: float | None = BATCH_SECONDS,
    ) -> Batch | None:
        """Return the next records together, None once no more can come; see `RecordLogClient`."""
        limits = {"max_records": max_records, "max_bytes": max_bytes, "max_wait": max_wait}
        return self._take(partial(self._inner.batch, **limits))  # type: ignore[no-any-return]  # a batch

    def batches(
        self,
        *,
        max_records: int = BATCH_RECORDS,
        max_bytes: int = BATCH_BYTES,
        max_wait: float | None = BATCH_SECONDS,
    ) -> Iterator[Batch]:
        """Iterate over batches until no more can come."""
        # No generator: an exception between its `batch` and its `yield` would lose the batch, and end it.
        return iter(partial(self.batch, max_records=max_records, max_bytes=max_bytes, max_wait=max_wait), None)

    def _take(self, take: Callable[[], Awaitable[Taken]]) -> Taken:
        """Return what *take* takes. If a signal handler raises during the call, the next one takes it again."""
        taking = _Taking()
        try:
            self._thread.call(self._carry_out(take, taking))
            return taking.found  # type: ignore[no-any-return]  # what `take` returned
        except BaseException:
            taking.interrupted = True  # first: nothing is called before, so no other handler runs
            self._interrupted.append(taking)
            raise

    async def _carry_out(self, take: Callable[[], Awaitable[Taken]], taking: _Taking) -> None:
        async with self._turn:
            # Each of these calls has had its turn, or takes nothing when that comes.
            while self._interrupted:
                self._interrupted.popleft().return_found()
            if not taking.interrupted:
                taking.tail = self._tail()
                taking.found = await take()

    def _tail(self) -> ClientTail:
        """Return what reads the records now: a consumer that is entered or moved reads with another one."""
        raise NotImplementedError


class BlockingTail(_BlockingReader[ClientTail]):
    """The records of a queue from a position on: iterate over them, or take batches. Any thread may call."""

    @property
    def position(self) -> int | None:
        """The lowest position that may be handed out next; None before the first call of a tail without *start*."""
        position: int | None = self._inner.position
        return position

    def _tail(self) -> ClientTail:
        tail: ClientTail = self._inner
        return tail


class BlockingConsumer(_BlockingReader[ClientConsumer]):
    """A durable position on one queue, held in a `with` block. Its methods are those of `ClientConsumer`."""

    @property
    def queue(self) -> str:
        """Name of the queue."""
        return str(self._inner.queue)

    @property
    def consumer(self) -> str:
        """Name of the consumer."""
        return str(self._inner.consumer)

    @property
    def position(self) -> int:
        """The lowest position that may be handed out next."""
        return int(self._inner.position)

    @property
    def epoch(self) -> int:
        """Number of this holder."""
        return int(self._inner.epoch)

    @property
    def queue_id(self) -> int:
        """Incarnation of the queue."""
        return int(self._inner.queue_id)

    def __enter__(self) -> BlockingConsumer:
        self._thread.call(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with suppress(LogClosedError):
            self._thread.call(self._inner.__aexit__(kind, error, traceback))

    def acknowledge(self, done: Batch | Record | int) -> int:
        """Acknowledge everything up to and including *done*; return the consumer's position."""
        return int(self._thread.call(self._inner.acknowledge(done)))

    def seek(self, position: Start) -> int:
        """Continue at *position*, forward or back, durably; return it."""
        return int(self._thread.call(self._inner.seek(position)))

    def _tail(self) -> ClientTail:
        consumer: ClientConsumer = self._inner
        return consumer.reader()


class BlockingProducer(_Blocking[Producer]):
    """Append to one queue as its only writer: each record is stored once. Many threads may append at once.

    Use it as `with`. See `Producer`, whose methods have the same names and errors.
    """

    @property
    def queue(self) -> str:
        """Name of the queue."""
        return self._inner.queue

    @property
    def next_position(self) -> int | None:
        """Position of the next record."""
        return self._inner.next_position

    def __enter__(self) -> BlockingProducer:
        self._thread.call(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def append_record(self, payload: Payload) -> int:
        """Append *payload* and wait until it is stored."""
        return self._thread.call(self._inner.append_record(payload))

    def append_records(self, payloads: Iterable[Payload]) -> int | None:
        """Append *payloads*, all or none, and wait until they are stored; return the last position."""
        return self._thread.call(self._inner.append_records(list(payloads)))

    def close(self) -> None:
        """Wait until every appended record is stored or refused."""
        self._thread.call(self._inner.close())
