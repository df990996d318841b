"""`BlockingRecordLogClient`: the same calls from threads, from a WSGI application, and on both sides of a fork."""

from __future__ import annotations

import gc
import inspect
import json
import linecache
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest

from mrecordlog_async import (
    Batch,
    ConsumerNotFoundError,
    LogClosedError,
    QueueNotFoundError,
    RecordLogError,
    RecordTruncatedError,
)
from mrecordlog_async.client import (
    BlockingConsumer,
    BlockingRecordLogClient,
    BlockingTail,
    RecordLogClient,
    blocking,
    blocking_transport,
    connecting,
    http1,
    outbox,
    sender,
)
from mrecordlog_async.client import client as the_client
from mrecordlog_async.client import consumer as the_consumer
from mrecordlog_async.client import tail as the_tail
from tests.serving import TIMEOUT_SECONDS, Process


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Process(tmp_path_factory.mktemp("blocking") / "wal") as service:
        yield service.address


@pytest.fixture
def client(url: str) -> Iterator[BlockingRecordLogClient]:
    """Make a client of an empty queue, "q"."""
    with BlockingRecordLogClient(url) as client:
        for queue in client.list_queues():
            client.delete_queue(queue)
        client.create_queue("q")
        yield client


class Interrupted(Exception):
    """What a signal handler raises."""


def threads_of_clients() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "mrecordlog client"}


def test_it_has_the_methods_of_the_client() -> None:
    """With the same parameters: code moves from one to the other by adding or removing `await`."""
    for name, method in inspect.getmembers(RecordLogClient, inspect.isfunction):
        if not name.startswith("_"):
            assert hasattr(BlockingRecordLogClient, name), f"BlockingRecordLogClient needs {name}, too"
            blocking = inspect.signature(getattr(BlockingRecordLogClient, name))
            assert blocking.parameters.keys() == inspect.signature(method).parameters.keys(), name


def test_every_call_returns_what_the_client_returns(client: BlockingRecordLogClient) -> None:
    """And raises what it raises."""
    client.wait_ready()
    assert client.append("q", b"a") == 0
    assert client.append_record("q", 0, b"a", create=True) is None
    assert client.append_records("q", None, (payload for payload in (b"b", b"c"))) == 2
    assert [record.payload for record in client.range("q")] == [b"a", b"b", b"c"]
    assert [record.payload for record in client.range("q", 1, limit=1)] == [b"b"]
    assert [record.payload for record in client.iter_from("q", 2)] == [b"c"]
    assert sum(run.record_count for run in client.runs("q")) == 3
    assert client.list_queues() == ["q"] == list(client.summary())
    assert (client.first_position("q"), client.next_position("q"), client.last_position("q")) == (0, 3, 2)
    assert client.last_record("q") == (2, b"c")
    assert client.truncate("q", 0) == client.queue_summary("q").first_position == 1
    assert client.stats().counters["appended_records"] >= 3
    with pytest.raises(QueueNotFoundError):
        client.append("nothing", b"a")
    with pytest.raises(ValueError, match="write http://localhost:8080"):
        BlockingRecordLogClient("localhost:8080")


def test_a_tail_waits_gives_batches_and_ends_with_its_queue(client: BlockingRecordLogClient) -> None:
    """One thread follows while another one appends."""
    tail = client.tail("q")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(next, tail)
        client.append("q", b"a")
        assert waiting.result() == (0, b"a")
        client.append_records("q", None, [b"b", b"c"])
        batch = tail.batch(max_records=2)
        assert batch is not None
        assert batch.payloads() == [b"b", b"c"]
        ended = pool.submit(lambda: list(tail.batches()))
        client.delete_queue("q")
        assert ended.result() == []


def test_a_consumer_holds_a_position_in_a_with_block(client: BlockingRecordLogClient) -> None:
    """It goes on after what was acknowledged, and ends with its queue."""
    client.append_records("q", None, [b"a", b"b", b"c"])
    with client.consumer("q", "worker") as c:
        assert (c.queue, c.consumer, c.position) == ("q", "worker", 0)
        assert c.acknowledge(next(c)) == 1
        assert c.seek(2) == 2
    client.seal_queue("q")
    with client.consumer("q", "worker") as c:
        for batch in c.batches():
            assert batch.payloads() == [b"c"]
            c.acknowledge(batch)
    assert client.consumers("q")["worker"].position == 3
    client.delete_consumer("q", "worker")


