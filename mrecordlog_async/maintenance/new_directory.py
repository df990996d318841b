"""A directory that gets its name when it is complete: built as `NAME.partial`, made durable, and renamed.

1. If the work is interrupted, no incomplete directory has the final name.
2. The process that builds a directory holds the lock on its `LOCK`, a log's own or one that is taken here. So a
   directory that is being built differs from one that a killed process left.
3. The directory stays open. If somebody removes it meanwhile, and another run begins one of the same name, that one is
   neither renamed nor removed here.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from mrecordlog_async.storage.directory import LogDirectory, make_directories, naming, sync_names
from mrecordlog_async.storage.filesystem import FileSystem
from mrecordlog_async.storage.lock import locked_by_another, take_lock
from mrecordlog_async.storage.lock_file import LOCK_NAME
from mrecordlog_async.support.paths import absolute

PARTIAL_SUFFIX = ".partial"


def free_names(files: FileSystem, directory: str | os.PathLike[str]) -> tuple[str, str]:
    """Return the absolute path of a directory to create, and the path that it has while it is built.

    Raises:
        FileExistsError: One of the two exists, or cannot be replaced by a rename.
    """
    path = absolute(os.fsdecode(directory))
    partial = path + PARTIAL_SUFFIX
    parent, name = os.path.split(partial)
    try:
        is_taken = bool(_names(files, path))
    except NotADirectoryError:
        if os.path.basename(path) not in _names(files, parent):
            raise  # a parent is a file
        raise FileExistsError(
            errno.EEXIST, "exists and is not a directory; name one that does not exist yet", path
        ) from None
    if is_taken:
        raise FileExistsError(errno.EEXIST, "the directory is not empty; name one that does not exist yet", path)
    if not files.is_replaceable(path):
        raise FileExistsError(
            errno.EEXIST, "a symbolic link or a mount point cannot be replaced; name a directory inside it", path
        )
    if name in _names(files, parent):
        raise FileExistsError(errno.EEXIST, _why_it_exists(files, partial), partial)
    return path, partial


@contextmanager
def new_directory(
    files: FileSystem,
    directory: str | os.PathLike[str],
    *,
    like: str | os.PathLike[str] | None = None,
    takes_lock: bool = True,
) -> Iterator[str]:
    """Create a directory for the block to fill, and yield the path that it has until the block ends.

    Then it gets its name. If the block raises an error, the directory is removed, unless that fails too. An OSError
    without a path, such as that of a full disk, gets the path of *directory*.

    Args:
        files: The disk.
        directory: The directory to create.
        like: If root creates it, it and its files belong to the owner of this path; None for its parent's owner.
        takes_lock: Lock it for the block; False for a block that opens a log there, which takes the same lock.

    Yields:
        The path.

    Raises:
        FileExistsError: *directory* exists, or is being built.
        FileNotFoundError: The directory was renamed, replaced or removed meanwhile.
    """
    path, partial = free_names(files, directory)
    _make_directory(files, partial)
    handle = files.open_directory(partial)
    lock = None
    try:
        if like is not None:
            files.give_to_owner_of(os.fsdecode(like), handle)
        lock = _lock(files, partial) if takes_lock else None
        with naming(path):
            yield partial
        _check_place(files, handle, partial)
        with suppress(FileNotFoundError):
            files.unlink(f"{partial}/{LOCK_NAME}")
        files.sync_directory(handle)
        _check_place(files, handle, partial)
        files.rename(partial, path)
        sync_names(files, path)
    except BaseException:
        _remove(files, handle, partial)
        raise
    finally:
        if lock is not None:
            files.close(lock)
        files.close(handle)


def _names(files: FileSystem, path: str) -> list[str]:
    try:
        return files.list_names(path)
    except FileNotFoundError:
        return []


def _why_it_exists(files: FileSystem, partial: str) -> str:
    """Return who is building the directory *partial*, or that nobody is, and what to do."""
    try:
        if LOCK_NAME in files.list_names(partial):
            files.close(files.lock(f"{partial}/{LOCK_NAME}"))
    except BlockingIOError as error:
        owner = locked_by_another(LogDirectory(files, partial), error).owner_pid
        return f"{f'process {owner}' if owner else 'another process'} is writing it; wait until it ends"
    except OSError:
        pass  # a file, or a directory of another user
    return "exists, left over from an interrupted run; remove it and retry"


def _make_directory(files: FileSystem, path: str) -> None:
    """Create the directory *path*; FileExistsError if another run has begun there since the names were checked."""
    try:
        files.make_directory(path)
    except FileNotFoundError:
        make_directories(files, os.path.dirname(path))
        files.make_directory(path)


def _lock(files: FileSystem, path: str) -> int | None:
    """Lock the directory *path*. None on a file system without locks, such as some network shares."""
    try:
        return take_lock(LogDirectory(files, path))
    except OSError:
        return None


def _check_place(files: FileSystem, handle: int, path: str) -> None:
    if not files.is_at(handle, path):
        reason = "the directory was renamed, replaced or removed while it was written; start again"
        raise FileNotFoundError(errno.ENOENT, reason, path)


def _remove(files: FileSystem, handle: int, path: str) -> None:
    """Remove the directory that is open as *handle*, and the files in it, if it is still at *path* and if possible."""
    with suppress(OSError):
        if files.is_at(handle, path):
            for name in files.list_names(path):
                files.unlink(f"{path}/{name}")
            files.remove_directory(path)
