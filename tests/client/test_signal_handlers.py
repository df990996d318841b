"""What a signal handler raises in a call of a blocking client: the caller gets it, and loses no record by it."""

from __future__ import annotations

import gc
import linecache
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from types import FrameType
from typing import Any

import pytest

from mrecordlog_async import Batch
from mrecordlog_async.client import (
    BlockingConsumer,
    BlockingRecordLogClient,
    BlockingTail,
    blocking,
    blocking_transport,
    connecting,
    http1,
    outbox,
    sender,
)
from mrecordlog_async.client import client as the_client
from mrecordlog_async.client import consumer as the_consumer
from mrecordlog_async.client import pool as the_pool
from mrecordlog_async.client import tail as the_tail
from tests.serving import TIMEOUT_SECONDS


class Interrupted(Exception):
    """What a signal handler raises."""


class Handler:
    """Handlers of every kind, which raise a connection's error."""

    def method(self, *_: object) -> None:
        raise TimeoutError("of a handler")

    __call__ = method


@pytest.mark.parametrize(
    "handler", [partial(Handler.method, Handler()), Handler().method, Handler(), lambda *_: Handler().method()]
)
@pytest.mark.parametrize("payload", [b"a", bytes(50_000_000)], ids=["awaiting a response", "sending"])
def test_an_error_of_a_signal_handler_is_not_one_of_the_connection(
    handler: Callable[..., None], payload: bytes
) -> None:
    """A handler may raise TimeoutError in a call: the caller gets it, and nothing is sent again."""
    ended = threading.Event()

    def interrupt() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(100)
            os.kill(os.getpid(), signal.SIGUSR1)
            ended.wait()

    with (
        handling(handler),
        socket.create_server(("127.0.0.1", 0)) as listener,
        ThreadPoolExecutor(1) as pool,
        BlockingRecordLogClient(f"http://127.0.0.1:{listener.getsockname()[1]}", retry_seconds=0.0) as client,
    ):
        pool.submit(interrupt)
        try:
            raised = error_of(client.append, "q", payload, 0)
        finally:
            ended.set()
    assert isinstance(raised, TimeoutError) and str(raised) == "of a handler"


def error_of(call: Callable[..., object], *given: object) -> Exception | None:
    """Return what *call* raises."""
    try:
        call(*given)
    except Exception as error:
        return error
    return None


def test_an_error_of_a_signal_handler_is_not_the_end_of_a_batch(client: BlockingRecordLogClient) -> None:
    """A handler may raise TimeoutError while more records are awaited: the caller gets it, and loses no record."""

    def interrupt() -> None:
        with BlockingRecordLogClient(client.url) as other:
            while other.stats().tails == 0:
                pass
        os.kill(os.getpid(), signal.SIGUSR1)

    client.append("q", b"a")
    tail = client.tail("q")
    with handling(Handler()), ThreadPoolExecutor(1) as pool:
        pool.submit(interrupt)
        with pytest.raises(TimeoutError, match="of a handler"):
            tail.batch(max_wait=60.0)
    assert positions(tail.batch(max_wait=0)) == [0]


@contextmanager
def handling(handler: Callable[..., None]) -> Iterator[None]:
    """Have *handler* handle SIGUSR1."""
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_an_interrupted_call_of_a_reader_loses_no_record(client: BlockingRecordLogClient) -> None:
    """A signal handler, such as one for a time limit, may raise once the records are there: the next call returns them.

    Entering and seeking begin at their position, even after such a call.
    """
    client.append_records("q", None, [b"%d" % number for number in range(9)])
    tail = client.tail("q")
    with interrupted():
        tail.batch(max_records=2)
    assert positions(tail.batch(max_records=2)) == [0, 1]
    with interrupted():
        next(tail)
    assert [next(tail).position, next(tail).position] == [2, 3]
    with client.consumer("q", "worker") as c:
        with interrupted():
            c.batch(max_records=2)
        assert positions(c.batch(max_records=2)) + positions(c.batch(max_records=1)) == [0, 1, 2]
        with interrupted():
            c.batch(max_records=2)
        assert c.seek(7) == 7
        assert next(c).position == 7
        with interrupted():
            c.batch(max_records=2)
    with c:
        assert next(c).position == 7
    client.delete_consumer("q", "worker")


