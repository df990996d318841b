"""Values passed between modules: records, positions, runs, and what a log reports about itself.

A **run** is a series of consecutive records of one queue, laid out like Arrow's BinaryArray: int32 offsets, then the
payloads back to back. A run is the body of an append on disk, the unit kept in memory and the block sent to a reader,
so no Python code handles single records between the writer and a reader. Only records with gaps between their
positions are stored differently in memory (`memory/gapped.py`); they become runs when they are read.
"""

from __future__ import annotations

import json
import math
import time
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from itertools import accumulate, chain
from typing import Any, NamedTuple

from mrecordlog_async.compiled import pairs_of_run, payloads_of_run, records_of_run

POSITION_MAX = 2**63 - 2
"""The last position that can be assigned; the next position still fits into a signed 64-bit integer."""

Start = int | datetime
"""Start of a read: a position, or a time with a time zone."""

OFFSET_BYTES = 4

OFFSET_STOP = 2**31
"""Offsets in a run are below this: they are signed 32-bit integers."""

RUN_BYTES = 32_768
"""A call's records are split into runs of about this size, offsets included, so that a damaged frame loses little."""


class Record(NamedTuple):
    """One record of a queue.

    Attributes:
        position: Its position, assigned once and never again in this queue.
        payload: Its bytes.
    """

    position: int
    payload: bytes


