"""The client for one service, for Spark's processes: blocking, on `http.client`, with the standard library alone.

A call is one exchange: send the request, receive the whole body, decode it. Failures on the way are retried, with
growing, randomised pauses: a connection that fails or stalls, a response that ends early or is malformed, and the
statuses of services and proxies that are not ready (429, 500, 502, 503, 504, with Retry-After as the shortest pause).
If the failure persists, `ServerDownError` is raised; any other refusal raises `ServiceRefusedError` at once.

How long: `retries` times; a service that has responded before is waited for up to `patience_seconds`.

`fetch` requests a partition in small parts and resumes where a response broke off: a range never changes, so a slow
reader, or a service that restarts, costs one more request, not a task. `append` is retried too: with a position the
service recognises the repeat; without one a lost response may store the records twice.

The constructor opens nothing: Spark builds its readers in one process and uses them in others.
"""

from __future__ import annotations

import http.client
import json
import logging
import random
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.model import QueueSummary, Run
from mrecordlog_async.protocol.wire import CONTENT_TYPE, QueueRuns, WireError, encode
from mrecordlog_async.protocol.wire_decoder import Block, Decoder
from mrecordlog_async.spark.options import Server
from mrecordlog_async.spark.partitions import Partition, Range, cut_range

T = TypeVar("T")

logger = logging.getLogger("mrecordlog_async.spark")

REPEATED_STATUSES = (429, 500, 502, 503, 504)
PAUSE_SECONDS = 0.1
PAUSE_SECONDS_MAX = 5.0
RETRY_AFTER_SECONDS_MAX = 60.0
LISTING_TIMEOUT_SECONDS = 10.0
"""A listing is small and requested before every batch: a server that hangs should be noticed soon."""

PAGE_QUEUES = 10_000
QUEUES_AT_ONCE = 1_000
"""How many queues one page of a listing holds and one request names; services limit both."""

FETCH_BYTES = 8 << 20
FETCH_RECORDS = 65_536
"""Approximate size of one fetch response; a task that stalls for longer than the service waits loses no more."""


class ServiceRefusedError(RecordLogError):
    """A service refused a request. status and code are for programs; problem is the document it sent."""

    def __init__(self, server: str, status: int, facts: Mapping[str, Any]) -> None:
        super().__init__(server, status, facts)
        self.server = server
        self.status = status
        self.problem = facts
        self.code = str(facts.get("code", ""))

    def message(self) -> str:
        """Return which service responded, and with what."""
        said = self.problem.get("detail") or self.problem.get("title")
        return f"server {self.server!r} answered {self.status}: {said}"


class ServerDownError(RecordLogError):
    """In every attempt, a service could not be reached, broke off its response, or was not ready."""

    def __init__(self, server: str, url: str, reason: str) -> None:
        super().__init__(server, url, reason)
        self.server = server
        self.url = url
        self.reason = reason

    def message(self) -> str:
        """Return which service failed, and how."""
        return f"server {self.server!r} at {self.url} cannot be reached: {self.reason}"


class ShortAnswerError(RecordLogError):
    """A service delivered something other than what it had planned; none of it may be considered complete."""


class BadAnswerError(Exception):
    """A successful response without the requested content: a proxy's page, or cut short. The request is retried."""


@dataclass(frozen=True, slots=True)
class ServiceListing:
    """What a service has. log names the log, opening its current opening; opened: queue id → next position then."""

    queues: list[QueueSummary]
    log: str = ""
    opening: str = ""
    opened: Mapping[int, int] | None = None


class PlanStart(NamedTuple):
    """Positions start … stop - 1 of one incarnation of a queue; None means from its first record, or up to its end."""

    queue: str
    id: int
    start: int | None
    stop: int | None = None


class QueuePlan(NamedTuple):
    """What a service plans for one queue. status: ok, missing, recreated, truncated or ahead."""

    queue: str
    status: str
    id: int
    start: int
    stop: int
    records: int
    pieces: list[Range]
    tail: int | None = None
    ended: int | None = None


class Truncated(NamedTuple):
    """The outcome of a truncate."""

    queue: str
    status: str
    dropped: int


