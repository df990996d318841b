"""What `LOCK` contains: the pid of its last holder, for messages, and a mark that the directory has held a log.

1. The pid has the first 32 bytes, filled up with spaces: versions before 0.3.0 read these bytes, and take nothing but
   digits and white space for a pid. Each holder overwrites them in place, so the mark is never missing in between.
2. The mark follows once segment 0 has its name on the medium. So a first opening that ends at any call leaves either no
   mark, and the next one begins the log, or a segment.
3. A directory with the mark and without a segment has lost them: it is half of a copy, for example. A directory without
   the mark may have been made by an earlier version, which also removes the mark when it opens the log.

Neither is synced, and a disk too full for them does not prevent opening: without them, less is noticed.
"""

from __future__ import annotations

import os
from contextlib import suppress

from mrecordlog_async.storage.filesystem import FileSystem

LOCK_NAME = "LOCK"

PID_BYTES = 32
MARK = b"This directory holds a log.\n"


def write_pid(files: FileSystem, handle: int) -> None:
    """Note that this process holds the lock."""
    with suppress(OSError):
        files.write(handle, [str(os.getpid()).encode().ljust(PID_BYTES - 1) + b"\n"], 0)


def write_mark(files: FileSystem, handle: int) -> None:
    """Note that the directory holds a log. Only after a segment has its name on the medium."""
    with suppress(OSError):
        files.write(handle, [MARK], PID_BYTES)


def read_pid(files: FileSystem, path: str) -> tuple[int | None, bool]:
    """Return the pid in the file at *path* (None without one) and whether the file has a second name."""
    try:
        handle = files.open(path, write=False)
    except OSError:
        return None, False
    try:
        text, is_shared = files.read(handle, PID_BYTES, 0).strip(), files.links(handle) > 1
    except OSError:
        return None, False
    finally:
        files.close(handle)
    return (int(text) if text.isdigit() else None), is_shared


def has_mark(files: FileSystem, path: str) -> bool:
    """Return whether the file at *path* has the mark; False if there is no such file, or this user may not read it."""
    try:
        handle = files.open(path, write=False)
    except (FileNotFoundError, PermissionError):
        return False
    try:
        return files.read(handle, len(MARK), PID_BYTES) == MARK
    finally:
        files.close(handle)
