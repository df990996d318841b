"""A directory of output or checkpoint on any file system: durable small files, and the rows of Parquet files.

Spark writes the output; this package adds its own small files to output and checkpoint, and counts what was stored.
`local_lake` implements `Lake` for disks of this machine, `hadoop_lake` for all other file systems (hdfs://, s3a://, …).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from mrecordlog_async.errors import RecordLogError

OWN = "_mrecordlog"
"""The directory of this package's files, in output and checkpoint. Spark ignores names that begin with _."""


class SyncFailedError(RecordLogError):
    """A file system failed to sync what was written. The sync is not retried: pages may be lost."""


class WriteFailedError(RecordLogError):
    """A file of this package could not be written; its previous content is unchanged."""


class LockedError(RecordLogError):
    """Another process holds the lock."""


class Held(NamedTuple):
    """The rows of one queue in some files: how many, and their lowest and highest position."""

    rows: int
    first: int
    last: int

    def joined(self, other: Held) -> Held:
        """Return both together."""
        return Held(self.rows + other.rows, min(self.first, other.first), max(self.last, other.last))


Contents = dict[tuple[str, str], Held]
"""(server, queue) → its rows."""


class UnreadableError(RecordLogError):
    """A file of the output is missing, differs in size from the manifest, or cannot be decoded."""


class Lake(Protocol):
    """One directory, output or checkpoint. Names are relative to it."""

    path: str

    def names(self, directory: str = "") -> list[str]:
        """List a directory; empty if it does not exist."""

    def read(self, name: str) -> bytes | None:
        """Return a file's bytes, or None if it does not exist."""

    def write(self, name: str, content: bytes) -> None:
        """Replace a file atomically and durably."""

    def create(self, name: str, content: bytes) -> bool:
        """Create a file durably; return False, and change nothing, if it exists."""

    def remove(self, directory: str, names: Iterable[str]) -> None:
        """Remove files of *directory*, in this order, durably."""

    def holds(self, uri: str) -> bool:
        """Return whether the file that a manifest names is in this directory."""

    def lock(self) -> None:
        """Take the lock of this directory until `close`. Raises LockedError."""

    def sync(self) -> None:
        """Sync everything written to this file system to the medium. Raises SyncFailedError."""

    def forget_cached(self, name: str) -> None:
        """Make the next read of a file come from the medium."""

    def contents(self, files: Iterable[tuple[str, int]], *, whole: bool) -> Contents:
        """Count the rows of Parquet files, by queue.

        Args:
            files: (URI, size in bytes) of each file.
            whole: decode every column, and read from the medium instead of the page cache.

        Raises:
            UnreadableError: a file is missing, has another size, or cannot be decoded.
        """

    def close(self) -> None:
        """Release the lock."""
