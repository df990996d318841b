"""Tell the crate's files from a log's: both are called `wal-` and 20 digits."""

from __future__ import annotations

from contextlib import closing

from mrecordlog_async.quickwit.files import Directory
from mrecordlog_async.quickwit.frame import (
    BLOCK_BYTES,
    FILE_BYTES,
    FRAME_HEADER_BYTES,
    FULL,
    LAST,
    checksum_of,
    read_header,
)
from mrecordlog_async.storage.filesystem import FileSystem


def is_crate_directory(files: FileSystem, path: str) -> bool:
    """Return whether the first file in *path* is the crate's: it begins with a valid frame, or is new and empty.

    Raises OSError if *path* cannot be read.
    """
    with closing(Directory(files, path)) as directory:
        if not directory.numbers:
            return False
        first = directory.numbers[0]
        block = directory.block(first, 0)
        return _begins_with_a_frame(block) or (not any(block) and directory.size(first) == FILE_BYTES)


def _begins_with_a_frame(block: bytes) -> bool:
    if len(block) < BLOCK_BYTES:
        return False
    checksum, length, kind = read_header(block, 0)
    stop = FRAME_HEADER_BYTES + length
    return (
        FULL <= kind <= LAST
        and stop <= BLOCK_BYTES
        and checksum_of(kind, memoryview(block)[FRAME_HEADER_BYTES:stop]) == checksum
    )
