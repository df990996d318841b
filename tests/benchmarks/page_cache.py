"""How much of a directory's files the operating system holds in its page cache."""

from __future__ import annotations

import ctypes
import mmap
import os


def cached_bytes(directory: str) -> int:
    """Return the bytes of the files in *directory* whose pages are in memory.

    Raises:
        OSError: The system does not say.
    """
    return sum(_cached_bytes_of(entry.path) for entry in os.scandir(directory) if entry.is_file())


def _cached_bytes_of(path: str) -> int:
    handle = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(handle).st_size
        if size == 0:
            return 0
        # Private and writable, though nothing is written: ctypes takes the address of writable memory only.
        with mmap.mmap(handle, size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as pages:
            return _resident_pages(pages, size) * mmap.PAGESIZE
    finally:
        os.close(handle)


def _resident_pages(pages: mmap.mmap, size: int) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    found = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    first = ctypes.c_char.from_buffer(pages)
    try:
        if libc.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size), found) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        del first  # the mapping cannot be closed while it is referred to
    return bytes(found).count(1)