class ServiceClient:
    """The client of one service. Not for several threads at a time.

    patience_seconds: how long to wait for a service that has responded before, on top of *retries*. reached: the
    service is known to be reachable, though this client has not sent a request yet.
    """

    def __init__(
        self,
        server: Server,
        *,
        token: str | None,
        timeout_seconds: float,
        retries: int,
        patience_seconds: float = 0.0,
        reached: bool = False,
    ) -> None:
        self.server = server
        self.url = shown_url(server.url)
        self._base = urlsplit(server.url).path
        self._authorization = _authorization(server.url, token)
        self._timeout_seconds = timeout_seconds
        self._retries = retries
        self._patience_seconds = patience_seconds
        self._reached = reached
        self._connection: http.client.HTTPConnection | None = None
        self._listing: tuple[str, ServiceListing] = ("", ServiceListing([]))

    # What a service has.

    def queues(self) -> list[QueueSummary]:
        """List all queues."""
        return self.listing().queues

    def listing(self) -> ServiceListing:
        """List all queues, with their log and its opening. An unchanged listing is not sent again."""
        etag, known = self._listing
        first = self._page(None, etag)
        while first is not None:
            pages = [first]
            while pages[-1].after is not None and pages[-1].listing.opening == first.listing.opening:
                pages.append(self._page(pages[-1].after) or pages[-1])
            if pages[-1].listing.opening == first.listing.opening:
                known = _joined(pages)
                self._listing = (first.etag, known)
                break
            first = self._page(None)  # opened again between two pages
        return known

    def _page(self, after: str | None, etag: str = "") -> _Page | None:
        """Return the queues after *after*; None if they have not changed since *etag*."""
        path = f"/v1/queues?limit={PAGE_QUEUES}" + ("" if after is None else f"&after={quote(after, safe='')}")

        def understand(response: http.client.HTTPResponse) -> _Page | None:
            body = response.read()
            return None if response.status == 304 and etag else _page(body, response.headers.get("ETag", ""))

        headers = {"If-None-Match": etag} if etag else {}
        timeout = min(self._timeout_seconds, LISTING_TIMEOUT_SECONDS)
        return self._ask("GET", path, understand, headers=headers, timeout_seconds=timeout)

    def queue(self, queue: str) -> QueueSummary:
        """Return the state of one queue."""
        return self._ask(
            "GET", f"/v1/queues/{quote(queue, safe='')}", lambda answer: _summary(json.loads(answer.read()))
        )

    def plan(
        self,
        starts: Iterable[PlanStart],
        *,
        records_max: int | None = None,
        bytes_max: int | None = None,
        piece_records: int | None = None,
        piece_bytes: int | None = None,
        tails: bool = False,
        opening: str | None = None,
    ) -> list[QueuePlan]:
        """Request how far the limits reach from *starts*, and pieces to read in parallel.

        tails: also request the digest of each range's last record. opening: raise ServiceRefusedError with the code
        "reopened" unless this is still the log's opening. With limits, at most `QUEUES_AT_ONCE` queues are allowed.
        """
        asked = _present({"max_records": records_max, "max_bytes": bytes_max, "opening": opening or None})
        asked |= _present({"piece_records": piece_records, "piece_bytes": piece_bytes, "tails": tails or None})
        named = [_present(start._asdict()) for start in starts]
        assert len(named) <= QUEUES_AT_ONCE or records_max is bytes_max is None, "limits are shared by one request"
        found: list[QueuePlan] = []
        for part in chunks(named, QUEUES_AT_ONCE):
            found += self._json("POST", "/v1/plan", {"queues": part, **asked}, _plans)
        return found

    # Reading.

    def fetch(self, partition: Partition, *, payload: bool = True) -> Iterator[Block]:
        """Yield the blocks of a partition, each checked against the plan. ShortAnswerError if anything is missing.

        payload: False transfers positions only; the blocks then have no payloads.
        """
        return verified(self._fetch(partition, payload), partition.ranges)

    def _fetch(self, partition: Partition, payload: bool) -> Iterator[Block]:
        for part in _parts(partition.ranges):
            yield from self._fetch_part(part, payload)

    def _fetch_part(self, part: list[Range], payload: bool) -> Iterator[Block]:
        """Yield the blocks of one request, and of as many more as it takes to complete a broken response."""
        attempts = self._attempts()
        while part:
            try:
                for block in self._blocks(part, payload):
                    part = _rest(part, block)
                    yield block
                    attempts = self._attempts()  # there was progress
                return
            except (OSError, http.client.HTTPException, WireError) as error:
                self.close()
                if not part:
                    return  # only the end of the response is missing, not a record
                attempts.failed(f"it broke off its answer: {type(error).__name__}: {error}")

    def _blocks(self, part: list[Range], payload: bool) -> Iterator[Block]:
        ranges = [{"queue": each.queue, "id": each.id, "start": each.start, "stop": each.stop} for each in part]
        request: dict[str, Any] = {"ranges": ranges} if payload else {"ranges": ranges, "payload": False}
        headers = {"Accept": CONTENT_TYPE, **_JSON}
        response = self._ask("POST", "/v1/fetch", _checked_stream, json.dumps(request).encode(), headers)
        try:
            yield from _blocks(response, positions=not payload)
        finally:
            if not response.isclosed():
                self.close()

    # Changing.

    def truncate(self, queues: Mapping[str, Sequence[int]], *, opening: str | None = None) -> list[Truncated]:
        """Truncate many queues, each up to and including its position: queue → [id, position]."""
        named = [{"queue": queue, "id": at[0], "position": at[1]} for queue, at in queues.items()]
        found: list[Truncated] = []
        for part in chunks(named, QUEUES_AT_ONCE):
            request: dict[str, Any] = {"queues": part} | ({"opening": opening} if opening else {})
            found += self._json("POST", "/v1/truncate", request, _truncated)
        return found

    def append(self, queue: str, runs: Sequence[Run], *, position: int | None, create: bool) -> dict[str, Any]:
        """Append consecutive *runs* atomically.

        Raises:
            ServiceRefusedError: with status 409 and the next position, if *position* is taken or skips records.
        """
        query = "&".join(
            part
            for part in (f"position={position}" if position is not None else "", "create=1" if create else "")
            if part
        )
        path = f"/v1/queues/{quote(queue, safe='')}/records" + (f"?{query}" if query else "")
        body = b"".join(encode([QueueRuns(queue, 0, runs)]))

        def understand(response: http.client.HTTPResponse) -> dict[str, Any]:
            answer = json.loads(response.read())
            return {"duplicate": answer["duplicate"], **answer}

        return self._ask("POST", path, understand, body, {"Content-Type": CONTENT_TYPE})

    def close(self) -> None:
        """Close the connection; the next call opens another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # Requests.

    def _json(self, method: str, path: str, request: Mapping[str, Any], understand: Callable[[dict[str, Any]], T]) -> T:
        body = json.dumps(request).encode()
        return self._ask(method, path, lambda response: understand(json.loads(response.read())), body, _JSON)

    def _ask(
        self,
        method: str,
        path: str,
        understand: Callable[[http.client.HTTPResponse], T],
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> T:
        """Send a request until it succeeds and *understand* accepts the response."""
        attempts = self._attempts()
        while True:
            wait = 0.0
            kept_open = self._connection is not None and self._connection.sock is not None
            try:
                response = self._send(method, path, body, headers or {}, timeout_seconds or self._timeout_seconds)
                self._reached = True
                if response.status < 400:
                    return _understood(response, understand)
                error = self._refusal(response)
                if response.status not in REPEATED_STATUSES:
                    raise error
                reason, wait = str(error), _retry_after(response)
            except (OSError, http.client.HTTPException, BadAnswerError) as failure:
                self.close()
                if kept_open and isinstance(failure, ConnectionError):
                    continue  # the service had closed an idle connection; this is not a failure
                reason = str(failure) if isinstance(failure, BadAnswerError) else f"{type(failure).__name__}: {failure}"
            attempts.failed(reason, wait)

    def _attempts(self) -> Attempts:
        return Attempts(self.server.name, self.url, self._retries, self._patience_seconds, lambda: self._reached)

    def _send(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str], timeout_seconds: float
    ) -> http.client.HTTPResponse:
        connection = self._connect()
        connection.timeout = timeout_seconds
        if connection.sock is not None:
            connection.sock.settimeout(timeout_seconds)
        connection.request(method, self._base + path, body, {**headers, **self._authorization})
        return connection.getresponse()

    def _connect(self) -> http.client.HTTPConnection:
        if self._connection is None:
            scheme, place = urlsplit(self.server.url)[:2]
            kind = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
            self._connection = kind(place.rpartition("@")[2], timeout=self._timeout_seconds)
        return self._connection

    def _refusal(self, response: http.client.HTTPResponse) -> ServiceRefusedError:
        body = response.read()
        try:
            facts = json.loads(body)
        except ValueError:
            facts = {}
        if not isinstance(facts, dict):
            facts = {}
        return ServiceRefusedError(self.server.name, response.status, {"title": response.reason, **facts})


class Attempts:
    """Counts failures, and pauses before the next attempt or raises when there is none left."""

    def __init__(
        self, server: str, url: str, retries: int, patience_seconds: float, reached: Callable[[], bool]
    ) -> None:
        self._server = server
        self._url = url
        self._left = retries
        self._patience_seconds = patience_seconds
        self._reached = reached
        self._failures = 0
        self._since: float | None = None

    def failed(self, reason: str, wait_seconds: float = 0.0) -> None:
        """Pause for at least *wait_seconds*. Raises ServerDownError when it is time to give up."""
        now = _clock()
        self._since = now if self._since is None else self._since
        patient = self._reached() and now < self._since + self._patience_seconds
        if self._left <= 0 and not patient:
            raise ServerDownError(self._server, self._url, reason)
        if self._left <= 0 or (self._failures == 0 and patient):
            level = logging.WARNING if self._left == 0 else logging.INFO
            logger.log(level, "server %r at %s: %s; waiting for it", self._server, self._url, reason)
        self._left -= 1
        # Doubled with each attempt, and randomised: many tasks may be waiting for the same server.
        pause = min(PAUSE_SECONDS * (1 << min(self._failures, 10)), PAUSE_SECONDS_MAX) * random.uniform(0.5, 1.0)
        self._failures += 1
        _sleep(max(pause, wait_seconds))


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Cut *items* into parts of at most *size*."""
    return (items[at : at + size] for at in range(0, len(items), size))


