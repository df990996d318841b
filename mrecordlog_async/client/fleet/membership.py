"""Keeps the servers of a fleet up to date: looks up names, probes addresses, and says when something has changed.

1. Names are looked up and every endpoint is probed every `LOOK_SECONDS`. In the first minute in which a server does not
   respond or takes no records, endpoints are probed every one and a half `RETRY_SECONDS`.
2. A new endpoint is probed `PROBES_OF_NEW` times, over a connection each. A doubt (another id, another opening) is
   settled by more rounds of probes before anything is sent there.
3. A log that was seen once stays known until `forget`, wherever it is: its records are there.

What the probes mean is decided in `roster`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress

from mrecordlog_async.client.fleet.server import Connecting, Server, SilentError, probe
from mrecordlog_async.errors import LogClosedError, RecordLogError
from mrecordlog_async.protocol.attempts import ServiceUnreachableError
from mrecordlog_async.servers import resolve
from mrecordlog_async.servers.names import Endpoint, Lookup
from mrecordlog_async.servers.outages import LOOK_SECONDS, RETRY_SECONDS
from mrecordlog_async.servers.roster import PROBES_OF_NEW, Roster

ROUNDS_IN_DOUBT = 3

logger = logging.getLogger("mrecordlog_async.client")


class Resolver:
    """Finds the servers of a DNS name. Another one can be passed to `RecordLogFleet`."""

    async def addresses(self, host: str, port: int) -> Sequence[str]:
        """Return the addresses of *host*. Raises OSError if there are none, or no name server responds."""
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return sorted({str(address[0]) for *_, address in found})

    async def services(self, name: str) -> Sequence[tuple[str, int]]:
        """Return host and port of each SRV record of *name*. Raises OSError as `addresses` does."""
        return await asyncio.to_thread(resolve.services, name)


async def look_up(lookup: Lookup, resolver: Resolver) -> list[Endpoint]:
    """Return the servers of a DNS name. Raises OSError."""
    if lookup.port is None:
        return lookup.on(await resolver.services(lookup.host))
    return lookup.at(await resolver.addresses(lookup.host, lookup.port))


class Membership:
    """The servers of one fleet, by the id of their logs. Belongs to one event loop."""

    def __init__(
        self,
        wanted: Sequence[Endpoint | Lookup],
        resolver: Resolver,
        connecting: Connecting,
        clock: Callable[[], float],
        retry_seconds: float,
    ) -> None:
        self.servers: dict[str, Server] = {}
        self.failures: dict[str, str] = {}  # endpoint or name → why it gave nothing at the last look
        self._wanted = wanted
        self._resolver = resolver
        self._connecting = connecting
        self._clock = clock
        self._retry_seconds = retry_seconds
        self._roster = Roster()
        self._found: dict[Lookup, list[Endpoint]] = {}
        self._looked_up_at: float | None = None
        self._changed = asyncio.Event()
        self._suspicion = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._reported: set[str] = set()
        self._silent: set[Endpoint] = set()  # at their last probes

    async def start(self) -> None:
        """Look at every server once, and then again and again until `close`."""
        await self.look()
        self._watching = asyncio.create_task(self._watch(), name="servers of a fleet")

    async def close(self) -> None:
        """Stop looking, and close all connections. What waits for a look gets LogClosedError."""
        watching, self._watching = self._watching, None
        self.announce()
        if watching is not None:
            watching.cancel()
            await asyncio.wait((watching,))
        for server in self.servers.values():
            await server.close()

    def suspect(self, server: Server) -> None:
        """Have *server* probed soon: a call has failed there."""
        server.writes = False
        self._suspicion.set()

    def forget(self, log_id: str) -> Server:
        """Remove a log that will not come back. If it does, it is another `Server`."""
        forgotten = self.servers.pop(log_id)
        self.announce()
        return forgotten

    def knows(self, server: Server) -> bool:
        """Return whether *server* was not forgotten."""
        return self.servers.get(server.log_id) is server

    def addresses(self) -> list[str]:
        """Return the addresses and names that the user gave."""
        return [str(one) for one in self._wanted]

    def never_reached(self) -> dict[str, str]:
        """Return the addresses and names that the user gave and that have shown no server yet, with the reasons.

        An address behind a name counts with the others of that name: not all of them are those of a service.
        """
        missing = [
            str(one)
            for one in self._wanted
            if (not self._found.get(one) if isinstance(one, Lookup) else self._roster.is_new(one))
        ]
        return {one: self.failures.get(one, "it has not responded yet") for one in missing}

    def refusals(self) -> list[str]:
        """Return why servers are refused."""
        return self._roster.refusals(self._clock())

    async def look_soon(self) -> None:
        """Have every server looked at, and wait for that."""
        self._suspicion.set()
        await self.changed()

    async def changed(self) -> None:
        """Wait until the servers were looked at again. Raises LogClosedError if nobody looks at them."""
        if self._watching is not None:
            await self._changed.wait()
        if self._watching is None:
            raise LogClosedError("the fleet is closed, or was not entered with `async with`")

    async def changed_within(self, seconds: float) -> None:
        """Wait as `changed` does, *seconds* at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.changed()

    async def look(self) -> None:
        """Look up the names if that is due, probe every endpoint, and settle what leaves a doubt."""
        await self._look_up()
        known = {str(one) for one in (*self._wanted, *self._roster.endpoints())}
        self.failures = {what: why for what, why in self.failures.items() if what in known}
        doubt = await self._probe_all()
        for _ in range(ROUNDS_IN_DOUBT):
            if not doubt:
                break
            doubt = await self._probe_all()
        self._take_over()
        self._report()
        self.announce()

    def announce(self) -> None:
        """Wake everybody who waits for `changed` now; one that waits later waits for the next look."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _watch(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS if self._is_settled() else RETRY_SECONDS):
                    await self._suspicion.wait()
            self._suspicion.clear()
            try:
                await self.look()
            except Exception:  # a bug, or a resolver of the user's: without this task no server would ever come back
                logger.exception("looking at the servers of a fleet failed; trying again in %g s", RETRY_SECONDS)
                await asyncio.sleep(RETRY_SECONDS)
            if not self._is_settled():
                await asyncio.sleep(RETRY_SECONDS / 2)  # calls that fail meanwhile cause no more probes than that

    def _is_settled(self) -> bool:
        """Return whether no server is expected back at any moment."""
        now = self._clock()
        return bool(self.servers) and not any(one.is_expected(now) for one in self.servers.values())

    async def _look_up(self) -> None:
        now = self._clock()
        if self._looked_up_at is None or now - self._looked_up_at >= LOOK_SECONDS or not self.servers:
            self._looked_up_at = now
            lookups = [one for one in self._wanted if isinstance(one, Lookup)]
            await asyncio.gather(*map(self._look_up_one, lookups))
        endpoints: list[Endpoint] = []
        for one in self._wanted:
            endpoints += self._found.get(one, []) if isinstance(one, Lookup) else [one]
        self._roster.note_listed(endpoints, self._clock())

    async def _look_up_one(self, lookup: Lookup) -> None:
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                self._found[lookup] = await look_up(lookup, self._resolver)
            self.failures.pop(str(lookup), None)
        except (OSError, TimeoutError) as error:  # keep what it returned last
            self.failures[str(lookup)] = str(error) or type(error).__name__

    async def _probe_all(self) -> bool:
        """Probe every endpoint at once; return whether that leaves a doubt."""
        self._silent.clear()
        return any(await asyncio.gather(*map(self._probe, self._roster.endpoints())))

    async def _probe(self, endpoint: Endpoint) -> bool:
        doubt = False
        for _ in range(PROBES_OF_NEW if self._roster.is_new(endpoint) else 1):
            asked = self._clock()
            try:
                seen = await probe(endpoint, self._connecting)
            except RecordLogError as error:
                reason = error.reason if isinstance(error, ServiceUnreachableError) else str(error)
                self.failures[str(endpoint)] = reason
                if isinstance(error, SilentError):
                    self._silent.add(endpoint)
                self._roster.miss(endpoint, self._clock())
                return doubt
            doubt = self._roster.see(endpoint, seen, asked, self._clock()) or doubt
        self.failures.pop(str(endpoint), None)
        return doubt

    def _take_over(self) -> None:
        """Bring the servers in line with the roster."""
        now, missing = self._clock(), dict(self.servers)
        for log_id, endpoint, seen in self._roster.logs():
            missing.pop(log_id, None)
            self._server(log_id, endpoint).found(endpoint, seen, self._roster.why_refused(log_id, endpoint, now), now)
        for server in missing.values():
            server.lost(now, silent=server.endpoint in self._silent)

    def _server(self, log_id: str, endpoint: Endpoint) -> Server:
        if log_id not in self.servers:
            self.servers[log_id] = Server(log_id, endpoint, self._connecting, self._retry_seconds)
        return self.servers[log_id]

    def _report(self) -> None:
        refusals = set(self.refusals())
        for why in sorted(refusals - self._reported):
            logger.error("%s", why)
        self._reported = refusals
