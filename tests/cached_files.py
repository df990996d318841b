"""The real disk without direct access, for tests that watch, delay or fail its `write` and `sync`."""

from __future__ import annotations

import errno
import threading

from mrecordlog_async.storage.os_filesystem import OsFileSystem


class CachedFiles(OsFileSystem):
    """The real disk as on a system without O_DIRECT: every batch is written through the page cache, then synced."""

    def set_direct(self, handle: int, direct: bool) -> None:
        raise OSError(errno.EINVAL, "no direct access")


class FailingSyncs(CachedFiles):
    """A disk whose syncs fail while the test says so."""

    failing = False

    def sync(self, handle: int) -> None:
        if self.failing:
            raise OSError(errno.EIO, "the medium was removed")
        super().sync(handle)


class HangingDisk(CachedFiles):
    """A disk whose syncs wait while the test says so."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.waits = threading.Event()

    def sync(self, handle: int) -> None:
        if not self.goes_on.is_set():
            self.waits.set()
        self.goes_on.wait()
        super().sync(handle)
