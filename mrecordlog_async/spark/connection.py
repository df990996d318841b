"""The connection to one service: one exchange per call, repeated until it succeeds or is refused. Blocking.

An exchange sends a request, receives the whole body and decodes it. Failures on the way are retried, with growing,
randomised pauses: a connection that fails or stalls, a response that ends early or is malformed, and the statuses of
services and proxies that are not ready (429, 500, 502, 503, 504, with Retry-After as the shortest pause). If the
failure persists, `ServerDownError` is raised; any other refusal raises `ServiceRefusedError` at once.

How long: `retries` times; a service that has responded before is waited for up to `patience_seconds`.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping
from http.client import responses
from time import monotonic
from typing import Any, TypeVar

from mrecordlog_async.client.blocking_transport import BlockingTransport, run
from mrecordlog_async.client.options import ClientOptions
from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.protocol.attempts import NoResponseError, retry_after
from mrecordlog_async.protocol.calls import ServiceCall
from mrecordlog_async.protocol.log_schemas import LOG_ID
from mrecordlog_async.protocol.responses import ServiceError, problem_in
from mrecordlog_async.servers.names import Endpoint

T = TypeVar("T")

logger = logging.getLogger("mrecordlog_async.spark")

REPEATED_STATUSES = (429, 500, 502, 503, 504)
DAMAGED = "damaged"
"""The code of a 500 that stays: records on the disk of the service cannot be read."""
PAUSE_SECONDS = 0.1
PAUSE_SECONDS_MAX = 5.0
RETRY_AFTER_SECONDS_MAX = 60.0

WHOLE_TIMES = 6
"""A whole response may take this many times as long as a silence: one that trickles would never end otherwise."""


class ServiceRefusedError(RecordLogError):
    """A service refused a request.

    Attributes:
        server: the service's name.
        status: HTTP status of the response.
        code: identifies the problem, for programs; "" if the response has none.
        problem: the problem document that the service sent.
        origin: the name that options have for the server, if that is the one of its DNS name; "" for *server*.
    """

    def __init__(self, server: str, status: int, facts: Mapping[str, Any], origin: str = "") -> None:
        super().__init__(server, status, facts, origin)
        self.server = server
        self.origin = origin
        self.status = status
        self.problem = facts
        self.code = str(facts.get("code", ""))

    @property
    def reason(self) -> str:
        """Response of the service, and what to do about it."""
        detail = self.problem.get("detail") or self.problem.get("title")
        advice = ""
        if self.status == 401:
            name = self.origin or self.server
            advice = (
                f"; set --token-file, or --token-file {name}=FILE (the options token and token.{name} in Spark), to a "
                "token of this service"
            )
        if self.code == DAMAGED:
            advice = (
                "; `mrecordlog verify` lists all damage. To read on, truncate the queue past it, and accept the loss "
                "with --allow-data-loss (failOnDataLoss=false in Spark)"
            )
        return f"returned status {self.status}: {detail}{advice}"

    def message(self) -> str:
        """Return which service refused, and why."""
        return f"server {self.server!r} {self.reason}"


class ServerDownError(RecordLogError):
    """In every attempt, a service could not be reached, broke off its response, or was not ready."""

    def __init__(self, server: str, url: str, reason: str) -> None:
        super().__init__(server, url, reason)
        self.server = server
        self.url = url
        self.reason = reason

    def message(self) -> str:
        """Return which service failed, and how."""
        return (
            f"server {self.server!r} at {self.url} cannot be reached: {self.reason}; check that it runs at this address"
        )


class FailedAttemptError(Exception):
    """An attempt failed in a way that may pass: no whole response, a proxy's page, or a service that is not ready."""

    def __init__(self, reason: str, wait_seconds: float = 0.0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.wait_seconds = wait_seconds


class ServiceConnection:
    """The connections to one service, opened by requests. Nothing is opened before."""

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
        """Describe the service; nothing is opened."""
        self.server = server
        self.url = str(server)
        self.timeout_seconds = timeout_seconds  # longest silence; `WHOLE_TIMES` as long for a whole response
        self.retries = retries  # further attempts after a failed one
        self.patience_seconds = patience_seconds  # to wait for a service that has responded before, on top of them
        self.reached = reached  # it has responded, here or elsewhere
        self._options = ClientOptions(server, token, 0.0, timeout_seconds, WHOLE_TIMES * timeout_seconds, 1)
        self._transport = BlockingTransport(self._options)

    def send(self, call: ServiceCall[T], *, log: str = "", seconds: float | None = None) -> T:
        """Send *call* until it succeeds, and return its result.

        Args:
            call: the request.
            log: refuse the request unless the service has this log; "" for any.
            seconds: the longest time for each response; None for that of the connection.

        Raises:
            ServiceRefusedError: the service refused the request; sending it again would not help.
            ServerDownError: every attempt failed.
        """
        failures = Failures(self)
        call = call._replace(more={LOG_ID: log, **call.more}) if log else call
        while True:
            try:
                return self._attempt(call.until(None if seconds is None else monotonic() + seconds))
            except FailedAttemptError as failed:
                failures.add(failed.reason, failed.wait_seconds)

    def _attempt(self, call: ServiceCall[T]) -> T:
        try:
            reply = run(self._transport.exchange(call, 0.0))
        except (NoResponseError, TimeoutError) as lost:
            raise FailedAttemptError(str(lost)) from lost
        self.reached = True
        if reply.status >= 400:
            problem = {"title": responses.get(reply.status, ""), **problem_in(reply)}
            refusal = ServiceRefusedError(self.server.name, reply.status, problem, self.server.origin)
            if reply.status not in REPEATED_STATUSES or refusal.code == DAMAGED:
                raise refusal
            raise FailedAttemptError(str(refusal), min(retry_after(reply), RETRY_AFTER_SECONDS_MAX))
        try:
            return call.read(reply)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, ServiceError) as error:
            kind = reply.headers.get("Content-Type", "no type")
            raise FailedAttemptError(f"malformed response ({kind}): {type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Close the connections; the next request opens others."""
        run(self._transport.close())
        self._transport = BlockingTransport(self._options)


class Failures:
    """Counts the failures of one request, and pauses before the next attempt or raises when there is none left."""

    def __init__(self, connection: ServiceConnection) -> None:
        self._connection = connection
        self._left = connection.retries
        self._failures = 0
        self._since: float | None = None

    def add(self, reason: str, wait_seconds: float = 0.0) -> None:
        """Pause for at least *wait_seconds*. Raises ServerDownError when it is time to give up."""
        now = _clock()
        self._since = now if self._since is None else self._since
        server, url = self._connection.server.name, self._connection.url
        patient = self._connection.reached and now < self._since + self._connection.patience_seconds
        if self._left <= 0 and not patient:
            raise ServerDownError(server, url, reason)
        if self._left <= 0 or (self._failures == 0 and patient):
            level = logging.WARNING if self._left == 0 else logging.INFO
            logger.log(level, "server %r at %s: %s; retrying", server, url, reason)
        self._left -= 1
        # Doubled with each attempt, and randomised: many tasks may be waiting for the same server.
        pause = min(PAUSE_SECONDS * (1 << min(self._failures, 10)), PAUSE_SECONDS_MAX) * random.uniform(0.5, 1.0)
        self._failures += 1
        retries.count += 1
        _sleep(max(pause, wait_seconds))


class Retries:
    """Number of requests that this process has sent again."""

    count = 0


retries = Retries()


_clock: Callable[[], float] = time.monotonic
_sleep: Callable[[float], None] = time.sleep
