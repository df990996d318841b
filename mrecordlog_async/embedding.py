"""A log inside an application: opened with it, with its queues and workers, and ended gracefully. For the embeds.

A server that is reloaded starts its new process before the old one has ended, so the old one's log is waited for. A
signal ends the opening, whatever it waits for: servers act on one only once the application has started.

| event | result |
|---|---|
| a worker returns | it is not restarted |
| it raises | it is restarted after a pause, which doubles with each failure |
| it raises more often than `max_restarts` | the process ends ("exit"), or continues without it ("degrade") |
| it waits for something that is cancelled | the same as if it had raised: the worker itself was not cancelled |
| its task is cancelled while the application runs | it is not restarted, which is logged and counted |
| the application ends | it finishes its batch and gets no other; after `worker_seconds` it is cancelled |
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from signal import Signals
from types import CoroutineType
from typing import Any, Literal, NamedTuple, TypedDict

from mrecordlog_async.batches import check_seconds
from mrecordlog_async.errors import LogClosedError, LogFailedError, LogLockedError
from mrecordlog_async.log import MultiRecordLog, OpeningLog
from mrecordlog_async.model import LogState, RecoveryProgress
from mrecordlog_async.names import check_consumers
from mrecordlog_async.options import Limits, PersistPolicy, QueueOptions, check_queues
from mrecordlog_async.storage.filesystem import FileSystem
from mrecordlog_async.support.nearest import did_you_mean, nearest
from mrecordlog_async.support.stop_signal import on_stop_signal

Worker = Callable[[MultiRecordLog], Coroutine[Any, Any, object]]
"""A coroutine function that takes the log: it consumes, and ends when the log hands out no more batches."""

Queues = Iterable[str] | Mapping[str, QueueOptions]
Consumers = Mapping[str, Iterable[str]]

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 30.0
"""A worker that raised is started again after between half of this and all of it: from the first to the longest."""

LOCK_SECONDS = 25.0
"""Seconds that an application waits for another process that has its log open.

gunicorn aborts a worker that needs 30 s to start.
"""
SIBLING_SECONDS = 5.0
"""Instead of those, for a worker that its server has started together with this one: it will not end for this one."""

logger = logging.getLogger("mrecordlog_async.embedding")


class EmbedOptions(TypedDict, total=False):
    """Further options of `lifespan` and `setup`: the others of `MultiRecordLog.open`, and what happens to workers.

    Attributes:
        lock_seconds: How long to wait for another process that has the log open, in seconds. By default 25, for servers
            that start a new process before the old one has ended, and 5 for a worker that the server has started
            together with this one. SIGTERM and SIGINT end the wait.
        max_restarts: How often a worker that raised is restarted within `restart_seconds`; 0: never. 10 by default.
        restart_seconds: The time in which failures are counted, in seconds; 300 by default.
        on_worker_failure: What happens after one more failure: "exit", the default, ends the process with exit status
            1, so that its supervisor restarts it; with "degrade" the application continues without the worker, and
            `/readyz` responds with 503.
        worker_seconds: Seconds that workers have to finish their batches when the application ends, before they are
            cancelled; 20 by default.
    """

    persist_policy: PersistPolicy | None
    limits: Limits | None
    segment_bytes: int
    create: bool
    recycle: bool
    on_progress: Callable[[RecoveryProgress], None] | None
    on_failure: Callable[[LogFailedError], object] | None
    retention: bool
    lock_seconds: float
    filesystem: FileSystem | None
    max_restarts: int
    restart_seconds: float
    on_worker_failure: Literal["exit", "degrade"]
    worker_seconds: float


@dataclass(frozen=True, slots=True)
class Supervision:
    """Options of workers, with their defaults; see `EmbedOptions`."""

    max_restarts: int = 10
    restart_seconds: float = 300.0
    on_worker_failure: Literal["exit", "degrade"] = "exit"
    worker_seconds: float = 20.0

    def __post_init__(self) -> None:
        """Raise TypeError or ValueError for a value of the wrong kind."""
        for name, value in (
            ("max_restarts", self.max_restarts),
            ("restart_seconds", self.restart_seconds),
            ("worker_seconds", self.worker_seconds),
        ):
            whole = name == "max_restarts"
            if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
                raise TypeError(f"{name} must be {'an int' if whole else 'a number'}, not {type(value).__name__}")
            if not value >= 0:  # also refuses NaN
                raise ValueError(f"{name} must be at least 0, got {value}")
        if self.on_worker_failure not in ("exit", "degrade"):
            raise ValueError(f'on_worker_failure must be "exit" or "degrade", not {self.on_worker_failure!r}')


_OF_WORKERS = tuple(Supervision.__dataclass_fields__)


def check_options(options: Mapping[str, Any], others: Sequence[str] = ()) -> Supervision:
    """Return the part of *options* that concerns workers; raise TypeError for an option that does not exist.

    The time to wait for the lock is checked here too, where it has another default than in `open`.

    others: the further arguments of the function that takes the options, which a misspelt one may mean.
    """
    for name in options.keys() - EmbedOptions.__annotations__.keys():
        meant = nearest(name, ["queues", "consumers", "workers", *others, *EmbedOptions.__annotations__])
        raise TypeError(f"there is no option {name!r}{did_you_mean(meant and repr(meant))}")
    check_seconds("lock_seconds", options.get("lock_seconds", LOCK_SECONDS))
    return Supervision(**{name: options[name] for name in _OF_WORKERS if name in options})


class Embedding(NamedTuple):
    """An application's log, what it declares, and its workers. options: see `EmbedOptions`."""

    directory: str | os.PathLike[str]
    queues: Mapping[str, QueueOptions | None]
    consumers: Mapping[str, Sequence[str]]
    workers: Sequence[Worker]
    options: Mapping[str, Any]


