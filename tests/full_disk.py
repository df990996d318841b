"""A disk without space."""

from __future__ import annotations

import errno

from mrecordlog_async.storage.os_filesystem import OsFileSystem


class FullDisk(OsFileSystem):
    """A disk on which no file can grow while `full` is true."""

    full = True

    def reserve(self, handle: int, offset: int, length: int) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "no room")
        super().reserve(handle, offset, length)
