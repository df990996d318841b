"""One service, spoken to from where Spark's code runs: blocking, on `http.client`, with the standard library alone.

A call is repeated, with growing and random pauses, when the connection fails and for 429 and 503. `fetch` is repeated
only as long as nothing was handed out; a stream that ends early raises `ShortAnswerError`, so that the task fails and
Spark runs it again. `append` is repeated too: with a position the service sees the repeat, without one a lost answer
may store the records twice.

Nothing is opened by the constructor: Spark builds its readers in one process and uses them in others.
"""

from __future__ import annotations

import http.client
import json
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.http.wire import CONTENT_TYPE, Block, Decoder, QueueRuns, WireError, encode
from mrecordlog_async.model import QueueSummary, Run
from mrecordlog_async.spark.options import Server
from mrecordlog_async.spark.plan import Partition, Range

REPEATED_STATUSES = (429, 503)
PAUSE_SECONDS = 0.1
PAUSE_SECONDS_MAX = 10.0
LISTING_TIMEOUT_SECONDS = 10.0
LISTING_RETRIES = 2
"""A listing is small and asked before every batch: a server that is gone should be noticed soon."""


class ServiceError(RecordLogError):
    """A service said no. status and code are for programs; problem is the document it sent."""

    def __init__(self, server: str, status: int, facts: Mapping[str, Any]) -> None:
        super().__init__(server, status, facts)
        self.server = server
        self.status = status
        self.problem = facts
        self.code = str(facts.get("code", ""))

    def message(self) -> str:
        """Say who answered what."""
        said = self.problem.get("detail") or self.problem.get("title")
        return f"server {self.server!r} answered {self.status}: {said}"


class ServerDownError(RecordLogError):
    """A service could not be reached, or did not get ready, in all attempts."""

    def __init__(self, server: str, url: str, reason: str) -> None:
        super().__init__(server, url, reason)
        self.server = server
        self.url = url
        self.reason = reason

    def message(self) -> str:
        """Say who is meant and what happened."""
        return f"server {self.server!r} at {self.url} cannot be reached: {self.reason}"


class ShortAnswerError(RecordLogError):
    """A service delivered something else than what it had planned; nothing of it may be taken for complete."""


class PlanStart(NamedTuple):
    """Positions start … stop - 1 of one queue, of this incarnation; stop None means up to its end."""

    queue: str
    id: int
    start: int
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


class Truncated(NamedTuple):
    """How a truncate ended."""

    queue: str
    status: str
    dropped: int


