"""A batch between the event loop and the log's thread: the request, its bytes, its result, and what ends the log.

The thread makes log records and frames of what was planned, so that joining payloads does not hold the event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from itertools import chain, repeat
from time import sleep
from typing import NamedTuple

from mrecordlog_async.engine.intake.commands import Reserve
from mrecordlog_async.engine.planning.draft import PlannedMany, PlannedRecord, PlannedRun, split_into_runs
from mrecordlog_async.format.frame import (
    FRAME_HEADER_BYTES,
    Buffer,
    block_left,
    encode_all_frames,
    encode_frames_in_steps,
    encode_two,
    encode_unsplit,
    frames_end,
)
from mrecordlog_async.format.record import (
    MANY_BYTES_MAX,
    MANY_RECORDS_MAX,
    Append,
    Commit,
    LogRecord,
    Many,
    encode_commit,
    encode_record,
    many_bytes,
)
from mrecordlog_async.model import Run, offsets_of_one
from mrecordlog_async.options import KIB
from mrecordlog_async.storage.locked_directory import LockedDirectory
from mrecordlog_async.storage.segment import LogEnd, SegmentFile

JOIN_BYTES_MAX = 256 * KIB
JOIN_BUFFER_BYTES = 1 * KIB
"""A batch smaller than the first, or whose buffers are smaller than the second on average, is joined before writing."""


class LogIOError(Exception):
    """A write or sync of the segment failed; the OSError is `__cause__`. A retry that succeeds proves nothing."""


class Roll(Enum):
    """Conditions under which a batch may continue the log in a new segment."""

    IF_FULL = 0
    """The current segment is full, or has a second name."""
    IF_SHARED = 1
    """It has a second name: the disk has just refused a roll, or a roll would only use up space."""
    NEVER = 2
    """A batch that fits neither this segment nor the space reserved for it is not stored."""


class CommitRequest(NamedTuple):
    """A batch for the journal.

    oldest_segment: the oldest one with anything live, or None. sync: wait for the medium. reserve: what it may use of
    the segment's reserve. more_table_bytes: what its records add to the queue table.
    """

    records: Sequence[PlannedRecord]
    oldest_segment: int | None
    sync: bool
    reserve: Reserve = Reserve.ALL
    roll: Roll = Roll.IF_FULL
    more_table_bytes: int = 0


class EncodedBatch(NamedTuple):
    """A batch as the bytes that belong at the log's end. end: the offset after them. time_ns: what its COMMIT says.

    buffers: of a large batch, an iterator over lists of them, which encodes them; it can be read once.
    """

    records: list[LogRecord]
    oldest_segment: int | None
    sync: bool
    buffers: list[Buffer] | Iterator[list[Buffer]]
    end: int
    time_ns: int


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


class PreparedWrite(NamedTuple):
    """One durable write at the end of a segment: two open files, and bytes that stay as they are until it is settled.

    It is made only while *file* has one name and *lock* has any.
    """

    file: int
    lock: int
    blocks: memoryview
    offset: int


class Written(NamedTuple):
    """What became of a prepared write. error: the errno that it returned, or 0. seconds: inside system calls."""

    is_whole: bool
    error: int
    seconds: float


def build_records(records: Iterable[PlannedRecord]) -> list[LogRecord]:
    """Turn a plan's records into log records: their payloads are joined into runs."""
    built: list[LogRecord] = []
    for record in records:
        if type(record) is PlannedRun:
            queue_id, first_position, payloads = record
            if len(payloads) == 1:  # most batches of few callers: as below, without the calls
                run = tuple.__new__(Run, (first_position, offsets_of_one(len(payloads[0])), payloads[0]))
                built.append(tuple.__new__(Append, (queue_id, run, False)))
            else:
                runs = split_into_runs(first_position, payloads)
                built += map(Append, repeat(queue_id), runs, chain((False,), repeat(True)))
        elif type(record) is PlannedMany:
            built += split_into_manys(record)
        else:
            built.append(record)  # type: ignore[arg-type]  # not planned records here; mypy keeps the union
    return built


