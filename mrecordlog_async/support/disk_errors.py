"""Decides what an error of a system call means: the disk has no room, it fails, or the system refuses this call.

Reading, writing, renaming, syncing files and their directory, and locking are never optional. These calls only save
time or space, and any file system or sandbox may refuse them, with any error:

| optional call | instead |
|---|---|
| `fallocate` | zeros are written |
| `fcntl(F_SETFL, O_DIRECT)`, direct reads and writes | the page cache |
| `pwritev2` with `RWF_DSYNC` | a write and `fdatasync` |
| `pwritev2`, `preadv2` (Python's `pwritev`, `preadv`) | `pwrite`, `pread` |
| `io_setup`, `io_submit`, `io_getevents` | one write after another |
| `statx` | `fstat` |
| `fstatfs`, `fstatvfs` | the size of the disk is not known, and no segment is recycled |
| `fcntl(F_SETLEASE)` | the system frees the space of a removed segment at once |
| `posix_fadvise` | reads may come from the cache |
| `fchown` | files belong to root |
| `link` | a snapshot copies every segment |
"""

from __future__ import annotations

import errno

_NO_ROOM = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))

# What block devices report for the medium (`blk_status_to_errno` of Linux), file systems for their own damage, and FUSE
# for a server that has ended. Not ENODEV, for a device that is offline: file systems refuse calls with it, too. What is
# done instead of a refused write writes the same bytes, and fails where the device does.
_NAMES_OF_FAILURES = (
    *("EIO", "ENXIO", "ENODATA", "EREMOTEIO", "ETIMEDOUT", "EILSEQ", "ENOLINK", "EBADE", "ETIME", "EOVERFLOW"),
    *("EREMCHG", "ETOOMANYREFS", "ENOMEDIUM", "EUCLEAN", "EBADMSG", "ESHUTDOWN", "ESTALE", "EROFS"),
    *("ENOTCONN", "ECONNABORTED"),
)
_FAILURES = frozenset(getattr(errno, name) for name in _NAMES_OF_FAILURES if hasattr(errno, name))


class NoInodesError(OSError):
    """The file system has no inode left for a new file, whatever space is free. Its errno is ENOSPC."""

    def __init__(self, path: str) -> None:
        """Name the file or directory that could not be made."""
        super().__init__(errno.ENOSPC, "the file system has no inodes left for a new file (see `df -i`)", path)


def has_no_room(error: OSError) -> bool:
    """Return whether the disk, a quota, or the largest size of a file has no room for what was asked for."""
    return error.errno in _NO_ROOM


def is_refusal(error: OSError) -> bool:
    """Return whether the system refuses an optional call: the log does without it. A failing disk is never one."""
    return not has_no_room(error) and error.errno not in _FAILURES
