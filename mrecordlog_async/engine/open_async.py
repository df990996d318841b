"""Opening a log from the event loop: recovery runs on the log's own thread, and can be given up half-way."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

from aiofiles.os import wrap

from mrecordlog_async.engine.open import OpenedLog, open_log
from mrecordlog_async.engine.thread import LogThread
from mrecordlog_async.errors import LogClosedError
from mrecordlog_async.model import RecoveryProgress
from mrecordlog_async.storage.filesystem import FileSystem

RELEASE_SECONDS = 60.0
"""How long opening waits for a log of this process whose loop ended to let go of the same directory."""

_ending: dict[str, Future[None]] = {}  # by directory: logs that nobody closed and that are being released


def release_later(opened: OpenedLog, thread: LogThread) -> None:
    """Have *thread* give the directory back behind its last work, and end. Opening it again waits for that."""
    _ending[opened.directory] = thread.submit(opened.close)
    thread.shutdown(wait=False)


def _wait_for_release(directory: str) -> None:
    """Wait for the log of this process that still holds *directory*, though its event loop has ended."""
    released = _ending.get(os.path.abspath(directory))
    if released is not None:
        with suppress(TimeoutError):
            released.exception(RELEASE_SECONDS)
        _ending.pop(os.path.abspath(directory), None)


async def open_log_async(
    files: FileSystem,
    directory: str,
    *,
    create: bool,
    segment_bytes: int,
    disk_bytes_limit: int,
    on_progress: Callable[[RecoveryProgress], None] | None,
) -> tuple[OpenedLog, LogThread]:
    """Open the log in *directory* on a new thread of its own.

    A cancelled call gives the directory back as soon as the thread notices.
    """
    loop = asyncio.get_running_loop()
    thread = LogThread(loop)
    opening = _Opening(loop, on_progress)
    work = partial(
        open_log,
        files,
        directory,
        create=create,
        segment_bytes=segment_bytes,
        disk_bytes_limit=disk_bytes_limit,
        on_progress=opening.report,
    )
    try:
        opened = await wrap(opening.run)(directory, work, executor=thread)
    except BaseException:
        opening.abandoned.set()
        thread.submit(opening.give_back)  # one thread: it runs after the work
        thread.shutdown(wait=False)
        raise
    return opened, thread


class _Opening:
    """What an opening tells the event loop, and what becomes of it when nobody waits any longer."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_progress: Callable[[RecoveryProgress], None] | None) -> None:
        self.abandoned = threading.Event()
        self._loop = loop
        self._on_progress = on_progress
        self._opened: OpenedLog | None = None

    def report(self, progress: RecoveryProgress) -> None:
        """Pass *progress* on to the loop; raise LogClosedError if the opening was cancelled."""
        if self.abandoned.is_set():
            raise LogClosedError("opening was cancelled")
        if self._on_progress is not None:
            with suppress(RuntimeError):  # the loop has ended; `abandoned` follows
                self._loop.call_soon_threadsafe(self._on_progress, progress)

    def run(self, directory: str, work: Callable[[], OpenedLog]) -> OpenedLog:
        """Do *work* once no other log of this process holds *directory*."""
        _wait_for_release(directory)
        self._opened = work()
        return self._opened

    def give_back(self) -> None:
        """Release what was opened, if anything was."""
        if self._opened is not None:
            self._opened.close()
