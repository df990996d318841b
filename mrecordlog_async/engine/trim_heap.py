"""Giving memory back to the operating system after a large truncate.

glibc keeps pages of freed runs as long as something small lives above them: after truncating 100 MB of 100-byte
records 12 to 68 MB stayed resident, after `malloc_trim` nothing did. It takes 3 to 20 ms, so it is done on the log's
thread, and only in a quiet moment.
"""

from __future__ import annotations

import ctypes

from mrecordlog_async.options import MIB

RELEASE_BYTES_MIN = 32 * MIB
"""Less than this is not worth the walk through the heap."""


def worth_trimming(freed_bytes: int, retained_bytes: int) -> bool:
    """Return whether enough was freed, relative to what is retained, to make trimming the heap worthwhile."""
    return freed_bytes >= max(RELEASE_BYTES_MIN, retained_bytes // 4)


def trim_heap() -> None:
    """Hand free pages back; does nothing where the C library has no `malloc_trim` (musl, macOS)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
