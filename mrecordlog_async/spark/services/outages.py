"""Tracks which servers of a query are down, and decides what follows for the others.

| `failOnServerDown` | a server that does not respond |
|---|---|
| true | is waited for (`serverWait`), all others with it; then the query fails |
| atEnd | is skipped; a run that ends fails once the others are read and it has been down for `serverWait` |
| false | is skipped |

A server that refuses to list its queues (a wrong token, or another program at its address) is down, too. With `true` it
fails the query at once. One that was found by a DNS name is waited for wherever that name finds it.

One that is skipped gets no request but a probe in the background, after a pause (see `servers.outages`). So a server
that hangs delays the others once, by one timeout:

| a server is | by | until |
|---|---|---|
| listed | `skipped_until` is None | a failure is reported: it pauses |
| pausing | `skipped_until` | that time: it is probed |
| probed | `probe` | the probe ends: it is listed if it responded, otherwise it pauses |

Whether it is down for a run is another question: its absence ends with a listing after which no request has failed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from mrecordlog_async.spark.services.connection import ServerDownError
from mrecordlog_async.spark.services.servers import Failure, Probe, QueryServer, QueryServers
from mrecordlog_async.spark.settings.option_values import WhenDown
from mrecordlog_async.spark.settings.options import Options

logger = logging.getLogger("mrecordlog_async.spark")

T = TypeVar("T")

POLL_SECONDS = 0.2


class Outages:
    """The servers of one query that do not respond. For one thread, except `is_down`: there one for each server."""

    def __init__(self, options: Options, wait_seconds: float, servers: QueryServers) -> None:
        """wait_seconds: how long `wait` waits for a server."""
        self._fails = options.when_down is WhenDown.FAIL
        self._wait_seconds = wait_seconds
        self._servers = servers

    @property
    def now(self) -> dict[str, str]:
        """The servers that are skipped, and why, as of the last listing."""
        return {each.name: each.why.reason for each in self._servers.every() if each.down and each.why is not None}

    @property
    def has_reached_any(self) -> bool:
        """True if any server has responded."""
        return any(each.reached for each in self._servers.every())

    def report(self, error: Failure) -> None:
        """Raise *error*; if the options say so, skip the server for a while instead."""
        if self._fails:
            raise error
        server = self._servers[error.server]
        if server.skipped_until is None:
            # It responds to every probe if it refuses the listing only: one warning is enough.
            if server.absence.since is None or str(error) != str(server.why):
                logger.warning("%s; skipping it until it responds, its queues keep their positions", error)
            server.why = error
            server.absence.begin(_clock())
            self._pause(server)
        server.down = True

    def begin(self) -> None:
        """Begin another listing. What responded to the last one, and to all requests since, is no longer down."""
        for server in self._servers.every():
            # Not as soon as it is listed: one that fails every other request would never be down for long.
            if server.responded and not server.down:
                server.absence.end()
            server.responded = server.down = False

    def responded(self, server: QueryServer) -> None:
        """Note that *server* responded to the listing."""
        server.reached = server.responded = True
        server.skipped_until = None

    def is_down(self, server: QueryServer) -> bool:
        """Return whether *server* gets no request. It is probed in the background: one that hangs delays no other."""
        if server.skipped_until is None:
            return False
        if server.probe is None:
            if _clock() >= server.skipped_until:
                server.probe = Probe(self._servers.new_client(server.name))
            return True
        if server.probe.responds is None:
            return True
        responds, server.probe = server.probe.responds, None
        if responds:
            server.skipped_until = None
            return False
        self._pause(server)
        return True

    def wait(self, *, known: bool = False) -> None:
        """Wait a moment, because servers are down that a run cannot end without.

        Each is waited for until it has been down for `wait_seconds`, so not at all if the others took longer.

        Args:
            known: the servers had what is waited for; otherwise one that has never responded is not waited for.

        Raises:
            ServerDownError, ServiceRefusedError: one of them has been down for too long.
        """
        now = _clock()
        for server in self._servers.every():
            if not server.down or server.why is None:
                continue
            since = now if server.absence.since is None else server.absence.since
            if not (known or server.reached) or now >= since + self._wait_seconds:
                raise server.why
        _sleep(POLL_SECONDS)

    def repeated(self, call: Callable[[], T]) -> T:
        """Return what *call* returns. If servers are found by DNS names, repeat it while one may be elsewhere soon.

        Raises:
            ServerDownError: a server was down for too long, none has responded before, or all have fixed addresses.
        """
        waits = self._fails and self.has_reached_any and bool(self._servers.lookups)
        begun = _clock()
        while True:
            try:
                return call()
            except ServerDownError:
                if not waits or _clock() >= begun + self._wait_seconds:
                    raise
            _sleep(POLL_SECONDS)

    def _pause(self, server: QueryServer) -> None:
        now = _clock()
        server.skipped_until = now + server.absence.pause(now)


_clock: Callable[[], float] = time.monotonic
_sleep: Callable[[float], None] = time.sleep
