"""Gathered files on the disk: writing one under its own temporary name, and reading ranges of it. Blocking.

They are written and read past the page cache where that is possible: what left memory must not come back as cache, and
read thousands of places of 1 MiB. Nothing is ever synced: a file that a crash left in pieces fails its checksums. No
file is written again once it has its name, and an open handle outlives it.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import sys
from collections.abc import Iterable, Sequence

from mrecordlog_async.format.gathered import (
    FOOT_BYTES,
    HEAD_BYTES,
    GatheredError,
    GatheredIndex,
    decode_foot,
    decode_head,
    decode_index,
)
from mrecordlog_async.options import MIB
from mrecordlog_async.storage.direct import whole_blocks
from mrecordlog_async.storage.directory import LogDirectory
from mrecordlog_async.storage.filesystem import DIRECT_BLOCK_BYTES, Buffer, FileSystem
from mrecordlog_async.storage.segment import STEP_BYTES_MAX, TEMPORARY_SUFFIX, segment_number, segment_path
from mrecordlog_async.support.disk_errors import is_refusal

GATHERED_SUFFIX = ".runs"
PIECE_BYTES = MIB
"""A read or a write moves no more than this."""


def gathered_path(directory: str, number: int) -> str:
    """Return the path of the gathered file of segment *number*."""
    return segment_path(directory, number) + GATHERED_SUFFIX


def gathered_number(name: str) -> int | None:
    """Return the number of the segment whose gathered file is named *name*, or None for any other file."""
    return segment_number(name.removesuffix(GATHERED_SUFFIX)) if name.endswith(GATHERED_SUFFIX) else None


def gathered_bytes(directory: LogDirectory, number: int) -> int:
    """Return the length of the gathered file of segment *number*; 0 without one."""
    try:
        handle = directory.files.open(gathered_path(directory.path, number), write=False)
    except FileNotFoundError:
        return 0
    try:
        return directory.files.size(handle)
    finally:
        directory.files.close(handle)


def write_gathered(files: FileSystem, path: str, parts: Iterable[Sequence[Buffer]]) -> int:
    """Write a gathered file that consists of *parts*, and give it its name; return its size.

    Raises OSError if the disk refuses it; then nothing of it is left.
    """
    temporary = path + TEMPORARY_SUFFIX
    with contextlib.suppress(FileNotFoundError):
        files.unlink(temporary)
    handle = files.create(temporary)
    try:
        try:
            size = _StagedFile(files, handle).write(parts)
        finally:
            files.close(handle)
        files.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            files.unlink(temporary)
        raise
    return size


class _StagedFile:
    """A new file that is written in whole blocks, from an aligned buffer."""

    def __init__(self, files: FileSystem, handle: int) -> None:
        self._files = files
        self._handle = handle
        self._map = mmap.mmap(-1, PIECE_BYTES)
        self._at = 0  # offset in the file of the buffer's first byte
        self._reserved = 0
        self._is_direct = _try_direct(files, handle)

    def write(self, parts: Iterable[Sequence[Buffer]]) -> int:
        """Write *parts* one after another; return the size of the file."""
        staging = self._map
        for part in parts:
            for buffer in part:
                rest = memoryview(buffer)
                while len(rest) >= (room := PIECE_BYTES - staging.tell()):
                    staging.write(rest[:room])
                    self._flush(PIECE_BYTES, min(max(self._at, PIECE_BYTES), STEP_BYTES_MAX))
                    rest = rest[room:]
                staging.write(rest)
        left = staging.tell()
        staging.write(bytes(-left % DIRECT_BLOCK_BYTES))
        self._flush(staging.tell(), staging.tell())
        size = self._at - (-left % DIRECT_BLOCK_BYTES)
        self._files.set_size(self._handle, size)
        return size

    def _flush(self, size: int, step: int) -> None:
        """Write the first *size* bytes of the buffer; where no space is reserved for them, reserve *step* more."""
        if self._at + size > self._reserved:
            self._files.reserve(self._handle, self._reserved, step)
            self._reserved += step
        done = 0
        while done < size:
            with memoryview(self._map) as view, view[done:size] as rest:
                try:
                    taken = self._files.write(self._handle, [rest], self._at + done)
                except OSError as error:
                    if not self._is_direct or not is_refusal(error):
                        raise
                    self._is_direct = False
                    self._files.set_direct(self._handle, False)
                    continue
            taken -= taken % DIRECT_BLOCK_BYTES  # a short write continues at a whole block
            if taken <= 0:
                raise OSError(errno.EIO, "the disk accepts no whole block")
            done += taken
        self._at += size
        self._map.seek(0)


def _try_direct(files: FileSystem, handle: int) -> bool:
    try:
        files.set_direct(handle, True)
    except OSError as error:
        if not is_refusal(error):
            raise
        return False
    return True


class GatheredFile:
    """A gathered file that is open for reading. Several threads may read it at a time.

    index: of its places. users: reads that are under way, and 1 while it is kept.
    """

    def __init__(self, files: FileSystem, path: str) -> None:
        """Open *path*.

        Raises:
            OSError: It cannot be opened or read.
            GatheredError: It is not an intact gathered file; the places themselves are checked when they are read.
        """
        self._files = files
        self.users = 1
        self.handle = _open(files, path)
        try:
            self._is_direct = _try_direct(files, self.handle)
            self.size = files.size(self.handle)
            head = decode_head(self.read(0, min(HEAD_BYTES, self.size)))
            foot = decode_foot(self.read(max(self.size - FOOT_BYTES, 0), min(FOOT_BYTES, self.size)), self.size)
            self.index: GatheredIndex = decode_index(self.read(foot.offset, foot.index_bytes), head, foot)
        except BaseException:
            self.close()
            raise

    def read(self, offset: int, length: int) -> memoryview:
        """Return *length* bytes at *offset*, in a new buffer.

        Raises:
            OSError: They cannot be read.
            GatheredError: The file ends before them.
        """
        skipped = offset % DIRECT_BLOCK_BYTES
        blocks = aligned_buffer(max(whole_blocks(skipped + length), DIRECT_BLOCK_BYTES))
        self.read_into(offset - skipped, blocks, skipped + length)
        return blocks[skipped : skipped + length]

    def read_into(self, base: int, blocks: memoryview, least: int) -> None:
        """Read whole blocks from *base* on, *least* bytes or more of them; see `read`."""
        done = 0
        while done < least:
            wanted = min(len(blocks) - done, PIECE_BYTES)
            with blocks[done : done + wanted] as piece:
                try:
                    taken = self._files.read_into(self.handle, piece, base + done)
                except OSError as error:
                    if not self._is_direct or not is_refusal(error):
                        raise
                    self._is_direct = False
                    self._files.set_direct(self.handle, False)
                    continue
            if taken < wanted and done + taken < least:
                raise GatheredError("it is shorter than its index says")
            done += taken
        if not self._is_direct:
            self._files.drop_cache(self.handle)

    def close(self) -> None:
        """Close the file. Reads that are under way must have ended."""
        self._files.close(self.handle)


def aligned_buffer(size: int) -> memoryview:
    """Return memory for whole blocks, in huge pages where there are some.

    The disk then gets one request for 1 MiB instead of two, and no list of 256 pages: half of the processor time.
    """
    if sys.platform != "linux":
        return memoryview(mmap.mmap(-1, size))
    made = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):
        made.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(made)


def _open(files: FileSystem, path: str) -> int:
    """Open a file for reading. Past the page cache that takes the right to write it, which only its owner has."""
    try:
        return files.open(path)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        return files.open(path, write=False)