class Run(NamedTuple):
    """Consecutive records of one queue, at least one.

    Attributes:
        first_position: Position of the first record.
        offsets: For n records, n+1 int32 in native (little endian) order: where each payload starts, and the end.
        payload: The n payloads back to back.
    """

    first_position: int
    offsets: bytes
    payload: bytes

    @classmethod
    def of(cls, first_position: int, payloads: Sequence[bytes]) -> Run:
        """Join *payloads* into a run. A single payload is kept without a copy.

        Args:
            first_position: Position of the first one.
            payloads: At least one.

        Raises:
            OverflowError: The payloads total 2 GiB or more.
        """
        if len(payloads) == 1:
            payload = payloads[0]
            return tuple.__new__(cls, (first_position, offsets_of_one(len(payload)), payload))
        return cls(first_position, pack_offsets(accumulate(map(len, payloads), initial=0)), b"".join(payloads))

    @property
    def record_count(self) -> int:
        """Number of records."""
        return len(self.offsets) // OFFSET_BYTES - 1

    @property
    def next_position(self) -> int:
        """Position after the last record."""
        return self.first_position + len(self.offsets) // OFFSET_BYTES - 1

    def before(self, position: int) -> int:
        """Return the number of records whose position is below *position*."""
        return min(max(position - self.first_position, 0), self.record_count)

    def ends(self) -> list[int]:
        """Return the n+1 offsets as integers."""
        return memoryview(self.offsets).cast("i").tolist()

    def bytes_before(self, record: int) -> int:
        """Return the payload bytes before the record with this number, from 0 on."""
        return int.from_bytes(self.offsets[record * OFFSET_BYTES : (record + 1) * OFFSET_BYTES], "little")

    def count_within(self, record: int, records_max: int, bytes_max: int) -> int:
        """Return how many records are within both limits, from the one with number *record* on."""
        ends = memoryview(self.offsets).cast("i")
        fitting = bisect_right(ends, ends[record] + bytes_max, record + 1) - record - 1
        return min(fitting, records_max)

    def payloads(self) -> list[bytes]:
        """Return the payloads as a list. The payload of a run of one record is not copied."""
        return payloads_of_run(self.offsets, self.payload, 0, self.record_count)

    def records(self) -> Iterator[Record]:
        """Yield the records one by one."""
        first, offsets, payload = self
        return records_of_run(Record, first, offsets, payload, 0, len(offsets) // OFFSET_BYTES - 1)

    def pairs(self) -> Iterator[tuple[int, bytes]]:
        """Yield (position, payload) of the records one by one: plain tuples, twice as fast as `records`."""
        first, offsets, payload = self
        return pairs_of_run(first, offsets, payload, 0, len(offsets) // OFFSET_BYTES - 1)

    def payloads_between(self, start: int, stop: int) -> list[bytes]:
        """Return the payloads of the records with positions *start* … *stop* - 1, without a copy of the others."""
        return payloads_of_run(self.offsets, self.payload, self.before(start), self.before(stop))

    def records_between(self, start: int, stop: int) -> Iterator[Record]:
        """Yield the records with positions *start* … *stop* - 1 one by one."""
        first, offsets, payload = self
        begin, end = self.before(start), self.before(stop)
        return records_of_run(Record, first + begin, offsets, payload, begin, end)

    def cut(self, start: int, stop: int) -> Run:
        """Return the part with positions *start* … *stop* - 1; the run itself if that is all of it.

        Args:
            start: First position of the part; may be before the run.
            stop: Position after its last one; may be past the run. The part must not be empty.
        """
        position, offsets, payload = self
        records = len(offsets) // OFFSET_BYTES - 1
        first, last = max(start - position, 0), min(stop - position, records)
        assert first < last, "an empty part of a run is not a run"
        if first == 0 and last == records:
            return self
        offsets = offsets[first * OFFSET_BYTES : (last + 1) * OFFSET_BYTES]
        base = int.from_bytes(offsets[:OFFSET_BYTES], "little")
        end = int.from_bytes(offsets[-OFFSET_BYTES:], "little")
        return Run(position + first, shifted(offsets, base), payload[base:end])

    def cut_records(self, records: int) -> Run:
        """Return the first *records* records, at least one and at most all of them."""
        return self.cut(self.first_position, self.first_position + records)

    def cut_bytes(self, bytes_max: int) -> Run:
        """Return the first records whose payloads total at most *bytes_max* bytes, but at least one record."""
        if len(self.payload) <= bytes_max:
            return self
        return self.cut_records(max(self.count_within(0, self.record_count, bytes_max), 1))


@dataclass(frozen=True, slots=True)
class Times:
    """Times at which records of a queue were stored, to 0.1 s: kept where they change along their positions.

    Attributes:
        positions: Ascending; from each of them on, the tick at the same place holds.
        ticks: Tenths of a second since 1970.
    """

    positions: array[int]
    ticks: array[int]

    @classmethod
    def none(cls) -> Times:
        """Return times that are not known."""
        return cls(array("q"), array("q"))

    @classmethod
    def joined(cls, parts: Iterable[Times]) -> Times:
        """Return *parts*, each of later positions than the one before, as one."""
        found = cls.none()
        for part in parts:
            for position, tick in zip(part.positions, part.ticks, strict=True):
                found.add(position, tick)
        return found

    def add(self, position: int, tick: int) -> None:
        """Note that *tick* holds from *position* on."""
        if not self.ticks or self.ticks[-1] != tick:
            self.positions.append(position)
            self.ticks.append(tick)

    def spans(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield (first position, position after the last, tick) for positions *start* … *stop* - 1, in order.

        Yields nothing if the times are not known.
        """
        at = max(bisect_right(self.positions, start) - 1, 0)
        while at < len(self.ticks) and start < stop:
            end = self.positions[at + 1] if at + 1 < len(self.positions) else stop
            yield start, min(end, stop), self.ticks[at]
            start = end
            at += 1

    def add_spans(self, times: Times, start: int, stop: int) -> None:
        """Add what *times* says of positions *start* … *stop* - 1."""
        if start >= stop or not times.ticks:
            return
        if len(times.ticks) == 1:
            self.add(start, times.ticks[0])
            return
        first = max(bisect_right(times.positions, start) - 1, 0)
        end = bisect_left(times.positions, stop, first + 1)
        self.add(start, times.ticks[first])
        self.positions.extend(times.positions[first + 1 : end])
        self.ticks.extend(times.ticks[first + 1 : end])

    def between(self, start: int, stop: int) -> Times:
        """Return the times of positions *start* … *stop* - 1."""
        found = Times.none()
        found.add_spans(self, start, stop)
        return found

    def until(self, stop: int) -> Times:
        """Return the times of positions before *stop*."""
        end = bisect_left(self.positions, stop)
        return self if end == len(self.positions) else Times(self.positions[:end], self.ticks[:end])

    def time_at(self, position: int) -> datetime | None:
        """Return the time at *position*; None if it is not known."""
        for _, _, tick in self.spans(position, position + 1):
            return time_of_tick(tick)
        return None


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

TICK_NS = 100_000_000
TICKS_PER_SECOND = 10
"""A tick is 0.1 s. Ticks are counted from `EPOCH`, and are what a log notes of times."""

DAY_TICKS = 86_400 * TICKS_PER_SECOND
"""A log may be closed for this long, and its clock be set by this much, without a doubt about the clock."""

FUTURE_SECONDS_MAX = 60
"""A time may be this far ahead of this machine's clock: it may come from another machine."""


def time_of_tick(tick: int) -> datetime:
    """Return tenths of a second since 1970 as a time in UTC."""
    return EPOCH + timedelta(milliseconds=tick * 100)


def text_of_tick(tick: int) -> str:
    """Return tenths of a second since 1970 as text, like 2026-11-22T09:30:00.1Z."""
    return f"{time_of_tick(tick):%Y-%m-%dT%H:%M:%S}.{tick % 10}Z"


def age_of(tick: int) -> float:
    """Return how many seconds ago *tick* was, by the clock of this machine; 0 for a tick in the future."""
    return max(time.time() - tick / TICKS_PER_SECOND, 0.0)


def tick_of_time(moment: datetime) -> int:
    """Return the tick that *moment* is in.

    Raises:
        TypeError: It is not a datetime.
        ValueError: It has no time zone, or it is in the future.
    """
    if not isinstance(moment, datetime):
        raise TypeError(f"a time must be a datetime with a time zone, not {type(moment).__name__}")
    if moment.utcoffset() is None:
        raise ValueError(f"time {moment} has no time zone: use datetime.now(UTC) or moment.astimezone()")
    since = moment - EPOCH
    if since.total_seconds() > time.time() + FUTURE_SECONDS_MAX:
        raise ValueError(f"time {moment} is in the future: it is {time_of_tick(time.time_ns() // TICK_NS)} now")
    return since // timedelta(milliseconds=100)


_Payloads = list[bytes]


class Batch:
    """Records of one queue that were handed out together. Iterating over it yields them one by one.

    It has at least one record, unless it was asked for with a timeout: `if batch:` shows whether it has any.

    Attributes:
        queue: Name of the queue.
        queue_id: Its incarnation (see `QueueSummary.id`).
        first_position: Position of the first record; of an empty batch, where the next one begins.
        next_position: Position after the last record.
    """

    __slots__ = ("_kept", "_runs", "_times", "first_position", "next_position", "queue", "queue_id")

    def __init__(
        self,
        queue: str,
        queue_id: int,
        runs: Sequence[Run],
        start: int | None = None,
        stop: int | None = None,
        times: Callable[[int, int], Times] | Times | None = None,
    ) -> None:
        """Hold the records of *runs* with positions *start* … *stop* - 1; all of them by default.

        Each run has at least one of these records. The first and the last one are only cut if `runs` is asked for.
        *times*: when they were stored, or what finds that for a range of positions.
        """
        self.queue = queue
        self.queue_id = queue_id
        self.first_position = runs[0].first_position if start is None else start
        self.next_position = runs[-1].next_position if stop is None else stop
        self._kept = runs
        self._runs: tuple[Run, ...] | None = None if runs else ()
        self._times = times

    @classmethod
    def empty(cls, queue: str, queue_id: int, position: int) -> Batch:
        """Return a batch without a record, of a reader that is at *position*."""
        return cls(queue, queue_id, (), position, position)

    @property
    def runs(self) -> tuple[Run, ...]:
        """The records as runs, in the order of their positions; there may be gaps between two runs."""
        if self._runs is None:
            start, stop, runs = self.first_position, self.next_position, self._kept
            last = (runs[-1].cut(start, stop),) if len(runs) > 1 else ()
            self._runs = (runs[0].cut(start, stop), *runs[1:-1], *last)
        return self._runs

    @property
    def last_position(self) -> int:
        """Position of the last record. An empty batch has none: its value is the one before the first."""
        return self.next_position - 1

    @property
    def bytes(self) -> int:
        """Payload bytes of all records."""
        if not self._kept:
            return 0
        first, last = self._kept[0], self._kept[-1]
        before = first.bytes_before(first.before(self.first_position))
        after = len(last.payload) - last.bytes_before(last.before(self.next_position))
        return sum(len(run.payload) for run in self._kept) - before - after

    def __len__(self) -> int:
        """Return the number of records."""
        if not self._kept:
            return 0
        first, last = self._kept[0], self._kept[-1]
        outside = self.first_position - first.first_position + last.next_position - self.next_position
        return sum(run.record_count for run in self._kept) - outside

    def __iter__(self) -> Iterator[Record]:
        return self.records()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Batch):
            return NotImplemented
        return (self.queue, self.queue_id, self.runs) == (other.queue, other.queue_id, other.runs)

    def __hash__(self) -> int:
        return hash((self.queue, self.queue_id, self.first_position, self.next_position))

    def __repr__(self) -> str:
        return f"Batch(queue={self.queue!r}, queue_id={self.queue_id}, runs={self.runs!r})"

    def records(self) -> Iterator[Record]:
        """Yield the records one by one."""
        start, stop = self.first_position, self.next_position
        return chain.from_iterable(run.records_between(start, stop) for run in self._kept)

    def payloads(self) -> _Payloads:
        """Return the payloads as a list."""
        start, stop = self.first_position, self.next_position
        found: _Payloads = []
        for run in self._kept:
            found += run.payloads_between(start, stop)
        return found

    def json(self) -> list[Any]:
        """Return the value of each payload, which is JSON.

        Raises:
            ValueError: The payload of a record is not JSON; its position is in the error.
        """
        return [_value_of(self.queue, record) for record in self.records()]

    def times(self) -> list[datetime | None]:
        """Return when each record was stored, in UTC, to 0.1 s; see `MultiRecordLog.time_of`.

        A log looks the times up when this is called: call it before you acknowledge the batch. None stands for a record
        that has been removed since, or has left memory.
        """
        first, end = self.first_position, self.next_position
        known = self.times_between(first, end)
        spans = known.spans(max([first, *known.positions[:1]]), end)
        start, stop, time = end, first, None  # of the span that was looked at last
        found: list[datetime | None] = []
        for position, _ in self.records():
            while position >= stop:
                start, stop, tick = next(spans, (end, end, 0))
                time = time_of_tick(tick) if tick else None
            found.append(time if position >= start else None)
        return found

    def times_between(self, start: int, stop: int) -> Times:
        """Return when the records with positions *start* … *stop* - 1 were stored, where the time changes."""
        return self._times(start, stop) if callable(self._times) else self._times or Times.none()


def json_payload(value: object) -> bytes:
    """Return *value* as JSON, without spaces; raise TypeError or ValueError for what JSON does not have."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _value_of(queue: str, record: Record) -> Any:
    try:
        return json.loads(record.payload)
    except ValueError as error:
        raise ValueError(f"queue {queue!r}: the record at position {record.position} is not JSON: {error}") from None


class LogState(StrEnum):
    """State of a log."""

    RECOVERING = "recovering"
    """It is being opened."""
    OPEN = "open"
    """It can be read and changed."""
    FAILED = "failed"
    """A write or sync failed: it can be read, not changed. Close it and open it again."""
    CLOSING = "closing"
    """Pending changes are stored; later ones are refused. While it is only drained, appends alone are."""
    CLOSED = "closed"
    """The directory is released."""


@dataclass(frozen=True, slots=True)
class RecoveryProgress:
    """Progress of opening a log.

    Attributes:
        bytes_read: Bytes of segments read so far.
        bytes_total: Bytes of all segments.
        waits_for: The process that has the log open while opening waits for it, in words; "" otherwise.
    """

    bytes_read: int
    bytes_total: int
    waits_for: str = ""

    @property
    def fraction(self) -> float:
        """Fraction read, between 0 and 1."""
        if self.waits_for:
            return 0.0
        return min(self.bytes_read / self.bytes_total, 1.0) if self.bytes_total else 1.0


class LastEnd(StrEnum):
    """End of the last opening of a log."""

    NEW = "new"
    """There was none: the log is new."""
    CLOSED = "closed"
    """It was closed."""
    FAILED = "failed"
    """A write or sync failed."""
    UNCLOSED = "unclosed"
    """It was not closed: the process was killed or crashed, the machine stopped, or it failed and could not note it."""


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """Findings of recovery when the log was opened.

    Attributes:
        created: The log is new.
        clean: The log ended between two batches. Otherwise it ended in a batch that was being written or was not
            synced, which was removed. `PersistPolicy.always()` acknowledges no such batch.
        segments: Segments read.
        batches: Batches read.
        records: Appended records read, including those that were truncated since.
        bytes: Payload bytes of these records.
        dropped_bytes: Size of the unfinished batch; 0 if clean.
        segment: Name of the last segment's file.
        offset: Offset in it where the log ends.
        seconds: Time that recovery took.
        last_end: How the opening before this one ended. For a reader without the lock, `UNCLOSED` may mean that the log
            is open.
        last_failure: Why it failed; empty if it did not.
        unclosed_ends: How often this log was opened without having been closed, as far as that was noted.
    """

    created: bool
    clean: bool
    segments: int
    batches: int
    records: int
    bytes: int
    dropped_bytes: int
    segment: str
    offset: int
    seconds: float
    last_end: LastEnd = LastEnd.NEW
    last_failure: str = ""
    unclosed_ends: int = 0


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """Positions and sizes of one queue.

    Attributes:
        queue: Its name.
        id: Its incarnation: a queue that is deleted and created again has another id.
        first_position: The lowest position that is not truncated; equal to next_position if the queue is empty.
        next_position: The position that the next record gets.
        records: Number of retained records.
        bytes: Their payload bytes.
        first_segment: Number of the oldest segment that the queue keeps on the disk; None if it keeps none.
        began: No record was ever stored below this position; 0 if that is unknown.
        sealed: The queue accepts no more records.
        oldest_time: When the oldest retained record was stored, to 0.1 s, in UTC; None if the queue is empty.
    """

    queue: str
    id: int
    first_position: int
    next_position: int
    records: int
    bytes: int
    first_segment: int | None
    began: int = 0
    sealed: bool = False
    oldest_time: datetime | None = None

    @property
    def age_seconds(self) -> float | None:
        """Age of the oldest retained record now, by the wall clock; None if the queue is empty."""
        return None if self.oldest_time is None else max((datetime.now(UTC) - self.oldest_time).total_seconds(), 0.0)


@dataclass(frozen=True, slots=True)
class ConsumerSummary:
    """Position of a consumer.

    Attributes:
        queue: Name of the queue.
        consumer: Its name.
        position: The first position that it has not acknowledged.
        records: Number of retained records from there on.
        bytes: Their payload bytes.
        epoch: Number of its holder; a new one with each attach, never used twice.
        owner: The UUID that alone may attach to it; None for anybody.
        skipped: Records that were truncated before it acknowledged them, since the log was opened.
        oldest_seconds: Age of the oldest of its waiting records; None if none waits, or the age is unknown.
        idle_seconds: Seconds since its holder attached, acknowledged or read; 0 while that waits for records. A holder
            from before the log was opened counts as seen then. None if it has none, or that is unknown.
    """

    queue: str
    consumer: str
    position: int
    records: int
    bytes: int
    epoch: int
    owner: str | None = None
    skipped: int = 0
    oldest_seconds: float | None = None
    idle_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """Usage of a log, next to its limits.

    Attributes:
        memory_bytes: Memory of retained records and of the queues.
        memory_limit_bytes: `Limits.memory_bytes`.
        disk_bytes: Space of all files of the log: segments, and the gathered files next to them.
        disk_written_bytes: The part of it that holds data.
        disk_limit_bytes: `Limits.disk_bytes`.
        pending_bytes: Charge of appends that are not stored yet.
        pending_limit_bytes: `Limits.pending_bytes`.
        queues: Number of queues.
        queues_limit: `Limits.queues`.
        segments: Number of segments, including the one being written.
        disk_only_bytes: Payload bytes of the retained records that left memory; see `Limits.beyond_memory`.
        places_bytes: The part of memory_bytes that says where on the disk these are.
        gathered_bytes: The part of disk_bytes that gathered files take: from them they are read.
    """

    memory_bytes: int
    memory_limit_bytes: int
    disk_bytes: int
    disk_written_bytes: int
    disk_limit_bytes: int
    pending_bytes: int
    pending_limit_bytes: int
    queues: int
    queues_limit: int
    segments: int
    disk_only_bytes: int = 0
    places_bytes: int = 0
    gathered_bytes: int = 0


def pack_offsets(offsets: Iterator[int] | Sequence[int]) -> bytes:
    """Pack integers as int32; raise OverflowError for 2 GiB or more."""
    return array("i", offsets).tobytes()


def shifted(offsets: bytes, base: int) -> bytes:
    """Return int32 *offsets*, none of which is below *base*, minus *base*."""
    if not base:
        return offsets
    # One subtraction of long integers: an eighth of the time that a thousand small ones take. No offset borrows.
    count = len(offsets) // OFFSET_BYTES
    ones = _ONES >> 32 * (_MANY - count) if count <= _MANY else int.from_bytes(b"\1\0\0\0" * count, "little")
    return (int.from_bytes(offsets, "little") - base * ones).to_bytes(len(offsets), "little")


_MANY = 1_024
_ONES = int.from_bytes(b"\1\0\0\0" * _MANY, "little")


@lru_cache(maxsize=4096)
def offsets_of_one(payload_bytes: int) -> bytes:
    """Return the offsets of a run of one record; raise OverflowError for 2 GiB or more.

    Records of the same size share the object (48 bytes in memory).
    """
    return b"\0\0\0\0" + payload_bytes.to_bytes(OFFSET_BYTES, "little", signed=True)


def copy_payload(payload: object) -> bytes:
    """Return the bytes of any bytes-like object; raise TypeError for anything else."""
    if type(payload) is bytes:
        return payload
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    if isinstance(payload, str):
        raise TypeError("payload must be bytes, not str; encode it first")
    try:
        return memoryview(payload).tobytes()  # type: ignore[arg-type]  # any object with a buffer; TypeError otherwise
    except TypeError:
        raise TypeError(f"payload must be a bytes-like object, not {type(payload).__name__}") from None


def copy_payloads(payloads: Iterable[object]) -> list[bytes]:
    """Return *payloads* as bytes; raise TypeError for a single payload, each byte of which would become a record."""
    if isinstance(payloads, str | bytes | bytearray | memoryview):
        raise TypeError("append_records takes an iterable of payloads, not a single one; use append_record")
    if payloads is None:
        raise TypeError("append_records takes an iterable of payloads, not None: the position comes before them")
    return [payload if type(payload) is bytes else copy_payload(payload) for payload in payloads]


def check_position(position: int) -> int:
    """Return *position* if a queue can assign it; raise TypeError or ValueError otherwise."""
    if type(position) is not int:
        if isinstance(position, bool) or not isinstance(position, int):
            raise TypeError(f"position must be an int, not {type(position).__name__}")
        position = int.__index__(position)  # a subclass may compare and add in its own way, which replay does not
    if not 0 <= position <= POSITION_MAX:
        raise ValueError(f"position must be between 0 and {POSITION_MAX}, got {position}")
    return position


def check_idle(seconds: float) -> float:
    """Return *seconds*, an `if_idle_for`; raise ValueError for what is not a finite number from 0 on."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
        raise ValueError(f"if_idle_for must be a number of seconds, at least 0, not {seconds!r}")
    return seconds


def check_start(start: int) -> int:
    """Return *start* if a tail can start there, up to the next position of a full queue; raise as `check_position`."""
    return start if type(start) is int and start == POSITION_MAX + 1 else check_position(start)
