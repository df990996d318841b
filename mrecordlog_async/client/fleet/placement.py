"""`Placement`: stores one thing at the server of its key, or at the next one that takes it.

A call tries the servers in the order of `routing` and does after each failure what `decisions` says, until the record
is stored, an error ends it, or `retry_seconds` have passed.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple

from mrecordlog_async.client.fleet.decisions import Next, Policy, as_raised, decide, takes_no_records
from mrecordlog_async.client.fleet.membership import Membership
from mrecordlog_async.client.fleet.server import Server
from mrecordlog_async.errors import LogClosedError, LogFullError, RecordLogError
from mrecordlog_async.names import check_name
from mrecordlog_async.protocol.attempts import OutcomeUnknownError, ServiceUnreachableError
from mrecordlog_async.servers.routing import Routing, slot_of

FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 1.0

Key = str | bytes


class Stored(NamedTuple):
    """Place of a record: (log_id, queue, position). server: the name of the service. position: None without records."""

    log_id: str
    server: str
    queue: str
    position: int | None


class FleetError(RecordLogError):
    """The servers cannot be used as a fleet: two copies of one log run at once, or a load balancer is among them.

    Attributes:
        reason: Which servers, and what to do.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def message(self) -> str:
        """Return the reason."""
        return self.reason


Store = Callable[[Server], Awaitable[int | None]]
"""Makes one attempt to store something at a server; returns the position of the last record."""


class Placement:
    """Chooses the servers of one fleet's records."""

    def __init__(
        self, membership: Membership, policy: Policy, retry_seconds: float, clock: Callable[[], float]
    ) -> None:
        self._membership = membership
        self._policy = policy
        self._retry_seconds = retry_seconds
        self._clock = clock
        self._routing = Routing()
        self.is_open = False

    async def place(self, queue: str, key: Key | None, store: Store) -> Stored:
        """Store something at the server of *key*, or at the next one that takes it; *store* makes one attempt."""
        self.check_open()
        check_name(queue)  # not every name has a UTF-8 to hash, and no server would take another one
        slot = slot_of(queue if key is None else key)
        deadline, pause = self._clock() + self._retry_seconds, FIRST_PAUSE_SECONDS
        failure: RecordLogError | None = None
        while True:
            for server in self._candidates(slot):
                try:
                    position = await store(server)
                except RecordLogError as error:
                    failure = self._after(error, server, failure)
                    if decide(error, self._policy) is Next.WAIT:
                        break
                else:
                    self._routing.stored(slot, server.log_id, self._clock())
                    return Stored(server.log_id, server.name, queue, position)
            if self._clock() + pause > deadline:
                raise self.exhausted(failure)
            await self._membership.changed_within(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
            self.check_open()

    def _after(self, error: RecordLogError, server: Server, before: RecordLogError | None) -> RecordLogError:
        """Note a failure; raise it if it ends the call. Return what to raise if no server takes the record."""
        if takes_no_records(error):
            self._membership.suspect(server)
        raised = as_raised(error, server.name)
        if decide(error, self._policy) is Next.RAISE:
            raise raised
        # Once the record may be somewhere, nothing that follows makes that certain.
        return before if isinstance(before, OutcomeUnknownError) else raised

    def _candidates(self, slot: int) -> Iterator[Server]:
        """Yield the servers that may take a record of *slot*, the preferred one first."""
        servers = self._membership.servers
        self._routing.use(servers)
        for log_id in self._routing.order(slot, self._clock()):
            # Asked before each attempt: a server may have been lost during the one before.
            if log_id in servers and servers[log_id].writes:
                yield servers[log_id]

    def exhausted(self, failure: RecordLogError | None) -> RecordLogError:
        """Return the error of a call for which no server was found in time."""
        if isinstance(failure, LogFullError | OutcomeUnknownError):
            return failure
        if refusals := self._membership.refusals():
            return FleetError("; ".join(refusals))
        known = [str(one.endpoint) for one in self._membership.servers.values()] or self._membership.addresses()
        reasons = [str(failure)] if failure is not None else [*self._membership.failures.values()]
        reason = "; ".join(reasons) or "no server takes records"
        return ServiceUnreachableError(", ".join(known), self._retry_seconds, reason)

    def check_open(self) -> None:
        """Raise LogClosedError unless the fleet is open."""
        if not self.is_open:
            raise LogClosedError("the fleet is closed, or was not entered with `async with`")
