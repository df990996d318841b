"""What the writer passes to the log's thread, and what it gets back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mrecordlog_async.format.record import LogRecord


class LogIOError(Exception):
    """A write or sync of the segment failed; the OSError is `__cause__`. A retry that succeeds proves nothing."""


class PlannedRun(NamedTuple):
    """Payloads to be stored at consecutive positions. The log's thread turns them into runs."""

    id: int
    first_position: int
    payloads: Sequence[bytes]


class PlannedMany(NamedTuple):
    """Single records of several queues, each given by its place in the three sequences. A queue may occur repeatedly.

    The log's thread turns them into MANYs, in this order.
    """

    ids: Sequence[int]
    positions: Sequence[int]
    payloads: Sequence[bytes]


PlannedRecord = LogRecord | PlannedRun | PlannedMany
"""What a plan writes."""


class CommitRequest(NamedTuple):
    """A batch for the journal.

    oldest_segment: the oldest one with anything live, or None. sync: wait for the medium. needs_space: it holds appends
    or creates, which must leave the reserve alone. may_roll: False once a roll was refused. more_table_bytes: what its
    creates add to the queue table. leaves_bytes: how much of the reserve it must leave to others on a full disk.
    """

    records: Sequence[PlannedRecord]
    oldest_segment: int | None
    sync: bool
    needs_space: bool
    may_roll: bool = True
    more_table_bytes: int = 0
    leaves_bytes: int = 0


class CommitResult(NamedTuple):
    """A stored batch: its log records, the segment that holds them, bytes, and durations in seconds.

    tick: the time in its COMMIT, as `memory.times` counts it. batch: its number.
    """

    records: list[LogRecord]
    segment: int
    written_bytes: int
    synced: bool
    rolled: bool
    seconds: float
    sync_seconds: float
    tick: int
    batch: int
