"""What reading a log directory yields: the values that recovery hands to a writer or a reader."""

from __future__ import annotations

from dataclasses import dataclass, field

from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.model import RecoveryReport
from mrecordlog_async.storage.segment import segment_name


@dataclass(slots=True)
class Counts:
    """What was read, for the report."""

    batches: int = 0
    records: int = 0
    bytes: int = 0


@dataclass(slots=True)
class RecoveredLog:
    """A log as it was read: everything the writer or a reader goes on from.

    older: (number, bytes) of the live segments before the last. leftovers: numbers of those below the oldest live one
    that exist.
    torn_range: offsets of the first byte after `end` that is not zero and after the last one, None for a clean end.
    overtaken: the writer removed segments faster than they could be read, so the queues' first positions are newer than
    their records; the log cannot be read on from here.
    """

    log_id: bytes
    segment: int
    table_end: int
    end: int
    first_batch: int
    last_batch: int
    oldest_segment: int
    size: int
    queues: Queues
    torn_range: tuple[int, int] | None
    closed: bool
    overtaken: bool = False
    older: list[tuple[int, int]] = field(default_factory=list)
    leftovers: list[int] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)

    def report(self, seconds: float, created: bool = False) -> RecoveryReport:
        """Sum up for people."""
        return RecoveryReport(
            created=created,
            clean=self.torn_range is None,
            segments=len(self.older) + 1,
            batches=self.counts.batches,
            records=self.counts.records,
            bytes=self.counts.bytes,
            dropped_bytes=self.torn_range[1] - self.end if self.torn_range else 0,
            segment=segment_name(self.segment),
            offset=self.end,
            seconds=seconds,
        )
