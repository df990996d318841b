"""Create a segment: a temporary file, its header and table, and the reserved space after them."""

from __future__ import annotations

from collections.abc import Sequence

from mrecordlog_async.format.frame import Buffer, encode_frames, segment_seed
from mrecordlog_async.format.header import HEADER_BYTES, SegmentHeader, encode_header
from mrecordlog_async.options import KIB
from mrecordlog_async.storage.filesystem import FileSystem
from mrecordlog_async.storage.segment import TEMPORARY_SUFFIX, SegmentFile, segment_name

RESERVE_BYTES = 64 * KIB
"""Space after every batch that only truncate and delete may use, so that they succeed on a full disk."""


def create_or_replace(files: FileSystem, path: str) -> int:
    """Create an empty temporary file, replacing one left by a crash or an error."""
    try:
        return files.create(path)
    except FileExistsError:
        files.unlink(path)
        return files.create(path)


def write_preamble(file: SegmentFile, header: SegmentHeader, table: Sequence[Buffer]) -> int:
    """Write a segment's header and table; return the offset where its first batch begins."""
    buffers: list[Buffer] = [encode_header(header)]
    end = encode_frames(table, HEADER_BYTES, segment_seed(header.log_id, header.segment), buffers)
    file.reserve(end + RESERVE_BYTES, end + RESERVE_BYTES)
    file.write([b"".join(buffers)], 0)
    return end


def make_first_segment(
    files: FileSystem, directory: str, directory_handle: int, log_id: bytes, table: Sequence[Buffer]
) -> tuple[SegmentFile, int]:
    """Create segment 0 of a new log, durable with its name; return it and the offset where its first batch begins."""
    path = f"{directory}/{segment_name(0)}"
    file = SegmentFile(files, path + TEMPORARY_SUFFIX, create_or_replace(files, path + TEMPORARY_SUFFIX), 0)
    try:
        end = write_preamble(file, SegmentHeader(log_id, 0, 1, 0, 0), table)
        file.sync()
        files.rename(file.path, path)
        file.path = path
        files.sync_directory(directory_handle)
    except BaseException:
        file.close()
        raise
    return file, end
