"""Decides when a request is sent again, and what is known when its sender stops. Pure: a transport sends, and pauses.

1. A request that was not sent (no connection) is retried, whatever it is.
2. After a lost response it is unknown whether the request was carried out. `Repeat` says what is allowed then.
3. 408, 429, 502, 503, 504 and 507 are temporary: the request is retried, never earlier than `Retry-After` says. So is a
   failed log: its service ends, and is started again. A 5xx that the service itself did not write comes from a proxy,
   which may have forwarded the request: it counts as a lost response.
4. Every other refusal ends the call. All attempts of one call end after `retry_seconds`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum, auto
from time import monotonic

from mrecordlog_async.errors import LogFailedError, RecordLogError
from mrecordlog_async.protocol.responses import Reply, error_of, written_by_service

FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 2.0
JITTER = 0.25
"""A pause that the service requested is extended by up to this fraction, so that clients do not all return at once."""

MAY_PASS = frozenset({408, 429, 502, 503, 504, 507})

LONG_SECONDS = 86_400.0
"""A call that is retried for longer has no end that is worth a number."""


class NoResponseError(Exception):
    """An attempt had no whole response.

    Attributes:
        reason: What it met instead.
        sent: The request may have reached the service.
    """

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.sent = sent


class OutcomeUnknownError(RecordLogError):
    """No response shows whether a change was made: it was lost, or it could be the one to another request.

    After an append: read the queue, or what its consumer stored, before appending the records again as new ones.

    Attributes:
        action: Method and path of the request.
        reason: Why the outcome is unknown.
    """

    def __init__(self, action: str, reason: str) -> None:
        super().__init__(action, reason)
        self.action = action
        self.reason = reason

    def message(self) -> str:
        """Return which outcome is unknown, and why."""
        return f"{self.action}: {self.reason}; whether the request was carried out is unknown"


class ServiceUnreachableError(RecordLogError):
    """The service could not be reached, or did not succeed, for as long as the client retries.

    Attributes:
        address: The URL of the service.
        seconds: How long the call was retried.
        reason: What the last attempt met.
        sent: Whether a request may have reached the service; if so, the change may have been made.
    """

    def __init__(self, address: str, seconds: float, reason: str, sent: bool = False) -> None:
        super().__init__(address, seconds, reason, sent)
        self.address = address
        self.seconds = seconds
        self.reason = reason
        self.sent = sent

    def message(self) -> str:
        """Return the address, for how long it was tried, and the last reason."""
        unknown = "; whether the request was carried out is unknown" if self.sent else ""
        if not 0.0 < self.seconds <= LONG_SECONDS:
            return f"{self.address} cannot be reached: {self.reason}{unknown}"
        return f"{self.address} did not succeed within {self.seconds:g} s: {self.reason}{unknown}"


class Repeat(Enum):
    """Allowed reactions when the response to a request was lost."""

    FREELY = auto()
    """A repeat changes nothing: reads, truncates, creating with `exist_ok`."""
    RECOGNIZED = auto()
    """The service recognizes a repeat (records by their position, a queue by its id). A refusal after a lost response
    says nothing about the first attempt."""
    NEVER = auto()
    """A repeat would be a second change."""


@dataclass(slots=True)
class Attempts:
    """The attempts of one call: what happened so far, and what it means for the caller."""

    action: str
    address: str
    repeat: Repeat
    seconds: float
    deadline: float
    pause_seconds: float = FIRST_PAUSE_SECONDS
    at_least_seconds: float = 0.0
    lost: str = ""
    """Reason for the loss of the first lost response; empty while no response was lost."""
    clock: Callable[[], float] = monotonic

    @classmethod
    def begun(cls, action: str, address: str, repeat: Repeat, seconds: float, wait_seconds: float) -> Attempts:
        """Return those of a call that begins now. *wait_seconds*: a response may take this long without a failure."""
        return cls(action, address, repeat, seconds, monotonic() + seconds + wait_seconds)

    def left_seconds(self) -> float:
        """Return for how many seconds the call may still be retried."""
        return self.deadline - self.clock()

    def after_loss(self, error: NoResponseError) -> RecordLogError:
        """Return the error to raise if no attempt is left; raise it at once if no other attempt is allowed."""
        if error.sent:
            self._lose(error.reason, error)
        return ServiceUnreachableError(self.address, self.seconds, error.reason, bool(self.lost))

    def after_refusal(self, reply: Reply) -> RecordLogError:
        """Return the error to raise if no attempt is left; raise the refusal if another attempt cannot change it."""
        error = error_of(reply)
        by_proxy = reply.status >= 500 and not written_by_service(reply)
        if reply.status not in MAY_PASS and not by_proxy:
            raise self.final(error)
        self.at_least_seconds = retry_after(reply)
        if isinstance(error, LogFailedError):
            return self._after_failure(error)
        if not by_proxy:
            return error
        self._lose(str(error), error)
        return ServiceUnreachableError(self.address, self.seconds, str(error), True)

    def _after_failure(self, error: LogFailedError) -> RecordLogError:
        """Return the error to raise if the service does not come back; raise it if the request must not be repeated."""
        if error.written != "no":
            if self.repeat is Repeat.NEVER:
                raise error
            self._lose(str(error), error)
        return error

    def final(self, error: RecordLogError) -> RecordLogError:
        """Return the error that the caller gets when *error* ends the call."""
        if not self.lost or self.repeat is not Repeat.RECOGNIZED or isinstance(error, ServiceUnreachableError):
            return error
        unknown = OutcomeUnknownError(self.action, f"{lost_because(self.lost)}; then {error}")
        unknown.__cause__ = error
        return unknown

    def next_pause(self) -> float | None:
        """Return how many seconds to wait before the next attempt; None if no time is left for one."""
        pause = self.pause_seconds * random.uniform(0.5, 1.0)
        if self.at_least_seconds >= pause:
            pause = self.at_least_seconds * random.uniform(1.0, 1.0 + JITTER)
        self.pause_seconds = min(self.pause_seconds * 2, LONGEST_PAUSE_SECONDS)
        if max(pause, self.at_least_seconds) > self.left_seconds():
            return None
        self.at_least_seconds = 0.0
        return pause

    def _lose(self, reason: str, cause: Exception) -> None:
        self.lost = self.lost or reason
        if self.repeat is Repeat.NEVER:
            raise OutcomeUnknownError(self.action, lost_because(reason)) from cause


def lost_because(reason: str) -> str:
    """Return the reason of an outcome that is unknown because a response was lost."""
    return f"the response was lost ({reason})"


def retry_after(reply: Reply) -> float:
    """Return how many seconds the service requests to wait (`Retry-After`), 0 if it does not say.

    RFC 9110 §10.2.3: whole seconds, or a date.
    """
    text = reply.headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    with suppress(ValueError, OverflowError):  # OverflowError: a year or a zone out of range
        when = parsedate_to_datetime(text)
        # "-0000" parses to a date without a zone.
        return max((when.replace(tzinfo=when.tzinfo or UTC) - datetime.now(UTC)).total_seconds(), 0.0)
    return 0.0
