"""The two ways between the event loop and the log's thread, on both event loops."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import weakref
from typing import Any

import pytest

from mrecordlog_async.engine.channel import EventfdChannel, QueueChannel, _Bell, open_channel
from mrecordlog_async.engine.thread import LogThread

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="eventfds exist on Linux")


class WithoutReaders:
    """An event loop that polls no descriptors."""

    def add_reader(self, *arguments: Any) -> None:
        raise NotImplementedError


@pytest.fixture(params=[EventfdChannel, QueueChannel])
def thread(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[LogThread]:
    """Return the thread's class, with one of the channels."""
    monkeypatch.setattr("mrecordlog_async.engine.thread.open_channel", request.param)
    return LogThread


async def test_results_come_back_in_the_order_of_the_jobs(thread: type[LogThread]) -> None:
    """Jobs run one after the other, and their results reach the loop in that order; errors reach the caller."""
    worker = thread(asyncio.get_running_loop())
    ran: list[int] = []

    def note(number: int) -> int:
        ran.append(number)
        return number

    told: list[object] = []
    for number in range(100):
        worker.hand_over(lambda result, error: told.append((result, error)), note, number)
    error = OSError(5, "failed")

    def fail() -> None:
        raise error

    with pytest.raises(OSError, match="failed"):
        await worker.call(fail)
    assert ran == [*range(100)]
    assert told == [(number, None) for number in range(100)]
    worker.shutdown(wait=False)


async def test_jobs_before_the_end_are_done(thread: type[LogThread]) -> None:
    """Shutting down leaves no job undone and no result untold."""
    worker = thread(asyncio.get_running_loop())
    results = [worker.call(lambda n: n * n, number) for number in range(10)]
    worker.shutdown(wait=False)
    assert await asyncio.gather(*results) == [number * number for number in range(10)]


async def test_ended_thread_leaves_no_descriptor_and_no_reader() -> None:
    """Once the thread has ended, its eventfds are closed, and the loop polls them no more."""
    loop = asyncio.get_running_loop()
    worker = LogThread(loop)
    channel = worker._channel
    assert isinstance(channel, EventfdChannel)
    bells = [weakref.ref(channel._to_thread), weakref.ref(channel._to_loop)]
    handle = channel._to_loop.handle
    worker.shutdown(wait=False)
    while worker._thread.is_alive() or channel._results:
        await asyncio.sleep(0)
    assert not loop.remove_reader(handle)
    del worker, channel
    for _ in range(100):
        gc.collect()
        if not any(bell() for bell in bells):
            break
        await asyncio.sleep(0.01)
    assert [bell() for bell in bells] == [None, None]


def test_loop_that_ended_does_not_stop_the_thread(thread: type[LogThread]) -> None:
    """Jobs of a loop that is closed are still done: they release the directory."""

    async def begin() -> LogThread:
        return thread(asyncio.get_running_loop())

    worker = asyncio.run(begin())
    assert worker.submit(lambda: 1).result(10) == 1
    worker.hand_over(lambda result, error: None, lambda: 2)
    assert worker.submit(lambda: 3).result(10) == 3
    worker.shutdown(wait=False)


def test_loop_without_readers_gets_the_queue() -> None:
    """A loop that cannot poll descriptors is served by the other channel."""
    loop: Any = WithoutReaders()
    assert isinstance(open_channel(loop), QueueChannel)


def test_bell_that_a_child_closed_does_not_ring() -> None:
    """A forked child closes its copies, and does not write to whatever has their numbers later."""
    bell = _Bell(os.EFD_NONBLOCK)
    bell.ring()
    assert os.eventfd_read(bell.handle) == 1
    bell.close()
    assert bell.handle == -1
    bell.ring()
    bell.close()
