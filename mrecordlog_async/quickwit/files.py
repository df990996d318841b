"""A directory of the crate's files: names, blocks to read, and bytes to write."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing

from mrecordlog_async.quickwit.frame import BLOCK_BYTES, FILE_BYTES, frame_stop
from mrecordlog_async.storage.directory import naming
from mrecordlog_async.storage.filesystem import FileSystem, read_exact, write_all

NUMBER_MAX = 2**64 - 1

_NAME = re.compile(r"wal-([0-9]{20})")


def file_name(number: int) -> str:
    """Return the name of a file."""
    return f"wal-{number:020}"


def file_numbers(names: Sequence[str]) -> list[int]:
    """Return the numbers of the crate's files among *names*, ascending."""
    matches = (_NAME.fullmatch(name) for name in names)
    return sorted(number for match in matches if match and (number := int(match[1])) <= NUMBER_MAX)


class Directory:
    """Files on a disk, read and written through a `FileSystem`. Only one of them is open at a time.

    numbers: those of the files that were there at first, ascending.
    """

    def __init__(self, files: FileSystem, path: str) -> None:
        self.path = path
        self.numbers: Sequence[int] = file_numbers(files.list_names(path))
        self._files = files
        self._open: tuple[int, int, bool] | None = None  # number, handle, and whether it can be written

    def block(self, number: int, offset: int) -> bytes:
        """Return the block at *offset* of a file, shorter where the file ends."""
        handle = self._handle(number, write=False)
        with naming(f"{self.path}/{file_name(number)}"):
            return read_exact(self._files, handle, BLOCK_BYTES, offset)

    def size(self, number: int) -> int:
        """Return the length of a file in bytes."""
        return self._files.size(self._handle(number, write=False))

    def create(self, number: int, size: int) -> None:
        """Create a file of *size* zeros."""
        self.close()
        handle = self._files.create(f"{self.path}/{file_name(number)}")
        self._open = number, handle, True
        self._files.set_size(handle, size)

    def write(self, number: int, offset: int, data: bytes) -> None:
        """Write *data* at *offset*."""
        write_all(self._files, self._handle(number, write=True), [data], offset)

    def sync(self, number: int) -> None:
        """Wait until a file and its name are on the disk."""
        self._files.sync(self._handle(number, write=True))
        directory = self._files.open_directory(self.path)
        try:
            self._files.sync_directory(directory)
        finally:
            self._files.close(directory)

    def unlink(self, number: int) -> None:
        """Remove a file."""
        if self._open is not None and self._open[0] == number:
            self.close()
        self._files.unlink(f"{self.path}/{file_name(number)}")

    def close(self) -> None:
        """Close the open file."""
        if self._open is not None:
            self._files.close(self._open[1])
            self._open = None

    def _handle(self, number: int, *, write: bool) -> int:
        if self._open is not None and self._open[0] == number and (self._open[2] or not write):
            return self._open[1]
        self.close()
        handle = self._files.open(f"{self.path}/{file_name(number)}", write=write)
        self._open = number, handle, write
        return handle


def is_crate_directory(files: FileSystem, path: str) -> bool:
    """Return whether the first file in *path* is the crate's: it begins with a valid frame, or is new and empty.

    The files of a log are called `wal-` and 20 digits, too. Raises OSError if *path* cannot be read.
    """
    with closing(Directory(files, path)) as directory:
        if not directory.numbers:
            return False
        first = directory.numbers[0]
        block = directory.block(first, 0)
        if len(block) == BLOCK_BYTES and frame_stop(block, 0) is not None:
            return True
        return not any(block) and directory.size(first) == FILE_BYTES
