"""`Server`: one log of a fleet, wherever it is at present, with the clients that speak to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from mrecordlog_async.client.client import RecordLogClient
from mrecordlog_async.client.options import ClientOptions
from mrecordlog_async.client.sender import Sender
from mrecordlog_async.client.transport import Transport
from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.protocol import calls
from mrecordlog_async.protocol.attempts import ServiceUnreachableError
from mrecordlog_async.servers.names import Endpoint
from mrecordlog_async.servers.outages import Absence
from mrecordlog_async.servers.roster import Seen

PROBE_SECONDS = 5.0
SETTLE_SECONDS = 2.0
"""Seconds that a read or an acknowledgement whose response was lost is repeated before its caller gets an error."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Bearer tokens: those of single servers, by the names that the user gave, and the one of all others."""

    single: Mapping[str, str] = field(default_factory=dict, repr=False)
    others: str | None = field(default=None, repr=False)

    def of(self, endpoint: Endpoint) -> str | None:
        """Return the token to send to *endpoint*. It is that of the endpoint: a log that moves brings none along."""
        return self.single.get(endpoint.token_name, self.others)


class Connecting(NamedTuple):
    """Connection options that the clients of all servers of a fleet have in common."""

    tokens: Tokens
    timeout_seconds: float
    response_seconds: float
    connections: int

    def client(self, endpoint: Endpoint, *, log_id: str | None, retry_seconds: float) -> RecordLogClient:
        """Return a client of one log. It does not wait for a server that cannot be reached, and can be moved."""
        options = ClientOptions(
            endpoint,
            self.tokens.of(endpoint),
            retry_seconds,
            self.timeout_seconds,
            self.response_seconds,
            self.connections,
            log_id,
        )
        return RecordLogClient.over(Sender(Transport(options, pins=True), retry_seconds, eager=True))


class ServerSummary(NamedTuple):
    """One server of a fleet.

    log_id: identifies its log. name: `serve --name`, or the name that the fleet was given. url: where it was last seen.
    reads: it responds. writes: it takes records. refused: why it is not used; None if it is.
    """

    log_id: str
    name: str
    url: str
    reads: bool
    writes: bool
    refused: str | None


class SilentError(ServiceUnreachableError):
    """Nothing at all responds at an endpoint: its service hangs, or the network does not reach it."""


class Server:
    """One log of a fleet. What a probe shows is in `reads` and `writes`; a failure clears them until the next probe."""

    def __init__(self, log_id: str, endpoint: Endpoint, connecting: Connecting, retry_seconds: float) -> None:
        """*retry_seconds*: how long an append whose response was lost is repeated, if a repeat can be recognized."""
        self.log_id = log_id
        self.name = endpoint.name or log_id
        self.endpoint = endpoint
        self.reads = self.writes = False
        self._was_silent = False  # at the last look
        self._absence = Absence()  # by probes: since when it has not taken records
        self.refused: str | None = None
        self.opening = ""
        self._tokens = connecting.tokens
        self.client = connecting.client(endpoint, log_id=log_id, retry_seconds=SETTLE_SECONDS)
        self.appends = connecting.client(endpoint, log_id=log_id, retry_seconds=retry_seconds)

    def __repr__(self) -> str:
        return f"<Server {self.name!r} at {self.endpoint}>"

    def found(self, endpoint: Endpoint, seen: Seen, refused: str | None, now: float) -> None:
        """Note that a probe has found the log at *endpoint*."""
        if endpoint != self.endpoint:
            for client in (self.client, self.appends):
                client.sender.transport.move(endpoint, self._tokens.of(endpoint))
        self.endpoint, self.refused, self.opening, self._was_silent = endpoint, refused, seen.opening, False
        self.name = endpoint.name or seen.name
        self.reads, self.writes = refused is None, seen.ready and refused is None
        if self.writes:
            self._absence.end()
        else:
            self._absence.begin(now)

    def lost(self, now: float, *, silent: bool) -> None:
        """Note that no probe has found the log. The second time that its endpoint was *silent*, calls wait no longer.

        A server that hangs keeps its connections, and calls would wait for `timeout_seconds`. One that refuses probes,
        because it stops or has too many connections, still responds to the calls that it has.
        """
        if silent and self._was_silent:
            for client in (self.client, self.appends):
                client.sender.transport.end_exchanges()
        self._was_silent = silent
        self.reads = self.writes = False
        self._absence.begin(now)

    def is_expected(self, now: float) -> bool:
        """Return whether it does not take records and may do so at any moment: most outages are restarts."""
        return not (self.writes or self.refused) and self._absence.is_expected(now)

    def summary(self) -> ServerSummary:
        """Return what users see of it."""
        return ServerSummary(self.log_id, self.name, str(self.endpoint), self.reads, self.writes, self.refused)

    async def close(self) -> None:
        """Close all connections."""
        await self.client.close()
        await self.appends.close()


async def probe(endpoint: Endpoint, connecting: Connecting) -> Seen:
    """Return what responds at *endpoint*, over its own connection: a load balancer chooses for each connection.

    Raises:
        SilentError: Nothing responds.
        RecordLogError: What responds is not a service of this package, or refuses the connection.
    """
    quick = connecting._replace(timeout_seconds=PROBE_SECONDS, response_seconds=PROBE_SECONDS)
    async with quick.client(endpoint, log_id=None, retry_seconds=0.0) as client:
        try:
            info = await client.log_info()
        except ServiceUnreachableError as error:
            if client.sender.met_silence:
                raise SilentError(error.address, error.seconds, error.reason, error.sent) from error
            raise
        return Seen(info.id, info.opening, info.name, await _is_ready(client))


async def _is_ready(client: RecordLogClient) -> bool:
    """Return whether the service takes records."""
    try:
        await client.sender.send(calls.ready())
    except RecordLogError:
        return False
    return True
