"""`RecordLogFleet`: several services as one, for producers and consumers.

    async with RecordLogFleet("dns+http://wal:8080") as fleet:
        await fleet.append_record("clicks", b"one click", key="user 7")

A machine holds one log. A fleet stores each record in one of several: which one is decided by its key, and by what
responds. How that is found out is in `membership` and `roster`, where a record goes in `routing`, and what follows a
failure in `decisions`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Self
from uuid import UUID

from mrecordlog_async.batches import check_seconds, not_acknowledged
from mrecordlog_async.client.client import RecordLogClient
from mrecordlog_async.client.fleet.consumer import FleetConsumer
from mrecordlog_async.client.fleet.decisions import OnUnknown, Policy, passes
from mrecordlog_async.client.fleet.lane import Lane
from mrecordlog_async.client.fleet.membership import Membership, Resolver
from mrecordlog_async.client.fleet.placement import FleetError, Key, Placement, Stored
from mrecordlog_async.client.fleet.producer import FleetProducer
from mrecordlog_async.client.fleet.server import Connecting, Server, ServerSummary, Tokens
from mrecordlog_async.client.options import check_token
from mrecordlog_async.errors import QueueSealedError, RecordLogError
from mrecordlog_async.model import copy_payload
from mrecordlog_async.options import QueueOptions, check_type
from mrecordlog_async.protocol.attempts import OutcomeUnknownError, ServiceUnreachableError
from mrecordlog_async.record_log import Payload
from mrecordlog_async.servers.names import Endpoint, names_of, parse
from mrecordlog_async.support.coroutine_mark import coroutine_function

WAIT_SECONDS = 30 * 86_400.0
"""Seconds that `on_unknown="wait"` repeats an append whose response was lost: until somebody ends the wait."""


class RecordLogFleet:
    """Append to several services, and consume all of them. Use it as `async with`, or call `start` and `close`.

    A record goes to one server: that of its key, as long as it takes records. Servers come and go: addresses are looked
    up and probed every 10 s, and after failures. The order of the records of a key is that of the calls on each server,
    not across a fail-over and the return from it, and not for a record that waits for space. A cancelled append may be
    stored or not.

    Args:
        servers: URLs (`http://host:port`, `unix:/path`), with names too (`a=http://host:port`, or a mapping), or
            `dns+http://host:port` for every address of a name; `dns+http://_port._tcp.host` for its SRV records
            (needs dnspython). Several in one text are separated by commas.
        token: Bearer token, if the services require one.
        tokens: Tokens of single servers, by the names that you gave them (`a=http://host:port`), or of all servers
            behind a DNS name (`wal=dns+http://wal:8080`). *token* is for the others.
        retry_seconds: How long a call waits for a server that takes the record, for space in a full one, and for the
            response to a repeat.
        on_unknown: What follows if a response was lost, so that the record may be stored. "raise":
            OutcomeUnknownError. "wait": repeat it at the same server, which recognizes the repeat, until it responds;
            OutcomeUnknownError only if the same bytes were already there before the first repeat.
            "send_elsewhere": send it to another server; it may then be stored twice.
        spill: Pass over a server that is full, instead of waiting for space there.
        resolver: What looks up names; None for the resolver of the event loop.
        timeout_seconds: Longest silence within one request. A request to a server that was silent at two looks
            ends before.
        response_seconds: Longest time for one request with its whole response.
        connections: Calls in progress at each server.
        clock: Returns the time in seconds, for every decision that depends on it; for tests.

    Raises:
        ValueError: A server is not a URL, a token holds a line break, is for a name that no server has or
            for a URL with a user name, or `on_unknown` is not one of the three; raised at once.
        FleetError: Two copies of a log run at once, or an address leads to changing logs; raised by `start`, and by
            appends if no other server is left.
        OutcomeUnknownError: The record may be stored, and that could not be settled.
        LogFullError: The server of the record, or with `spill` every server, had no room within `retry_seconds`.
        ServiceUnreachableError: No server took the record within `retry_seconds`; it is not stored.
        LogClosedError: The fleet is closed, or was not entered.
    """

    def __init__(
        self,
        servers: str | Mapping[str, str] | Iterable[str],
        *,
        token: str | None = None,
        tokens: Mapping[str, str] | None = None,
        retry_seconds: float = 30.0,
        on_unknown: OnUnknown = "raise",
        spill: bool = False,
        resolver: Resolver | None = None,
        timeout_seconds: float = 60.0,
        response_seconds: float = 300.0,
        connections: int = 128,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if on_unknown not in ("raise", "wait", "send_elsewhere"):
            raise ValueError(f"on_unknown must be 'raise', 'wait' or 'send_elsewhere', not {on_unknown!r}")
        self._waits = on_unknown == "wait"
        wanted = parse(servers)
        checked = _checked(tokens or {}, token, names_of(wanted))
        for place in wanted:
            if isinstance(place, Endpoint):
                check_token(checked.of(place), place.url)
        self._membership = Membership(
            wanted,
            resolver or Resolver(),
            Connecting(checked, timeout_seconds, response_seconds, connections),
            clock,
            WAIT_SECONDS if on_unknown == "wait" else retry_seconds,
        )
        self._placement = Placement(self._membership, Policy(on_unknown, spill), retry_seconds, clock)
        self._shared: dict[tuple[Server, str], Lane] = {}  # by queue, with on_unknown="wait"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Look at every server. Those that do not respond yet are found later.

        Raises:
            FleetError: Two copies of a log run at once, or an address leads to changing logs.
        """
        await self._membership.start()
        if refusals := self._membership.refusals():
            await self._membership.close()
            raise FleetError("; ".join(refusals))
        self._placement.is_open = True

    async def close(self) -> None:
        """Close all connections. Later calls raise LogClosedError."""
        self._placement.is_open = False
        await self._membership.close()

    # Servers.

    def servers(self) -> list[ServerSummary]:
        """Return every server that was ever seen, by name."""
        return sorted(
            (one.summary() for one in self._membership.servers.values()), key=lambda one: (one.name, one.log_id)
        )

    def failures(self) -> dict[str, str]:
        """Return why addresses and names gave no server at the last look, by address or name."""
        return dict(self._membership.failures)

    async def look(self) -> None:
        """Look up names and probe every server now, instead of within 10 s."""
        self._placement.check_open()
        await self._membership.look_soon()

    def client(self, log_id: str) -> RecordLogClient:
        """Return the client of one server, for what a fleet has no method for. The fleet closes it.

        Args:
            log_id: Its log, as in `servers`.

        Raises:
            KeyError: No such log was seen.
        """
        return self._membership.servers[log_id].client

    async def forget(self, log_id: str) -> None:
        """Forget a log that will not come back, so that no consumer waits for it.

        Args:
            log_id: Its log, as in `servers`.

        Raises:
            KeyError: No such log was seen.
        """
        await self._membership.forget(log_id).close()

    # Changes.

    @coroutine_function
    def append_record(self, queue: str, payload: Payload, *, key: Key | None = None) -> Coroutine[Any, Any, Stored]:
        """Append *payload* to *queue* on one server and wait until it is stored there.

        The queue is created where it does not exist. See `RecordLogFleet` for errors and for what follows a failure.

        Args:
            queue: Its name.
            payload: The record; it may be empty.
            key: Records with the same key go to the same server, as long as that takes records; None for the queue's
                name, which keeps all records of the queue together.

        Returns:
            Where the record is stored.
        """
        record = copy_payload(payload)  # at once, as in the log

        async def store(server: Server) -> int | None:
            if self._waits:
                return await self._lane(server, queue).append([record])
            return await server.appends.append(queue, record, create=True)

        return self._placement.place(queue, key, store)

    async def create_queue(self, queue: str, *, options: QueueOptions | None = None) -> None:
        """Create *queue* on every server where it does not exist.

        A server that is found later gets it when it is used, and then with the default options. A producer with
        *options* creates it with these everywhere.

        Args:
            queue: Its name.
            options: Its options, where it is created.

        Raises:
            ServiceUnreachableError: A server does not respond, or an address never has; the others have the queue.
                Call it again.
        """
        if options is not None:
            check_type("options", options, QueueOptions)
        await self._everywhere(lambda server: server.client.create_queue(queue, exist_ok=True, options=options))

    async def seal_queue(self, queue: str) -> None:
        """Seal *queue* on every server, where it is created if it does not exist: consumers of the fleet then end.

        Args:
            queue: Its name.

        Raises:
            ServiceUnreachableError: A server does not respond, or an address never has; on the others the queue is
                sealed. Call it again.
        """

        async def seal(server: Server) -> None:
            await server.client.create_queue(queue, exist_ok=True)
            try:
                await server.client.seal_queue(queue)
            except QueueSealedError:
                pass
            except OutcomeUnknownError as error:
                if not isinstance(error.__cause__, QueueSealedError):
                    raise

        await self._everywhere(seal)

    # Producers and consumers.

    def producer(self, queue: str, *, options: QueueOptions | None = None) -> FleetProducer:
        """Return a producer for *queue*: appends by one writer, each stored once even if it must be sent again.

        Args:
            queue: Its name.
            options: Its options, where it is created.

        Returns:
            The producer; use it as `async with`. A queue may have one producer at a time, on all servers together.
        """
        return FleetProducer(self._placement, self._membership, queue, options)

    def consumer(
        self,
        queue: str,
        consumer: str,
        *,
        create: bool = True,
        owner: UUID | str | None = None,
        take_over: bool = False,
    ) -> FleetConsumer:
        """Return the holder of *consumer* on every server: `async with fleet.consumer("clicks", "lake") as c`.

        Args:
            queue: The queue, which may not exist yet; or a pattern with `*`, which becomes a rule on every server: all
                queues that match have the consumer from their creation on. Each queue of each server keeps a
                connection, on which a request waits for records.
            consumer: The name.
            create: Create it where it does not exist; it begins at the first retained record.
            owner: A UUID that alone may attach to the consumer from now on; None for a consumer without an owner.
            take_over: Attach even if the consumer has another owner.

        Returns:
            The consumer. Entering it raises ConsumerNotFoundError or ConsumerOwnedError.
        """
        return FleetConsumer(self._membership, queue, consumer, create=create, owner=owner, take_over=take_over)

    async def wait_acknowledged(self, stored: Stored, consumer: str, *, timeout: float | None = None) -> None:
        """Wait until *consumer* has acknowledged what was stored at *stored*; see `MultiRecordLog.wait_acknowledged`.

        A server that is away is waited for.

        Args:
            stored: What an append of this fleet or of its producers returned.
            consumer: The consumer.
            timeout: Seconds to wait; None waits without limit.

        Raises:
            TimeoutError: The time is over.
            KeyError: No such log was seen, or it was forgotten.
            LogClosedError: The fleet is closed, or was not entered.
        """
        self._placement.check_open()
        check_seconds("timeout", timeout, "the consumer")
        if stored.position is None:
            return
        try:
            async with asyncio.timeout(timeout):
                await self._wait_acknowledged(stored, stored.position, consumer)
        except TimeoutError:
            raise not_acknowledged(stored.queue, stored.position, consumer) from None

    async def _wait_acknowledged(self, stored: Stored, position: int, consumer: str) -> None:
        while True:
            server = self._membership.servers[stored.log_id]
            try:
                return await server.client.wait_acknowledged(stored.queue, position, consumer)
            except RecordLogError as error:
                if not passes(error):
                    raise
                self._membership.suspect(server)
            await self._membership.changed()

    def _lane(self, server: Server, queue: str) -> Lane:
        at = (server, queue)
        if at not in self._shared:
            self._shared[at] = Lane(server, queue, None, shares=True)
        return self._shared[at]

    async def _everywhere(self, call: Callable[[Server], Awaitable[object]]) -> None:
        """Call *call* for every server; raise the first error after all have ended."""
        self._placement.check_open()
        if self._membership.never_reached():
            await self._membership.look_soon()
        done = await asyncio.gather(*map(call, self._membership.servers.values()), return_exceptions=True)
        self._membership.announce()  # consumers of this fleet find the queue at once
        for result in done:
            if isinstance(result, BaseException):
                raise result
        for address, reason in self._membership.never_reached().items():
            raise ServiceUnreachableError(address, 0.0, reason)
        if not self._membership.servers:
            raise self._placement.exhausted(None)


def _checked(single: Mapping[str, str], others: str | None, names: Sequence[str]) -> Tokens:
    """Return the tokens. Raises ValueError for the token of a server that is not there."""
    for name in single:
        if name not in names:
            known = f"the servers are called {', '.join(names)}" if names else "no server has a name"
            raise ValueError(f"there is a token for the server {name!r}, but {known}: write {name}=http://host:port")
    for token in (others, *single.values()):
        check_token(token)
    return Tokens(dict(single), others)
