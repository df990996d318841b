"""One writer per directory: an flock on `LOCK`, which has the owner's pid for the error message of a second opener.

The file is removed in one case only: when it has a second name (`cp -al` links it). Otherwise that name's owner would
be locked out, and its bytes overwritten. `FileSystem.lock` then ensures that nobody keeps a lock on the removed file.
The lock belongs to the open file, so it ends with the process, however that dies, and a forked child that closes its
copy does not release it.
"""

from __future__ import annotations

import errno

from mrecordlog_async.errors import LogLockedError
from mrecordlog_async.storage.directory import LogDirectory
from mrecordlog_async.storage.filesystem import FileSystem
from mrecordlog_async.storage.lock_file import LOCK_NAME, read_pid, write_pid
from mrecordlog_async.support.processes import command_of, started_together


def take_lock(directory: LogDirectory) -> int:
    """Lock *directory* and return the handle that holds the lock; LogLockedError with the owner's pid if taken."""
    files, path = directory.files, f"{directory.path}/{LOCK_NAME}"
    try:
        handle = _lock_own_file(files, path)
    except BlockingIOError as error:
        raise locked_by_another(directory, error) from None
    try:
        write_pid(files, handle)
    except BaseException:
        files.close(handle)
        raise
    return handle


def locked_by_another(directory: LogDirectory, error: BlockingIOError) -> LogLockedError:
    """Return the error for a directory whose lock is held, as *error* says, with the pid of its holder."""
    owner_pid, is_linked = read_pid(directory.files, f"{directory.path}/{LOCK_NAME}")
    if error.errno == errno.EALREADY:
        return LogLockedError(directory.path, owner_pid, is_linked, is_own=True)
    command, is_sibling = command_of(owner_pid), started_together(owner_pid)
    return LogLockedError(directory.path, owner_pid, is_linked, command=command, is_sibling=is_sibling)


def _lock_own_file(files: FileSystem, path: str) -> int:
    """Lock the file at *path*, first replacing it with a new one if it has a second name."""
    handle = files.lock(path)
    try:
        if files.links(handle) <= 1:
            return handle
        # The shared file stays locked until the new one is: only one opener replaces the file.
        files.unlink(path)
        own = files.lock(path)
    except BaseException:
        files.close(handle)
        raise
    files.close(handle)
    return own
