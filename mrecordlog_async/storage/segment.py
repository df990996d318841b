"""Segments as files: naming them, reading them in pieces, and reserving space before it is written.

The meaning of the bytes is left to others. A `SegmentFile` belongs to the log's thread.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from mrecordlog_async.format.frame import BLOCK_BYTES
from mrecordlog_async.options import KIB, MIB
from mrecordlog_async.storage.direct import DirectWriter, Staging, whole_blocks
from mrecordlog_async.storage.filesystem import (
    DIRECT_BLOCK_BYTES,
    Buffer,
    FileSystem,
    read_exact,
    write_all,
)
from mrecordlog_async.support.disk_errors import is_refusal

PIECE_BYTES = 512 * KIB
"""Segments are read in pieces of this size, a whole number of blocks: a piece is parsed while caches still hold it.

With pieces of 4 MiB, opening a log of a million records took 1.4 times as long.
"""

STEP_BYTES_MIN = 1 * MIB
STEP_BYTES_MAX = 64 * MIB
"""A segment grows in steps that double from the first of these to the second."""

TEMPORARY_SUFFIX = ".tmp"
CLOSED_NAME = "CLOSED"

SEGMENT_NUMBER_MAX = 2**63 - 1
"""A file with a higher number in its name is not a segment; 20 digits can express more than a header can hold."""

_SEGMENT_NAME = re.compile(r"wal-([0-9]{20})")


def segment_name(number: int) -> str:
    """Return the file name of segment *number*."""
    return f"wal-{number:020}"


def segment_path(directory: str, number: int) -> str:
    """Return the path of segment *number* of the log in *directory*."""
    return f"{directory}/{segment_name(number)}"


def segment_number(name: str) -> int | None:
    """Return the number of the segment named *name*, or None for any other file."""
    match = _SEGMENT_NAME.fullmatch(name)
    return number if match and (number := int(match[1])) <= SEGMENT_NUMBER_MAX else None


def temporary_number(name: str) -> int | None:
    """Return the number of the segment that is made under the temporary name *name*, or None for any other file."""
    return segment_number(name.removesuffix(TEMPORARY_SUFFIX)) if name.endswith(TEMPORARY_SUFFIX) else None


def list_segments(names: Sequence[str]) -> list[int]:
    """Return the numbers of the segments among *names*, ascending."""
    return sorted(number for number in map(segment_number, names) if number is not None)


def read_pieces(files: FileSystem, handle: int, offset: int, stop: int) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, bytes) from the block of *offset* to *stop* or the end of the file, in pieces of whole blocks."""
    at = offset - offset % BLOCK_BYTES
    while at < stop:
        piece = read_exact(files, handle, min(PIECE_BYTES, stop - at), at)
        if not piece:
            return
        yield at, piece
        at += len(piece)


@dataclass(slots=True)
class LogEnd:
    """End of a log: its last segment, where the next batch goes there, and the numbers of batches.

    table_end: offset after the segment's table, where its first batch is. offset: where the next batch begins.
    first_batch: number of the segment's first batch. last_batch: of the newest one, wherever it is; one less than
    first_batch if the segment has none. durable_batch: the newest one that is on the medium for certain.
    """

    segment: int
    table_end: int
    offset: int
    first_batch: int
    last_batch: int
    durable_batch: int


