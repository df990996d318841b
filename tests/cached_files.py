"""The real disk without direct access, for tests that watch, delay or fail its `write` and `sync`."""

from __future__ import annotations

import errno

from mrecordlog_async.storage.os_filesystem import OsFileSystem


class CachedFiles(OsFileSystem):
    """The real disk as on a system without O_DIRECT: every batch is written through the page cache, then synced."""

    def set_direct(self, handle: int, direct: bool) -> None:
        raise OSError(errno.EINVAL, "no direct access")
