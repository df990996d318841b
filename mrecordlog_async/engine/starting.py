"""Opening a log from the event loop: recovery runs on the log's own thread, and can be given up half-way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

from aiofiles.os import wrap

from mrecordlog_async.engine.opening import OpenedLog, open_log
from mrecordlog_async.engine.thread import LogThread
from mrecordlog_async.errors import LogClosedError
from mrecordlog_async.model import RecoveryProgress
from mrecordlog_async.storage.filesystem import FileSystem


async def start(
    files: FileSystem,
    directory: str,
    *,
    create: bool,
    segment_bytes: int,
    disk_bytes_limit: int,
    on_progress: Callable[[RecoveryProgress], None] | None,
) -> tuple[OpenedLog, LogThread]:
    """Open the log in *directory* on a new thread of its own.

    A cancelled start gives the directory back as soon as the thread notices.
    """
    loop = asyncio.get_running_loop()
    thread = LogThread(loop)
    abandoned = threading.Event()
    result: list[OpenedLog] = []

    def report(progress: RecoveryProgress) -> None:
        if abandoned.is_set():
            raise LogClosedError("opening was cancelled")
        if on_progress is not None:
            with suppress(RuntimeError):  # the loop has ended; `abandoned` follows
                loop.call_soon_threadsafe(on_progress, progress)

    def work() -> None:
        result.append(
            open_log(
                files,
                directory,
                create=create,
                segment_bytes=segment_bytes,
                disk_bytes_limit=disk_bytes_limit,
                on_progress=report,
            )
        )

    def give_back() -> None:
        for opened in result:
            opened.release()

    try:
        await wrap(work)(executor=thread)
    except BaseException:
        abandoned.set()
        thread.submit(give_back)  # one thread: it runs behind the work
        thread.shutdown(wait=False)
        raise
    return result[0], thread
