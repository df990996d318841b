"""One server, as a drain and its tasks use it: lists its log, plans, fetches, truncates. Blocking.

The constructor opens nothing: tasks get their own from a `ReadTask`. Every call raises ServiceRefusedError if the
service refuses it, and ServerDownError if every attempt failed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, TypeVar

import msgspec

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.protocol import bulk_calls, calls
from mrecordlog_async.protocol.bulk_schemas import (
    FetchRange,
    PlanRequest,
    PlanStart,
    QueuePlan,
    QueuePosition,
    QueueTruncated,
    TruncateOne,
)
from mrecordlog_async.protocol.calls import QUEUES_AT_ONCE, ServiceCall
from mrecordlog_async.protocol.log_schemas import LogResponse, OpeningResponse
from mrecordlog_async.protocol.responses import Reply
from mrecordlog_async.protocol.schemas import QueueResponse, QueuesResponse
from mrecordlog_async.protocol.wire_decoder import Block
from mrecordlog_async.servers.names import Endpoint
from mrecordlog_async.spark.connection import ServerDownError, ServiceConnection
from mrecordlog_async.spark.state import LogAt, ReadRange

T = TypeVar("T")

PAGE_QUEUES = 10_000
"""Queues on one page of a listing; services limit them."""

REOPENED_MAX = 5
"""Times that a listing begins again because the log was opened again between two of its pages."""

FETCH_BYTES, FETCH_RECORDS = 8 << 20, 65_536
"""Approximate size of a response, and of a range: a response that breaks off is requested again as a whole."""


class Patience(NamedTuple):
    """How long a call is repeated.

    Attributes:
        seconds: Longest silence of the service; a whole response may take six times as long.
        retries: Further attempts after a failed one.
        wait_seconds: How long a service that restarts is waited for, on top of that.
    """

    seconds: float
    retries: int
    wait_seconds: float = 0.0


DRIVER, TASK = Patience(10.0, 1), Patience(60.0, 4, 120.0)


class ListingOutdatedError(RecordLogError):
    """A queue was deleted or recreated since the queues were listed."""


class RangeDiffersError(RecordLogError):
    """A service sent something other than it had planned: the task fails, and nothing of it is stored."""


@dataclass(frozen=True, slots=True)
class LogListing:
    """The queues of a log by name, with the log's id, its current opening, and the state that the listing shows."""

    log: str = ""
    opening: str = ""
    at: LogAt | None = None
    queues: Mapping[str, QueueResponse] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReadTask:
    """What one task reads: ranges of one log, and how to reach it."""

    server: str
    endpoint: Endpoint = field(repr=False)
    log: str
    token: str | None = field(repr=False)
    ranges: tuple[ReadRange, ...]
    patience: Patience = TASK


