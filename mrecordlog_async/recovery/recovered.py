"""Results of reading a log directory: the values that recovery hands to a writer or a reader."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.memory.times import NO_TICK
from mrecordlog_async.model import LastEnd, RecoveryReport
from mrecordlog_async.recovery.torn_or_damaged import LogTail
from mrecordlog_async.storage.end_note import EndNote
from mrecordlog_async.storage.segment import LogEnd, segment_name


@dataclass(slots=True)
class Counts:
    """Numbers of what was read, for the report."""

    batches: int = 0
    records: int = 0
    bytes: int = 0


class LastRead(NamedTuple):
    """The last bytes of a log that were read, where they end, and in which segment.

    Others there mean that the log was replaced by a copy of an older state, which then went on differently: everything
    else of the two may be equal, positions, sizes and numbers of batches included.
    """

    segment: int
    end: int
    content: bytes


class ClockJump(NamedTuple):
    """The newest step of the clock by more than a day: the tick of the batch before it, and that of the one after."""

    before: int = NO_TICK
    after: int = NO_TICK


@dataclass(slots=True)
class RecoveredLog:
    """A log as it was read: everything that a writer or a reader continues from.

    size: bytes of the last segment's file. older: (number, bytes) of the live segments before the last. leftovers:
    numbers of those below the oldest live one that exist.
    tail: what follows `end`. last: what precedes it; None for a new log.
    created: there was no log before, and nothing was read.
    overtaken: the writer removed segments faster than they could be read, so the queues' first positions are newer than
    their records; the log cannot be read on from here.
    noted: what earlier openings noted of their ends. gathered: sizes of the gathered files, by segment.
    jump: of the clock, among the batches that were read.
    """

    log_id: bytes
    end: LogEnd
    oldest_segment: int
    size: int
    queues: Queues
    tail: LogTail
    closed: bool
    last: LastRead | None = None
    created: bool = False
    overtaken: bool = False
    older: list[tuple[int, int]] = field(default_factory=list)
    leftovers: list[int] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    noted: EndNote = field(default_factory=EndNote)
    gathered: dict[int, int] = field(default_factory=dict)
    jump: ClockJump = field(default_factory=ClockJump)

    def report(self, seconds: float) -> RecoveryReport:
        """Sum up for people. *seconds*: how long it took."""
        last_end = self._last_end()
        before = 0 if self.created else self.noted.unclosed_ends
        return RecoveryReport(
            created=self.created,
            clean=not self.tail.torn_bytes,
            segments=len(self.older) + 1,
            batches=self.counts.batches,
            records=self.counts.records,
            bytes=self.counts.bytes,
            dropped_bytes=self.tail.torn_bytes,
            segment=segment_name(self.end.segment),
            offset=self.end.offset,
            seconds=seconds,
            last_end=last_end,
            last_failure=self.noted.failure if last_end is LastEnd.FAILED else "",
            unclosed_ends=before + (last_end in (LastEnd.FAILED, LastEnd.UNCLOSED)),
        )

    def _last_end(self) -> LastEnd:
        """Only a missing `CLOSED` says that the log was not closed; the note adds whether it had failed."""
        if self.created or self.closed:
            return LastEnd.NEW if self.created else LastEnd.CLOSED
        return LastEnd.FAILED if self.noted.failure else LastEnd.UNCLOSED
