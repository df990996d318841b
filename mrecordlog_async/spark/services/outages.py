"""Which servers of a query do not respond, and what follows for the others.

| `failOnServerDown` | a server that does not respond |
|---|---|
| true | is waited for (`serverWait`), all others with it; then the query fails |
| atEnd | is skipped; a run that ends fails once the others are read and it has been down for `serverWait` |
| false | is skipped |

A server that refuses to list its queues (a wrong token, or another program at its address) is down, too. With `true` it
fails the query at once. One that was found by a DNS name is waited for wherever that name finds it.

One that is skipped gets no request but a probe in the background, after a pause that grows up to `PAUSE_SECONDS_MAX`.
So a server that hangs delays the others once, by one timeout.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from mrecordlog_async.spark.services.connection import ServerDownError, ServiceRefusedError
from mrecordlog_async.spark.services.probe import Probe
from mrecordlog_async.spark.settings.options import Options

logger = logging.getLogger("mrecordlog_async.spark")

T = TypeVar("T")

PAUSE_SECONDS = 1.0
PAUSE_SECONDS_MAX = 10.0
"""How long a server that was down is not even probed: shortly at first, because most outages are restarts."""

POLL_SECONDS = 0.2

Failure = ServerDownError | ServiceRefusedError
"""Why a server is down: it does not respond, or it refuses what every query requests."""


class Outages:
    """The servers of one fleet that do not respond. For one thread, except `is_down`: there one for each server."""

    def __init__(self, options: Options, wait_seconds: float, probe: Callable[[str], Probe]) -> None:
        """*probe* begins to probe a server. wait_seconds: how long `wait` waits for one."""
        self.now: dict[str, str] = {}  # server → the reason, as of the last listing
        self._fails = options.fail_on_server_down
        self._wait_seconds = wait_seconds
        self._probe = probe
        self._reached: set[str] = set()  # servers that have responded once
        self._listed: set[str] = set()  # servers that responded to the last listing
        self._since: dict[str, float] = {}
        self._until: dict[str, float] = {}  # not probed before
        self._pauses: dict[str, float] = {}
        self._probes: dict[str, Probe] = {}
        self._errors: dict[str, Failure] = {}

    @property
    def has_reached_any(self) -> bool:
        """Whether any server has responded."""
        return bool(self._reached)

    def report(self, error: Failure) -> None:
        """Raise *error*; if the options say so, skip the server for a while instead."""
        if self._fails:
            raise error
        name = error.server
        if name not in self._until:
            # It responds to every probe if it refuses the listing only: one warning is enough.
            if name not in self._since or str(error) != str(self._errors[name]):
                logger.warning("%s; skipping it until it responds, its queues keep their positions", error)
            self._errors[name] = error
            self._since.setdefault(name, _clock())
            self._pause(name)
        self.now[name] = self._errors[name].reason

    def begin(self) -> None:
        """Begin another listing. What responded to the last one, and to all requests since, is no longer down."""
        # Not as soon as it is listed: one that fails every other request would never be down for long.
        for name in self._listed - self.now.keys():
            self._since.pop(name, None)
            self._pauses.pop(name, None)
        self._listed, self.now = set(), {}

    def responded(self, name: str) -> None:
        """Note that the server *name* responded to the listing."""
        self._reached.add(name)
        self._listed.add(name)
        self._until.pop(name, None)

    def is_down(self, name: str) -> bool:
        """Return whether *name* gets no request. It is probed in the background: one that hangs must delay no other."""
        until, probe = self._until.get(name), self._probes.get(name)
        if until is None:
            return False
        if probe is None:
            if _clock() >= until:
                self._probes[name] = self._probe(name)
            return True
        if probe.responds is None:
            return True
        del self._probes[name]
        if probe.responds:
            del self._until[name]
            return False
        self._pause(name)
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
        for name in self.now:
            waits = known or name in self._reached
            if not waits or now >= self._since.get(name, now) + self._wait_seconds:
                raise self._errors[name]
        _sleep(POLL_SECONDS)

    def repeated(self, call: Callable[[], T]) -> T:
        """Return what *call* returns, and repeat it for as long as a server is waited for that may move meanwhile.

        Raises:
            ServerDownError: a server was down for too long, or none has responded before.
        """
        waits, begun = self._fails and self.has_reached_any, _clock()
        while True:
            try:
                return call()
            except ServerDownError:
                if not waits or _clock() >= begun + self._wait_seconds:
                    raise
            _sleep(POLL_SECONDS)

    def _pause(self, name: str) -> None:
        pause = self._pauses.get(name, PAUSE_SECONDS)
        self._until[name], self._pauses[name] = _clock() + pause, min(2 * pause, PAUSE_SECONDS_MAX)


_clock: Callable[[], float] = time.monotonic
_sleep: Callable[[float], None] = time.sleep
