"""Retained records use little more memory than their payloads, and truncating frees it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import asyncio, gc, sys
from mrecordlog_async import MultiRecordLog, PersistPolicy
from mrecordlog_async.support.heap import resident_bytes

RECORDS, SIZE, CALLERS = 1_000_000, 100, 1_000

def resident():
    gc.collect()
    return resident_bytes()

async def main():
    async with MultiRecordLog.open(sys.argv[1], persist_policy=PersistPolicy.never()) as log:
        await log.create_queue("q")
        async def caller():
            for _ in range(RECORDS // CALLERS // 10):
                await log.append_record("q", None, b"%0100d" % 7)
        await asyncio.gather(*(caller() for _ in range(CALLERS)))  # warm up
        await log.truncate("q", log.next_position("q"))
        before = resident()
        for _ in range(10):
            await asyncio.gather(*(caller() for _ in range(CALLERS)))
        assert log.queue_summary("q").records == RECORDS
        held = resident() - before
        told = log.resource_usage().memory_bytes
        await log.truncate("q", log.next_position("q"))
        for _ in range(50):
            await log.sync()  # each is a turn of the writer: disk space goes first, a step a turn, then memory
        after = resident() - before
        print(held, told, after)

asyncio.run(main())
"""


def test_a_million_records_hold_little_more_than_their_payloads(tmp_path: Path) -> None:
    """1,000,000 records of 100 B (100 MB) use at most 112 MB, which is freed after truncating."""
    output = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "wal")], check=True, capture_output=True, text=True
    ).stdout
    held, told, after = map(int, output.split())
    assert held <= 112_000_000
    assert 100_000_000 <= told <= 112_000_000
    assert after <= 12_000_000
