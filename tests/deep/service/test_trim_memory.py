"""What a service returns to the system while it runs."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

RESIDENT = """
import asyncio
from mrecordlog_async.service.service import Service
from mrecordlog_async.service.watching.trim_memory import MemoryTrimmer
from mrecordlog_async.support.heap import map_large_blocks, resident_bytes


async def main():
    map_large_blocks(None)
    service = Service()
    trimmer = MemoryTrimmer(service)
    trimmer.check()
    begun = resident_bytes()
    blocks = [b"x" * 100_000 for _ in range(1_000)]
    above = b"x" * 100_000
    del blocks  # free, and below a block that is in use
    kept = resident_bytes() - begun
    with service.bodies.budget.charge() as charge:
        charge.add(kept)  # a body of that size would explain it
        trimmer.check()
        explained = resident_bytes() - begun
    trimmer.check()
    await asyncio.get_running_loop().shutdown_default_executor()
    print(kept, explained, resident_bytes() - begun)


asyncio.run(main())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library has no malloc_trim")
def test_memory_that_no_request_or_record_accounts_for_is_returned() -> None:
    """Freed blocks below one in use leave the process at the next check; what a body explains is left alone."""
    command = [sys.executable, "-c", RESIDENT]
    kept, explained, left = map(int, subprocess.run(command, capture_output=True, check=True).stdout.split())
    assert kept > 80 << 20  # otherwise this test shows nothing
    assert explained > 80 << 20
    assert left < 16 << 20
