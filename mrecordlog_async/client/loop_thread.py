"""`LoopThread`: an event loop in its own thread, on which other threads run coroutines and wait for them."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, TypeVar

from mrecordlog_async.errors import LogClosedError

T = TypeVar("T")


CLOSED = "the client is closed"
FORKED = "this belongs to the process that forked this one; make it again after the fork"
OWN_LOOP = "a blocking client cannot be called on its own event loop"


class LoopThread:
    """An event loop in a daemon thread. Any thread of the process that started it may call."""

    def __init__(self, name: str) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()  # no call is passed to the loop once it stops
        self._stopped = False
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def inherited(self) -> bool:
        """Whether this process is a fork of the one that started the thread, which did not come along."""
        return self._pid != os.getpid()

    def is_current(self) -> bool:
        """Return whether the caller runs on this thread."""
        return threading.current_thread() is self._thread

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run *coroutine* and wait for it. An interrupt of the waiting thread cancels it.

        Raises:
            LogClosedError: The thread has stopped, or belongs to the parent process.
        """
        if self.inherited or self.is_current():
            coroutine.close()
            raise LogClosedError(FORKED if self.inherited else OWN_LOOP)
        with self._lock:
            if self._stopped:
                coroutine.close()
                raise LogClosedError(CLOSED)
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise LogClosedError(CLOSED) from None  # only `stop` cancels calls that another thread waits for
        except BaseException:
            future.cancel()
            raise

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """Yield what *items* yields, one wait for each."""
        end = object()

        async def step() -> T | object:
            return await anext(items, end)

        try:
            while (item := self.call(step())) is not end:
                yield item  # type: ignore[misc]  # anything but `end` is a T
        finally:
            if isinstance(items, AsyncGenerator):
                with suppress(LogClosedError):
                    self.call(items.aclose())

    def stop(self) -> None:
        """Cancel what still runs on the loop, and end the thread. Only in the process that started it."""
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
