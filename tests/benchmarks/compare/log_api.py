"""The part of a log's API that a row drives, and how a contestant opens it and reads it back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from mrecordlog_async import Limits, MultiRecordLog, ReadOnlyLog
from mrecordlog_async.options import GIB

LIMITS = Limits(memory_bytes=16 * GIB, disk_bytes=64 * GIB)
QUEUE = "bench"


class LogApi(Protocol):
    """What a row calls; see `MultiRecordLog` for the meaning."""

    def create_queue(self, queue: str) -> Awaitable[object]: ...
    def append_record(self, queue: str, position: None, payload: bytes) -> Awaitable[int | None]: ...
    def append_records(self, queue: str, position: None, payloads: Sequence[bytes]) -> Awaitable[int | None]: ...
    def truncate(self, queue: str, position: int) -> Awaitable[object]: ...
    def range(self, queue: str) -> Iterable[tuple[int, bytes]]: ...
    def close(self) -> Awaitable[None]: ...


class Written(NamedTuple):
    """Batches and their bytes since the log was opened; zeros where they are not counted."""

    commits: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Contender:
    """Something that takes part.

    Attributes:
        open: opens the directory, which is created if needed; every acknowledged call is durable.
        read: returns all payloads of a closed directory.
        written: counts what an open log wrote.
    """

    open: Callable[[str], Awaitable[LogApi]]
    read: Callable[[str], Counter[bytes]]
    written: Callable[[LogApi], Written]


async def _open(directory: str) -> LogApi:
    return await MultiRecordLog.open(directory, limits=LIMITS)


def _read(directory: str) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    with ReadOnlyLog.open(directory) as log:
        for queue in log.list_queues():
            found.update(payload for _, payload in log.range(queue))
    return found


def _written(log: LogApi) -> Written:
    assert isinstance(log, MultiRecordLog)
    counters = log.stats()
    return Written(counters.commits, counters.written_bytes)


THIS_LOG = Contender(_open, _read, _written)
