"""The log's own thread: everything that touches a file runs here, one job at a time, in the order of submission.

It is an Executor, so that `aiofiles` can submit calls to it. Batches use the leaner `call` and `hand_over`, which need
no second future and no lock: one queue there, one wake-up back. On uvloop a batch costs 16 to 22 µs that way instead of
34 to 38. Eventfds in place of both save another 10 µs on an idle machine. Where other programs kept its two CPUs busy,
one caller's rate with them was a quarter of what it is with the queue, so they are not used.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

Job = tuple[Callable[..., Any], tuple[Any, ...], Callable[[Any, BaseException | None], object]]


class LogThread(Executor):
    """One thread. It does not keep the process alive: a job that is cut off at exit was not acknowledged."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=_work_off, args=(self._jobs,), name="mrecordlog", daemon=True)
        self._thread.start()

    def hand_over(
        self, report: Callable[[Any, BaseException | None], object], work: Callable[..., object], *arguments: object
    ) -> None:
        """Run *work* on the thread, then *report* on the loop with its result and its error, one of them None.

        *report* is not called if the loop is closed by then.
        """

        def tell(result: object, error: BaseException | None) -> None:
            self._loop.call_soon_threadsafe(report, result, error)

        self._jobs.put((work, arguments, tell))

    def call(self, work: Callable[..., T], *arguments: object) -> asyncio.Future[T]:
        """Run *work* on the thread. The future belongs to the loop; cancelling it ends the wait, not the work."""
        future: asyncio.Future[T] = self._loop.create_future()
        self.hand_over(partial(_finish, future), work, *arguments)
        return future

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run *fn* on the thread, as any Executor does."""
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()

        def report(result: T, error: BaseException | None) -> None:
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        work = (lambda: fn(*args, **kwargs)) if kwargs else fn
        self._jobs.put((work, () if kwargs else args, report))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the thread after the jobs submitted so far."""
        self._jobs.put(None)
        if wait:
            self._thread.join()


def _work_off(jobs: SimpleQueue[Job | None]) -> None:
    while (job := jobs.get()) is not None:
        work, arguments, report = job
        result, error = None, None
        try:
            result = work(*arguments)
        except BaseException as caught:
            error = caught
        with contextlib.suppress(RuntimeError):  # the event loop is closed, so nothing waits
            report(result, error)
        # An error's traceback or a batch of megabytes must not be kept until the next job.
        del job, work, arguments, report, result, error


def _finish(future: asyncio.Future[T], result: T, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
