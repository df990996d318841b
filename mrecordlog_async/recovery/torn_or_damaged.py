"""Torn or damaged: what the bytes after the last whole batch mean. Every reader of segments decides it here.

A batch that was being written when the process died, or was not synced before a power cut, is a torn tail, which may be
zeroed. A batch that was synced and cannot be read is damage, and nothing may be changed then. The bytes of both look
alike. They differ in what else is known: a later COMMIT names the batch as durable, or `CLOSED` or the next segment's
header states where the segment ended.

Only frames of the segment itself say anything. The file may have been another segment before, so other bytes after the
last whole batch are usual: they are neither damage nor a torn tail. Frames are looked for only where the batch is due,
and COMMITs by one search for bytes that no other segment holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from mrecordlog_async.errors import CorruptionError
from mrecordlog_async.format.frame import BLOCK_BYTES
from mrecordlog_async.format.header import Closed, SegmentHeader
from mrecordlog_async.format.parse import COMMIT_FRAME_BYTES, MalformedError, SegmentParser, find_commits
from mrecordlog_async.format.record import Commit
from mrecordlog_async.storage.filesystem import FileSystem, read_exact
from mrecordlog_async.storage.segment import CLOSED_NAME, read_pieces, segment_name

_ZEROS = bytes(BLOCK_BYTES)

_OUTDATED = (
    "CLOSED is older than this segment, as after copying a log over an older copy; remove CLOSED to keep the batches "
    "that follow"
)

ByteRange = tuple[int, int]
"""Offsets of the first byte and of the one after the last."""


class SegmentEnd(NamedTuple):
    """The place in a segment where the next batch is due: `offset`, and the number `due_batch` of that batch.

    torn_end: the offset after the frames of this segment that begin there; equal to `offset` if there are none.
    """

    number: int
    log_id: bytes
    offset: int
    due_batch: int
    torn_end: int

    @classmethod
    def of(cls, parser: SegmentParser) -> SegmentEnd:
        """Return the place where *parser* expects its next batch."""
        return cls(parser.segment, parser.log_id, parser.end, parser.due_batch, parser.torn_end)


class Evidence(NamedTuple):
    """Bytes found after a segment's last whole batch.

    not_zero: from the first byte that is not zero to the last one, None if all bytes are zero.
    torn_end: the offset after the last COMMIT of this segment, or after the frames where the batch is due.
    next_commit: the first valid COMMIT. proof: the first one that names the batch due as durable.
    """

    not_zero: ByteRange | None
    torn_end: int
    next_commit: Commit | None
    proof: Commit | None


class LogTail(NamedTuple):
    """Bytes that follow the last batch of a log that may be continued.

    not_zero: the bytes that a writer must zero, None if there are none. torn_bytes: of a batch that was being written.
    """

    not_zero: ByteRange | None
    torn_bytes: int


NOTHING = LogTail(None, 0)


class Verdict(Enum):
    """Meaning of bytes that are not the batch due there."""

    CLEAN_END = "nothing of this segment: zeros, or bytes that the file held when it was another segment"
    TORN_TAIL = "a batch that was being written, or was not synced"
    DAMAGED = "acknowledged data that cannot be read"


def judge(evidence: Evidence, end: SegmentEnd, *, acknowledged: bool) -> Verdict:
    """Decide between torn and damaged.

    Args:
        evidence: what was found after the last whole batch.
        end: where that is.
        acknowledged: something else than a COMMIT states that more batches were here: the header of the next segment,
            or `CLOSED`.

    Returns:
        What the bytes mean.
    """
    if evidence.proof is not None or acknowledged:
        return Verdict.DAMAGED
    if evidence.torn_end == end.offset:
        return Verdict.CLEAN_END
    return Verdict.TORN_TAIL


def judge_end(files: FileSystem, handle: int, end: SegmentEnd, closed: Closed | None, size: int) -> LogTail:
    """Decide what the bytes after *end* mean, in the last segment of a log. The rows are those of `recovery`'s table.

    Args:
        files: What *handle* belongs to.
        handle: The segment, open for reading.
        end: Where the first batch is due that could not be read.
        closed: What `CLOSED` states, None if there is no such file.
        size: Bytes of the file.

    Returns:
        What a writer must zero, and the size of an unfinished batch.

    Raises:
        CorruptionError: Acknowledged data is damaged.
        OSError: The bytes cannot be read (row 7).
    """
    if closed is not None:
        _check_closed(end, closed)  # row 4
        if batch_follows(files, handle, end, size):
            raise _outdated(end)  # row 5
        return NOTHING  # row 6: what follows is left as it is
    evidence = look_after(files, handle, end, size)  # row 7: an OSError is the medium's, nothing is decided
    match judge(evidence, end, acknowledged=False):
        case Verdict.CLEAN_END:  # row 1
            return LogTail(evidence.not_zero, 0)
        case Verdict.TORN_TAIL:  # row 2
            return LogTail(evidence.not_zero, evidence.torn_end - end.offset)
        case Verdict.DAMAGED:  # row 3
            raise _damaged(end, evidence)


def check_closed_segment(header: SegmentHeader, closed: Closed) -> None:
    """Rows 4 and 5: raise CorruptionError unless *closed* is of the last segment, whose header is *header*."""
    name, closed_in = segment_name(header.segment), segment_name(closed.segment)
    if closed.log_id != header.log_id:
        reason = f"CLOSED belongs to another log than {name}; remove CLOSED if the segments are those of the right log"
        raise CorruptionError(CLOSED_NAME, None, reason)
    if closed.segment > header.segment:
        raise CorruptionError(closed_in, None, "the segment is missing, and the log was closed in it")
    if closed.segment < header.segment:
        raise CorruptionError(name, None, f"CLOSED says the log ends in {closed_in}: {_OUTDATED}")


def _check_closed(end: SegmentEnd, closed: Closed) -> None:
    """Row 4: raise CorruptionError unless the log ends where `CLOSED` states."""
    if (end.offset, end.due_batch - 1) != (closed.end, closed.last_batch):
        raise CorruptionError(
            segment_name(end.number),
            end.offset,
            f"CLOSED says the log ends after batch {closed.last_batch} at offset {closed.end}, but it does not",
        )


def batch_follows(files: FileSystem, handle: int, end: SegmentEnd, size: int) -> bool:
    """Return whether the whole batch that is due at *end* is there: then a `CLOSED` that names this end is outdated.

    One block is read, unless a frame of this segment begins at *end*.
    """
    parser = SegmentParser.after_table(end.log_id, end.number, end.due_batch, end.offset)
    base = end.offset - end.offset % BLOCK_BYTES
    try:
        while base < size and not parser.stopped:
            if any(parser.feed(read_exact(files, handle, BLOCK_BYTES, base), base)):
                return True
            base += BLOCK_BYTES
    except MalformedError:
        return False
    return False


def _outdated(end: SegmentEnd) -> CorruptionError:
    """Row 5: return the error, with what to do if the batches after the end are wanted."""
    return CorruptionError(
        segment_name(end.number),
        end.offset,
        f"CLOSED says the log ends here, but batch {end.due_batch} follows: {_OUTDATED}",
    )


def _damaged(end: SegmentEnd, evidence: Evidence) -> CorruptionError:
    """Row 3: return the error, which names the COMMIT that proves the damage."""
    assert evidence.proof is not None
    return CorruptionError(
        segment_name(end.number),
        end.offset,
        f"batch {end.due_batch} is damaged, and batch {evidence.proof.batch} after it proves that it had been "
        "acknowledged",
    )


def look_after(files: FileSystem, handle: int, end: SegmentEnd, stop: int, *, acknowledged: bool = False) -> Evidence:
    """Collect what lies from *end* up to the offset *stop*.

    A COMMIT is looked for at every byte, because damage hides where frames begin. Reading stops early once nothing more
    can change the judgement: at a proof, or, if the batch is known as *acknowledged* anyway, at the next COMMIT.
    """
    found: ByteRange | None = None
    next_commit: Commit | None = None
    torn_end = end.torn_end
    carry = b""
    for offset, data in _pieces_from(files, handle, end.offset, stop):
        length = length_without_zeros(data)
        if length:
            found = _extended(found, offset, data, length)
        if length or carry:
            # A COMMIT may end in zeros: its last bytes are the highest ones of a clock. So search past the last byte
            # that is not zero.
            searched = carry + data[: length + COMMIT_FRAME_BYTES]
            for commit, commit_end in find_commits(searched, offset - len(carry), end.log_id, end.number):
                next_commit = next_commit or commit
                torn_end = max(torn_end, commit_end)
                if commit.durable_batch >= end.due_batch:
                    return Evidence(found, torn_end, next_commit, commit)
            if acknowledged and next_commit is not None:
                break
        carry = data[1 - COMMIT_FRAME_BYTES :] if length else b""
    return Evidence(found, torn_end, next_commit, None)


def length_without_zeros(data: bytes) -> int:
    """Return the length of *data* without the zeros at its end.

    Compares whole blocks: 64 MiB of reserved space take 3 ms, and 110 ms with `bytes.rstrip` alone.
    """
    end = len(data)
    while end >= len(_ZEROS) and data[end - len(_ZEROS) : end] == _ZEROS:
        end -= len(_ZEROS)
    start = max(end - len(_ZEROS), 0)
    return start + len(data[start:end].rstrip(b"\0")) if end else 0


def _extended(found: ByteRange | None, offset: int, data: bytes, length: int) -> ByteRange:
    """Return *found*, extended to the last byte of *data*, at *offset*, that is not zero: *data* ends at *length*."""
    first = found[0] if found is not None else offset + len(data) - len(data.lstrip(b"\0"))
    return first, offset + length


def _pieces_from(files: FileSystem, handle: int, offset: int, stop: int) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, bytes) from *offset* to *stop*; pieces are whole blocks, and no COMMIT crosses a block."""
    for base, piece in read_pieces(files, handle, offset, stop):
        start = max(offset - base, 0)
        yield base + start, piece[start:] if start else piece
