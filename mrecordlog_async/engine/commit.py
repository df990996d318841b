"""What the writer passes to the log's thread, and what it gets back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mrecordlog_async.format.record import LogRecord


class LogIOError(Exception):
    """A write to the segment or a sync failed; the OSError is `__cause__`. A successful retry would prove nothing."""


class PlannedRun(NamedTuple):
    """Payloads that will be stored at consecutive positions; the log's thread makes runs of them."""

    id: int
    first_position: int
    payloads: Sequence[bytes]


class CommitRequest(NamedTuple):
    """A batch for the journal.

    oldest_segment: the oldest one with anything live, None for none. sync: wait for the medium. needs_space: it holds
    appends or creates, which must leave the reserve alone. may_roll: False once that was refused. more_table_bytes:
    what its creates add to the table of queues.
    """

    records: Sequence[LogRecord | PlannedRun]
    oldest_segment: int | None
    sync: bool
    needs_space: bool
    may_roll: bool = True
    more_table_bytes: int = 0


class CommitResult(NamedTuple):
    """What became of a request: the log records as stored, the segment they are in, sizes and times in seconds."""

    records: list[LogRecord]
    segment: int
    written_bytes: int
    synced: bool
    rolled: bool
    seconds: float
    sync_seconds: float