def shown_url(url: str) -> str:
    """Return *url* without its secrets, for messages."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment=""))


def verified(blocks: Iterable[Block], ranges: Sequence[Range]) -> Iterator[Block]:
    """Yield *blocks* as long as they match *ranges*: the same queues, positions and number of records."""
    index, missing, position = -1, 0, 0
    for block in blocks:
        while missing == 0:
            index += 1
            if index == len(ranges):
                raise ShortAnswerError(f"queue {block.queue!r} at {block.first_position} was not asked for")
            missing, position = ranges[index].records, ranges[index].start
        due = ranges[index]
        inside = position <= block.first_position and block.next_position <= due.stop
        if (block.queue, block.queue_id) != (due.queue, due.id) or not inside or block.record_count > missing:
            raise ShortAnswerError(
                f"expected {missing} more records of queue {due.queue!r} from position {position}, "
                f"got {block.record_count} of {block.queue!r} at {block.first_position}"
            )
        missing, position = missing - block.record_count, block.next_position
        yield block
    left = missing + sum(each.records for each in ranges[index + 1 :])
    if left:
        raise ShortAnswerError(f"the answer ended {left} records early")


def _blocks(response: http.client.HTTPResponse, *, positions: bool) -> Iterator[Block]:
    """Decode a response as it arrives; each block owns the buffer that it was received in."""
    decoder = Decoder(positions=positions)
    while not decoder.done:
        block = decoder.take(_read_exactly(response, decoder.wanted))
        if block is not None:
            yield block
    response.read()  # read to the end of the body, so that the connection can be reused


def _read_exactly(response: http.client.HTTPResponse, size: int) -> bytearray:
    buffer = bytearray(size)
    view, at = memoryview(buffer), 0
    while at < size:
        count = response.readinto(view[at:])
        if not count:
            raise WireError(f"{size - at} bytes are missing")
        at += count
    return buffer


def _summary(queue: Mapping[str, Any]) -> QueueSummary:
    return QueueSummary(
        queue=queue["queue"],
        id=queue["id"],
        first_position=queue["first_position"],
        next_position=queue["next_position"],
        records=queue["records"],
        bytes=queue["bytes"],
        first_segment=None,
        began=queue.get("began", 0),
    )


def _plans(answer: Mapping[str, Any]) -> list[QueuePlan]:
    return [_plan(found) for found in answer["queues"]]


def _plan(found: Mapping[str, Any]) -> QueuePlan:
    queue, queue_id = found["queue"], found.get("id", 0)
    pieces = [
        Range(queue, queue_id, piece["start"], piece["stop"], piece["records"], piece["bytes"])
        for piece in found.get("pieces", ())
    ]
    start, stop, records = found["start"], found["stop"], found["records"]
    return QueuePlan(
        queue, found["status"], queue_id, start, stop, records, pieces, found.get("tail"), found.get("ended")
    )


def _present(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value is not None}


def _retry_after(response: http.client.HTTPResponse) -> float:
    text = response.headers.get("Retry-After", "")
    return min(float(text), RETRY_AFTER_SECONDS_MAX) if text.isdigit() else 0.0


def _understood(response: http.client.HTTPResponse, understand: Callable[[http.client.HTTPResponse], T]) -> T:
    """Decode a response. Raises BadAnswerError if it is malformed."""
    try:
        return understand(response)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        kind = response.headers.get("Content-Type", "no type")
        raise BadAnswerError(f"its answer makes no sense ({kind}): {type(error).__name__}: {error}") from None


def _checked_stream(response: http.client.HTTPResponse) -> http.client.HTTPResponse:
    if response.headers.get("Content-Type", CONTENT_TYPE) != CONTENT_TYPE:
        raise ValueError("it is not a stream of runs")
    return response


def _truncated(answer: Mapping[str, Any]) -> list[Truncated]:
    return [Truncated(each["queue"], each["status"], each["dropped"]) for each in answer["queues"]]


def _authorization(url: str, token: str | None) -> dict[str, str]:
    """Return the authorization header: from the token, or from user and password in the URL."""
    if token:
        return {"Authorization": f"Bearer {token}"}
    user, _, _ = urlsplit(url).netloc.rpartition("@")
    return {"Authorization": f"Basic {b64encode(unquote(user).encode()).decode()}"} if user else {}


def _parts(ranges: Iterable[Range]) -> Iterator[list[Range]]:
    """Group *ranges*, in order, into requests of about `FETCH_BYTES`; a range without gaps is cut to fit."""
    part: list[Range] = []
    size, records = FETCH_BYTES, FETCH_RECORDS  # what still fits
    for each in ranges:
        rest: Range | None = each
        while rest is not None:
            head, tail = cut_range(rest, size, records)
            if part and (head.bytes > size or head.records > records or len(part) == QUEUES_AT_ONCE):
                yield part
                part, size, records = [], FETCH_BYTES, FETCH_RECORDS
                continue
            part.append(head)
            size, records, rest = size - head.bytes, records - head.records, tail
    if part:
        yield part


def _rest(part: list[Range], block: Block) -> list[Range]:
    """Return what remains of *part* after *block*, which `verified` checks."""
    for index, each in enumerate(part):
        if (each.queue, each.id) == (block.queue, block.queue_id) and each.start <= block.first_position < each.stop:
            records = each.records - block.record_count
            left = [each._replace(start=block.next_position, records=records)] if records > 0 else []
            return left + part[index + 1 :]
    return part


class _Page(NamedTuple):
    """One page of a listing. after: the next page starts after this name; None for the last page."""

    listing: ServiceListing
    after: str | None
    etag: str


def _page(body: bytes, etag: str) -> _Page:
    answer = json.loads(body)
    opened = {queue["id"]: queue.get("opened_next", 0) for queue in answer["queues"]}
    queues = [_summary(queue) for queue in answer["queues"]]
    listing = ServiceListing(queues, answer.get("log", ""), answer.get("opening", ""), opened)
    return _Page(listing, answer.get("next"), etag)


def _joined(pages: Sequence[_Page]) -> ServiceListing:
    first = pages[0].listing
    if len(pages) == 1:
        return first
    opened = {queue_id: at for page in pages for queue_id, at in (page.listing.opened or {}).items()}
    return ServiceListing([each for page in pages for each in page.listing.queues], first.log, first.opening, opened)


_clock: Callable[[], float] = time.monotonic
_sleep: Callable[[float], None] = time.sleep

_JSON = {"Content-Type": "application/json"}
