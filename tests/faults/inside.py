"""All that explorer, judge and histories know of the inside of the log. Whoever rebuilds a room adapts this.

1. The seam: the thread of the log and its queue, by the names under which the log makes them.
2. What the system does when a process dies, and Python does not: forget the logs that it had open.
3. What a log does without being called: it removes what is too old, and moves records out of memory in steps.
4. The commands that open a log without its records.

The sizes at which the log changes its way of working are in `sizes`, and the sums of its memory in `tests.memory.sums`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any
from unittest.mock import patch

from mrecordlog_async import Limits, MultiRecordLog, PersistPolicy
from mrecordlog_async.engine import open_async
from mrecordlog_async.engine.intake.controls import ChangeRule, TruncateQueue
from mrecordlog_async.engine.running import EngineOptions
from mrecordlog_async.maintenance.changing import Changing, open_to_change
from mrecordlog_async.storage.filesystem import FileSystem

__all__ = ["Changing", "TruncateQueue"]

TIME_NS = 1_767_225_600_000_000_000
LOG_ID = b"the-log's-own-id"
FIRST_QUEUE_ID = 70_000
"""What the log draws for the id of its first queue, for how far an opening moves the ids up, and for its nonces."""


@contextmanager
def without_chance() -> Iterator[None]:
    """Replace the machine's random numbers and its clocks by fixed ones."""
    with (
        patch("secrets.randbits", lambda bits: FIRST_QUEUE_ID),
        patch("secrets.token_bytes", lambda length: LOG_ID[:length]),
        patch("time.time_ns", lambda: TIME_NS),
        patch("time.clock_gettime_ns", lambda clock: TIME_NS),
    ):
        yield


class _Threading:
    """The module `threading` with another thread."""

    def __init__(self, thread: type) -> None:
        self.Thread = thread

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)


@contextmanager
def on_model_threads(queue: type, thread: type, writing: Callable[[Any], object]) -> Iterator[None]:
    """Replace the thread of logs that are opened here, and the queue of its jobs; *writing* makes one that writes."""
    disks: list[Any] = []

    def makes_calls(disk: Any) -> bool:
        disks[:] = [disk]
        return bool(disk.has_prepared)

    with (
        patch("mrecordlog_async.engine.open_async.makes_calls", makes_calls),
        patch("mrecordlog_async.engine.commit.thread.new_jobs", lambda: writing(disks[0])),
        patch("mrecordlog_async.engine.commit.thread.SimpleQueue", queue),
        patch("mrecordlog_async.engine.commit.thread.threading", _Threading(thread)),
        # Each step of spilling takes a turn of the loop.
        patch("mrecordlog_async.engine.spilling.spill.perf_counter", count().__next__),
        patch("mrecordlog_async.engine.spilling.spill.REST_SECONDS", 0),
    ):
        yield


def forget(log: MultiRecordLog) -> None:
    """Forget a log of a process that died: the next one neither waits for it nor releases it, and none warns of it."""
    log._engine._unclosed.detach()
    open_async._ending.pop(log.directory, None)
    open_async._held.pop(log.directory, None)


def tell_of_truncates(log: MultiRecordLog, submit: Callable[[TruncateQueue], None]) -> None:
    """Have *submit* make the truncates of the log's retention, which are calls of the model."""
    if log._engine.expiry is not None:
        log._engine.expiry._submit = submit  # type: ignore[assignment]  # it submits nothing else


def look_for_old_records(log: MultiRecordLog) -> None:
    """Have the log look now for records that are too old."""
    if log._engine.expiry is not None:
        log._engine.expiry.look()


async def change_rule(log: MultiRecordLog, pattern: str, consumer: str, is_deleted: bool, exist_ok: bool) -> object:
    """Change a rule and nothing else: what else such a call of a service does are calls like any other."""
    return await log._submit(ChangeRule, pattern, consumer, is_deleted, exist_ok)


async def open_without_records(
    directory: str, policy: PersistPolicy, limits: Limits, filesystem: FileSystem, segment_bytes: int
) -> Changing:
    """Open the log as `mrecordlog truncate DIR` does."""
    options = EngineOptions(policy, limits)
    return await open_to_change(directory, options, filesystem=filesystem, segment_bytes=segment_bytes)
