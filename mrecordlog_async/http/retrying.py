"""When a client asks again: connection errors, 429 and 503 only, with growing pauses and jitter, for a bounded time.

A lost answer leaves open whether the request was done. Requests that may be done twice without harm (reads, truncates,
appends with a position) are sent again; for the others `OutcomeUnknownError` says so.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

import aiohttp

from mrecordlog_async.errors import RecordLogError

FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 2.0


class OutcomeUnknownError(RecordLogError):
    """The connection was lost before the answer came. Whether it was done is not known.

    An append that names its position can be sent again; `RecordLogClient.producer` does that by itself.
    """

    def __init__(self, action: str, reason: str) -> None:
        super().__init__(action, reason)
        self.action = action
        self.reason = reason

    def message(self) -> str:
        """Say what is not known."""
        return f"{self.action}: the answer was lost ({self.reason}), so whether it was done is not known"


class ServiceUnreachableError(RecordLogError):
    """The service did not answer, or not with success, for as long as the client was told to try."""

    def __init__(self, address: str, seconds: float, reason: str) -> None:
        super().__init__(address, seconds, reason)
        self.address = address
        self.seconds = seconds
        self.reason = reason

    def message(self) -> str:
        """Say where, how long and why."""
        return f"no success from {self.address} within {self.seconds:g} s: {self.reason}"


@dataclass(slots=True)
class Patience:
    """How long one call goes on trying, and how long it pauses before the next try."""

    seconds: float
    deadline: float
    pause_seconds: float = FIRST_PAUSE_SECONDS

    @classmethod
    def begin(cls, seconds: float) -> Patience:
        """Begin a call that may take *seconds* of trying."""
        return cls(seconds, asyncio.get_running_loop().time() + seconds)

    async def pause(self, at_least_seconds: float = 0.0) -> bool:
        """Sleep before the next try; False if there is no time for one."""
        pause = max(self.pause_seconds, at_least_seconds) * random.uniform(0.5, 1.0)
        self.pause_seconds = min(self.pause_seconds * 2, LONGEST_PAUSE_SECONDS)
        if asyncio.get_running_loop().time() + pause > self.deadline:
            return False
        await asyncio.sleep(pause)
        return True


def was_sent(error: Exception) -> bool:
    """Tell whether the request may have reached the service before *error* came."""
    return not isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
