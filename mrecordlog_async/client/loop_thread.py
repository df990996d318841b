"""`LoopThread`: an event loop in its own thread, on which other threads run coroutines and wait for them.

A signal handler may raise in the thread that waits, at any of its steps. So that thread touches only plain locks and
attributes: the conditions of `threading` and the futures of `concurrent.futures` are left locked by such an exception,
and the loop would wait for them forever.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

from mrecordlog_async.errors import LogClosedError

T = TypeVar("T")


CLOSED = "the client is closed"
FORKED = "this belongs to the process that forked this one; make it again after the fork"
OWN_LOOP = "a blocking client cannot be called on its own event loop"


class _Call(Generic[T]):
    """One coroutine that a thread waits for. `begin`, `cancel` and `_end` run on the loop."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self.ended = threading.Lock()  # released once it has ended
        self.ended.acquire()
        self.left = False  # an exception ended the waiting
        self._coroutine = coroutine
        self._task: asyncio.Task[T] | None = None

    def begin(self) -> None:
        """Run the coroutine, unless nobody waits for it any more."""
        if self.left:
            self._coroutine.close()
            return
        self._task = asyncio.get_running_loop().create_task(self._coroutine)
        self._task.add_done_callback(self._end)

    def cancel(self) -> None:
        """Cancel the coroutine, if it has begun."""
        if self._task is not None:
            self._task.cancel()

    def outcome(self) -> T:
        """Return or raise what the coroutine did, once it has ended."""
        assert self._task is not None, "it has ended"
        if self._task.cancelled():
            raise LogClosedError(CLOSED)  # only `stop` cancels calls that another thread waits for
        return self._task.result()

    def _end(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            task.exception()  # marks it as retrieved: a thread that has left never asks
        self.ended.release()


class LoopThread:
    """An event loop in a daemon thread. Any thread of the process that started it may call."""

    def __init__(self, name: str) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()  # no call is passed to the loop once it stops
        self._stopped = False
        self._exiting = False
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def inherited(self) -> bool:
        """True if this process is a fork of the one that started the thread, which did not come along."""
        return self._pid != os.getpid()

    @property
    def has_stopped(self) -> bool:
        """True if it has stopped, or is about to."""
        return self._stopped

    def is_current(self) -> bool:
        """Return whether the caller runs on this thread."""
        return threading.current_thread() is self._thread

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run *coroutine* and wait for it. An interrupt of the waiting thread cancels it.

        Raises:
            LogClosedError: The thread has stopped, or belongs to the parent process.
        """
        self._stay_if_exiting()
        if self.inherited or self.is_current():
            coroutine.close()
            raise LogClosedError(FORKED if self.inherited else OWN_LOOP)
        with self._lock:
            if self._stopped:
                coroutine.close()
                raise LogClosedError(CLOSED)
            call = _Call(coroutine)
            try:
                self._loop.call_soon_threadsafe(call.begin)
            except BaseException:
                call.left = True  # it may be passed to the loop
                raise
        return self._wait(call)

    def _wait(self, call: _Call[T]) -> T:
        try:
            call.ended.acquire()
        except BaseException:
            call.left = True
            self._loop.call_soon_threadsafe(call.cancel)
            raise
        self._stay_if_exiting()
        return call.outcome()

    def _stay_if_exiting(self) -> None:
        if self._exiting and threading.current_thread().daemon:
            threading.Event().wait()

    def exit(self) -> None:
        """Note that the interpreter ends: calls of daemon threads do not return, or each would print an error."""
        self._exiting = True

    def stop(self) -> None:
        """Cancel what still runs on the loop, and end the thread. Only in the process that started it."""
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
        call = _Call(_cancel_others())
        self._loop.call_soon_threadsafe(call.begin)
        self._wait(call)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