def acknowledge(client: BlockingRecordLogClient) -> None:
    with client.consumer("q", "c") as consumer:
        consumer.acknowledge(0)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (acknowledge, None),
        (lambda client: client.truncate("q", 0, past_consumers=True), RecordTruncatedError),
        (lambda client: client.seek_consumer("q", "c", 1), RecordTruncatedError),
        (lambda client: client.delete_consumer("q", "c"), ConsumerNotFoundError),
        (lambda client: client.delete_queue("q", past_consumers=True), QueueNotFoundError),
    ],
)
def test_a_wait_for_an_acknowledgement_ends_as_the_log_says(
    client: BlockingRecordLogClient,
    change: Callable[[BlockingRecordLogClient], object],
    error: type[RecordLogError] | None,
) -> None:
    """Once the consumer has the record, or something else has passed it, or one of them was deleted."""
    client.create_consumer("q", "c")
    client.append("q", b"")
    with pytest.raises(TimeoutError, match="has not acknowledged position 0"):
        client.wait_acknowledged("q", 0, "c", timeout=0)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(client.wait_acknowledged, "q", 0, "c")
        while not json.loads(urlopen(f"{client.url}/v1/stats").read())["tails"]:
            time.sleep(0.01)
        change(client)
        assert type(waiting.exception()) is (error or type(None))


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

    def send_and_raise(self: blocking_transport._SocketConnection, request: Sequence[bytes], *_: Any) -> None:
        self._plug.sendall(b"".join(request))
        raise Interrupted

    with monkeypatch.context() as patched:
        patched.setattr(blocking_transport._SocketConnection, "exchange", send_and_raise)
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
                stored.append(b"after %d" % line)
                producer.append_record(stored[-1])
            if not raised:
                break
        assert not producer.failed
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

    def acting(*_: Any) -> Any:
        patched.undo()
        error = act()
        if isinstance(error, BaseException):
            raise error

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(blocking_transport._SocketConnection, "exchange", acting)
        yield
    assert blocking_transport._SocketConnection.exchange is exchange


TRACED = [
    module.__file__
    for module in (blocking, the_client, the_consumer, the_tail, sender, blocking_transport, http1, connecting, outbox)
]


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

    def read_and_raise(self: blocking_transport._SocketConnection, *arguments: Any) -> Any:
        reply, keep = exchange(self, *arguments)
        if "X-Next-Position" in reply.headers:
            raise Interrupted
        return reply, keep

    with pytest.MonkeyPatch.context() as patched, pytest.raises(Interrupted):
        patched.setattr(blocking_transport._SocketConnection, "exchange", read_and_raise)
        yield


def positions(batch: Batch | None) -> list[int]:
    return [record.position for record in batch or ()]


def test_many_threads_share_one_client_and_one_producer(client: BlockingRecordLogClient) -> None:
    """Every record is stored once."""
    before = threads_of_clients()
    with ThreadPoolExecutor(16) as pool:
        positions = list(pool.map(lambda n: client.append("q", b"%d" % n), range(100)))
        assert sorted(positions) == list(range(100))
        with client.producer("q") as producer:
            positions = list(pool.map(lambda n: producer.append_record(b"%d" % n), range(100)))
            assert sorted(positions) == list(range(100, 200))
            assert producer.append_records([b"a", b"b"]) == 201
            assert producer.next_position == 202
    assert threads_of_clients() <= before  # the client's own, which has made the queue, serves all callers


def test_close_ends_calls_of_other_threads(url: str, client: BlockingRecordLogClient) -> None:
    """They raise LogClosedError, and so do later calls. Closing again is harmless."""
    other = BlockingRecordLogClient(url)
    tail = other.tail("q")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(next, tail)
        while client.stats().tails == 0:
            time.sleep(0.01)
        other.close()
        with pytest.raises(LogClosedError):
            waiting.result()
    other.close()
    for call in (lambda: other.append("q", b"a"), lambda: next(tail)):
        with pytest.raises(LogClosedError, match="the client is closed"):
            call()


@pytest.mark.parametrize("options", [{"token": "0123456789abcdef\n"}, {"tokens": "a"}])
def test_what_the_client_refuses_at_once_is_refused_at_once(url: str, options: dict[str, Any]) -> None:
    """Not in the first call, which may be made in another process, long after."""
    with pytest.raises((TypeError, ValueError), match=r"pass token\.strip|unexpected keyword argument"):
        BlockingRecordLogClient(url, **options)


def test_a_client_that_was_not_used_has_no_thread(url: str) -> None:
    """Servers make it before they fork their workers."""
    before = threads_of_clients()
    with BlockingRecordLogClient(url):
        assert threads_of_clients() <= before


def test_both_sides_of_a_fork_go_on(client: BlockingRecordLogClient) -> None:
    """The child opens its own connections; what it inherited is the parent's, and stays usable there."""
    client.append("q", b"before")
    with client.producer("q") as producer:
        child = os.fork()
        if child == 0:
            os._exit(_in_child(client, producer.append_record))
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 7
        with pytest.raises(Exception, match="already taken"):
            producer.append_record(b"parent")  # the child appended to the producer's queue
    assert [record.payload for record in client.range("q")] == [b"before", b"child"]


def _in_child(client: BlockingRecordLogClient, append_of_parent: Callable[[bytes], int]) -> int:
    """Return 7 if a client works after a fork and a producer of the parent is refused."""
    try:
        client.append("q", b"child")
        append_of_parent(b"wrong")
    except LogClosedError as error:
        client.close()
        return 7 if "forked" in str(error) else 1
    return 2


