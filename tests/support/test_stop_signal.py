"""`on_stop_signal`: a callback in addition to the handlers of the server."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

from mrecordlog_async.support.stop_signal import on_stop_signal


async def test_the_handler_of_the_server_still_runs_and_comes_back() -> None:
    """Servers set theirs with `signal.signal`, or on the event loop."""
    seen: list[str] = []
    called = asyncio.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: seen.append("server"))
    try:
        server = signal.getsignal(signal.SIGTERM)
        with on_stop_signal(lambda number: called.set()):
            os.kill(os.getpid(), signal.SIGTERM)
            await called.wait()
        assert seen == ["server"]
        assert signal.getsignal(signal.SIGTERM) is server
    finally:
        signal.signal(signal.SIGTERM, before)


async def test_a_handler_of_the_event_loop_still_runs() -> None:
    """hypercorn and aiohttp use it."""
    server, called = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, server.set)
    try:
        with on_stop_signal(lambda number: called.set()):
            os.kill(os.getpid(), signal.SIGTERM)
            await called.wait()
            await server.wait()
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


async def test_a_signal_that_nobody_handles_keeps_its_default_action() -> None:
    """SIGTERM still ends a process that did not ask for anything else."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with on_stop_signal(lambda number: None):
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_outside_the_main_thread_nothing_is_changed() -> None:
    """Test clients run an application in a thread."""
    before = signal.getsignal(signal.SIGINT)
    during = []

    async def run() -> None:
        with on_stop_signal(lambda number: None):
            during.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    thread.join()
    assert during == [before]
