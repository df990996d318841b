"""Responses being sent: one budget for the bytes that they hold, and a minimum rate for their readers.

1. A response above 64 KiB is built piece by piece. While it is sent it is charged `PIECE_CHARGE_BYTES`: the piece being
   written, and what the connection still holds of the previous one. Above the budget, new responses are refused (429).
2. A reader must take `write_rate_bytes` per second over the whole response, and something every `write_seconds`. One
   timer checks all of them; a late reader is dropped.
3. A response may hold records that were truncated since it began. They are charged to the same budget, and above it the
   responses that hold most of them are dropped.
4. When the budget is full, a reader that has taken nothing for one second is dropped for the next response.

A dropped reader's connection is aborted and its charge returned at once. Nothing is raised, because an exception's
traceback would keep the pieces alive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from aiohttp import web

from mrecordlog_async.service.options import ServiceOptions
from mrecordlog_async.service.wire.budgets import Budget
from mrecordlog_async.service.wire.turns import Turns

WRITE_BYTES = 512 * 1024
"""Bytes handed to the connection at once: enough to be cheap, few enough to notice a slow reader."""

PIECE_CHARGE_BYTES = 2 * WRITE_BYTES
STALLED_SECONDS = 1.0
SWEEP_SECONDS = 1.0

PinnedBytes = Callable[[], Iterator[int]]


class Sending:
    """All responses that are being sent. Belongs to one event loop."""

    def __init__(self, options: ServiceOptions) -> None:
        self.budget = Budget("bytes being sent", options.sending_bytes)
        self.pinned_bytes = 0  # of truncated records that responses still hold, at the last check
        self.dropped = 0  # readers that were too slow
        self.protocols: set[object] = set()  # connections on which responses are being sent
        self._options = options
        self.active: dict[Outgoing, None] = {}  # in the order in which they began
        self._timer: asyncio.TimerHandle | None = None
        self._checking: asyncio.Task[None] | None = None

    @property
    def used(self) -> int:
        """Bytes charged, with the truncated records that responses hold."""
        return self.budget.used + self.pinned_bytes

    @property
    def room(self) -> int:
        """Bytes that are left of the budget."""
        return max(self.budget.limit - self.used, 0)

    def enter(
        self, request: web.BaseRequest, size: int = PIECE_CHARGE_BYTES, pinned: PinnedBytes | None = None
    ) -> Outgoing:
        """Charge a response that holds *size* bytes at a time; raise the 429 problem if the budget is full.

        pinned: yields the bytes of truncated records that the response still holds, as parts of a sum.
        """
        out = self.try_enter(request, size, pinned)
        if out is None:
            raise self.budget.refuse()
        return out

    def try_enter(
        self, request: web.BaseRequest, size: int = PIECE_CHARGE_BYTES, pinned: PinnedBytes | None = None
    ) -> Outgoing | None:
        """Do what `enter` does; return None if the budget is full."""
        # No await from here to the charge: two requests never see the same free bytes.
        while self.active and self.used + size > self.budget.limit:
            if not self._drop_stalled():
                return None
        out = Outgoing(self, request, self._options, size, pinned)
        # From here on `leave` alone ends it: at the end of its block, or when the reader is dropped.
        self.budget.used += size
        self.active[out] = None
        self.protocols.add(request.protocol)
        self._arm()
        return out

    def leave(self, out: Outgoing) -> None:
        """Return the charge of *out*."""
        if out in self.active:
            del self.active[out]
            self.budget.used -= out.size
            self.protocols.discard(out.protocol)
            if not self.active:
                self.pinned_bytes = 0

    def sweep(self) -> None:
        """Drop readers that missed their deadline."""
        now = asyncio.get_running_loop().time()
        for out in [out for out in self.active if out.is_late(now)]:
            self._drop(out)

    async def check_pinned(self) -> None:
        """Add up the truncated records that responses hold; above the budget, drop the readers that hold most.

        This works in turns: a response may hold a million runs, and there may be hundreds of responses.
        """
        turns, found = Turns(), dict[Outgoing, int]()
        for out, pinned in [(out, out.pinned) for out in self.active if out.pinned is not None]:
            found[out] = 0
            for size in pinned():
                found[out] += size
                await turns.rest()
        held = {out: size for out, size in found.items() if out in self.active}  # others ended while this looked
        self.pinned_bytes = sum(held.values())
        for out in sorted(held, key=held.__getitem__, reverse=True):
            if self.used <= self.budget.limit:
                break
            self.pinned_bytes -= held[out]
            self._drop(out)

    def _drop_stalled(self) -> bool:
        """Drop the reader that has read nothing for longest; return False if none has for `STALLED_SECONDS`."""
        # A response that is being built waits for nobody, and its reader is not to blame.
        waiting = [out for out in self.active if out.waiting_since]
        slowest = min(waiting, key=lambda out: out.waiting_since, default=None)
        if slowest is None or asyncio.get_running_loop().time() - slowest.waiting_since < STALLED_SECONDS:
            return False
        self._drop(slowest)
        return True

    def _drop(self, out: Outgoing) -> None:
        self.dropped += 1
        self.leave(out)
        out.abort()

    def _arm(self) -> None:
        if self._timer is None:
            seconds = min(SWEEP_SECONDS, self._options.write_seconds / 4)
            self._timer = asyncio.get_running_loop().call_later(seconds, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        try:
            self.sweep()
            if self.active and (self._checking is None or self._checking.done()):
                self._checking = asyncio.create_task(self.check_pinned())
        finally:  # even after an error: without the timer no reader has a deadline
            if self.active:
                self._arm()


class Outgoing:
    """One response being sent; it is charged until the end of its `with` block."""

    __slots__ = ("_deadline", "_options", "_request", "_sending", "pinned", "size", "waiting_since")

    def __init__(
        self, sending: Sending, request: web.BaseRequest, options: ServiceOptions, size: int, pinned: PinnedBytes | None
    ) -> None:
        self.size = size
        self.pinned = pinned
        self.waiting_since = 0.0  # since when the reader has read nothing; 0 while no piece waits for it
        self._sending = sending
        self._request = request
        self._options = options
        self._deadline = asyncio.get_running_loop().time() + options.write_seconds

    def add(self, size: int) -> None:
        """Charge *size* more bytes, which it holds already: the budget may be exceeded, and admits nobody then."""
        if self in self._sending.active:
            self.size += size
            self._sending.budget.used += size

    def is_late(self, now: float) -> bool:
        """Return whether the reader has missed its deadline."""
        return bool(self.waiting_since) and now >= self._deadline

    @property
    def protocol(self) -> object:
        """Return the connection."""
        return self._request.protocol

    async def write(self, response: web.StreamResponse, piece: bytes | memoryview) -> bool:
        """Write *piece*; return False if the reader disconnected or was dropped: it needs no further pieces."""
        view: bytes | memoryview = piece if len(piece) <= WRITE_BYTES else memoryview(piece)
        for at in range(0, len(view), WRITE_BYTES):
            part = view if view is piece and not at else view[at : at + WRITE_BYTES]
            if not await self._wait_for(response.write(part), len(part)):
                return False
        return True

    async def end(self, response: web.StreamResponse) -> bool:
        """End the body and wait until the connection's buffer is almost empty."""
        return await self._wait_for(response.write_eof(), 0) and await self.wait_writable()

    async def wait_writable(self) -> bool:
        """Wait until the connection's buffer is almost empty; return False if the reader disconnected."""
        return await self._wait_for(self._request.writer.drain(), 0)

    async def _wait_for(self, writing: Coroutine[Any, Any, None], size: int) -> bool:
        clock = asyncio.get_running_loop().time
        self.waiting_since = clock()
        try:
            await writing
        except (ConnectionError, RuntimeError):  # RuntimeError: the connection was aborted
            return False
        finally:
            self.waiting_since = 0.0
        transport = self._request.transport
        if transport is None or transport.is_closing():
            return False
        now = clock()
        self._deadline = min(self._deadline + size / self._options.write_rate_bytes, now + self._options.write_seconds)
        return True

    def abort(self) -> None:
        """Cut the connection."""
        if self._request.transport is not None:
            self._request.transport.abort()

    def __enter__(self) -> Outgoing:
        return self

    def __exit__(self, *_: object) -> None:
        self._sending.leave(self)
