"""The client for one service, for Spark's processes: blocking.

A call is one exchange (see `connection`, which retries). `fetch` requests a partition in small parts and resumes where
a response broke off: a range never changes, so a slow reader, or a service that restarts, costs one more request, not a
task. `append` is retried too: with a position the service recognises the repeat; without one a lost response may store
the records twice.

The constructor opens nothing: Spark builds its readers in one process and uses them in others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple, TypeVar

import msgspec

from mrecordlog_async.model import QueueSummary, Run
from mrecordlog_async.protocol import bulk_calls, calls
from mrecordlog_async.protocol.bulk_calls import parts
from mrecordlog_async.protocol.bulk_schemas import (
    FetchRange,
    PlanRequest,
    PlanStart,
    QueuePosition,
    QueueTruncated,
    TruncateOne,
)
from mrecordlog_async.protocol.calls import QUEUES_AT_ONCE, ServiceCall
from mrecordlog_async.protocol.consumer_schemas import AcknowledgedOne, AcknowledgeOne, AttachedOne, AttachResponse
from mrecordlog_async.protocol.log_schemas import LogResponse
from mrecordlog_async.protocol.responses import Reply
from mrecordlog_async.protocol.schemas import AppendResponse
from mrecordlog_async.protocol.wire_decoder import Block
from mrecordlog_async.spark.positions.partitions import Partition
from mrecordlog_async.spark.positions.proof import Listed
from mrecordlog_async.spark.services.connection import ServerDownError, ServiceConnection
from mrecordlog_async.spark.services.fetch import requests_for, verified
from mrecordlog_async.spark.services.responses import ListingPage, PlannedQueue, changed, join_pages, page_of, planned

T = TypeVar("T")

LISTING_TIMEOUT_SECONDS = 10.0
"""A listing is small and requested before every batch: a server that hangs should be noticed soon."""

PAGE_QUEUES = 10_000
"""Queues on one page of a listing; services limit them."""

REOPENED_MAX = 5
"""Times that a listing begins again because the log was opened again between two of its pages."""


ALL = PlanRequest()
"""A plan without limits."""


class _Known(NamedTuple):
    """The last listing, and its ETag. since: the ETag again, if what has changed since then completes the listing."""

    etag: str
    since: str
    listing: Listed


class ServiceClient:
    """The client of one service. For one thread at a time.

    Every call raises ServiceRefusedError if the service refuses it, and ServerDownError if every attempt failed. Those
    that take an *opening* are refused ("reopened") if the log was opened again since, those that take a *log* if the
    service has another one ("other_log"); "" is any log.
    """

    def __init__(self, connection: ServiceConnection) -> None:
        """Call the service of *connection*; nothing is opened."""
        self._connection = connection
        self._known = _Known("", "", Listed({}))

    @property
    def url(self) -> str:
        """The service's address without its secrets, for messages."""
        return self._connection.url

    # What a service has.

    def queues(self) -> list[QueueSummary]:
        """List all queues."""
        return list(self.listing().queues.values())

    def listing(self) -> Listed:
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
        self._soon(calls.summary(limit=1))

    def _page(self, after: str | None, etag: str = "", since: str = "") -> ListingPage | None:
        """Return the queues after *after*, or what has changed since the ETag *since*; None if *etag* still holds."""
        call = bulk_calls.listing(PAGE_QUEUES, after=after, changed_since=since)

        def understand(reply: Reply) -> ListingPage | None:
            return None if reply.status == 304 and etag else page_of(call.read(reply), reply.headers.get("ETag", ""))

        more = {"If-None-Match": etag} if etag else {}
        return self._soon(ServiceCall(call.method, call.path, understand, call.query, more=more))

    def history(self) -> LogResponse:
        """Return which log the service has, and its openings."""
        return self._soon(calls.log_info())

    def _soon(self, call: ServiceCall[T]) -> T:
        """Send *call*, whose response is small."""
        return self._connection.send(call, seconds=min(self._connection.timeout_seconds, LISTING_TIMEOUT_SECONDS))

    def queue(self, queue: str) -> QueueSummary:
        """Return the state of one queue."""
        return replace(self.send(calls.queue_summary(queue)), first_segment=None, sealed=False)

    def positions_at(
        self, time: datetime, queues: Mapping[str, int], *, opening: str | None = None
    ) -> list[QueuePosition]:
        """Request where the records begin that were stored at *time*, or later. queues: name → id."""
        asked = (bulk_calls.positions_at(time, dict(part), opening) for part in parts(list(queues.items())))
        return self._each(asked)

    def plan(self, starts: Sequence[PlanStart], asked: PlanRequest = ALL, *, log: str = "") -> list[PlannedQueue]:
        """Request how far the limits reach from *starts*, and pieces to read in parallel.

        starts: with a limit, at most `QUEUES_AT_ONCE`. asked: the limits, and the sizes of pieces.
        """
        limited = asked.max_records is not None or asked.max_bytes is not None
        assert len(starts) <= QUEUES_AT_ONCE or not limited, "limits are shared by one request"
        plans = (bulk_calls.plan(msgspec.structs.replace(asked, queues=list(part))) for part in parts(starts))
        return [planned(found) for found in self._each(plans, log)]

    # Reading.

    def fetch(self, partition: Partition, *, payload: bool = True) -> Iterator[Block]:
        """Yield the blocks of a partition, each checked against the plan; without *payload*, positions alone.

        Raises:
            ShortResponseError: the service sent something else than it had planned.
        """
        return verified(self._fetch(partition, payload), partition.ranges)

    def _fetch(self, partition: Partition, payload: bool) -> Iterator[Block]:
        for part in requests_for(partition.ranges):
            ranges = [FetchRange(each.queue, each.start, each.stop, each.id) for each in part]
            yield from self.send(bulk_calls.fetch(ranges, payload=payload), partition.log)

    # Changing.

    def truncate(
        self, queues: Mapping[str, Sequence[int]], *, opening: str | None = None, log: str = ""
    ) -> list[QueueTruncated]:
        """Truncate many queues, each as far as its consumers allow. queues: queue → [id, last position to drop]."""
        named = [TruncateOne(queue, at[1], at[0]) for queue, at in queues.items()]
        return self._each((bulk_calls.truncate(part, opening) for part in parts(named)), log)

    def append(self, queue: str, runs: Sequence[Run], *, position: int | None, create: bool) -> AppendResponse:
        """Append consecutive *runs*, all or none, at *position*; None assigns the next one.

        `duplicate` of the response is true if the records were stored before. A position that is taken or skips records
        is refused (409), with the next position.
        """
        return self.send(calls.append_runs(queue, position, runs, create=create))

    # As a consumer.

    def add_rule(self, pattern: str, consumer: str) -> None:
        """Give *consumer* to every queue that matches *pattern*, including those that are created later."""
        self.send(calls.create_consumer(pattern, consumer, start=None, exist_ok=True))

    def attach(
        self, consumer: str, queues: Sequence[str], *, owner: str | None, take_over: bool, log: str
    ) -> list[AttachedOne]:
        """Become the holder of *consumer* on *queues* of *log*; it is created where it does not exist."""
        asked = (bulk_calls.attach(consumer, part, owner=owner, take_over=take_over) for part in parts(queues))
        return self._each(asked, log)

    def acknowledge(
        self, consumer: str, queues: Mapping[str, tuple[int, int, int]], *, opening: str
    ) -> list[AcknowledgedOne]:
        """Acknowledge many queues. queues: queue → (id, last position that is acknowledged, epoch)."""
        named = [
            AcknowledgeOne(queue, consumer, position, epoch, queue_id)
            for queue, (queue_id, position, epoch) in queues.items()
        ]
        return self._each(bulk_calls.acknowledge(part, opening) for part in parts(named))

    def seek(self, consumer: str, queue: str, at: tuple[int, int, int]) -> None:
        """Move *consumer* on *queue*. at: (id, first position that is not acknowledged, epoch)."""
        queue_id, position, epoch = at
        holder = AttachResponse(queue, consumer, queue_id, epoch, position)
        self.send(calls.seek(queue, consumer, position, holder))

    def close(self) -> None:
        """Close the connection; the next call opens another one."""
        self._connection.close()

    def send(self, call: ServiceCall[T], log: str = "") -> T:
        """Send *call*, and return its result. log: refuse it unless the service has this log."""
        return self._connection.send(call, log=log)

    def _each(self, asked: Iterable[ServiceCall[list[T]]], log: str = "") -> list[T]:
        """Send one call after the other, and return the results of all."""
        return [one for call in asked for one in self.send(call, log)]
