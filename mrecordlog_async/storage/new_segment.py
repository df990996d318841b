"""Create a segment: its header and table, and the reserved space after them."""

from __future__ import annotations

from collections.abc import Sequence

from mrecordlog_async.format.frame import Buffer, encode_frames, segment_seed
from mrecordlog_async.format.header import HEADER_BYTES, SegmentHeader, encode_header
from mrecordlog_async.options import KIB
from mrecordlog_async.storage.locked_directory import LockedDirectory
from mrecordlog_async.storage.segment import SegmentFile

RESERVE_BYTES = 64 * KIB
"""Space after every batch that only truncate and delete may use, so that they succeed on a full disk."""


def write_preamble(file: SegmentFile, header: SegmentHeader, table: Sequence[Buffer]) -> int:
    """Write a segment's header and table; return the offset where its first batch begins."""
    buffers: list[Buffer] = [encode_header(header)]
    end = encode_frames(table, HEADER_BYTES, segment_seed(header.log_id, header.segment), buffers)
    file.reserve(end + RESERVE_BYTES, end + RESERVE_BYTES)
    file.write([b"".join(buffers)], 0)
    return end


def make_first_segment(directory: LockedDirectory, log_id: bytes, table: Sequence[Buffer]) -> tuple[SegmentFile, int]:
    """Create segment 0 of a new log, durable with its name; return it and the offset where its first batch begins."""
    path = directory.path_of(0)
    file = SegmentFile(directory.files, *directory.create_temporary(path), 0)
    try:
        end = write_preamble(file, SegmentHeader(log_id, 0, 1, 0, 0), table)
        # Durable before it has its name: a segment without an intact header and table is damage.
        file.sync()
        directory.files.rename(file.path, path)
        file.path = path
        directory.sync()
    except BaseException:
        file.close()
        raise
    return file, end
