"""How much of the memory that it has freed a process keeps."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

HELD = """
import sys
from mrecordlog_async.support.heap import map_large_blocks, resident_bytes

MIB = 1 << 20


if sys.argv[1] == "mapped":
    map_large_blocks(None)
before = bytes(30 * MIB)
del before  # from now on, glibc by itself takes blocks up to this size from its heap
begun = resident_bytes()
large = [bytearray(b"x" * (20 * MIB)) for _ in range(4)]
above = [bytes(100_000) for _ in range(20)]
del large
print(resident_bytes() - begun)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library has no mallopt: musl, macOS")
def test_large_blocks_leave_the_process_when_they_are_freed() -> None:
    """Small blocks above them do not keep their pages, whatever was freed before."""
    kept, given_back = (
        int(subprocess.run([sys.executable, "-c", HELD, how], capture_output=True, check=True).stdout)
        for how in ("by itself", "mapped")
    )
    assert given_back < 8 << 20
    assert kept > 40 << 20  # otherwise this test shows nothing