class LogServer:
    """Requests to one server. For one thread at a time."""

    def __init__(
        self,
        name: str,
        endpoint: Endpoint,
        token: str | None = None,
        *,
        patience: Patience = DRIVER,
        in_tasks: Patience = TASK,
    ) -> None:
        self.name, self.token = name, token
        self._patience, self._in_tasks = patience, in_tasks
        self.endpoint, self._connection = self._connected(endpoint)
        self._listing, self._tag, self._since = LogListing(), "", ""

    def _connected(self, endpoint: Endpoint) -> tuple[Endpoint, ServiceConnection]:
        place, patience = dataclasses.replace(endpoint, name=self.name), self._patience
        connection = ServiceConnection(
            place,
            token=self.token,
            timeout_seconds=patience.seconds,
            retries=patience.retries,
            patience_seconds=patience.wait_seconds,
            reached=patience.wait_seconds > 0,
        )
        return place, connection

    def move(self, endpoint: Endpoint) -> None:
        """Call the service at another address from now on."""
        self._connection.close()
        self.endpoint, self._connection = self._connected(endpoint)
        self._tag = self._since = ""

    @classmethod
    def of_task(cls, task: ReadTask) -> LogServer:
        """Return the server that *task* reads from; it waits for one that restarts."""
        return cls(task.server, task.endpoint, task.token, patience=task.patience)

    def task(self, log: str, ranges: Sequence[ReadRange]) -> ReadTask:
        """Return a task that reads *ranges* of the server's log."""
        return ReadTask(self.name, self.endpoint, log, self.token, tuple(ranges), self._in_tasks)

    def close(self) -> None:
        """Close the connection; the next call opens another one."""
        self._connection.close()

    def send(self, call: ServiceCall[T], log: str = "") -> T:
        """Send *call*, and return its result. log: refuse it unless the server has this log."""
        return self._connection.send(call, log=log)

    def _each(self, asked: Iterable[ServiceCall[list[T]]], log: str) -> list[T]:
        return [one for call in asked for one in self.send(call, log)]

    # What the log has.

    def listing(self) -> LogListing:
        """List all queues. Only what has changed since the last listing is sent; the same object if nothing has."""
        first, tag = self._page(None, self._tag, self._since)
        if first is None:
            return self._listing
        if first.changed_since is not None:
            changed = {*first.deleted, *(each.queue for each in first.queues)}
            queues = {name: each for name, each in self._listing.queues.items() if name not in changed}
            queues |= {each.queue: each for each in first.queues}
            self._listing, self._tag, self._since = _listing_of(first, queues), tag, tag
        else:
            self._whole(first, tag)
        return self._listing

    def _whole(self, first: QueuesResponse | None, tag: str) -> None:
        for _ in range(REOPENED_MAX):
            assert first is not None, "only a request with an ETag has no response"
            queues, page, is_one = {each.queue: each for each in first.queues}, first, first.next is None
            while page.next is not None and page.opening == first.opening:
                more, _tag = self._page(page.next)
                assert more is not None, "as above"
                page = more
                queues |= {each.queue: each for each in page.queues}
            if page.opening == first.opening:
                # Pages after the first one are newer than its ETag: they may have queues that were created since.
                self._listing, self._tag, self._since = _listing_of(page, queues), tag, tag if is_one else ""
                return
            first, tag = self._page(None)
        reason = f"{REOPENED_MAX} times the log was opened again before all its queues were listed"
        raise ServerDownError(self.name, str(self.endpoint), reason)

    def _page(self, after: str | None, tag: str = "", since: str = "") -> tuple[QueuesResponse | None, str]:
        call = bulk_calls.listing(PAGE_QUEUES, after=after, changed_since=since)

        def understand(reply: Reply) -> tuple[QueuesResponse | None, str]:
            return (None if reply.status == 304 and tag else call.read(reply)), reply.headers.get("ETag", "")

        more = {"If-None-Match": tag} if tag else {}
        return self.send(ServiceCall(call.method, call.path, understand, call.query, more=more))

    def identity(self) -> LogResponse:
        """Return which log the server has."""
        return self.send(calls.log_info())

    def openings(self) -> list[OpeningResponse]:
        """Return the openings that the log remembers, oldest first."""
        return list(self.identity().openings)

    def plan(self, starts: Sequence[PlanStart], request: PlanRequest, listing: LogListing) -> list[QueuePlan]:
        """Request how far the limits of *request* reach from *starts*, at most `QUEUES_AT_ONCE` with a limit.

        It is refused ("reopened") if the log was opened again since *listing*, as that of `truncate` is.
        """
        request = msgspec.structs.replace(request, opening=listing.opening or None)
        asked = (
            bulk_calls.plan(msgspec.structs.replace(request, queues=list(each))) for each in bulk_calls.parts(starts)
        )
        return self._each(asked, listing.log)

    def positions_at(self, time: datetime, queues: Mapping[str, int], listing: LogListing) -> list[QueuePosition]:
        """Request where the records begin that were stored at *time*, or later; refused as `plan` is.

        queues: name → id.
        """
        parts = bulk_calls.parts(list(queues.items()))
        asked = (bulk_calls.positions_at(time, dict(each), listing.opening) for each in parts)
        return self._each(asked, listing.log)

    # Reading and changing.

    def fetch(self, task: ReadTask, *, payload: bool = True) -> Iterator[Block]:
        """Yield the records of *task*, each block checked against the plan. Raises RangeDiffersError."""
        for group in requests_for(task.ranges):
            asked = [FetchRange(each.queue, each.start, each.stop, each.id) for each in group]
            blocks = self.send(bulk_calls.fetch(asked, payload=payload), task.log)
            yield from verified(blocks, group)

    def truncate(self, due: Sequence[TruncateOne], listing: LogListing) -> list[QueueTruncated]:
        """Truncate many queues, each as far as its consumers allow.

        It is refused ("reopened") if the log was opened again since *listing*: it may have gone back, and then other
        records are at these positions.
        """
        asked = (bulk_calls.truncate(each, listing.opening) for each in bulk_calls.parts(due))
        return self._each(asked, listing.log)


def _listing_of(page: QueuesResponse, queues: Mapping[str, QueueResponse]) -> LogListing:
    at = None if page.at is None else LogAt(page.at.nonce, page.at.batch)
    return LogListing(page.log, page.opening, at, queues)


def requests_for(ranges: Iterable[ReadRange]) -> Iterator[list[ReadRange]]:
    """Gather *ranges*, in order, into requests of about `FETCH_BYTES`."""
    group, size, records = list[ReadRange](), 0, 0
    for each in ranges:
        is_full = size + each.bytes > FETCH_BYTES or records + each.records > FETCH_RECORDS
        if group and (is_full or len(group) == QUEUES_AT_ONCE):
            yield group
            group, size, records = [], 0, 0
        group.append(each)
        size, records = size + each.bytes, records + each.records
    if group:
        yield group


def verified(blocks: Iterable[Block], ranges: Sequence[ReadRange]) -> Iterator[Block]:
    """Yield *blocks* as long as they match *ranges*: the same queues, positions and number of records.

    Raises:
        RangeDiffersError: at the first block that does not match, or at the end if records are missing.
    """
    left = [(each.queue, each.id, each.start, each.stop, each.records) for each in reversed(ranges)]
    for block in blocks:
        while left and left[-1][4] == 0:
            left.pop()
        queue, queue_id, start, stop, records = left.pop() if left else ("", 0, 0, 0, 0)
        is_due = (block.queue, block.queue_id) == (queue, queue_id) and block.record_count <= records
        if not is_due or not start <= block.first_position <= block.next_position <= stop:
            raise RangeDiffersError(
                f"the service sent {block.record_count} records of queue {block.queue!r} at {block.first_position}, "
                f"where {records} of {queue!r} from {start} on were planned"
            )
        left.append((queue, queue_id, block.next_position, stop, records - block.record_count))
        yield block
    if missing := sum(each[4] for each in left):
        raise RangeDiffersError(f"the response of the service ended {missing} records early")
