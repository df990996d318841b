"""Return memory to the system after large bodies and responses: from the C library and reference cycles.

Nothing in the service should need Python's cyclic garbage collector, which `gc_tuning` makes rare. But a cycle in a
library may hold a body, so the young generations are collected after large requests, if that takes little time. They
are also collected after many TLS connections: each one of asyncio (not of uvloop) ends as a cycle of 50 KiB.
"""

from __future__ import annotations

import asyncio
import gc

from mrecordlog_async.options import MIB
from mrecordlog_async.service.service import Service
from mrecordlog_async.support.heap import resident_bytes, trim_heap

WORTH_BYTES = 32 * MIB
PAUSE_SECONDS = 2.0
HANDSHAKES_WORTH = 500
OBJECTS_MAX = 100_000
"""Above this many objects the young generations are not collected; it would take ten milliseconds."""


class MemoryTrimmer:
    """Checks once per second how much memory no account of the service names, and trims when it has grown.

    What requests and retained records hold is known; the rest is the program itself, and what was freed and stays with
    the allocators. A look at the heap's own counts would not do: they include pages that were returned.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._least = 0  # bytes that no account named, at their least since the last trim
        self._last = 0.0
        self._handshakes = 0
        self._releasing: asyncio.Future[None] | None = None

    def check(self) -> None:
        """Return memory to the system if much more than before is held without an account."""
        handshakes = self._service.connections.handshakes  # that began since the start
        if handshakes - self._handshakes >= HANDSHAKES_WORTH:
            self._handshakes = handshakes
            _collect_young()
        if self._releasing is not None and not self._releasing.done():
            return
        unnamed, now = resident_bytes() - self._named_bytes(), asyncio.get_running_loop().time()
        if self._releasing is not None:  # what is left is in use
            self._releasing, self._least = None, unnamed
        self._least = min(self._least or unnamed, unnamed)
        if unnamed - self._least < WORTH_BYTES or now - self._last < PAUSE_SECONDS:
            return
        self._last = now
        _collect_young()
        self._releasing = asyncio.get_running_loop().run_in_executor(None, trim_heap)

    def _named_bytes(self) -> int:
        """Return the memory that requests and retained records are charged for."""
        service = self._service
        log = service.log_or_none
        records = 0 if log is None else log.resource_usage().memory_bytes
        return service.bodies.budget.used + service.sending.budget.used + records


def _collect_young() -> None:
    young, middle, _ = gc.get_count()
    if young + middle * gc.get_threshold()[0] <= OBJECTS_MAX:
        gc.collect(1)