class SegmentFile:
    """A growing segment: `reserved_bytes` are allocated on the disk, so writes within them cannot run out of space.

    They are whole blocks: no direct write moves the file's end.
    """

    def __init__(self, files: FileSystem, path: str, handle: int, reserved_bytes: int) -> None:
        self.files = files
        self.path = path
        self.handle = handle
        self.reserved_bytes = reserved_bytes
        self._step_bytes = STEP_BYTES_MIN
        self._names = LinkCount(files, handle)
        self._was_shared = False
        self._direct: DirectWriter | None = None
        self._is_synced = False  # everything that was ever done to the file is known to be on the medium

    @property
    def is_removed(self) -> bool:
        """Return whether the file lost its last name, as far as `is_shared` has seen."""
        return self._names.is_removed

    @property
    def is_direct(self) -> bool:
        """Return whether writes bypass the page cache."""
        return self._direct is not None

    def begin_direct(self, staging: Staging, end: int) -> None:
        """Bypass the page cache from now on, continuing at *end*. Where that is impossible, writes stay buffered.

        It is found out here, by reading the last block. Raises OSError if that block cannot be read.
        """
        try:
            self.files.set_direct(self.handle, True)
        except OSError as error:
            if not is_refusal(error):
                raise
            return
        try:
            self._direct = DirectWriter(self.files, self.handle, staging, end)
        except OSError as error:
            if not is_refusal(error):
                raise
            self.files.set_direct(self.handle, False)

    def is_shared(self) -> bool:
        """Return whether the file has a second name: its bytes then belong to others too and must not be changed.

        Once True, it stays True even if the other name is removed, because the tail after the last batch was not
        zeroed. Raises OSError if the system does not report it.
        """
        if not self._was_shared:
            self._was_shared = self._names.read() > 1
        return self._was_shared

    def is_known_unshared(self) -> bool:
        """Return whether the system reports no second name now. A report that fails changes nothing for later."""
        try:
            return not self.is_shared()
        except OSError:
            return False

    def may_be_shared(self) -> bool:
        """Do what `is_shared` does; if the system does not report it, treat the file as shared from then on."""
        try:
            return self.is_shared()
        except OSError:
            self._was_shared = True
            return True

    def reserve(self, end: int, limit: int) -> None:
        """Reserve space for bytes up to *end*, in whole blocks; OSError, with nothing changed, if the disk has no room.

        A larger step, up to *limit*, is tried first, so that most batches find their space already reserved.
        """
        if end <= self.reserved_bytes:
            return
        end = whole_blocks(end)
        step_end = min(self.reserved_bytes + self._step_bytes, limit)
        step_end = max(end, step_end - step_end % DIRECT_BLOCK_BYTES)
        try:
            self._grow(step_end)
        except OSError:
            if step_end == end:
                raise
            self._grow(end)
        self._step_bytes = min(self._step_bytes * 2, STEP_BYTES_MAX)

    def _grow(self, end: int) -> None:
        size = self.files.size(self.handle)
        self._is_synced = False
        try:
            self.files.reserve(self.handle, self.reserved_bytes, end - self.reserved_bytes)
        except OSError:
            # ext4 keeps what a failed reservation allocated: free it, or the disk stays full of unused space.
            if self.files.size(self.handle) > size and self.is_known_unshared():
                self.files.set_size(self.handle, size)
            raise
        self.reserved_bytes = end

    def write(self, buffers: Sequence[Buffer], offset: int, *, durable: bool = False) -> None:
        """Write *buffers* at *offset*; after an OSError the content is unknown.

        durable: `sync` follows. Then a direct write may bring its bytes to the medium by itself, if everything before
        them is known to be there: it syncs nothing else.
        """
        if self._direct is None:
            self._is_synced = False
            write_all(self.files, self.handle, buffers, offset)
        else:
            was_synced, self._is_synced = self._is_synced, False
            self._is_synced = self._direct.write(buffers, offset, durable=durable and was_synced)
            self._leave_direct_if_refused()

    def takes_pieces(self) -> bool:
        """Return whether `write_in_pieces` may be called."""
        return self._direct is not None and self._direct.takes_pieces()

    def write_in_pieces(self, steps: Iterable[Sequence[Buffer]], offset: int) -> int:
        """Write a large batch at *offset*, in pieces, while *steps* makes its buffers; return where it ends.

        Errors as of `write`.
        """
        assert self._direct is not None, "takes_pieces says so"
        self._is_synced = False
        self._direct.write_in_pieces(steps, offset)
        end = self._direct.end
        self._leave_direct_if_refused()
        return end

    def stage_durable(self, frames: bytes, offset: int) -> tuple[memoryview, int] | None:
        """Return the blocks that append *frames* at *offset*, which is the end, and where one durable write puts them.

        None if it must not be one write: the file is not written directly, something before them may not be on the
        medium, or they are too long. `note_durable` follows the write.
        """
        direct = self._direct
        if direct is None or not self._is_synced:
            return None
        assert offset == direct.end, "a direct file is only appended to"
        blocks = direct.stage(frames)
        return (blocks, offset - len(direct.kept)) if blocks is not None else None

    def note_durable(self, length: int) -> None:
        """Note that *length* bytes of frames, which were staged, are on the medium."""
        assert self._direct is not None
        self._direct.note_written(len(self._direct.kept) + length)

    def _leave_direct_if_refused(self) -> None:
        if self._direct is not None and self._direct.is_refused:
            self._direct = None

    def sync(self) -> None:
        """Wait until everything written is on the medium."""
        if self._direct is None or not self._is_synced:
            self.files.sync(self.handle)
            self._is_synced = True

    def close(self) -> None:
        """Close the file. Another file may get the number: who closes the handles of this log must not meet it."""
        handle, self.handle = self.handle, -1
        self.files.close(handle)


class LinkCount:
    """Number of names of an open file.

    Attributes:
        is_removed: It has lost its last name, as far as `read` has seen.
    """

    __slots__ = ("_files", "_had_name", "_handle", "is_removed")

    def __init__(self, files: FileSystem, handle: int) -> None:
        self._files = files
        self._handle = handle
        self._had_name = False
        self.is_removed = False

    def read(self) -> int:
        """Return the number of names. Raises OSError if the system does not report it."""
        links = self._files.links(self._handle)
        self._had_name |= links > 0  # a file system that reports 0 for every file does not count names
        self.is_removed = self._had_name and not links
        return links
