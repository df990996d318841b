"""A disk without space."""

from __future__ import annotations

import errno

from mrecordlog_async.storage.os_filesystem import OsFileSystem


class FullDisk(OsFileSystem):
    """A disk on which no file can grow while `full` is true: `error` says why."""

    full = True
    error = errno.ENOSPC

    def reserve(self, handle: int, offset: int, length: int) -> None:
        if self.full:
            raise OSError(self.error, "no room")
        super().reserve(handle, offset, length)