def test_a_consumer_of_the_parent_does_not_move_in_a_fork(client: BlockingRecordLogClient) -> None:
    """The parent is its holder: a child that acknowledged would drop what the parent has not delivered."""
    client.append("q", b"a")
    with client.consumer("q", "worker") as consumer:
        assert next(consumer).payload == b"a"
        child = os.fork()
        if child == 0:
            os._exit(_refusals(lambda: consumer.acknowledge(0), lambda: consumer.seek(0), lambda: next(consumer)))
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 3
        assert client.consumers("q")["worker"].position == 0
        assert consumer.acknowledge(0) == 1
    client.delete_consumer("q", "worker")


def _refusals(*calls: Callable[[], object]) -> int:
    """Return how many of *calls* are refused in a fork."""
    refused = 0
    for call in calls:
        try:
            call()
        except LogClosedError as error:
            refused += "forked" in str(error)
    return refused


def test_a_producer_knows_its_next_position_after_its_client_was_closed(client: BlockingRecordLogClient) -> None:
    """A program may note where it stopped."""
    with client.producer("q") as producer:
        assert producer.append_record(b"a") == 0
        client.close()
        assert producer.next_position == 1


def test_a_fork_while_other_threads_are_in_calls(client: BlockingRecordLogClient) -> None:
    """The child finds a client whose connections and locks its threads hold, and begins again; the parent goes on."""
    tail = client.tail("q")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(next, tail)
        while client.stats().tails == 0:
            time.sleep(0.01)
        child = os.fork()
        if child == 0:
            os._exit(_in_forked_child(client, tail))
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 7
        assert waiting.result() == (0, b"child")


def _in_forked_child(client: BlockingRecordLogClient, tail: BlockingTail) -> int:
    """Return 7 if a client works after a fork and a tail of the parent, whose turn another thread has, is refused."""
    try:
        client.append("q", b"child")
        next(tail)
    except LogClosedError as error:
        return 7 if "forked" in str(error) else 1
    return 2


def test_a_wsgi_application_stores_what_is_posted(client: BlockingRecordLogClient) -> None:
    """Flask and Django are WSGI applications: each request runs in a thread without an event loop."""

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        payload = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        position = client.append("q", payload)
        start_response("202 Accepted", [("Content-Type", "text/plain")])
        return [b"%d" % position]

    class Quiet(WSGIRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            """Print nothing."""

    with make_server("127.0.0.1", 0, application, handler_class=Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        for number in range(3):
            connection = HTTPConnection("127.0.0.1", server.server_port, timeout=TIMEOUT_SECONDS)
            connection.request("POST", "/", b"%d" % number)
            response = connection.getresponse()
            assert (response.status, response.read()) == (202, b"%d" % number)
            connection.close()
        server.shutdown()
        thread.join()
    assert [record.payload for record in client.range("q")] == [b"0", b"1", b"2"]


def test_a_tail_keeps_its_client(url: str, client: BlockingRecordLogClient) -> None:
    """A client without another name is not closed while something of it is in use; then its connections are."""
    client.append("q", b"a")
    before = connections_to(url)
    tail = BlockingRecordLogClient(url).tail("q")
    gc.collect()
    assert next(tail) == (0, b"a")
    (its,) = connections_to(url) - before
    del tail
    gc.collect()
    assert its.fileno() == -1


def connections_to(url: str) -> set[socket.socket]:
    """Return the open sockets of this process that are connected to a service."""
    found = set()
    for each in gc.get_objects():
        if isinstance(each, socket.socket) and each.fileno() >= 0:
            with suppress(OSError):
                if each.getpeername()[1:2] == (urlsplit(url).port,):  # a Unix socket has no port
                    found.add(each)
    return found


def test_daemon_threads_in_a_call_are_silent_as_the_interpreter_ends(url: str) -> None:
    """One waits for records, another one appends on and on: neither prints that the client is closed."""
    script = (
        "import threading\n"
        "from mrecordlog_async.client import BlockingRecordLogClient\n"
        f"client = BlockingRecordLogClient({url!r})\n"
        "client.create_queue('exit', exist_ok=True)\n"
        "tail = client.tail('exit', client.append('exit', b'a') + 1_000_000)\n"
        "def append():\n"
        "    while True:\n"
        "        client.append('exit', b'a')\n"
        "before = client.stats().tails\n"
        "for target in (lambda: next(tail), append):\n"
        "    threading.Thread(target=target, daemon=True).start()\n"
        "while client.stats().tails == before: pass\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_script_that_forgets_to_close_still_ends(url: str, tmp_path: Path) -> None:
    """The thread does not keep the process alive."""
    script = (
        "from mrecordlog_async.client import BlockingRecordLogClient\n"
        f"print(BlockingRecordLogClient({url!r}).append('script', b'a', create=True))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
