"""A directory of a checkpoint, or of a table on a disk, on any file system: durable small files.

`local_lake` implements `Lake` for disks of this machine, `hadoop_lake` for all other file systems (hdfs://, s3a://, …).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

from mrecordlog_async.errors import RecordLogError

OWN = "_mrecordlog"
"""The directory of this package's files in a checkpoint. Spark ignores names that begin with _."""


LOST_AND_FOUND = "lost+found"
"""A directory at the top of a file system, which makes it."""


def foreign_name(names: Iterable[str], known: Collection[str]) -> str | None:
    """Return the first of the *names* in a directory that is neither *known* nor hidden; None if there is none."""
    others = (
        name for name in sorted(names) if name not in known and not name.startswith(".") and name != LOST_AND_FOUND
    )
    return next(others, None)


class SyncFailedError(RecordLogError):
    """A file system failed to sync what was written. The sync is not retried: pages may be lost."""


class WriteFailedError(RecordLogError):
    """A file of this package could not be written; its previous content is unchanged."""


class LockedError(RecordLogError):
    """Another process holds the lock."""


class Lake(Protocol):
    """One directory. Names are relative to it."""

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

    def lock(self) -> None:
        """Take the lock of this directory until `close`. Raises LockedError."""

    def sync(self) -> None:
        """Sync everything written to this file system to the medium. Raises SyncFailedError."""

    def forget_cached(self, name: str) -> None:
        """Make the next read of a file come from the medium."""

    def close(self) -> None:
        """Release the lock."""
