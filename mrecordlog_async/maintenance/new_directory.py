"""A directory that gets its name when it is complete: built as `NAME.partial`, made durable, and renamed.

If the work is interrupted, no incomplete directory has the final name.
"""

from __future__ import annotations

import errno
import os

from mrecordlog_async.storage.directory import sync_directory, sync_names
from mrecordlog_async.storage.filesystem import FileSystem

PARTIAL_SUFFIX = ".partial"


def free_names(files: FileSystem, directory: str | os.PathLike[str]) -> tuple[str, str]:
    """Return the absolute path of a directory to create, and the path that it has while it is built.

    Raises:
        FileExistsError: One of the two exists.
    """
    path = os.path.abspath(os.fsdecode(directory))
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
    if name in _names(files, parent):
        raise FileExistsError(errno.EEXIST, "exists, left over from an interrupted run; remove it and retry", partial)
    return path, partial


def rename_durably(files: FileSystem, partial: str, path: str) -> None:
    """Give a complete directory its name, so that its files and its path survive a power failure."""
    sync_directory(files, partial)
    files.rename(partial, path)
    sync_names(files, path)


def remove_directory(files: FileSystem, path: str) -> None:
    """Remove a directory and the files in it."""
    for name in files.list_names(path):
        files.unlink(f"{path}/{name}")
    files.remove_directory(path)


def _names(files: FileSystem, path: str) -> list[str]:
    try:
        return files.list_names(path)
    except FileNotFoundError:
        return []
