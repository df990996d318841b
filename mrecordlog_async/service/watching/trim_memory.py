"""Return memory to the system after large bodies and responses: from the C library, pyarrow and reference cycles.

Nothing in the service should need Python's cyclic garbage collector, which `gc_tuning` makes rare. But a cycle in a
library may hold a body, so the young generations are collected after large requests, if that takes little time. They
are also collected after many TLS connections: each one of asyncio (not of uvloop) ends as a cycle of 50 KiB.
"""

from __future__ import annotations

import asyncio
import gc

from mrecordlog_async.options import MIB
from mrecordlog_async.protocol import arrow
from mrecordlog_async.service.service import Service
from mrecordlog_async.support.heap import trim_heap

WORTH_BYTES = 32 * MIB
PAUSE_SECONDS = 10.0
HANDSHAKES_WORTH = 500
OBJECTS_MAX = 100_000
"""Above this many objects the young generations are not collected; it would take ten milliseconds."""


class MemoryTrimmer:
    """Checks once per second what the requests of a service hold, and trims after large ones."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._peak = 0
        self._last = 0.0
        self._handshakes = 0
        self._releasing: asyncio.Future[None] | None = None

    def check(self) -> None:
        """Return memory to the system if requests hold much less than before."""
        held = self._service.bodies.budget.used + self._service.sending.used
        handshakes = self._service.connections.handshakes  # that began since the start
        self._peak = max(self._peak, held)
        if handshakes - self._handshakes >= HANDSHAKES_WORTH:
            self._handshakes = handshakes
            _collect_young()
        now = asyncio.get_running_loop().time()
        if self._peak - held < WORTH_BYTES or now - self._last < PAUSE_SECONDS:
            return
        self._last, self._peak = now, held
        _collect_young()
        self._releasing = asyncio.get_running_loop().run_in_executor(None, _release)


def _collect_young() -> None:
    young, middle, _ = gc.get_count()
    if young + middle * gc.get_threshold()[0] <= OBJECTS_MAX:
        gc.collect(1)


def _release() -> None:
    arrow.release_unused()
    trim_heap()
