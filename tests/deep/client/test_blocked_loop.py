"""A consumer that blocks its event loop, next to a producer on the same loop and client."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.serving import Process

PROGRAM = """
import asyncio, sys, time
from mrecordlog_async.client import RecordLogClient

async def main():
    found = []
    async with RecordLogClient(sys.argv[1]) as client, client.producer("q", create=True) as producer:
        async def produce():
            for number in range(300):
                await producer.append_record(b"%d" % number)
        async def consume():
            blocking = [40, 150]
            async with client.consumer("q", "slow") as consumer:
                async for batch in consumer.batches(max_records=20):
                    found.extend(map(int, batch.payloads()))
                    if blocking and len(found) > blocking[0]:
                        time.sleep(12)  # longer than any connection of the service waits for a body
                        del blocking[0]
                    await consumer.acknowledge(batch)
                    if found[-1] == 299:
                        return
        await asyncio.gather(produce(), consume())
    assert found == list(range(300)), found

asyncio.run(main())
"""


def test_a_blocked_loop_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """Calls of synchronous libraries are a common mistake: producer and consumer continue where they were."""
    with Process(tmp_path / "wal") as service:
        command = [sys.executable, "-W", "error", "-c", PROGRAM, service.address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
