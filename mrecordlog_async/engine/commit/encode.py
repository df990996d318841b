"""A batch as bytes: planned records become log records, and these become the buffers to write. Pure.

The journal calls this on the log's thread, so that the costly part of a batch does not hold the event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat

from mrecordlog_async.engine.planning.planned import PlannedMany, PlannedRecord, PlannedRun, split_into_runs
from mrecordlog_async.format.frame import FRAME_HEADER_BYTES, Buffer, encode_all_frames, encode_unsplit, encode_whole
from mrecordlog_async.format.record import COMMIT_BYTES, Commit, LogRecord, encode_commit, encode_record
from mrecordlog_async.format.runs import MANY_BYTES_MAX, MANY_RECORDS_MAX, Append, Many, many_bytes
from mrecordlog_async.model import Run, offsets_of_one
from mrecordlog_async.options import KIB
from mrecordlog_async.recovery.recovered import LogEnd

JOIN_BYTES_MAX = 256 * KIB
JOIN_BUFFER_BYTES = 1 * KIB
"""A batch smaller than the first, or whose buffers are smaller than the second on average, is joined before writing."""


def build_records(records: Iterable[PlannedRecord]) -> list[LogRecord]:
    """Turn a plan's records into log records: their payloads are joined into runs."""
    built: list[LogRecord] = []
    for record in records:
        if type(record) is PlannedRun:
            queue_id, first_position, payloads = record
            if len(payloads) == 1:
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


def encode_records(records: Iterable[LogRecord]) -> list[tuple[Buffer, ...]]:
    """Return the bodies of log records, which do not depend on where they are written."""
    return [encode_record(record) for record in records]


def encode_batch(
    bodies: Sequence[tuple[Buffer, ...]],
    end: LogEnd,
    oldest_segment: int | None,
    log_id: bytes,
    seed: int,
    time_ns: int,
) -> tuple[list[Buffer], int]:
    """Cut a batch into frames that start at *end*, with its COMMIT as the last one.

    oldest_segment: the oldest one with anything live, or None. seed: starts the checksums of the current segment.
    Returns the buffers to write and the offset after the batch.
    """
    buffers: list[Buffer] = []
    offset = encode_all_frames(bodies, end.offset, seed, buffers)
    # A COMMIT never spans two blocks, so a reader that finds a part of it finds all of it.
    return buffers, encode_unsplit(_commit(end, oldest_segment, log_id, time_ns), offset, seed, buffers)


def encode_in_block(
    body: tuple[Buffer, ...], end: LogEnd, oldest_segment: int | None, log_id: bytes, seed: int, time_ns: int
) -> tuple[list[Buffer], int]:
    """Do what `encode_batch` does for one log record that fits into the current block together with the COMMIT."""
    joined = body[0] if len(body) == 1 else b"".join(body)
    commit_at = end.offset + FRAME_HEADER_BYTES + len(joined)
    frames = (
        *encode_whole(joined, end.offset, seed),  # type: ignore[arg-type]  # a single part is never a view
        *encode_whole(_commit(end, oldest_segment, log_id, time_ns), commit_at, seed),
    )
    return [b"".join(frames)], commit_at + FRAME_HEADER_BYTES + COMMIT_BYTES


def _commit(end: LogEnd, oldest_segment: int | None, log_id: bytes, time_ns: int) -> bytes:
    """Return the body of the COMMIT of the batch that starts at *end*."""
    oldest = end.segment if oldest_segment is None else oldest_segment
    return encode_commit(
        Commit(log_id, end.segment, end.last_batch + 1, end.durable_batch, end.offset, oldest, time_ns)
    )


def join_small(buffers: list[Buffer], size: int) -> list[Buffer]:
    """Return *buffers*, *size* bytes in all, as one buffer where that is cheaper to write."""
    return [b"".join(buffers)] if size <= max(JOIN_BYTES_MAX, JOIN_BUFFER_BYTES * len(buffers)) else buffers