def test_a_call_that_was_interrupted_before_its_response_takes_nothing(
    client: BlockingRecordLogClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler may raise when the request is already sent, and the service carries it out for nobody."""
    client.append_records("q", None, [b"%d" % number for number in range(9)])
    tail = client.tail("q")

    def interrupted(*_: object) -> None:
        raise Interrupted

    with monkeypatch.context() as patched:
        patched.setattr(blocking_transport._SocketConnection, "_receive", interrupted)
        for _ in range(2):
            with pytest.raises(Interrupted):
                tail.batch(max_records=2)
    assert positions(tail.batch(max_records=2)) == [0, 1]


TAKES: dict[str, Callable[[BlockingTail | BlockingConsumer], list[int]]] = {
    "batch": lambda reader: positions(reader.batch(max_records=2, max_wait=0)),
    "batches": lambda reader: positions(next(reader.batches(max_records=2, max_wait=0))),
    "next": lambda reader: [next(reader).position],
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a coroutine that never began
@pytest.mark.parametrize("take", TAKES.values(), ids=TAKES.keys())
@pytest.mark.parametrize("kind", ["tail", "consumer"])
def test_an_exception_at_any_line_of_a_call_loses_no_record(
    client: BlockingRecordLogClient, kind: str, take: Callable[[BlockingTail | BlockingConsumer], list[int]]
) -> None:
    """A signal handler may raise wherever it likes: the next call returns what the interrupted one took."""
    client.append_records("q", None, [b"%d" % number for number in range(2_000)])
    found: list[int] = []
    with client.consumer("q", "worker") as consumer:
        reader = consumer if kind == "consumer" else client.tail("q")
        for line in count():
            try:
                with raising_at(line) as raised:
                    found += take(reader)
            except Interrupted:
                found += take(reader)
            if not raised:
                break
    gc.collect()  # connections that an exception left before they were in use
    assert line > 10
    assert found == list(range(len(found)))
    client.delete_consumer("q", "worker")  # or the next test could not delete the queue


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a coroutine that never began
def test_an_exception_at_any_line_of_an_append_ends_no_producer(client: BlockingRecordLogClient) -> None:
    """The next call, or another thread, sends what the interrupted one has begun; nothing is stored twice."""
    stored, interrupted = list[bytes](), set[bytes]()
    with client.producer("q") as producer:
        for line in count():
            payload = b"%d" % line
            try:
                with raising_at(line) as raised:
                    producer.append_record(payload)
                stored.append(payload)
            except Interrupted:
                interrupted.add(payload)
                stored.append(after := b"after %d" % line)
                assert error_of(producer.append_record, after) is None
            if not raised:
                break
    gc.collect()  # connections that an exception left before they were in use
    assert line > 100
    found = [record.payload for record in client.range("q")]
    assert len(found) == len(set(found))
    assert [payload for payload in found if payload not in interrupted] == stored


def test_a_handler_in_the_thread_that_sends_leaves_the_sending_to_others(client: BlockingRecordLogClient) -> None:
    """What it has begun is stored, once, though its caller is not told."""
    with client.producer("q") as producer, ThreadPoolExecutor(4) as pool:
        with pytest.raises(Interrupted), sending(Interrupted):
            producer.append_record(b"interrupted")
        others = [pool.submit(producer.append_record, b"%d" % number) for number in range(8)]
        assert sorted(other.result() for other in others) == list(range(1, 9))
        assert producer.append_record(b"after") == 9
    assert [record.payload for record in client.range("q")][::9] == [b"interrupted", b"after"]


@pytest.mark.parametrize("name", ["on_header", "on_headers_complete", "on_body", "on_message_complete"])
def test_what_a_handler_raises_while_a_response_is_parsed_ends_the_call(
    client: BlockingRecordLogClient, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The parser does not take it for a response that is not HTTP: a handler that limits a time would limit nothing."""

    def act(*_: Any) -> None:
        raise Interrupted

    with monkeypatch.context() as patched, pytest.raises(Interrupted):
        patched.setattr(http1.Exchange, name, act)
        client.append("q", b"a")
    assert client.append("q", b"b") == 1


def test_a_handler_that_raises_where_a_call_waits_for_a_connection_holds_up_nobody(url: str) -> None:
    """Wherever it raises inside the locks of `threading`, other calls continue, with all connections."""
    with BlockingRecordLogClient(url, connections=1, retry_seconds=0.0) as client, ThreadPoolExecutor(1) as pool:
        for line in count():
            with suppress(Interrupted), raising_at(line, [threading.__file__]) as raised:
                client.list_queues()
            pool.submit(client.list_queues).result(TIMEOUT_SECONDS)
            if not raised:
                break


def test_a_producer_that_closes_sends_what_a_handler_has_interrupted(client: BlockingRecordLogClient) -> None:
    """Leaving the block waits for every record, including one whose caller has left."""
    with pytest.raises(Interrupted), client.producer("q") as producer, sending(Interrupted):
        producer.append_record(b"a")
    assert [record.payload for record in client.range("q")] == [b"a"]


def test_a_handler_cannot_append_to_the_producer_that_its_thread_sends_for(client: BlockingRecordLogClient) -> None:
    """It would wait for itself."""
    with client.producer("q") as producer:

        def handle() -> None:
            with pytest.raises(RuntimeError, match="append in another thread"):
                producer.append_record(b"nested")
            raise Interrupted

        with pytest.raises(Interrupted), sending(handle):
            producer.append_record(b"a")
        assert producer.append_record(b"b") == 1


@contextmanager
def sending(act: Callable[[], object]) -> Iterator[None]:
    """Call *act* in the place of the next exchange of a connection; raise what it returns, if that is an exception."""
    exchange = blocking_transport._SocketConnection.exchange

    async def acting(*_: Any) -> Any:
        patched.undo()
        error = act()
        if isinstance(error, BaseException):
            raise error

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(blocking_transport._SocketConnection, "exchange", acting)
        yield
    assert blocking_transport._SocketConnection.exchange is exchange


MODULES = (
    blocking,
    the_client,
    the_consumer,
    the_tail,
    sender,
    outbox,
    blocking_transport,
    the_pool,
    http1,
    connecting,
)
TRACED = [module.__file__ for module in MODULES]


@contextmanager
def raising_at(line: int, files: Sequence[str | None] = TRACED) -> Iterator[list[int]]:
    """Raise before this thread executes its *line*-th line of these files; yield a list, empty until then."""
    lines, raised, before = count(), [], sys.gettrace()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in files:
            return None
        # At `try:` and as a `with` is left, a lock would not be released; Python runs no handler there.
        source = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if event == "line" and not source.startswith(("with ", "try:")) and next(lines) == line:
            raised.append(line)
            raise Interrupted
        return trace

    sys.settrace(trace)
    try:
        yield raised
    finally:
        sys.settrace(before)


@contextmanager
def interrupted() -> Iterator[None]:
    """Raise in the calling thread once the whole response with its records has arrived."""
    exchange = blocking_transport._SocketConnection.exchange

    async def read_and_raise(self: blocking_transport._SocketConnection, *arguments: Any) -> Any:
        reply = await exchange(self, *arguments)
        if "X-Next-Position" in reply.headers:
            raise Interrupted
        return reply

    with pytest.MonkeyPatch.context() as patched, pytest.raises(Interrupted):
        patched.setattr(blocking_transport._SocketConnection, "exchange", read_and_raise)
        yield


def positions(batch: Batch | None) -> list[int]:
    return [record.position for record in batch or ()]
