"""`BlockingRecordLogClient`: the calls of the client from threads, and on both sides of a fork."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from urllib.parse import urlsplit

import msgspec
import pytest

from mrecordlog_async import (
    ConsumerNotFoundError,
    LogClosedError,
    QueueNotFoundError,
    RecordLogError,
    RecordTruncatedError,
)
from mrecordlog_async.client import BlockingRecordLogClient, OutcomeUnknownError, RecordLogClient
from mrecordlog_async.protocol.responses import Reply, decoded
from mrecordlog_async.service.routes import records
from tests.client.faces import InThreads
from tests.served import Served
from tests.serving import TIMEOUT_SECONDS


def test_it_has_the_methods_of_the_client() -> None:
    """With the same parameters: code moves from one to the other by adding or removing `await`."""
    for name, method in inspect.getmembers(RecordLogClient, inspect.isfunction):
        if not name.startswith("_"):
            assert hasattr(BlockingRecordLogClient, name), f"BlockingRecordLogClient needs {name}, too"
            blocking = inspect.signature(getattr(BlockingRecordLogClient, name))
            assert blocking.parameters.keys() == inspect.signature(method).parameters.keys(), name


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
        while not client.stats().tails:
            time.sleep(0.01)
        change(client)
        assert type(waiting.exception()) is (error or type(None))


async def test_a_batch_ends_at_its_time(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the service waits for whole seconds, here for 60: the connection that waits is given up."""
    wait_for = records._wait_for
    monkeypatch.setattr(records, "_wait_for", lambda service, request, reach, _: wait_for(service, request, reach, 60))

    def read(client: BlockingRecordLogClient) -> None:
        client.append("q", b"a")
        tail = client.tail("q")
        begun = time.monotonic()
        batch = tail.batch(max_wait=0.05)
        assert batch is not None and batch.payloads() == [b"a"]
        assert time.monotonic() - begun < 30
        client.append("q", b"b")
        batch = tail.batch(max_records=1)
        assert batch is not None and batch.payloads() == [b"b"]

    async with InThreads(served.url) as client:
        await asyncio.to_thread(read, client.blocking)


def test_many_threads_share_one_client_and_one_producer(url: str, client: BlockingRecordLogClient) -> None:
    """Every record is stored once, over few connections, and the client starts no thread of its own."""
    before = threading.active_count()
    with BlockingRecordLogClient(url, connections=2) as few, ThreadPoolExecutor(16) as pool:
        assert sorted(pool.map(lambda number: few.append("q", b"%d" % number), range(400))) == [*range(400)]
        with few.producer("q") as producer:
            found = pool.map(lambda number: producer.append_record(b"%d" % number), range(400))
            assert sorted(found) == [*range(400, 800)]
            assert producer.append_records([b"a", b"b"]) == 801
            assert producer.next_position == 802
            assert threading.active_count() <= before + 16


def test_close_ends_a_reader_of_another_thread(url: str, client: BlockingRecordLogClient) -> None:
    """Even one that waits for records; the next call of it says why."""
    with BlockingRecordLogClient(url) as other, ThreadPoolExecutor(1) as pool:
        tail = other.tail("q")
        waiting = pool.submit(next, tail)
        while client.stats().tails == 0:
            time.sleep(0.01)
        other.close()
        with pytest.raises(LogClosedError):
            waiting.result()
        with pytest.raises(LogClosedError, match="the client is closed"):
            next(tail)


def test_a_producer_knows_its_next_position_after_its_client_was_closed(client: BlockingRecordLogClient) -> None:
    """A program may note where it stopped."""
    with client.producer("q") as producer:
        assert producer.append_record(b"a") == 0
        client.close()
        assert producer.next_position == 1


# Forks.


def status_of(child: Callable[[], object]) -> int:
    """Call *child* in a forked child; return its exit status, which is 0 unless it has failed, or has hung."""
    process = os.fork()
    if process == 0:
        signal.alarm(30)
        try:
            child()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def refuse(*calls: Callable[[], object]) -> None:
    """Check that each of *calls* is refused in a fork."""
    for call in calls:
        with pytest.raises(LogClosedError, match="forked"):
            call()


def test_both_sides_of_a_fork_go_on(client: BlockingRecordLogClient) -> None:
    """The child opens its own connections; what it inherited is the parent's, and stays usable there.

    Even a consumer: the parent is its holder, and a child that acknowledged would drop what is not delivered.
    """
    client.append("q", b"before")

    def child() -> None:
        client.append("q", b"child")
        refuse(
            lambda: producer.append_record(b"wrong"),
            lambda: consumer.acknowledge(0),
            lambda: consumer.seek(0),
            lambda: next(consumer),
            lambda: next(tail),
        )
        client.close()

    tail = client.tail("q")
    with client.producer("q") as producer, client.consumer("q", "worker") as consumer:
        assert next(consumer).payload == next(tail).payload == b"before"
        assert status_of(child) == 0
        with pytest.raises(Exception, match="already taken"):
            producer.append_record(b"parent")  # the child appended to the producer's queue
        assert client.consumers("q")["worker"].position == 0
        assert consumer.acknowledge(0) == 1
    client.delete_consumer("q", "worker")
    assert [record.payload for record in client.range("q")] == [b"before", b"child"]


def test_a_fork_while_other_threads_are_in_calls(client: BlockingRecordLogClient) -> None:
    """The child finds a client whose connections and locks its threads hold, and begins again; the parent goes on."""
    tail = client.tail("q")

    def child() -> None:
        client.append("q", b"child")
        refuse(lambda: next(tail))

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(next, tail)
        while client.stats().tails == 0:
            time.sleep(0.01)
        assert status_of(child) == 0
        assert waiting.result() == (0, b"child")


begun, ended = threading.Event(), threading.Event()


def waits() -> type[int]:
    """Return the type of a field, once another thread has ended its test."""
    begun.set()
    ended.wait()
    return int


def test_a_fork_while_another_thread_decodes_the_first_response_of_its_kind() -> None:
    """One thread at a time prepares for a kind of response; the child does not wait for a thread of its parent."""
    kind = msgspec.defstruct("Kind", [("number", "waits()")], module=__name__)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(decoded, Reply(200, {}, b'{"number":5}'), kind)
        begun.wait()
        try:
            assert status_of(lambda: decoded(Reply(200, {}, b"5"), int)) == 0
        finally:
            ended.set()
        assert waiting.result() == kind(5)


def test_a_forked_child_keeps_no_connection_of_its_parent_open() -> None:
    """Also one that was in use: the service sees its end when the parent closes it, however long the child lives."""
    reading, writing = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with BlockingRecordLogClient(url) as client:
            call = pool.submit(client.append, "q", b"a")
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(TIMEOUT_SECONDS)
                while connection.recv(65_536).rpartition(b"\r\n\r\n")[2] != b"a":
                    pass
                child = os.fork()
                if not child:
                    connection.close()
                    os.close(writing)
                    os.read(reading, 1)
                    os._exit(0)
                try:
                    connection.sendall(b"not HTTP\r\n\r\n")
                    assert connection.recv(1) == b""
                finally:
                    os.close(writing)
                    os.close(reading)
                    os.waitpid(child, 0)
            with pytest.raises(OutcomeUnknownError):
                call.result()


# The ends of a client and of a process.


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


def test_a_script_that_forgets_to_close_still_ends(url: str) -> None:
    """Nothing of the client keeps the process alive."""
    script = (
        "from mrecordlog_async.client import BlockingRecordLogClient\n"
        f"print(BlockingRecordLogClient({url!r}).append('script', b'a', create=True))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
