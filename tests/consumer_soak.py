"""Two consumers at different speeds for minutes. `python -m tests.consumer_soak --minutes 10`.

A queue keeps its records until they are acknowledged. One consumer keeps up, the other one reads in bursts with long
pauses. The log runs in this process, in small segments, and is read from outside while it runs. All the time:

* the queue retains exactly what the slower consumer has not acknowledged, in memory and on the disk;
* `inspect --pins`, run on the directory, names the slower consumer as what keeps the oldest segment;
* each consumer gets every record once and in order; memory and disk fall again after each burst.

Prints a line per phase and a summary; the exit code is 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mrecordlog_async import MultiRecordLog, QueueOptions
from mrecordlog_async.options import KIB, MIB

SEGMENT_BYTES = 1 * MIB
RECORD_BYTES = 4 * KIB
RECORDS_PER_SECOND = 250
PAUSE_SECONDS = 20.0


class ConsumerSoak:
    """One run."""

    def __init__(self, log: MultiRecordLog, seconds: float) -> None:
        self.log = log
        self.end = time.monotonic() + seconds
        self.wrong: list[str] = []
        self.received = {"fast": 0, "slow": 0}
        self.peaks: list[tuple[int, int]] = []
        self.troughs: list[tuple[int, int]] = []
        self.named = 0

    async def run(self) -> list[str]:
        """Produce and consume until the time is over; return what went wrong."""
        await self.log.create_queue("q", options=QueueOptions(keep="until_acknowledged"))
        for consumer in ("fast", "slow"):
            await self.log.create_consumer("q", consumer)
        tasks = [asyncio.create_task(self._consume("fast")), asyncio.create_task(self._consume_in_bursts())]
        await self._produce()
        await self.log.drain()
        await asyncio.gather(*tasks)
        self._check_end()
        return self.wrong

    async def _produce(self) -> None:
        number = 0
        while time.monotonic() < self.end:
            payloads = [b"%08d" % (number + more) + bytes(RECORD_BYTES - 8) for more in range(RECORDS_PER_SECOND // 10)]
            await self.log.append_records("q", None, payloads)
            number += len(payloads)
            await asyncio.sleep(0.1)

    async def _consume(self, name: str) -> None:
        async with self.log.consumer("q", name) as consumer:
            async for batch in consumer.batches(max_records=200):
                self._take(name, [payload for _, payload in batch])
                await consumer.acknowledge(batch)

    async def _consume_in_bursts(self) -> None:
        async with self.log.consumer("q", "slow") as consumer:
            # A pause that the end cuts short leaves less than a segment, which nothing keeps.
            while time.monotonic() + PAUSE_SECONDS <= self.end:
                await asyncio.sleep(PAUSE_SECONDS)
                self.peaks.append(await self._look("pause over"))
                await self._check_inspect()
                behind = self.log.next_position("q")
                while consumer.position < behind:
                    batch = await consumer.batch(max_records=500, max_wait=0.0)
                    assert batch is not None
                    self._take("slow", [payload for _, payload in batch])
                    await consumer.acknowledge(batch)
                self.troughs.append(await self._look("caught up"))
            async for batch in consumer.batches():
                self._take("slow", [payload for _, payload in batch])
                await consumer.acknowledge(batch)

    def _take(self, name: str, payloads: list[bytes]) -> None:
        for payload in payloads:
            if int(payload[:8]) != self.received[name]:
                self.wrong.append(f"{name} got record {int(payload[:8])}, not {self.received[name]}")
            self.received[name] = int(payload[:8]) + 1

    async def _look(self, when: str) -> tuple[int, int]:
        """Print and return memory and disk; the queue retains what the slower consumer has not acknowledged."""
        await self.log.sync()
        usage, summary = self.log.resource_usage(), self.log.queue_summary("q")
        slowest = min(one.position for one in self.log.consumers("q").values())
        if summary.first_position != slowest:
            self.wrong.append(f"the queue begins at {summary.first_position}, its slowest consumer stands at {slowest}")
        print(
            f"{when:>10}: {summary.records} records, {usage.memory_bytes / MIB:.1f} MiB of memory, "
            f"{usage.segments} segments of {usage.disk_bytes / MIB:.1f} MiB",
            flush=True,
        )
        return usage.memory_bytes, usage.disk_bytes

    async def _check_inspect(self) -> None:
        command = [sys.executable, "-m", "mrecordlog_async", "inspect", self.log.directory, "--pins"]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
        if "whose consumer slow stands at" not in done.stdout:
            self.wrong.append(f"inspect --pins does not name the slower consumer: {done.stdout}{done.stderr}")
        self.named += 1

    def _check_end(self) -> None:
        if len(set(self.received.values())) != 1:
            self.wrong.append(f"the consumers received {self.received}")
        for (memory, disk), (memory_after, disk_after) in zip(self.peaks, self.troughs, strict=False):
            if memory_after * 2 > memory or disk_after >= disk:
                self.wrong.append(
                    f"after a burst {memory_after} and {disk_after} bytes are held, before it {memory} and {disk}"
                )


async def _run(directory: str, seconds: float) -> int:
    async with MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES) as log:
        soak = ConsumerSoak(log, seconds)
        wrong = await soak.run()
    print(f"{soak.received['slow']} records to each of two consumers; inspect named the slower one {soak.named} times")
    print("\n".join(wrong) or "nothing is wrong")
    return 1 if wrong else 0


def main() -> int:
    """Run the soak; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    with tempfile.TemporaryDirectory() as directory:
        return asyncio.run(_run(str(Path(directory) / "wal"), parser.parse_args().minutes * 60))


if __name__ == "__main__":
    sys.exit(main())