class ServiceClient:
    """One service. Not for several threads at a time."""

    def __init__(self, server: Server, *, token: str | None, timeout_seconds: float, retries: int) -> None:
        self.server = server
        self._token = token
        self._timeout_seconds = timeout_seconds
        self._retries = retries
        self._connection: http.client.HTTPConnection | None = None
        self._listing: tuple[str, list[QueueSummary]] = ("", [])

    # What a service has.

    def queues(self) -> list[QueueSummary]:
        """List all queues. An unchanged listing is not sent again."""
        etag, known = self._listing
        headers = {"If-None-Match": etag} if etag else {}
        timeout, retries = min(self._timeout_seconds, LISTING_TIMEOUT_SECONDS), min(self._retries, LISTING_RETRIES)
        response = self._ask("GET", "/v1/queues", headers=headers, timeout_seconds=timeout, retries=retries)
        body = response.read()
        if response.status == 304:
            return known
        listing = [_summary(queue) for queue in json.loads(body)["queues"]]
        self._listing = (response.headers.get("ETag", ""), listing)
        return listing

    def queue(self, queue: str) -> QueueSummary:
        """Return where one queue stands."""
        return _summary(json.loads(self._ask("GET", f"/v1/queues/{quote(queue, safe='')}").read()))

    def plan(
        self,
        starts: Iterable[PlanStart],
        *,
        records_max: int | None = None,
        bytes_max: int | None = None,
        piece_records: int | None = None,
    ) -> list[QueuePlan]:
        """Ask how far the limits reach from *starts*, and for pieces to read side by side."""
        request: dict[str, Any] = {"queues": [_present(start._asdict()) for start in starts]}
        request |= _present({"max_records": records_max, "max_bytes": bytes_max, "piece_records": piece_records})
        return [_plan(found) for found in self._json("POST", "/v1/plan", request)["queues"]]

    # Reading.

    def fetch(self, partition: Partition, *, payload: bool = True) -> Iterator[Block]:
        """Yield the blocks of a partition, each checked against the plan. ShortAnswerError if anything is missing.

        payload: False for blocks that name positions and hold nothing, which is all that travels then.
        """
        ranges = [{"queue": each.queue, "id": each.id, "start": each.lo, "stop": each.hi} for each in partition.ranges]
        request: dict[str, Any] = {"ranges": ranges} if payload else {"ranges": ranges, "payload": False}
        response = self._ask("POST", "/v1/fetch", json.dumps(request).encode(), {"Accept": CONTENT_TYPE, **_JSON})
        try:
            yield from verified(_blocks(response, positions=not payload), partition.ranges)
        except (OSError, http.client.HTTPException, WireError) as error:
            raise ShortAnswerError(f"server {self.server.name!r} broke off its answer: {error}") from error
        finally:
            if not response.isclosed():
                self.close()

    # Changing.

    def truncate(self, queues: Mapping[str, Sequence[int]]) -> list[Truncated]:
        """Truncate many queues, each up to and including its position: queue → [id, position]."""
        request = {"queues": [{"queue": queue, "id": at[0], "position": at[1]} for queue, at in queues.items()]}
        answer = self._json("POST", "/v1/truncate", request)
        return [Truncated(each["queue"], each["status"], each["dropped"]) for each in answer["queues"]]

    def append(self, queue: str, runs: Sequence[Run], *, position: int | None, create: bool) -> dict[str, Any]:
        """Append *runs*, which follow each other; atomic. Raises ServiceError 409 with what the service knows."""
        query = "&".join(
            part
            for part in (f"position={position}" if position is not None else "", "create=1" if create else "")
            if part
        )
        path = f"/v1/queues/{quote(queue, safe='')}/records" + (f"?{query}" if query else "")
        body = b"".join(encode([QueueRuns(queue, 0, runs)]))
        response = self._ask("POST", path, body, {"Content-Type": CONTENT_TYPE})
        answer: dict[str, Any] = json.loads(response.read())
        return answer

    def close(self) -> None:
        """Close the connection; the next call opens another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # Speaking.

    def _json(self, method: str, path: str, request: Mapping[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._ask(method, path, json.dumps(request).encode(), _JSON).read())
        return answer

    def _ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
        retries: int | None = None,
    ) -> http.client.HTTPResponse:
        """Send a request until it is answered; return the answer, whose body is still to be read."""
        attempts_left = self._retries if retries is None else retries
        pauses = _pauses()
        while True:
            wait: float | None = None
            kept_open = self._connection is not None and self._connection.sock is not None
            try:
                response = self._send(method, path, body, headers or {}, timeout_seconds or self._timeout_seconds)
                if response.status < 400:
                    return response
                error = self._refusal(response)
                if response.status not in REPEATED_STATUSES:
                    raise error
                reason, wait = str(error), _retry_after(response)
            except (OSError, http.client.HTTPException) as failure:
                self.close()
                if kept_open and isinstance(failure, ConnectionError):
                    continue  # the service had closed an idle connection, which says nothing about the service
                reason = f"{type(failure).__name__}: {failure}"
            if attempts_left == 0:
                raise ServerDownError(self.server.name, self.server.url, reason)
            attempts_left -= 1
            pause = next(pauses)
            time.sleep(pause if wait is None else wait)

    def _send(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str], timeout_seconds: float
    ) -> http.client.HTTPResponse:
        connection = self._connect()
        connection.timeout = timeout_seconds
        if connection.sock is not None:
            connection.sock.settimeout(timeout_seconds)
        token = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        connection.request(method, urlsplit(self.server.url).path + path, body, {**headers, **token})
        return connection.getresponse()

    def _connect(self) -> http.client.HTTPConnection:
        if self._connection is None:
            scheme, place = urlsplit(self.server.url)[:2]
            kind = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
            self._connection = kind(place, timeout=self._timeout_seconds)
        return self._connection

    def _refusal(self, response: http.client.HTTPResponse) -> ServiceError:
        body = response.read()
        try:
            facts = json.loads(body)
        except ValueError:
            facts = {}
        if not isinstance(facts, dict):
            facts = {}
        return ServiceError(self.server.name, response.status, {"title": response.reason, **facts})


def verified(blocks: Iterable[Block], ranges: Sequence[Range]) -> Iterator[Block]:
    """Yield *blocks* as long as they are what *ranges* promise: these queues, these positions, that many records."""
    index, missing, position = -1, 0, 0
    for block in blocks:
        while missing == 0:
            index += 1
            if index == len(ranges):
                raise ShortAnswerError(f"queue {block.queue!r} at {block.first_position} was not asked for")
            missing, position = ranges[index].records, ranges[index].lo
        due = ranges[index]
        inside = position <= block.first_position and block.next_position <= due.hi
        if (block.queue, block.queue_id) != (due.queue, due.id) or not inside or block.records > missing:
            raise ShortAnswerError(
                f"expected {missing} more records of queue {due.queue!r} from position {position}, "
                f"got {block.records} of {block.queue!r} at {block.first_position}"
            )
        missing, position = missing - block.records, block.next_position
        yield block
    left = missing + sum(each.records for each in ranges[index + 1 :])
    if left:
        raise ShortAnswerError(f"the answer ended {left} records early")


def _blocks(response: http.client.HTTPResponse, *, positions: bool) -> Iterator[Block]:
    """Decode an answer as it comes; each block owns the buffer that it was received in."""
    decoder = Decoder(positions=positions)
    while not decoder.done:
        block = decoder.take(_read_exactly(response, decoder.wanted))
        if block is not None:
            yield block
    response.read()  # the end of the body, so that the connection can be used again


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
    )


def _plan(found: Mapping[str, Any]) -> QueuePlan:
    queue, queue_id = found["queue"], found.get("id", 0)
    pieces = [
        Range(queue, queue_id, piece["start"], piece["stop"], piece["records"], piece["bytes"])
        for piece in found.get("pieces", ())
    ]
    return QueuePlan(queue, found["status"], queue_id, found["start"], found["stop"], found["records"], pieces)


def _present(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value is not None}


def _retry_after(response: http.client.HTTPResponse) -> float | None:
    text = response.headers.get("Retry-After", "")
    return min(float(text), PAUSE_SECONDS_MAX) if text.isdigit() else None


def _pauses() -> Iterator[float]:
    """Double from attempt to attempt, and never twice the same: many tasks may be waiting for one server."""
    for attempt in count():
        yield min(PAUSE_SECONDS * (1 << min(attempt, 10)), PAUSE_SECONDS_MAX) * random.uniform(0.5, 1.0)


_JSON = {"Content-Type": "application/json"}
