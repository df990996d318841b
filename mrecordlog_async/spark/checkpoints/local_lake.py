"""A table or a checkpoint on a disk of this machine.

Files are read and written directly, because Spark never calls fsync and reads through the page cache: what a restart
relies on is synced, and is read back from the medium.
"""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mrecordlog_async.spark.checkpoints.lake import OWN, LockedError, SyncFailedError, WriteFailedError
from mrecordlog_async.spark.table_files import syncfs
from mrecordlog_async.storage.os_filesystem import drop_cache, full_sync

with suppress(ImportError):  # Windows, where a source of Spark imports this module, and no drain runs
    import fcntl

LOCK_SECONDS = 10.0
"""Seconds that a start waits for the lock: the Java process of a killed driver takes a moment to exit."""


class LocalLake:
    """A directory on a disk of this machine; it is created if it is missing."""

    def __init__(self, path: str) -> None:
        self.path = path
        with self._as_sentence():
            make_directories(path)
            # Opened before anything is written: a write-back error is reported only to descriptors open then.
            self._handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        self._lock: int | None = None

    def names(self, directory: str = "") -> list[str]:
        """List a directory; empty if it does not exist."""
        try:
            return os.listdir(Path(self.path, directory))
        except FileNotFoundError:
            return []

    def read(self, name: str) -> bytes | None:
        """Return a file's bytes, or None if it does not exist."""
        try:
            return Path(self.path, name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """Replace a file atomically and durably. Raises WriteFailedError, SyncFailedError."""
        target = Path(self.path, name)
        # The content is durable before the rename, and the name after it: a reader finds the old file or the new one.
        with self._beside(target, content) as temporary:
            temporary.replace(target)
        sync_directory(target.parent)

    def create(self, name: str, content: bytes) -> bool:
        """Create a file durably; return False, and change nothing, if it exists. Errors are those of `write`."""
        target = Path(self.path, name)
        with self._beside(target, content) as temporary:
            try:
                os.link(temporary, target)  # unlike rename, fails if it exists; unlike O_EXCL, is never half written
            except FileExistsError:
                return False
        sync_directory(target.parent)
        return True

    def remove(self, directory: str, names: Iterable[str]) -> None:
        """Remove files of *directory*, in this order, durably, each with the checksum file that Hadoop wrote for it."""
        place = Path(self.path, directory)
        for name in names:
            # With its checksum: Hadoop would compare that with the next file of this name.
            (place / name).unlink(missing_ok=True)
            (place / f".{name}.crc").unlink(missing_ok=True)
        if place.exists():
            sync_directory(place)

    def lock(self) -> None:
        """Take the lock of this directory until `close`. Raises LockedError."""
        place = Path(self.path, OWN)
        with self._as_sentence():
            place.mkdir(exist_ok=True)
            handle = os.open(place / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _flock(handle, str(place / "lock"))
            with self._as_sentence():
                os.ftruncate(handle, 0)
                os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        except BaseException:
            os.close(handle)  # unlocks it
            raise
        self._lock = handle  # the kernel unlocks it when the process ends, however it ends

    def sync(self) -> None:
        """Sync everything written to this file system to the medium. Raises SyncFailedError."""
        try:
            syncfs(self._handle)
        except OSError as error:
            raise SyncFailedError(
                f"{self.path} could not be synced ({error.strerror}); nothing was truncated. Check the disk and start "
                "again: the start reads the last batches from the medium, and reruns those that are not intact"
            ) from error

    def forget_cached(self, name: str) -> None:
        """Make the next read of a file come from the medium."""
        _forget_cached(str(Path(self.path, name)))

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        os.close(self._handle)

    @contextmanager
    def _as_sentence(self) -> Iterator[None]:
        """Raise WriteFailedError for an error of the system about the directory itself."""
        try:
            yield
        except OSError as error:
            advice = "free space, or repair the disk, and start again"
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS):
                advice = "name a directory that the user of the drain may write to"
            raise WriteFailedError(
                f"{self.path} cannot be used ({error.strerror}): {advice}; nothing was stored or truncated"
            ) from error

    @contextmanager
    def _beside(self, target: Path, content: bytes) -> Iterator[Path]:
        """Write *content* durably to a temporary file next to *target*, which is removed if it is left there.

        A missing directory is created. Raises WriteFailedError, even for an error of the system in the caller's block.
        """
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        try:
            if not target.parent.exists():
                target.parent.mkdir(exist_ok=True)  # another start may create it at this moment
                sync_directory(target.parent.parent)
            with open(temporary, "xb") as file:
                file.write(content)
                file.flush()
                full_sync(file.fileno())
            yield temporary
        except OSError as error:
            raise WriteFailedError(
                f"{target} could not be written ({error.strerror}); nothing more is truncated. Free space or repair "
                "the disk, and start again"
            ) from error
        finally:
            with suppress(OSError):  # the error that counts is raised, or the file is written
                temporary.unlink(missing_ok=True)


def _forget_cached(path: str) -> None:
    """Drop a file's clean pages from the page cache, so that the next read comes from the medium."""
    with suppress(OSError):  # a missing file is reported when it is read
        handle = os.open(path, os.O_RDONLY)
        try:
            drop_cache(handle)
        finally:
            os.close(handle)


def _flock(handle: int, path: str) -> None:
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                holder = os.pread(handle, 32, 0).decode().strip()
                raise LockedError(f"{path} is locked by process {holder or 'unknown'}") from None
            time.sleep(0.1)
        else:
            return


def sync_directory(path: str | Path) -> None:
    """Make the names in a directory durable. Raises SyncFailedError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        sync_file(handle, str(path))
    finally:
        os.close(handle)


def sync_file(handle: int, name: str) -> None:
    """Sync an open file or directory to the medium. Raises SyncFailedError."""
    try:
        full_sync(handle)
    except OSError as error:
        raise SyncFailedError(
            f"{name} could not be synced ({error.strerror}); nothing was truncated. Check the disk and start again"
        ) from error


def make_directories(path: str) -> None:
    """Create a directory and its missing parents, and wait until all their names are on the medium.

    Those that exist may have been made by a drain that died before they were durable. They are passed over where this
    user may not read the parent, and above *path* where they cannot be synced: they may be on another disk.

    Raises:
        SyncFailedError: the name of *path*, or of another directory that was created, could not be made durable.
    """
    absolute = Path(path).absolute()
    missing = [each for each in (absolute, *absolute.parents) if not each.exists()]
    for each in reversed(missing):  # parents first
        each.mkdir(exist_ok=True)
    for each in reversed((absolute, *absolute.parents[:-1])):
        try:
            sync_directory(each.parent)
        except PermissionError:
            if each in missing:
                raise
        except SyncFailedError:
            if each in missing or each == absolute:
                raise
