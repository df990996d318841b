"""The client for one service, for Spark's processes: blocking, on `http.client`, with the standard library alone.

A call is one exchange (see `connection`, which retries). `fetch` requests a partition in small parts and resumes where
a response broke off: a range never changes, so a slow reader, or a service that restarts, costs one more request, not a
task. `append` is retried too: with a position the service recognises the repeat; without one a lost response may store
the records twice.

The constructor opens nothing: Spark builds its readers in one process and uses them in others.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from mrecordlog_async.model import QueueSummary, Run
from mrecordlog_async.protocol.wire import CONTENT_TYPE, QueueRuns, WireError, encode
from mrecordlog_async.protocol.wire_decoder import Block
from mrecordlog_async.servers.names import Endpoint
from mrecordlog_async.spark.positions.partitions import Partition, Range
from mrecordlog_async.spark.services.connection import QUEUES_AT_ONCE, Connection, ServerDownError
from mrecordlog_async.spark.services.fetch import Rest, decode_blocks, requests_for, verified
from mrecordlog_async.spark.services.responses import (
    FoundPosition,
    ListingPage,
    LogHistory,
    QueuePlan,
    ServiceListing,
    Truncated,
    changed,
    decode_history,
    decode_page,
    decode_plans,
    decode_positions,
    decode_summary,
    decode_truncated,
    join_pages,
)

T = TypeVar("T")

LISTING_TIMEOUT_SECONDS = 10.0
"""A listing is small and requested before every batch: a server that hangs should be noticed soon."""

PAGE_QUEUES = 10_000
"""Queues on one page of a listing; services limit them."""

REOPENED_MAX = 5
"""Times that a listing begins again because the log was opened again between two of its pages."""

_JSON = {"Content-Type": "application/json"}

_LOG_ID = "X-Log-Id"
"""Header that names the log a request is for; the service refuses it with 412 if it has another log."""


class PlanStart(NamedTuple):
    """Positions start … stop - 1 of one incarnation of a queue; None means from its first record, or up to its end."""

    queue: str
    id: int
    start: int | None
    stop: int | None = None


class _Known(NamedTuple):
    """The last listing, and its ETag. since: the ETag again, if what has changed since then completes the listing."""

    etag: str
    since: str
    listing: ServiceListing


class ServiceClient:
    """The client of one service. For one thread at a time.

    Every call raises ServiceRefusedError if the service refuses it, and ServerDownError if every attempt failed.
    """

    def __init__(
        self,
        server: Endpoint,
        *,
        token: str | None,
        timeout_seconds: float,
        retries: int,
        patience_seconds: float = 0.0,
        reached: bool = False,
    ) -> None:
        """Describe the service; nothing is opened.

        Args:
            server: its name and address.
            token: bearer token, if the service requires one.
            timeout_seconds: how long one response may take.
            retries: further attempts after a failed one.
            patience_seconds: how long to wait for a service that has responded before, on top of *retries*.
            reached: the service is known to be reachable, though this client has not sent a request yet.
        """
        self._connection = Connection(
            server,
            token=token,
            timeout_seconds=timeout_seconds,
            retries=retries,
            patience_seconds=patience_seconds,
            reached=reached,
        )
        self._known = _Known("", "", ServiceListing({}))

    @property
    def url(self) -> str:
        """The service's address without its secrets, for messages."""
        return self._connection.url

    # What a service has.

    def queues(self) -> list[QueueSummary]:
        """List all queues."""
        return list(self.listing().queues.values())

    def listing(self) -> ServiceListing:
        """List all queues, with their log and its opening. Only what changed since the last listing is sent."""
        known = self._known
        first = self._page(None, known.etag, known.since)
        if first is not None and first.since is not None:
            self._known = _Known(first.etag, first.etag, changed(known.listing, first))
        elif first is not None:
            self._known = self._whole(first)
        return self._known.listing

    def _whole(self, first: ListingPage | None) -> _Known:
        """Return the listing that begins with *first*; list again if the log is opened again between two pages."""
        for _ in range(REOPENED_MAX):
            assert first is not None, "only a request with an ETag has no response"
            pages = [first]
            while pages[-1].after is not None and pages[-1].listing.opening == first.listing.opening:
                pages.append(self._page(pages[-1].after) or pages[-1])
            if pages[-1].listing.opening == first.listing.opening:
                # Later pages are newer than the first one's ETag: they may have queues that were created since.
                return _Known(first.etag, first.etag if len(pages) == 1 else "", join_pages(pages))
            first = self._page(None)
        reason = (
            f"{REOPENED_MAX} times another opening of a log responded before all its queues were listed: if the "
            "address is a load balancer, name that of each service"
        )
        raise ServerDownError(self._connection.server.name, self.url, reason)

    def probe(self) -> None:
        """Return if the service responds to a small listing."""
        timeout = min(self._connection.timeout_seconds, LISTING_TIMEOUT_SECONDS)
        understand = lambda response: decode_page(response.read(), "")  # noqa: E731  # it must be a whole listing
        self._connection.request("GET", "/v1/queues?limit=1", understand, timeout_seconds=timeout)

    def _page(self, after: str | None, etag: str = "", since: str = "") -> ListingPage | None:
        """Return the queues after *after*, or what has changed since the ETag *since*; None if *etag* still holds."""
        tag = since.removeprefix("W/").strip('"')
        wanted = f"changed_since={quote(tag, safe='')}" if after is None else f"after={quote(after, safe='')}"
        path = f"/v1/queues?limit={PAGE_QUEUES}&{wanted}"

        def understand(response: http.client.HTTPResponse) -> ListingPage | None:
            body = response.read()
            return None if response.status == 304 and etag else decode_page(body, response.headers.get("ETag", ""))

        headers = {"If-None-Match": etag} if etag else {}
        timeout = min(self._connection.timeout_seconds, LISTING_TIMEOUT_SECONDS)
        return self._connection.request("GET", path, understand, headers=headers, timeout_seconds=timeout)

    def history(self) -> LogHistory:
        """Return which log the service has, and its openings."""
        timeout = min(self._connection.timeout_seconds, LISTING_TIMEOUT_SECONDS)

        def understand(response: http.client.HTTPResponse) -> LogHistory:
            return decode_history(response.read())

        return self._connection.request("GET", "/v1/log", understand, timeout_seconds=timeout)

    def queue(self, queue: str) -> QueueSummary:
        """Return the state of one queue."""
        path = f"/v1/queues/{quote(queue, safe='')}"
        return self._connection.request("GET", path, lambda response: decode_summary(json.loads(response.read())))

    def positions_at(
        self, time: datetime, queues: Mapping[str, int], *, opening: str | None = None
    ) -> list[FoundPosition]:
        """Request where the records begin that were stored at *time* or later.

        Args:
            time: a time with a zone, not in the future.
            queues: the queues and their ids.
            opening: refuse the request unless this is still the log's opening.

        Raises:
            ServiceRefusedError: with the code "reopened", the log was opened again.
        """
        named = [{"queue": queue, "id": queue_id} for queue, queue_id in queues.items()]
        found: list[FoundPosition] = []
        for part in chunks(named, QUEUES_AT_ONCE):
            request = {"time": time.isoformat(), "queues": part} | _present({"opening": opening or None})
            found += self.send("POST", "/v1/positions", request, decode_positions)
        return found

    def plan(
        self,
        starts: Iterable[PlanStart],
        *,
        records_max: int | None = None,
        bytes_max: int | None = None,
        piece_records: int | None = None,
        piece_bytes: int | None = None,
        times: bool = False,
        opening: str | None = None,
        log: str = "",
    ) -> list[QueuePlan]:
        """Request how far the limits reach from *starts*, and pieces to read in parallel.

        Args:
            starts: where reading begins, for each queue; with a limit, at most `QUEUES_AT_ONCE`.
            records_max: limit in records, shared by all queues.
            bytes_max: limit in payload bytes, shared by all queues.
            piece_records: about how many records one piece holds.
            piece_bytes: about how many payload bytes one piece holds.
            times: also request when each range's first record was stored.
            opening: refuse the request unless this is still the log's opening.
            log: refuse the request unless the service has this log; "" for any.

        Raises:
            ServiceRefusedError: with the code "reopened", the log was opened again; "other_log", it is another log.
        """
        asked = _present({"max_records": records_max, "max_bytes": bytes_max, "opening": opening or None})
        asked |= _present({"piece_records": piece_records, "piece_bytes": piece_bytes})
        asked |= _present({"times": times or None})
        named = [_present(start._asdict()) for start in starts]
        assert len(named) <= QUEUES_AT_ONCE or records_max is bytes_max is None, "limits are shared by one request"
        found: list[QueuePlan] = []
        for part in chunks(named, QUEUES_AT_ONCE):
            found += self.send("POST", "/v1/plan", {"queues": part, **asked}, decode_plans, log)
        return found

    # Reading.

    def fetch(self, partition: Partition, *, payload: bool = True) -> Iterator[Block]:
        """Yield the blocks of a partition, each checked against the plan.

        Args:
            partition: what to read, as planned.
            payload: False transfers positions only; the blocks then have no payloads.

        Raises:
            ShortResponseError: the service sent something else than it had planned.
        """
        return verified(self._fetch(partition, payload), partition.ranges)

    def _fetch(self, partition: Partition, payload: bool) -> Iterator[Block]:
        for part in requests_for(partition.ranges):
            yield from self._fetch_part(part, payload, partition.log)

    def _fetch_part(self, part: list[Range], payload: bool, log: str) -> Iterator[Block]:
        """Yield the blocks of one request, and of as many more as it takes to complete a broken response."""
        attempts, rest = self._connection.attempts(), Rest(part)
        while part:
            advanced = False
            try:
                for block in self._blocks(part, payload, log):
                    rest.drop(block)
                    yield block
                    advanced = True
                return
            except (OSError, http.client.HTTPException, WireError) as error:
                self.close()
                part = rest.ranges()
                if not part:
                    return  # only the end of the response is missing, not a record
                if advanced:
                    attempts = self._connection.attempts()
                attempts.failed(f"the response broke off: {type(error).__name__}: {error}")

    def _blocks(self, part: list[Range], payload: bool, log: str) -> Iterator[Block]:
        ranges = [{"queue": each.queue, "id": each.id, "start": each.start, "stop": each.stop} for each in part]
        request: dict[str, Any] = {"ranges": ranges} if payload else {"ranges": ranges, "payload": False}
        body, headers = json.dumps(request).encode(), {"Accept": CONTENT_TYPE, **_headers(log)}
        response = self._connection.request("POST", "/v1/fetch", _stream_of_runs, body, headers)
        try:
            yield from decode_blocks(response, positions=not payload)
        finally:
            if not response.isclosed():
                self.close()

    # Changing.

    def truncate(
        self, queues: Mapping[str, Sequence[int]], *, opening: str | None = None, log: str = ""
    ) -> list[Truncated]:
        """Truncate many queues, each as far as its consumers allow.

        Args:
            queues: queue → [id, position]; each queue is truncated up to and including its position.
            opening: refuse the request unless this is still the log's opening.
            log: refuse the request unless the service has this log; "" for any.

        Returns:
            The outcome for each queue.
        """
        named = [{"queue": queue, "id": at[0], "position": at[1]} for queue, at in queues.items()]
        found: list[Truncated] = []
        for part in chunks(named, QUEUES_AT_ONCE):
            request = {"queues": part, "up_to_consumers": True, **_present({"opening": opening or None})}
            found += self.send("POST", "/v1/truncate", request, decode_truncated, log)
        return found

    def append(self, queue: str, runs: Sequence[Run], *, position: int | None, create: bool) -> dict[str, Any]:
        """Append consecutive *runs* atomically.

        Args:
            queue: the queue to append to.
            runs: consecutive records.
            position: the first record's position; None for the queue's next one.
            create: create the queue if it does not exist.

        Returns:
            The service's response; "duplicate" is true if the records were stored before.

        Raises:
            ServiceRefusedError: with status 409 and the next position, if *position* is taken or skips records.
        """
        given = {"position": None if position is None else str(position), "create": "1" if create else None}
        query = "&".join(f"{name}={value}" for name, value in _present(given).items())
        path = f"/v1/queues/{quote(queue, safe='')}/records" + (f"?{query}" if query else "")
        body = b"".join(encode([QueueRuns(queue, 0, runs)]))

        def understand(response: http.client.HTTPResponse) -> dict[str, Any]:
            found = json.loads(response.read())
            return {"duplicate": found["duplicate"], **found}

        return self._connection.request("POST", path, understand, body, {"Content-Type": CONTENT_TYPE})

    def close(self) -> None:
        """Close the connection; the next call opens another one."""
        self._connection.close()

    def send(
        self, method: str, path: str, request: Mapping[str, Any], decode: Callable[[dict[str, Any]], T], log: str = ""
    ) -> T:
        """Send a request as JSON, and decode the JSON of the response. log: as of `plan`."""

        def understand(response: http.client.HTTPResponse) -> T:
            return decode(json.loads(response.read()))

        return self._connection.request(method, path, understand, json.dumps(request).encode(), _headers(log))


def _headers(log: str) -> dict[str, str]:
    return {**_JSON, _LOG_ID: log} if log else _JSON


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Cut *items* into parts of at most *size*."""
    return (items[at : at + size] for at in range(0, len(items), size))


def _present(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value is not None}


def _stream_of_runs(response: http.client.HTTPResponse) -> http.client.HTTPResponse:
    if response.headers.get("Content-Type", CONTENT_TYPE) != CONTENT_TYPE:
        raise ValueError("it is not a stream of runs")
    return response
