"""Open a log from the event loop: recovery runs on the log's own thread, and can be cancelled half-way.

A directory that another process has open is waited for on the loop: each look at it is a whole attempt to open it. So
cancelling ends the wait at once, no thread sleeps in flock, where nothing could end it, and the directory that is
opened in the end is the one that has the path then, checked like any other.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from aiofiles.os import wrap

from mrecordlog_async.engine.commit.open import OpenedLog, OpenOptions, open_log
from mrecordlog_async.engine.commit.thread import LogThread, timed
from mrecordlog_async.errors import LogClosedError, LogLockedError
from mrecordlog_async.model import LastEnd, RecoveryProgress
from mrecordlog_async.storage.directory import LogDirectory
from mrecordlog_async.storage.os_filesystem import makes_calls
from mrecordlog_async.support.forks import call_in_children

logger = logging.getLogger("mrecordlog_async")

_LAST_ENDS = {
    LastEnd.FAILED: (logging.WARNING, "before this start the log failed: %s"),
    LastEnd.UNCLOSED: (
        logging.INFO,  # programs that may be killed, and commands, are not to print it each time
        "before this start the log was not closed: its process was killed, or the machine stopped",
    ),
}

RELEASE_SECONDS = 60.0
"""Seconds that opening waits until a log of this process that is closing or has ended releases the same directory."""

LOOK_SECONDS = 0.1
"""Seconds between its looks whether the event loop of that log still runs."""

LOCK_LOOK_SECONDS = 0.1
"""Seconds between attempts to open a directory that another process has open."""

LockSeconds = float | Callable[[LogLockedError], float]
"""How long to wait for another process, or a function that decides it once the process is known."""


@dataclass(slots=True)
class _Held:
    """A log of this process that holds a directory.

    close: releases it; runs on *thread*. closing: its release follows, and *released* then gets the future of that.
    """

    thread: LogThread
    close: Callable[[], None]
    closing: bool = False
    released: Future[Future[None]] = field(default_factory=Future)


_held: dict[str, _Held] = {}  # by directory: logs that are open or closing
_ending: dict[str, Future[None]] = {}  # by directory: logs that are being released
call_in_children(_held.clear)
call_in_children(_ending.clear)


class _Holder(NamedTuple):
    """A log that holds a directory, as others of the process see it: one that is open or closing, and its release."""

    held: _Held | None
    released: Future[None] | None


def announce_release(path: str, thread: LogThread) -> None:
    """Have the next open of the directory *path* wait: the log of *thread* is closing, and `release` follows."""
    held = _held.get(path)
    if held is not None and held.thread is thread:
        held.closing = True


def release(path: str, thread: LogThread, close: Callable[[], None]) -> Future[None]:
    """Have *thread* *close* what it holds of the directory *path* after its last work, and end; only the first time.

    Opening the log again waits for that, so it does not matter whether anybody waits for the future. A log whose event
    loop does not run is released by who opens its directory next: after that it stores nothing.
    """
    released, is_first = thread.end(close)
    if not is_first:
        return released
    _ending[path] = released
    released.add_done_callback(partial(_note_released, path))
    held = _held.get(path)
    if held is not None and held.thread is thread:  # not that of a log which this opening waited for in vain
        del _held[path]
        held.released.set_result(released)
    return released


def _note_released(path: str, released: Future[None]) -> None:
    if _ending.get(path) is released:
        _ending.pop(path, None)


def _holder_of(path: str) -> _Holder:
    """Return what is known of a log of this process that still holds the directory *path*."""
    return _Holder(_held.get(path), _ending.get(path))


def _release_of(path: str, held: _Held) -> Future[None] | None:
    """Return the release of a log that is closing, or that can store nothing more; None if it goes on.

    Its acknowledged changes are as durable then as its policy says, as after the death of its process.
    """
    if not held.closing:
        return _abandon(path, held) if held.thread.loop.is_closed() else None
    for _ in range(round(RELEASE_SECONDS / LOOK_SECONDS)):
        with suppress(TimeoutError):
            return held.released.result(LOOK_SECONDS)
        if not held.thread.loop.is_running():
            return _abandon(path, held)
    return None


def _abandon(path: str, held: _Held) -> Future[None]:
    # The watch sets a timer of the loop, which may be closed, or run in another thread.
    held.thread.on_job = lambda: None
    return release(path, held.thread, held.close)


def _wait_for_release(path: str, holder: _Holder) -> None:
    """Wait for a log of this process that still holds the directory *path* although nobody waits for its end."""
    held, released = holder
    with suppress(TimeoutError):
        if held is not None:
            released = _release_of(path, held)
        if released is not None:
            released.exception(RELEASE_SECONDS)
    if released is not None:
        # No other one: if this opening was cancelled meanwhile, its own release stands there.
        _note_released(path, released)


async def open_log_async(
    directory: LogDirectory,
    options: OpenOptions,
    on_progress: Callable[[RecoveryProgress], None] | None,
    lock_seconds: LockSeconds = 0.0,
) -> tuple[OpenedLog, LogThread]:
    """Open the log in *directory* on a new thread, which belongs to the log from then on.

    A cancelled call releases the directory as soon as the thread notices. The next one waits for that.

    Args:
        directory: Where the log's files are.
        options: How to open it.
        on_progress: Called on the event loop while another process is waited for, and while segments are read.
        lock_seconds: How long to wait for another process that has the log open, or a function that decides it.

    Returns:
        The log and its thread.

    Raises:
        LogLockedError: Another process still has it open then, or a log of this process does.
        OSError: A system call failed, as do the other errors of `open_log`.
    """
    wait = _LockWait(lock_seconds, on_progress)
    while True:
        try:
            opened, thread = await _open_once(directory, options, on_progress)
        except LogLockedError as error:
            pause = wait.pause_after(error)
            directory = LogDirectory(directory.files, error.directory)  # absolute: the working directory may change
        else:
            wait.note_end()
            _log_opened(opened)
            return opened, thread
        await asyncio.sleep(pause)


class _LockWait:
    """Decides how long a locked directory is waited for, and says whom it waits for, once for each process."""

    def __init__(self, seconds: LockSeconds, on_progress: Callable[[RecoveryProgress], None] | None) -> None:
        self._seconds_for = seconds if callable(seconds) else lambda _: seconds
        self._on_progress = on_progress
        self._clock = asyncio.get_running_loop().time
        self._begun = self._seconds = 0.0
        self._last: LogLockedError | None = None

    def pause_after(self, error: LogLockedError) -> float:
        """Return the seconds until the next attempt, after one has raised *error*; raise it if there is none."""
        if self._last is None:  # the time begins here: an attempt may take long
            self._begun, self._seconds = self._clock(), self._seconds_for(error)
        left = self._begun + self._seconds - self._clock()
        if error.is_own or left <= 0:
            raise error
        if self._last is None or self._last.owner_pid != error.owner_pid:
            self._last = error
            self._say(error, left)
        return min(LOCK_LOOK_SECONDS, left)

    def _say(self, error: LogLockedError, left: float) -> None:
        facts = {"event": "waiting_for_lock", "directory": error.directory, "owner_pid": error.owner_pid}
        logger.warning(
            "log directory %r is in use by %s: waiting for it to end, for up to %g s",
            error.directory,
            error.owner_and_command,
            round(left, 1),
            extra={"facts": facts | {"owner": error.command, "seconds": round(left, 3)}},
        )
        if self._on_progress is not None:
            self._on_progress(RecoveryProgress(0, 0, error.owner))

    def note_end(self) -> None:
        """Say that the directory was released, if it was waited for."""
        if self._last is not None:
            logger.info(
                "%s: %s released it after %.1f s", self._last.directory, self._last.owner, self._clock() - self._begun
            )


async def _open_once(
    directory: LogDirectory, options: OpenOptions, on_progress: Callable[[RecoveryProgress], None] | None
) -> tuple[OpenedLog, LogThread]:
    """See `open_log_async`; raises LogLockedError for a log that is open."""
    loop = asyncio.get_running_loop()
    # An append that does not wait for the disk gains nothing by it.
    thread = LogThread(loop, writes=options.direct and makes_calls(directory.files))
    directory = LogDirectory(timed(directory.files, thread.progress), directory.path)
    opening = _Opening(loop, on_progress)
    try:
        opened = await wrap(opening.run)(directory, options, executor=thread)
    except BaseException:
        opening.abandoned.set()
        release(opening.path, thread, opening.close)  # one thread: it runs after the work
        raise
    _held[opening.path] = _Held(thread, opened.close)
    return opened, thread


def _log_opened(opened: OpenedLog) -> None:
    """Log what recovery found, for applications as for the service."""
    directory, report = opened.directory.path, opened.report
    facts = {name: getattr(report, name) for name in report.__dataclass_fields__}
    extra = {"facts": {"event": "opened", "directory": directory} | facts | {"seconds": round(report.seconds, 3)}}
    if report.created:
        logger.info("%s: new log", directory, extra=extra)
        return
    logger.info(
        "%s: recovered: read %d records (%d bytes) in %d segments, %.2f s; %d queues",
        directory,
        report.records,
        report.bytes,
        report.segments,
        report.seconds,
        len(opened.queues),
        extra=extra,
    )
    if report.last_end in _LAST_ENDS:
        level, text = _LAST_ENDS[report.last_end]
        logger.log(level, f"%s: {text}", directory, *filter(None, [report.last_failure]), extra=extra)


class _Opening:
    """One opening: its progress goes to the event loop; if its caller was cancelled, the log is closed again.

    `abandoned` is set by the loop and read by the thread; `_opened` belongs to the thread. The thread sets `path` and
    then looks at `abandoned`: if the loop finds no path once it has set that, the thread opens nothing.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_progress: Callable[[RecoveryProgress], None] | None) -> None:
        self.abandoned = threading.Event()
        self.path = ""
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

    def run(self, directory: LogDirectory, options: OpenOptions) -> OpenedLog:
        """Open the log once no other log of this process holds *directory*. Runs on the thread, and blocks."""
        directory = directory.absolute()
        self.path = directory.path
        holder = _holder_of(self.path)  # before the look at `abandoned`: after that it may be this opening itself
        if self.abandoned.is_set():
            raise LogClosedError("opening was cancelled")
        _wait_for_release(self.path, holder)
        self._opened = open_log(directory, options, self.report)
        return self._opened

    def close(self) -> None:
        """Close the log, if it was opened."""
        if self._opened is not None:
            self._opened.close()
