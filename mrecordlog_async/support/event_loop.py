"""The event loop that commands and the benchmark run on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes an event loop: uvloop's where it is installed, None for asyncio's own."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return None
    return uvloop.new_event_loop


def loop_name() -> str:
    """Return what that loop is called in a report."""
    return "uvloop" if loop_factory() is not None else "asyncio's own event loop"
