"""`BlockingRecordLogClient`: the HTTP service from code without asyncio, such as Flask, Django, Celery and scripts.

    from mrecordlog_async.client import BlockingRecordLogClient

    with BlockingRecordLogClient("http://127.0.0.1:8080") as client:
        with client.producer("orders", create=True) as producer:
            producer.append_record(b"two coffees")  # stored once, even if the connection breaks
        for position, payload in client.range("orders"):
            print(position, payload)

The code is that of the asyncio client. Its coroutines send with a `BlockingTransport`, so they never wait for an event
loop: each runs to its end in the thread that calls it (`run`). Signatures and documents are theirs, too.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from functools import update_wrapper
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from mrecordlog_async.client.blocking_transport import BlockingTransport, run
from mrecordlog_async.client.client import RecordLogClient
from mrecordlog_async.client.consumer import ClientConsumer
from mrecordlog_async.client.options import ClientOptions
from mrecordlog_async.client.outbox import Outbox, Outcome
from mrecordlog_async.client.sender import Sender
from mrecordlog_async.client.tail import ClientTail
from mrecordlog_async.errors import LogClosedError
from mrecordlog_async.model import Record, copy_payload, copy_payloads
from mrecordlog_async.record_log import Payload
from mrecordlog_async.servers.names import Endpoint, shown_url

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R")

WITHIN = "a signal handler appends to the producer that its own thread is sending for: append in another thread"


class _Facade(Generic[S]):
    """Something of the asyncio client, for threads."""

    def __init__(self, inner: S) -> None:
        self.inner = inner


def _wrap(method: Callable[Concatenate[S, P], R], kind: Callable[[R], T]) -> Callable[Concatenate[_Facade[S], P], T]:
    """Return *method* for threads, with its signature and documentation; its result is what *kind* makes of it."""

    def call(self: _Facade[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return kind(method(self.inner, *args, **kwargs))

    update_wrapper(call, method, updated=())  # not its attributes: one may say that it is a coroutine function
    return call


def _call(method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[_Facade[S], P], T]:
    return _wrap(method, run)


def _iterate(
    method: Callable[Concatenate[S, P], AsyncIterator[T]],
) -> Callable[Concatenate[_Facade[S], P], Iterator[T]]:
    return _wrap(method, lambda given: _Iterator(given.__anext__, _run_next))


def _run_next(following: Callable[[], Coroutine[Any, Any, T]]) -> T:
    return run(following())


class _Iterator(Iterator[T]):
    """What an asynchronous iterator yields, for threads. An object, because an exception would end a generator."""

    def __init__(self, following: Callable[[], Any], run_one: Callable[[Callable[[], Any]], T]) -> None:
        self._following = following
        self._run_one = run_one

    def __next__(self) -> T:
        try:
            return self._run_one(self._following)
        except StopAsyncIteration:
            raise StopIteration from None


def _read(
    method: Callable[Concatenate[ClientTail, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[_Reader[Any], P], T]:
    """Return *method* for the threads that share a reader."""

    def call(self: _Reader[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._in_turn(lambda: method(self._tail(), *args, **kwargs))

    update_wrapper(call, method, updated=())
    return call


def _read_each(
    method: Callable[Concatenate[ClientTail, P], AsyncIterator[T]],
) -> Callable[Concatenate[_Reader[Any], P], Iterator[T]]:
    """Return *method*, whose result is iterated over, for the threads that share a reader."""

    def call(self: _Reader[Any], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return _Iterator(method(self._tail(), *args, **kwargs).__anext__, self._in_turn)

    update_wrapper(call, method, updated=())
    return call


class _Reader(_Facade[S], Iterator[Record]):
    """Threads read one after the other. An exception in a call, such as one of a signal handler, loses nothing."""

    def __init__(self, inner: S) -> None:
        super().__init__(inner)
        self._turn = threading.Lock()

    def _tail(self) -> ClientTail:
        raise NotImplementedError

    def _in_turn(self, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._tail().check()  # in a forked child, a thread of the parent may hold the lock for good
        with self._turn:
            tail = self._tail()
            start = tail.position
            try:
                return run(begin())
            except BaseException:
                if start is not None:
                    tail.hand_out_again(start)
                raise

    def __next__(self) -> Record:
        try:
            return self._in_turn(self._tail().next_in_turn)
        except StopAsyncIteration:
            raise StopIteration from None

    batch = _read(ClientTail.batch)
    batches = _read_each(ClientTail.batches)
    available = _read_each(ClientTail.available)


class BlockingTail(_Reader[ClientTail]):
    """Result of `BlockingRecordLogClient.tail`: iterate over it, or take batches. See `Tail`, whose methods it has.

    Any thread may call. An exception in a call, such as one of a signal handler, loses nothing and does not end the
    tail.
    """

    def _tail(self) -> ClientTail:
        return self.inner

    @property
    def queue(self) -> str:
        """Name of the queue."""
        return self.inner.queue

    @property
    def position(self) -> int | None:
        """The lowest position that may be handed out next; None before the first call of a tail without *start*."""
        return self.inner.position

    aclose = _call(ClientTail.aclose)


class BlockingConsumer(_Reader[ClientConsumer]):
    """A durable position on one queue of a service. One holder at a time; see `Consumer`, whose methods it has.

        with client.consumer("orders", "billing") as c:
            for batch in c.batches():
                deliver(batch)
                c.acknowledge(batch)

    Any thread may call. An exception in a call, such as one of a signal handler, loses nothing.
    """

    def __enter__(self) -> Self:
        run(self.inner.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        run(self.inner.__aexit__())

    def _tail(self) -> ClientTail:
        return self.inner.reader()

    @property
    def queue(self) -> str:
        """Name of the queue."""
        return self.inner.queue

    @property
    def consumer(self) -> str:
        """Name of the consumer."""
        return self.inner.consumer

    @property
    def epoch(self) -> int:
        """Number of this holder."""
        return self.inner.epoch

    @property
    def queue_id(self) -> int:
        """Incarnation of the queue. The consumer ends when that is deleted."""
        return self.inner.queue_id

    @property
    def position(self) -> int:
        """The lowest position that may be handed out next."""
        return self.inner.position

    acknowledge = _call(ClientConsumer.acknowledge)
    seek = _call(ClientConsumer.seek)


class _Waiting(Outcome):
    """The outcome of an append of a thread, which waits for it or for its turn to send.

    It waits for a plain lock: a signal handler that raises cannot leave it in a wrong state.

    Attributes:
        thread: The thread.
        left: It does not wait any more: an exception has ended its call.
    """

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.left = False
        self._asleep = threading.Lock()
        self._asleep.acquire()
        self._position: int | None = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        return self._position is not None or self._error is not None

    def set_result(self, position: int, /) -> None:
        self._position = position
        self.wake()

    def set_exception(self, error: BaseException, /) -> None:
        self._error = error
        self.wake()

    def exception(self) -> BaseException | None:
        return self._error

    def wake(self) -> None:
        """End a `wait`, or the next one."""
        with suppress(RuntimeError):  # it is awake
            self._asleep.release()

    def wait(self) -> None:
        """Wait until another thread wakes this one."""
        self._asleep.acquire()

    def result(self) -> int:
        """Return the position. Raises the error."""
        if self._error is not None:
            raise self._error
        assert self._position is not None, "it is done"
        return self._position


class BlockingProducer:
    """Append to one queue as its only writer: each record is stored once. Many threads may append at once.

    Use it as `with`. See `Producer`, whose methods have the same names and errors. One of the threads that wait sends
    what all of them wait for, and hands the sending on once its own record is stored. An exception in a call, such as
    one of a signal handler, does not end the producer: another thread sends what was begun, or the next call does.

    Attributes:
        queue: Name of the queue.
    """

    def __init__(self, sender: Sender, queue: str, *, create: bool = False) -> None:
        """Use `BlockingRecordLogClient.producer`."""
        self.queue = queue
        self._outbox = Outbox(sender, queue, create=create)
        self._check = sender.transport.usage_check()
        # Who sends, at key 0. `setdefault` takes the turn in one step, and says in the same step whose it is: an
        # exception after it finds what to give back.
        self._sending: dict[int, _Waiting] = {}
        self._closing: list[_Waiting] = []

    @property
    def next_position(self) -> int | None:
        """Position of the next record; None before `with` and after the queue was deleted."""
        return self._outbox.next_position

    @property
    def failed(self) -> bool:
        """True if it sends nothing more: it is unknown what was stored, or another producer writes to the queue."""
        return self._outbox.failure is not None

    def __enter__(self) -> Self:
        self._check()
        run(self._outbox.enter())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append_record(self, payload: Payload) -> int:
        """Append *payload* and wait until it is stored; see `Producer.append_record`."""
        return self._put([copy_payload(payload)])

    def append_records(self, payloads: Iterable[Payload]) -> int | None:
        """Append *payloads*, all or none, and wait until they are stored; return the last position."""
        records = copy_payloads(payloads)
        if records:
            return self._put(records)
        self._take_records()
        return None

    def close(self) -> None:
        """Wait until every appended record is stored or refused. Later appends raise LogClosedError."""
        self._outbox.end()
        with suppress(LogClosedError):  # the client is closed, or this is a fork
            self._check()
            mine = _Waiting()
            self._closing.append(mine)
            self._send_until(lambda: not self._outbox.unsettled(), mine)

    def _put(self, records: list[bytes]) -> int:
        self._take_records()
        mine = _Waiting()
        self._send_until(mine.done, mine, records)
        return mine.result()

    def _take_records(self) -> None:
        """Raise if the producer takes no records here."""
        self._check()
        self._outbox.check("with")
        sender = self._sending.get(0)
        if sender is not None and sender.thread == threading.get_ident():
            raise RuntimeError(WITHIN)

    def _send_until(self, done: Callable[[], bool], mine: _Waiting, records: list[bytes] | None = None) -> None:
        """Add *records*; send until *done*, or wait for threads that send."""
        try:
            if records is not None:
                self._outbox.add(records, mine)
            while not done():
                if self._sending.setdefault(0, mine) is mine:
                    while not done():
                        run(self._outbox.send_batch())
                    self._hand_on(mine, once=True)
                else:
                    mine.wait()
        except BaseException:
            mine.left = True
            self._hand_on(mine, once=False)
            raise
        mine.left = True

    def _hand_on(self, mine: _Waiting, *, once: bool) -> None:
        """Give back the turn, if it is *mine*, and wake a thread that may take it; all of them unless *once*."""
        if self._sending.get(0) is mine:
            del self._sending[0]
        for other in (*self._outbox.unsettled(), *self._closing):
            assert isinstance(other, _Waiting), "of a thread"
            if not other.left:
                other.wake()
                if once:
                    return


class BlockingRecordLogClient(_Facade[RecordLogClient]):
    """Call one service from any thread. Use it as `with`, or call `close` at the end.

    The methods, their arguments, results and errors are those of `RecordLogClient`, without `await`. Many threads may
    share the client. A forked child opens its own connections at its first call: servers may make the client before
    they fork their workers. Tails, consumers and producers belong to the process that made them. A change that an
    exception interrupts may be made or not: repeat an append with its position.

    Args:
        url: As of `RecordLogClient`, with all other arguments.
        token: Bearer token, if the service requires one.
        retry_seconds: How long each call is retried.
        timeout_seconds: Longest silence within one request.
        response_seconds: Longest time for one request with its whole response.
        connections: Calls in progress at once; further calls wait. Each tail uses one more connection.
        log_id: The log that is meant; None for whichever responds.

    Raises:
        LogClosedError: This client is closed, or what was called belongs to the process that forked this one.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        retry_seconds: float = 30.0,
        timeout_seconds: float = 60.0,
        response_seconds: float = 300.0,
        connections: int = 128,
        log_id: str | None = None,
    ) -> None:
        options = ClientOptions(
            Endpoint(url), token, retry_seconds, timeout_seconds, response_seconds, connections, log_id
        )
        super().__init__(RecordLogClient.over(Sender(BlockingTransport(options), retry_seconds)))

    @property
    def url(self) -> str:
        """The URL of the service."""
        return self.inner.url

    def __repr__(self) -> str:
        return f"<BlockingRecordLogClient {shown_url(self.url)!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    close = _call(RecordLogClient.close)

    # The service.

    log_info = _call(RecordLogClient.log_info)
    stats = _call(RecordLogClient.stats)
    wait_ready = _call(RecordLogClient.wait_ready)

    # Queues.

    create_queue = _call(RecordLogClient.create_queue)
    create_queues = _call(RecordLogClient.create_queues)
    delete_queue = _call(RecordLogClient.delete_queue)
    queue_options = _call(RecordLogClient.queue_options)
    configure_queue = _call(RecordLogClient.configure_queue)
    seal_queue = _call(RecordLogClient.seal_queue)
    truncate = _call(RecordLogClient.truncate)
    queue_exists = _call(RecordLogClient.queue_exists)
    list_queues = _call(RecordLogClient.list_queues)
    summary = _call(RecordLogClient.summary)
    queue_summary = _call(RecordLogClient.queue_summary)
    first_position = _call(RecordLogClient.first_position)
    next_position = _call(RecordLogClient.next_position)
    last_position = _call(RecordLogClient.last_position)

    # Appends.

    append = _call(RecordLogClient.append)
    append_json = _call(RecordLogClient.append_json)
    append_record = _call(RecordLogClient.append_record)
    append_records = _call(RecordLogClient.append_records)
    append_new = _call(RecordLogClient.append_new)

    def producer(self, queue: str, *, create: bool = False) -> BlockingProducer:
        """Return a producer for *queue*; use it as `with`. A queue may have one producer at a time.

        Args:
            queue: Its name.
            create: Create the queue on `with` if it does not exist.
        """
        return BlockingProducer(self.inner.sender, queue, create=create)

    # Reads.

    range = _iterate(RecordLogClient.range)
    runs = _iterate(RecordLogClient.runs)
    timed_runs = _iterate(RecordLogClient.timed_runs)
    tail = _wrap(RecordLogClient.tail, BlockingTail)
    position_at = _call(RecordLogClient.position_at)
    time_of = _call(RecordLogClient.time_of)
    wait_for = _call(RecordLogClient.wait_for)

    # Consumers.

    consumer = _wrap(RecordLogClient.consumer, BlockingConsumer)
    create_consumer = _call(RecordLogClient.create_consumer)
    delete_consumer = _call(RecordLogClient.delete_consumer)
    consumers = _call(RecordLogClient.consumers)
    all_consumers = _call(RecordLogClient.all_consumers)
    consumer_rules = _call(RecordLogClient.consumer_rules)
    wait_acknowledged = _call(RecordLogClient.wait_acknowledged)
    seek_consumer = _call(RecordLogClient.seek_consumer)