def split_into_manys(planned: PlannedMany) -> Iterator[Append | Many]:
    """Cut single records of several queues into MANYs as large as these may be. A larger record becomes an APPEND."""
    for start in range(0, len(planned.payloads), MANY_RECORDS_MAX):
        part = _part(planned, start, start + MANY_RECORDS_MAX)
        if many_bytes(len(part.payloads), sum(map(len, part.payloads))) <= MANY_BYTES_MAX:
            yield Many.of(*part)
        else:
            yield from map(_many_or_append, _split_by_size(part))


def _split_by_size(planned: PlannedMany) -> Iterator[PlannedMany]:
    start = size = 0
    for at, payload in enumerate(planned.payloads):
        if at > start and many_bytes(at + 1 - start, size + len(payload)) > MANY_BYTES_MAX:
            yield _part(planned, start, at)
            start, size = at, 0
        size += len(payload)
    yield _part(planned, start, len(planned.payloads))


def _part(planned: PlannedMany, start: int, stop: int) -> PlannedMany:
    ids, positions, payloads = planned
    return PlannedMany(ids[start:stop], positions[start:stop], payloads[start:stop])


def _many_or_append(planned: PlannedMany) -> Append | Many:
    ids, positions, payloads = planned
    return Many.of(*planned) if len(payloads) > 1 else Append(ids[0], Run.of(positions[0], payloads))


def commit_of(end: LogEnd, oldest_segment: int | None, log_id: bytes, time_ns: int) -> bytes:
    """Return the COMMIT of the batch that starts at *end*. oldest_segment: the oldest one with anything live."""
    oldest = end.segment if oldest_segment is None else oldest_segment
    commit = (log_id, end.segment, end.last_batch + 1, end.durable_batch, end.offset, oldest, time_ns)
    return encode_commit(tuple.__new__(Commit, commit))


def encode_batch(
    bodies: Sequence[tuple[Buffer, ...]], commit: bytes, offset: int, seed: int
) -> tuple[list[Buffer], int]:
    """Cut a batch into frames from *offset* on, with its COMMIT as the last one. seed: of the segment's checksums.

    Returns the buffers to write and the offset after the batch.
    """
    buffers: list[Buffer] = []
    offset = encode_all_frames(bodies, offset, seed, buffers)
    # A COMMIT never spans two blocks, so a reader that finds a part of it finds all of it.
    return buffers, encode_unsplit(commit, offset, seed, buffers)


def encode_small(records: Sequence[LogRecord], commit: bytes, offset: int, seed: int) -> bytes:
    """Do what `encode_batch` does, in one piece of memory."""
    bodies = [b"".join(encode_record(record)) for record in records]
    size = 2 * FRAME_HEADER_BYTES + len(bodies[0]) + len(commit)
    if len(bodies) == 1 and size <= block_left(offset):  # most batches of few callers: in a third of the time
        return encode_two(bodies[0], commit, offset, seed)
    return b"".join(encode_batch([(body,) for body in bodies], commit, offset, seed)[0])


def encode_in_steps(
    bodies: Sequence[tuple[Buffer, ...]], commit: bytes, offset: int, seed: int
) -> tuple[Iterator[list[Buffer]], int]:
    """Do what `encode_batch` does, but return an iterator over lists of buffers, each encoded when it is reached."""
    steps = encode_frames_in_steps(bodies, offset, seed)
    for parts in bodies:
        offset = frames_end(sum(map(len, parts)), offset)
    last: list[Buffer] = []
    stop = encode_unsplit(commit, offset, seed, last)
    return chain(steps, [last]), stop


def join_small(buffers: list[Buffer], size: int) -> list[Buffer]:
    """Return *buffers*, *size* bytes in all, as one buffer where that is cheaper to write."""
    return [b"".join(buffers)] if size <= max(JOIN_BYTES_MAX, JOIN_BUFFER_BYTES * len(buffers)) else buffers


def sync_file(file: SegmentFile) -> None:
    """Bring a segment to the medium; LogIOError if that fails: a second sync would not report lost pages."""
    try:
        file.sync()
    except OSError as error:
        raise LogIOError(f"sync failed: {error}") from error


def sync_directory(directory: LockedDirectory) -> None:
    """Bring the directory's entries to the medium; LogIOError if that fails."""
    try:
        directory.sync()
    except OSError as error:
        raise LogIOError(f"sync of the directory failed: {error}") from error


def let_others_run() -> None:
    """Release the interpreter if another thread waits for it: otherwise the event loop waits 5 ms at each wake-up."""
    sleep(0)
