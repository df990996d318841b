"""Hear of the signal that stops a server, before the server acts on it.

ASGI servers end an application only after every response has ended. A response that follows a queue would never end,
and the server sends the application no message before: the signal is the only notice.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOPPING = (signal.SIGINT, signal.SIGTERM)

Handler = Callable[[int, FrameType | None], object]


@contextmanager
def on_stop_signal(callback: Callable[[int], object]) -> Iterator[None]:
    """Call *callback* on the running event loop at SIGINT and SIGTERM, in addition to the handlers that are set.

    A signal that nobody handles keeps its default action. Outside the main thread nothing is changed, because Python
    allows signal handlers only there.

    Args:
        callback: Called once per signal, with its number.
    """
    loop, ours = asyncio.get_running_loop(), dict[int, tuple[Handler, Handler]]()

    def add(number: int) -> None:
        before = signal.getsignal(number)
        if not callable(before):
            return

        def handle(number: int, frame: FrameType | None) -> None:
            loop.call_soon_threadsafe(callback, number)
            before(number, frame)

        signal.signal(number, handle)
        signal.siginterrupt(number, False)  # as loop.add_signal_handler had set it
        ours[number] = handle, before

    if threading.current_thread() is threading.main_thread():
        for number in STOPPING:
            add(number)
    try:
        yield
    finally:
        for taken, (handle, before) in ours.items():
            if signal.getsignal(taken) is handle:
                signal.signal(taken, before)


def end_by(number: int) -> None:
    """Have the process end by the signal *number* once this lifespan has ended, as uvicorn does after a start.

    After a start that failed, it would end with status 3, for which the master of gunicorn ends the whole service.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    if task is not None:  # one turn later, uvicorn has the handlers put back that were set before its own
        task.add_done_callback(lambda _: loop.call_soon(signal.raise_signal, number))
