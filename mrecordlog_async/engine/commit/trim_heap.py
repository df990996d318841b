"""Returning memory to the operating system after a large truncate.

glibc keeps the pages of freed runs while anything small is allocated above them: after truncating 100 MB of 100-byte
records, 12 to 68 MB stayed resident; after `malloc_trim`, none. It takes 3 to 20 ms, so it runs on the log's thread,
and only while no call waits.
"""

from __future__ import annotations

import ctypes

from mrecordlog_async.options import MIB

RELEASE_BYTES_MIN = 32 * MIB
"""Freeing less than this is not worth the search through the heap."""


def worth_trimming(freed_bytes: int, retained_bytes: int) -> bool:
    """Return whether enough was freed, relative to what is retained, to make trimming the heap worthwhile."""
    return freed_bytes >= max(RELEASE_BYTES_MIN, retained_bytes // 4)


def trim_heap() -> None:
    """Return free pages to the system. Does nothing where the C library lacks `malloc_trim` (musl, macOS)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