def check_embed(
    directory: str | os.PathLike[str],
    queues: Queues,
    consumers: Consumers,
    workers: object,
    options: Mapping[str, Any],
    others: Sequence[str],
) -> Embedding:
    """Return the arguments as `embedded` takes them; raise for one that it could not use.

    others: see `check_options`.
    """
    _check_directory(directory)
    declared, by_queue = check_queues(queues), check_consumers(consumers)
    embedding = Embedding(directory, declared, by_queue, _check_workers(workers), options)
    check_options(options, others)
    return embedding


def _check_directory(directory: object) -> None:
    """Raise TypeError for anything but a path, such as the application when `lifespan` was passed without a call."""
    if not isinstance(directory, str | bytes | os.PathLike):
        wanted = 'the directory of the log must be a path, as in lifespan("./wal") or setup(app, "./wal")'
        raise TypeError(f"{wanted}, not {type(directory).__name__}")


def _check_workers(workers: object) -> Sequence[Worker]:
    """Return *workers* as a sequence; raise TypeError if they are not functions."""
    wanted = "workers must be a list of coroutine functions that take the log, such as [deliver]"
    if isinstance(workers, str) or not isinstance(workers, Iterable):
        raise TypeError(f"{wanted}, not {workers!r}")
    listed = tuple(workers)
    for worker in listed:
        if isinstance(worker, CoroutineType):
            worker.close()
            raise TypeError(f"{wanted}: pass {worker.__qualname__} itself, without a call")
        if not callable(worker):
            raise TypeError(f"{wanted}, not one with {worker!r}")
    return listed


def name_of(worker: Worker) -> str:
    """Return the name of *worker* in messages."""
    return getattr(worker, "__qualname__", repr(worker))


def _started(worker: Worker, log: MultiRecordLog) -> Coroutine[Any, Any, object]:
    started = worker(log)
    if not isinstance(started, Awaitable):
        raise TypeError(f"it returned {started!r} instead of a coroutine: define it with `async def`")
    return started


class Workers:
    """The workers of an application and the log that they work on, until both end."""

    def __init__(self, log: MultiRecordLog, supervision: Supervision, workers: Sequence[Worker]) -> None:
        """Start *workers*."""
        self.log = log
        self.supervision = supervision
        self.ending = asyncio.Event()
        self._tasks = [asyncio.create_task(_Run(worker, self).run(), name=name_of(worker)) for worker in workers]

    def may_restart(self) -> bool:
        """Return whether a worker that raised may be started again: neither the log nor the application ends."""
        return self.log.state is LogState.OPEN and not self.ending.is_set()

    async def end(self) -> None:
        """Have the workers finish their batches; cancel those that do not within `worker_seconds`."""
        self.ending.set()
        self.log.inspection.end_readers()
        others = [task for task in self._tasks if task is not asyncio.current_task()]
        try:
            if others:
                seconds = self.supervision.worker_seconds
                _, running = await asyncio.wait(others, timeout=seconds)
                for task in running:
                    logger.warning("the worker %s did not end within %g s: it is cancelled", task.get_name(), seconds)
        finally:
            if late := [task for task in others if task.cancel()]:
                await asyncio.wait(late)
            for task in others:
                if not task.cancelled():
                    task.exception()  # the end of the process, marked as retrieved

    async def end_process(self, sentence: str) -> None:
        """End the process with exit status 1, and *sentence* as its last words.

        What runs the event loop then cancels all of its tasks, those of the log too: so the log is closed before.
        """
        try:
            await self.end()
            await self.log.close()
        finally:
            raise SystemExit(sentence)


