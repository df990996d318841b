"""A log with `beyond_memory="disk"` whose process is killed while it gathers records that leave memory."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mrecordlog_async import Limits, MultiRecordLog
from tests.engine.test_beyond_memory import read_all

LIMITS = Limits(memory_bytes=1 << 20, beyond_memory="disk")

CHILD = """
import asyncio, sys
from mrecordlog_async import Limits, MultiRecordLog
async def main():
    limits = Limits(memory_bytes=1 << 20, beyond_memory="disk")
    async with MultiRecordLog.open(sys.argv[1], limits=limits) as log:
        for name in "abc":
            await log.create_queue(name, exist_ok=True)
        for round in range(1 << 30):
            async def one(name):
                at = log.next_position(name)
                await log.append_records(name, at, [b"%d" % each * 300 for each in range(at, at + 30)])
                print(name, at + 30, flush=True)
            await asyncio.gather(*map(one, "abc"))
            if round % 50 == 49:
                await log.truncate("b", log.next_position("b") - 1000)
asyncio.run(main())
"""


@pytest.mark.parametrize("seed", range(3))
async def test_a_kill_while_segments_are_gathered_loses_nothing(directory: Path, seed: int) -> None:
    """Killed at any moment and opened again and again: every acknowledged record is read as it was stored."""
    rng, acknowledged = random.Random(seed), dict.fromkeys("abc", 0)
    for _ in range(3):
        seconds = 0.5 + rng.random()
        command = [sys.executable, "-c", CHILD, str(directory)]
        lines = await asyncio.to_thread(run_and_kill, command, seconds)
        for line in lines:
            name, end = line.split()
            acknowledged[name] = max(acknowledged[name], int(end))
        async with MultiRecordLog.open(directory, limits=LIMITS) as log:
            for name, stored in acknowledged.items():
                if not log.queue_exists(name):
                    assert stored == 0
                    continue
                found = await read_all(log, name)
                assert log.next_position(name) >= stored
                first = log.first_position(name)
                assert [record.position for record in found] == list(range(first, log.next_position(name)))
                assert all(record.payload == b"%d" % record.position * 300 for record in found)
                assert name == "b" or first == 0


def run_and_kill(command: list[str], seconds: float) -> list[str]:
    """Run *command*, kill it after some time, and return the whole lines that it printed."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            printed, _ = process.communicate(timeout=seconds + 2)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            printed, _ = process.communicate()
    return [line for line in printed.splitlines(keepends=True) if line.endswith("\n")]
