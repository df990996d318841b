"""Locks of the operating system on files, and what a forked child must not keep of its parent.

flock belongs to the open file: the lock ends with the process, and no other close releases it. But a forked child has a
copy of the open file: its copies of the locks are closed at the fork.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable

from mrecordlog_async.storage.mounts import file_system_of
from mrecordlog_async.support.disk_errors import is_refusal

with contextlib.suppress(ImportError):  # Windows, where clients import this module; no log opens there
    import fcntl

HELD_LOCKS: set[int] = set()
"""The handles of the locks that this process has."""

_fork_guard = threading.Lock()
"""Prevents a fork between taking a lock and recording it: `_drop_locks` knows every lock that a child inherits."""


def take_lock(path: str, create: Callable[[str], int]) -> int:
    """Lock the file at *path*, made by *create* if there is none, and return its handle; see `FileSystem.lock`."""
    with _fork_guard:
        handle = _lock(path, create)
        HELD_LOCKS.add(handle)
        return handle


def release_lock(handle: int) -> None:
    """Release a lock that this process has. The file is closed next."""
    # Not by the close alone: a process that was forked just now, or that is being started, may have a copy.
    with contextlib.suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_UN)
    HELD_LOCKS.discard(handle)


def _lock(path: str, create: Callable[[str], int]) -> int:
    while True:
        handle = _open_or_create(path, create)
        try:
            _flock(handle, path)
            if _is_named(handle, path):
                return handle
        except BaseException:
            os.close(handle)
            raise
        # The file was replaced between open and flock: this lock excludes nobody.
        os.close(handle)


def _flock(handle: int, path: str) -> None:
    """Lock an open file. Nothing else keeps two writers apart, so a file system without locks takes no log."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        number = errno.EALREADY if _is_own(handle) else errno.EAGAIN
        raise BlockingIOError(number, os.strerror(number), path) from None
    except OSError as error:
        if not is_refusal(error):
            raise
        kind, mount = file_system_of(path)
        named = f"{kind} at {mount}" if kind else "which holds this file"
        reason = f"the file system ({named}) cannot lock files ({error.strerror}); put the log on a local disk"
        raise OSError(error.errno, reason, path) from None


def _open_or_create(path: str, create: Callable[[str], int]) -> int:
    """Open a file, or create it. One that exists keeps its owner: root must not give away what it did not make."""
    while True:
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        with contextlib.suppress(FileExistsError):  # another process was faster
            return create(path)


def _is_own(handle: int) -> bool:
    """Return whether this process holds the lock on the open file, under whatever name and by whatever handle."""
    ours = os.fstat(handle)
    for held in tuple(HELD_LOCKS):
        with contextlib.suppress(OSError):  # another thread has just closed it
            if os.path.samestat(ours, os.fstat(held)):
                return True
    return False


def _is_named(handle: int, path: str) -> bool:
    """Return whether *path* still names the open file."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _drop_locks() -> None:
    """Close this forked child's copies of the locks; otherwise they stay locked after the parent releases them."""
    for handle in HELD_LOCKS:
        os.close(handle)
    HELD_LOCKS.clear()
    _fork_guard.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_fork_guard.acquire, after_in_parent=_fork_guard.release, after_in_child=_drop_locks)