class _Run:
    """One worker, from its first start to its last end."""

    def __init__(self, worker: Worker, workers: Workers) -> None:
        self._worker = worker
        self._workers = workers
        self._name = name_of(worker)
        self._failures: deque[float] = deque()  # times, within `restart_seconds`
        self._pause = FIRST_PAUSE_SECONDS

    async def run(self) -> None:
        """Run the worker until it returns, the application ends, or it has failed too often."""
        log = self._workers.log
        counts = log.workers
        while True:
            counts.running += 1
            failure: BaseException
            try:
                await _started(self._worker, log)
                counts.ended += 1
                return
            except Exception as error:
                failure = error
            except asyncio.CancelledError as error:
                if self._is_cancelled():
                    raise
                failure = error
            finally:
                counts.running -= 1
            if not self._workers.may_restart():
                counts.failed += 1
                logger.error("the worker %s failed while the application ended", self._name, exc_info=failure)
                return
            self._note_failure()
            if len(self._failures) > self._workers.supervision.max_restarts:
                counts.failed += 1
                await self._give_up(failure)
                return
            logger.error("the worker %s failed, and is started again", self._name, exc_info=failure)
            if not await self._rest():
                counts.ended += 1
                return
            counts.restarts += 1

    def _is_cancelled(self) -> bool:
        """Return whether the worker's task is to end, and not only what the worker waited for."""
        task = asyncio.current_task()
        if task is None or not task.cancelling():
            return False
        if self._workers.may_restart():
            self._workers.log.workers.failed += 1
            logger.critical("the worker %s was cancelled and does not run any more", self._name)
        return True

    def _note_failure(self) -> None:
        now = asyncio.get_running_loop().time()
        while self._failures and self._failures[0] <= now - self._workers.supervision.restart_seconds:
            self._failures.popleft()
        if not self._failures:
            self._pause = FIRST_PAUSE_SECONDS
        self._failures.append(now)

    async def _rest(self) -> bool:
        """Wait before the next start; return False if the application ends meanwhile."""
        seconds = self._pause * random.uniform(0.5, 1.0)
        self._pause = min(self._pause * 2, LONGEST_PAUSE_SECONDS)
        counts = self._workers.log.workers
        counts.restarting += 1
        try:
            await asyncio.wait_for(self._workers.ending.wait(), seconds)
        except TimeoutError:
            return True
        finally:
            counts.restarting -= 1
        return False

    async def _give_up(self, error: BaseException) -> None:
        """Log why the worker does not run any more; end the process if that is what was asked for."""
        supervision = self._workers.supervision
        failed = f"the worker {self._name} failed {len(self._failures)} times within {supervision.restart_seconds:g} s"
        if supervision.on_worker_failure == "degrade":
            logger.critical("%s and does not run any more", failed, exc_info=error)
            return
        logger.critical("%s: the process ends, to be started again", failed, exc_info=error)
        cause = f"{type(error).__name__}: {error}"
        await self._workers.end_process(f"{failed} ({cause}); the process ends, to be started again")


@asynccontextmanager
async def embedded(embedding: Embedding) -> AsyncIterator[MultiRecordLog]:
    """Open the log, run the workers next to the application, and at its end have them finish, then close the log.

    A worker gets no further batch then, but may still append what it makes of the one that it has. What waits is
    delivered after the next start.
    """
    supervision = check_options(embedding.options)
    of_log = {name: value for name, value in embedding.options.items() if name not in _OF_WORKERS}
    of_log.setdefault("lock_seconds", _lock_seconds)
    opening = MultiRecordLog.open(embedding.directory, queues=embedding.queues, consumers=embedding.consumers, **of_log)
    async with await _opened(opening) as log:
        running = Workers(log, supervision, embedding.workers)
        try:
            yield log
        finally:
            await running.end()


def _lock_seconds(error: LogLockedError) -> float:
    """Return how long to wait for the process that *error* names, if the application does not say."""
    return SIBLING_SECONDS if error.is_sibling else LOCK_SECONDS


class OpeningStoppedError(LogClosedError):
    """The process was told to stop, by the signal *number*, while it opened the log."""

    def __init__(self, number: int) -> None:
        super().__init__(f"the process was told to stop ({Signals(number).name}) before the log was open")
        self.number = number


async def _opened(opening: OpeningLog) -> MultiRecordLog:
    """Return the open log; raise OpeningStoppedError if a signal comes first."""
    task, came = asyncio.ensure_future(opening), list[int]()

    def stop(number: int) -> None:
        came.append(number)
        # A turn later, because the loop's own handler of the signal comes first then: that of aiohttp ends the loop,
        # which must not be in the turn in which the application ends.
        task.get_loop().call_soon(task.cancel)

    with on_stop_signal(stop):
        try:
            return await task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if not came or (caller is not None and caller.cancelling()):
                raise
            raise OpeningStoppedError(came[0]) from None
