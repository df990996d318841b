"""Responses being sent, and bodies being received: budgets that all requests share, and the deadlines of readers.

1. A response above 64 KiB is charged for what it holds: the piece being sent and the one in the connection's buffer
   (`HELD_BYTES`), and the records of a read. Above the budget, new responses are refused (429).
2. A reader must take `write_rate_bytes` per second over the whole response, and something every `write_seconds`.
3. When the budget is full, the reader that has taken nothing for longest, a second at least, is dropped for the next
   response.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mrecordlog_async.protocol.problems import too_many
from mrecordlog_async.service.options import ServiceOptions

HELD_BYTES = 1024 * 1024
"""Bytes that a response holds while it is sent, besides records: pieces that wait, here and in the server's buffer."""
STALLED_SECONDS = 1.0


class Budget:
    """A number of bytes that all requests share. what: their name in the 429 problem."""

    def __init__(self, what: str, limit: int) -> None:
        self.what, self.limit, self.used, self.refused = what, limit, 0, 0

    def charge(self) -> Charge:
        """Return an empty charge. Use it as a context manager, which returns it to the budget at the end."""
        return Charge(self)

    def refuse(self) -> Exception:
        """Count a refusal and return the 429 problem."""
        self.refused += 1
        return too_many(self.what, self.used, self.limit)


class Charge:
    """The part of a budget that one request holds, until the end of its `with` block."""

    __slots__ = ("_budget", "size")

    def __init__(self, budget: Budget) -> None:
        self._budget, self.size = budget, 0

    def add(self, size: int, ceiling: int | None = None) -> None:
        """Take *size* more bytes; raise the 429 problem if the budget would then hold more than *ceiling*.

        ceiling: the budget's limit by default. A request that is alone in the budget is never refused, so every request
        that the other limits allow can succeed at some time.
        """
        budget = self._budget
        if budget.used + size > (budget.limit if ceiling is None else ceiling) and budget.used > self.size:
            raise budget.refuse()
        budget.used += size
        self.size += size

    def __enter__(self) -> Charge:
        return self

    def __exit__(self, *_: object) -> None:
        self._budget.used -= self.size
        self.size = 0


class Sending:
    """All responses above 64 KiB. Belongs to one event loop."""

    def __init__(self, options: ServiceOptions) -> None:
        self.budget = Budget("bytes being sent", options.sending_bytes)
        self.options = options
        self.dropped = 0  # readers that were too slow
        self.active: dict[Outgoing, None] = {}  # in the order in which they began

    @property
    def used(self) -> int:
        """Bytes charged."""
        return self.budget.used

    @property
    def room(self) -> int:
        """Bytes that are left of the budget."""
        return max(self.budget.limit - self.budget.used, 0)

    def enter(self, size: int = HELD_BYTES) -> Outgoing:
        """Charge a response that holds *size* bytes at a time; raise the 429 problem if the budget is full."""
        out = self.try_enter(size)
        if out is None:
            raise self.budget.refuse()
        return out

    def try_enter(self, size: int = HELD_BYTES) -> Outgoing | None:
        """Do what `enter` does; return None if the budget is full."""
        # No await from here to the charge: two requests never see the same free bytes.
        while self.active and self.budget.used + size > self.budget.limit:
            if not self._drop_stalled():
                return None
        out = Outgoing(self, size)
        # From here on `leave` alone ends it: at the end of its block, or when the reader is dropped.
        self.active[out] = None
        self.budget.used += size
        return out

    @contextmanager
    def making(self, size: int = HELD_BYTES) -> Iterator[Outgoing]:
        """Charge a response that is made in this block. If that fails, its charge ends here; else with its sending."""
        out = self.enter(size)
        try:
            yield out
        except BaseException:
            self.leave(out)
            raise

    def leave(self, out: Outgoing) -> None:
        """Return the charge of *out*."""
        if out in self.active:
            del self.active[out]
            self.budget.used -= out.size

    def _drop_stalled(self) -> bool:
        """Drop the reader that has read nothing for longest; return False if none has for `STALLED_SECONDS`."""
        # A response that is being built waits for nobody, and its reader is not to blame.
        waiting = [out for out in self.active if out.waiting_since]
        slowest = min(waiting, key=lambda out: out.waiting_since, default=None)
        now = asyncio.get_running_loop().time()
        if slowest is None or now - slowest.waiting_since < STALLED_SECONDS:
            return False
        slowest.drop(now)
        self.leave(slowest)
        return True


class Outgoing:
    """One response being sent; it is charged until the end of its `with` block."""

    __slots__ = ("_deadline", "_sending", "_timeout", "size", "waiting_since")

    def __init__(self, sending: Sending, size: int) -> None:
        self._sending, self.size = sending, size
        self.waiting_since = 0.0  # since when the reader has read nothing; 0 while no piece waits for it
        self._timeout: asyncio.Timeout | None = None
        self._deadline = asyncio.get_running_loop().time() + sending.options.write_seconds

    def add(self, size: int) -> None:
        """Charge *size* more bytes, which it holds already: the budget may be exceeded, and admits nobody then."""
        if self in self._sending.active:
            self.size += size
            self._sending.budget.used += size

    def drop(self, now: float) -> None:
        """End the wait for the reader."""
        assert self._timeout is not None, "it waits"
        self._timeout.reschedule(now)

    async def send(self, send: Callable[[dict[str, Any]], Awaitable[None]], piece: bytes, *, more: bool = True) -> None:
        """Send *piece*; raise ConnectionResetError if the reader is too slow."""
        clock, options = asyncio.get_running_loop().time, self._sending.options
        self.waiting_since = clock()
        try:
            async with asyncio.timeout_at(self._deadline) as self._timeout:
                await send({"type": "http.response.body", "body": piece, "more_body": more})
        except TimeoutError:
            self._sending.dropped += 1
            raise ConnectionResetError("the reader is too slow") from None
        finally:
            self.waiting_since, self._timeout = 0.0, None
        self._deadline = min(self._deadline + len(piece) / options.write_rate_bytes, clock() + options.write_seconds)

    def __enter__(self) -> Outgoing:
        return self

    def __exit__(self, *_: object) -> None:
        self._sending.leave(self)
