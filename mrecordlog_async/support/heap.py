"""Memory of the process: what is in use, and what goes back to the operating system once it is freed.

glibc keeps the pages of freed runs while anything small is allocated above them: after truncating 100 MB of 100-byte
records, 12 to 68 MB stayed resident; after `malloc_trim`, none. It takes 3 to 20 ms, so it runs on a thread, and only
while no call waits.

Nothing is trimmed or mapped where the C library cannot do it (musl, macOS).
"""

from __future__ import annotations

import ctypes
import mmap

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of `mallopt`, from glibc's malloc.h."""
MAPPED_BYTES, TRIMMED_BYTES = 8 << 20, 32 << 20
SMALL_MAPPED_BYTES, SMALL_TRIMMED_BYTES = 256 << 10, 1 << 20
"""The same where memory is scarcer than processor time: below `SMALL_BYTES` in all."""
SMALL_BYTES = 1 << 30


def trim_heap() -> None:
    """Return free pages to the system."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def resident_bytes() -> int:
    """Return the memory of this process that is in RAM; 0 where the system does not say so in /proc. Reads no disk."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0


def map_large_blocks(memory_bytes: int | None) -> None:
    """Map each block of `MAPPED_BYTES` or more separately, so that it is unmapped when it is freed. For `serve` only.

    *memory_bytes* is what the process may use, None if that is unknown.

    glibc does so from 128 KiB on at first, and raises that with each large block that is freed, up to 32 MiB. From then
    on bodies that grow side by side leave holes in the heap: four of 57 MiB at a time took 169 MiB instead of 121 MiB.
    A lower limit costs page faults: with 4 MiB, bodies of that size took a tenth more processor time.

    In a container of 192 MiB, records of 1 MiB left so many holes that the kernel killed the service: it took 145 MiB
    after the end of a load, for 31 MiB of records. With `SMALL_MAPPED_BYTES` it takes 80 MiB.
    """
    is_small = memory_bytes is not None and memory_bytes < SMALL_BYTES
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(M_MMAP_THRESHOLD, SMALL_MAPPED_BYTES if is_small else MAPPED_BYTES)
        set_option(M_TRIM_THRESHOLD, SMALL_TRIMMED_BYTES if is_small else TRIMMED_BYTES)
