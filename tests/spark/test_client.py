"""The blocking client against the real service, and against responses that only a broken one would send."""

from __future__ import annotations

import pickle
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from mrecordlog_async.model import Run
from mrecordlog_async.protocol.wire import QueueRuns, encode
from mrecordlog_async.protocol.wire_decoder import Block
from mrecordlog_async.spark.client import PlanStart, ServiceClient
from mrecordlog_async.spark.connection import ServerDownError, ServiceRefusedError
from mrecordlog_async.spark.fetch import ShortResponseError, requests_for, verified
from mrecordlog_async.spark.option_values import Server
from mrecordlog_async.spark.partitions import Partition, Range
from tests.spark.services import ThreadedService, numbered


@contextmanager
def client_of(url: str, retries: int = 0, token: str | None = None) -> Iterator[ServiceClient]:
    client = ServiceClient(Server("s", url), token=token, timeout_seconds=10, retries=retries)
    try:
        yield client
    finally:
        client.close()


@contextmanager
def answering(*answers: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """Serve raw *answers*, one per connection; yield the address and the requests received."""
    listener = socket.create_server(("127.0.0.1", 0))
    asked: list[bytes] = []

    def serve() -> None:
        for answer in answers:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                asked.append(connection.recv(65_536))
                connection.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # wakes the thread if a response was not requested
        listener.close()
        thread.join(10)


def http(body: bytes, status: str = "200 OK", headers: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


LISTING = b'{"queues": []}'


def test_listing_and_plan(service: ThreadedService) -> None:
    """A listing has every queue; a plan says how far the limits reach."""
    service.append("q", numbered("q", 0, 100))
    with client_of(service.url) as client:
        (found,) = client.queues()
        assert (found.queue, found.first_position, found.next_position, found.records) == ("q", 0, 100, 100)
        assert client.queues() == [found]
        assert client.queue("q") == found
        (plan,) = client.plan([PlanStart("q", found.id, 10)], records_max=50, piece_records=20)
        assert (plan.status, plan.start, plan.stop, plan.records) == ("ok", 10, 60, 50)
        assert (plan.pieces[0].start, plan.pieces[-1].stop) == (10, 60)
        assert [piece.records for piece in plan.pieces] == [20, 20, 10]


def test_a_long_listing_comes_in_pages(service: ThreadedService, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pages are joined if the log was not reopened in between; an unchanged listing costs one request."""
    monkeypatch.setattr("mrecordlog_async.spark.client.PAGE_QUEUES", 3)
    names = [f"a/b ü {index}" for index in range(10)]
    for name in names:
        service.append(name, [b"x"])
    with client_of(service.url) as client:
        listing = client.listing()
        assert [each.queue for each in listing.queues] == sorted(names)
        assert len(listing.opened or {}) == 10
        assert client.listing() is listing
        page, reopened = client._page, list[str]()

        def reopen(after: str | None, etag: str = "") -> object:
            if after is not None and not reopened:
                reopened.append(after)
                service.stop()
                service.start()
            return page(after, etag)

        service.append("one more", [b"x"])
        monkeypatch.setattr(client, "_page", reopen)
        again = client.listing()
        assert len(again.queues) == 11 and again.opening != listing.opening
        assert set((again.opened or {}).values()) == {1}


def test_fetch_and_truncate(service: ThreadedService) -> None:
    """Records are returned as runs; a truncate returns an outcome for each queue."""
    service.append("a/b ü", numbered("q", 0, 10))
    with client_of(service.url) as client:
        queue_id = client.queue("a/b ü").id
        partition = Partition("s", (Range("a/b ü", queue_id, 2, 5, 3, 9),))
        runs = [block.run() for block in client.fetch(partition)]
        assert [record for run in runs for record in run.records()] == [(at, f"q:{at}".encode()) for at in (2, 3, 4)]
        (block,) = client.fetch(partition, payload=False)
        assert (block.queue, block.first_position, block.record_count, len(block.payload)) == ("a/b ü", 2, 3, 0)
        answers = client.truncate({"a/b ü": [queue_id, 4], "gone": [1, 4]})
        assert [(answer.status, answer.dropped) for answer in answers] == [("ok", 5), ("missing", 0)]
        with pytest.raises(ServiceRefusedError) as refused:
            list(client.fetch(partition))
        assert (refused.value.status, refused.value.code) == (410, "truncated")


def test_errors_survive_pickling() -> None:
    """A task's errors reach the driver by pickle, with all their facts."""
    for error in (
        ServiceRefusedError("s", 410, {"code": "truncated", "detail": "gone"}),
        ServerDownError("s", "http://h", "refused"),
        ShortResponseError("3 missing"),
    ):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy)) == (type(error), str(error))


def test_busy_and_not_ready_are_retried() -> None:
    """429, 503 and broken connections are retried, not treated as refusals."""
    busy = http(b"{}", "503 Service Unavailable", "Retry-After: 0\r\n")
    with answering(busy, b"", http(LISTING)) as (url, asked), client_of(url, retries=2) as client:
        assert client.queues() == []
        assert len(asked) == 3


def test_a_connection_that_the_service_closed_while_idle_costs_no_attempt() -> None:
    """The service may close an idle connection between two triggers; that does not count as a failure."""
    with answering(http(LISTING), http(LISTING)) as (url, asked), client_of(url, retries=0) as client:
        assert client.queues() == client.queues() == []
        assert len(asked) == 2


BROKEN = {
    "half a body": http(LISTING, headers="ETag: x\r\n")[:-5],
    "no answer": b"",
    "half a head": b"HTTP/1.1 200 O",
    "a proxy's page": http(b"<html>welcome</html>", headers="Content-Type: text/html\r\n"),
    "other JSON": http(b'{"hello": 1}'),
    "a list": http(b"[]"),
    "500": http(b"oops", "500 Internal Server Error"),
    "502": http(b"<html/>", "502 Bad Gateway"),
    "503": http(b"", "503 Service Unavailable"),
    "504": http(b"", "504 Gateway Timeout"),
    "half a refusal": http(b"x" * 50, "502 Bad Gateway")[:-20],
}


class Clock:
    """A clock that only sleeping advances."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.pauses: list[float] = []
        monkeypatch.setattr("mrecordlog_async.spark.connection._clock", lambda: self.now)
        monkeypatch.setattr("mrecordlog_async.spark.connection._sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.mark.parametrize("broken", BROKEN)
def test_whatever_breaks_is_retried_and_then_down(broken: str, clock: Clock) -> None:
    """Partial responses, errors of proxies and HTML pages are retried, then mean that the server is down."""
    with answering(BROKEN[broken], http(LISTING)) as (url, asked), client_of(url, retries=1) as client:
        assert client.queues() == []
        assert len(asked) == 2
    with answering(BROKEN[broken], BROKEN[broken]) as (url, _), client_of(url, retries=1) as client:  # noqa: SIM117
        with pytest.raises(ServerDownError):
            client.queues()


@pytest.mark.parametrize("broken", BROKEN)
def test_plans_and_truncates_are_exchanges_too(broken: str, clock: Clock) -> None:
    """Their bodies are read within the attempt, so a broken body is retried too."""
    good = http(b'{"queues": []}')
    with answering(BROKEN[broken], good, BROKEN[broken], good) as (url, _), client_of(url, retries=1) as client:
        assert client.plan([]) == []
        client.close()
        assert client.truncate({"q": [1, 4]}) == []


def test_a_response_that_stalls_is_retried(clock: Clock) -> None:
    """A listing that stalls half way fails after its timeout, and is retried."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        client = ServiceClient(Server("s", url), token=None, timeout_seconds=0.05, retries=2)
        with pytest.raises(ServerDownError, match=r"[Tt]ime"):
            client.queues()
        assert len(clock.pauses) == 2
        client.close()


def test_retry_after_is_the_shortest_pause(clock: Clock) -> None:
    """With Retry-After the pause is at least that long; without it, pauses grow."""
    busy = http(b"{}", "503 Service Unavailable", "Retry-After: 7\r\n")
    with answering(busy, http(LISTING)) as (url, _), client_of(url, retries=1) as client:
        client.queues()
    assert clock.pauses == [7]


def test_a_service_that_has_responded_is_waited_for(clock: Clock) -> None:
    """A service that has responded before is waited for as long as a restart may take; an unknown one is not."""
    with answering(http(LISTING)) as (url, _):
        client = ServiceClient(Server("s", url), token=None, timeout_seconds=1, retries=2, patience_seconds=60)
        client.queues()
        client.close()
    with pytest.raises(ServerDownError):
        client.queues()
    assert 60 <= clock.now < 60 + 5
    clock.now, clock.pauses = 0.0, []
    client = ServiceClient(Server("s", url), token=None, timeout_seconds=1, retries=2, patience_seconds=60)
    with pytest.raises(ServerDownError):
        client.queues()
    assert len(clock.pauses) == 2


def test_a_partition_is_fetched_in_small_parts(service: ThreadedService) -> None:
    """The ranges, records and bytes of one request are bounded."""
    service.append("q", [b"x" * 1_000] * 20_000)
    for queue in ("a", "b"):
        service.append(queue, numbered(queue, 0, 5))
    with client_of(service.url) as client:
        found = {each.queue: each for each in client.queues()}
        ranges = tuple(
            Range(queue, each.id, 0, each.next_position, each.records, each.bytes) for queue, each in found.items()
        )
        parts = list(requests_for(ranges))
        assert [[each.records for each in part] for part in parts] == [[5, 5, 8_388], [8_388], [3_224]]  # 8 MiB each
        blocks = list(client.fetch(Partition("s", ranges)))
        assert sum(block.record_count for block in blocks) == 20_010


def test_many_queues_are_named_in_many_requests(service: ThreadedService) -> None:
    """No request names more than a thousand queues."""
    wanted = {f"q{index}": [1, 0] for index in range(2_500)}
    with client_of(service.url) as client:
        assert [each.status for each in client.truncate(wanted)] == ["missing"] * 2_500
        assert len(client.plan([PlanStart(queue, 1, 0) for queue in wanted])) == 2_500
    ranges = [Range(f"q{index}", index, 0, 1, 1, 1) for index in range(2_500)]
    assert [len(part) for part in requests_for(ranges)] == [1_000, 1_000, 500]


def test_what_is_secret_in_an_address_is_sent_and_never_shown() -> None:
    """User and password are sent as a header; messages show only host and port."""
    with answering(http(LISTING)) as (url, asked), client_of(url.replace("//", "//me:s%40crit@")) as client:
        client.queues()
        assert b"Authorization: Basic bWU6c0Bjcml0\r\n" in asked[0]
    with pytest.raises(ServerDownError) as failed, client_of(url.replace("//", "//me:s%40crit@")) as client:
        client.queues()
    assert "crit" not in str(failed.value)


def test_other_refusals_are_final() -> None:
    """A refusal that a retry cannot change, such as a wrong token, is raised at once."""
    with answering(http(b'{"detail": "no"}', "401 Unauthorized")) as (url, asked), client_of(url, retries=3) as client:
        with pytest.raises(ServiceRefusedError, match="401: no"):
            client.queues()
        assert len(asked) == 1


def test_the_token_is_sent() -> None:
    """The token is sent as a bearer token."""
    with answering(http(LISTING)) as (url, asked), client_of(url, token="secret") as client:
        client.queues()
        assert b"Authorization: Bearer secret\r\n" in asked[0]


def test_a_server_that_cannot_be_reached_is_named() -> None:
    """The message has the server's name, its address and the reason."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with client_of(url, retries=1) as client, pytest.raises(ServerDownError, match=r"'s' at http.*Refused"):
        client.queues()


RUNS = b"".join(encode([QueueRuns("q", 7, [Run.of(0, [b"x"] * 10)])]))
WANTED = Partition("s", (Range("q", 7, 0, 10, 10, 10),))


@pytest.mark.parametrize("cut", [4, 20, 60, 100])
def test_a_response_cut_short_is_an_error(cut: int) -> None:
    """Whether the connection broke or the service ended the body early, a part is never taken for the whole."""
    broken = http(RUNS)[: cut - len(RUNS)]
    for answer in (broken, http(RUNS[:cut])):
        with answering(answer) as (url, _), client_of(url) as client, pytest.raises(ServerDownError, match="broke off"):
            list(client.fetch(WANTED))


@pytest.mark.parametrize("cut", [4, 100, len(RUNS) - 32, len(RUNS) - 1])
def test_a_broken_response_is_continued_where_it_ended(cut: int) -> None:
    """Only missing records are requested again; if only the end of the response is missing, nothing is."""
    broken = http(RUNS)[: cut - len(RUNS)]
    with answering(broken, http(RUNS)) as (url, _), client_of(url, retries=1) as client:
        assert sum(block.record_count for block in client.fetch(WANTED)) == 10


def blocks(*parts: tuple[str, int, int, int]) -> list[Block]:
    """Make blocks from (queue, id, first position, records)."""
    return [Block(queue, queue_id, at, n, memoryview(b""), memoryview(b"")) for queue, queue_id, at, n in parts]


RANGES = (Range("a", 1, 0, 10, 10, 0), Range("b", 2, 5, 100, 3, 0), Range("empty", 3, 5, 9, 0, 0))


def test_what_was_planned_is_let_through() -> None:
    """Blocks may have any size, as long as they hold the records that were planned."""
    good = blocks(("a", 1, 0, 4), ("a", 1, 4, 6), ("b", 2, 7, 1), ("b", 2, 98, 2))
    assert list(verified(good, RANGES)) == good


@pytest.mark.parametrize(
    "bad",
    [
        [("a", 1, 0, 4)],  # too few
        [("a", 1, 0, 10)],  # a range is missing
        [("a", 1, 0, 4), ("a", 1, 3, 6)],  # twice
        [("a", 1, 0, 11)],  # too many
        [("a", 9, 0, 10)],  # another incarnation
        [("b", 2, 7, 3), ("a", 1, 0, 10)],  # out of order
        [("a", 1, 0, 10), ("b", 2, 4, 3)],  # before its range
        [("a", 1, 0, 10), ("b", 2, 98, 3)],  # past its range
        [("a", 1, 0, 10), ("b", 2, 7, 3), ("c", 4, 0, 1)],  # not asked for
    ],
)
def test_what_was_not_planned_is_refused(bad: list[tuple[str, int, int, int]]) -> None:
    """Any other records fail the task, and Spark runs it again."""
    with pytest.raises(ShortResponseError):
        list(verified(blocks(*bad), RANGES))
