"""Logs as a process may leave them. Each is written by its own process, which mostly ends without closing it.

Those of 0.3.0 were written by 946a15b7, with the parts in C, before the rooms that write and read them were rebuilt.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from mrecordlog_async import Limits, MultiRecordLog, QueueOptions

from .contents import LITTLE_MEMORY

SEGMENT_BYTES = 128 << 10
LARGE_SEGMENT_BYTES = 8 << 20
MARK_SECONDS = 3.0
"""An idle log writes its mark after one second."""
LITTLE = frozenset({"gathered and truncated"})
"""States that are opened with `LITTLE_MEMORY`."""

OPTIONS = ("max_bytes", "max_records", "max_age", "when_full", "keep", "keep_at_least")

Write = Callable[[Path], Awaitable[None]]


def record(queue: str, position: int, length: int = 60) -> bytes:
    """Return the record that belongs there."""
    return (f"{queue}:{position} ".encode() * (length // 4 + 1))[:length]


async def fill(log: MultiRecordLog, queue: str, count: int, length: int = 60) -> None:
    """Append *count* records, each with a call of its own."""
    for _ in range(count):
        await log.append(queue, record(queue, log.next_position(queue), length))


def last_segment(directory: Path) -> Path:
    """Return the path of the segment that is written; a spare has a suffix."""
    return max(path for path in directory.glob("wal-*") if not path.suffix)


async def not_closed(directory: Path) -> None:
    """Several segments, truncated queues, and an end that no closing states."""
    log = await MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES, queues=["a", "b", "idle"])
    await log.append("idle", b"keeps the first segment")
    for _ in range(5):
        await asyncio.gather(fill(log, "a", 20, 700), fill(log, "b", 20, 900))
    await log.truncate("a", 77)
    await fill(log, "b", 1)


async def torn(directory: Path) -> None:
    """A last batch of which only the first half was written, and the file is as long as that."""
    last, begin, end = await _with_large_last_batch(directory)
    os.truncate(last, (begin + end) // 2)


async def torn_to_zeros(directory: Path) -> None:
    """The same, with a file whose length had reached the disk before its bytes did."""
    last, begin, end = await _with_large_last_batch(directory)
    length = last.stat().st_size
    os.truncate(last, (begin + end) // 2)
    os.truncate(last, length)


async def _with_large_last_batch(directory: Path) -> tuple[Path, int, int]:
    """Return the last segment, and the offsets at which its last batch begins and ends."""
    log = await MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES, queues=["a"])
    await fill(log, "a", 10)
    last = last_segment(directory)
    begin = _written(last)
    await log.append("a", record("a", 10, 20_000))
    return last, begin, _written(last)


def _written(segment: Path) -> int:
    """Return where the bytes of *segment* end; space that is only reserved reads as zeros."""
    return len(segment.read_bytes().rstrip(b"\0"))


async def idle_mark(directory: Path) -> None:
    """A log that was idle for long enough to state that its last batch is durable."""
    log = await MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES, queues=["a"])
    await fill(log, "a", 10)
    last = last_segment(directory)
    before = last.read_bytes()
    await asyncio.sleep(MARK_SECONDS)
    assert last.read_bytes() != before


async def recycled(directory: Path) -> None:
    """A last segment that begins with new batches and ends with old ones, and a spare with old ones alone."""
    log = await MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES, queues=["a"])
    for _ in range(6):
        await fill(log, "a", 150, 900)
        await log.truncate("a", log.next_position("a") - 2)
        await asyncio.sleep(0.2)
    await fill(log, "a", 5, 300)
    await asyncio.sleep(0.5)
    assert any(path.suffix and any(path.read_bytes()) for path in directory.glob("wal-*")), sorted(directory.iterdir())


async def gathered_and_truncated(directory: Path) -> None:
    """Gathered files that also hold records that were truncated later, and one of a queue that was deleted."""
    log = await MultiRecordLog.open(
        directory, segment_bytes=SEGMENT_BYTES, limits=LITTLE_MEMORY, queues=["a", "b", "c"]
    )
    for _ in range(100):
        for queue in "abc":
            first = log.next_position(queue)
            await log.append_records(queue, None, [record(queue, first + n, 1_400) for n in range(10)])
    assert any(directory.glob("*.runs"))
    await log.truncate("a", 333)
    await log.delete_queue("c")
    await log.create_queue("c")
    await fill(log, "c", 3)


async def many_consumers(directory: Path) -> None:
    """More consumers of one queue than most would use; some were moved, some deleted. Closed."""
    async with MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES, queues=["a"]) as log:
        await fill(log, "a", 30)
        await asyncio.gather(*(log.create_consumer("a", f"reader {n}") for n in range(1_200)))
        for n in range(0, 1_200, 40):
            async with log.consumer("a", f"reader {n}", owner="00000000-0000-4000-8000-000000000001") as consumer:
                await consumer.acknowledge(n // 40)
        await asyncio.gather(*(log.delete_consumer("a", f"reader {n}") for n in range(1, 1_200, 40)))


async def rules(directory: Path) -> None:
    """Rules that create consumers of later queues, and one that was removed."""
    log = await MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES, queues=["before/1"])
    for pattern, name in (("*", "everywhere"), ("after/*", "later"), ("after/1*", "first"), ("b*", "removed")):
        await log.create_consumer(pattern, name)
    await log.delete_consumer("b*", "removed")
    await log.create_queues(["after/1", "after/2", "before/2"])
    for queue in log.list_queues():
        await fill(log, queue, 3)


async def one_call_several_runs(directory: Path) -> None:
    """Appends that do not fit into one run, and continue in the next log record of their batch."""
    log = await MultiRecordLog.open(directory, segment_bytes=LARGE_SEGMENT_BYTES, queues=["a", "b"])
    await log.append_records("a", None, [record("a", n, 100 + n % 7 * 3_000) for n in range(200)])
    await log.append_records("b", 5_000, [record("b", 5_000 + n, 17_000) for n in range(20)])
    await log.truncate("a", 77)


async def gaps(directory: Path) -> None:
    """Positions that the caller chose, with gaps between calls, at the start, and after every record."""
    log = await MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES, queues=["a", "b", "c"])
    for n in range(50):
        await log.append("a", record("a", n * 1_000), n * 1_000)
    for first in (7, 20, 1 << 40, (1 << 63) - 100):
        await log.append_records("b", first, [record("b", first + n) for n in range(9)])
    await asyncio.gather(*(log.append("c", record("c", n * 3), n * 3) for n in range(100)))
    await log.truncate("a", 10_500)
    await log.truncate("c", 10_000)


async def one_at_a_time(directory: Path) -> None:
    """Small batches, which a thread without Python writes where the parts in C were built."""
    log = await MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES, queues=["a", "b"])
    for n in range(300):
        await fill(log, "ab"[n % 3 // 2], 1, n % 97)


async def in_pieces(directory: Path) -> None:
    """A batch of several MiB, which is encoded and written piece by piece."""
    log = await MultiRecordLog.open(directory, segment_bytes=LARGE_SEGMENT_BYTES, queues=["a"])
    await log.append_records("a", None, [record("a", n, 100_000) for n in range(30)])
    await fill(log, "a", 3)


async def options(directory: Path) -> None:
    """Each option of a queue, once changed while the log was open, and a queue that is sealed."""
    log = await MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES)
    await log.create_queue("a", options=QueueOptions(max_records=50, when_full="drop_oldest"))
    await log.create_queue("b", options=QueueOptions(max_age=86_400.0 * 36_500))
    await log.create_queue("c", options=QueueOptions(max_bytes=5_000))
    await log.create_queue("d", options=QueueOptions(keep="until_acknowledged", keep_at_least=3_600.0))
    for queue in "abcd":
        await fill(log, queue, 60)
    await log.configure_queue("c", QueueOptions(max_bytes=9_000))
    await log.seal_queue("b")


WRITE: dict[str, Write] = {
    "not closed": not_closed,
    "torn": torn,
    "torn to zeros": torn_to_zeros,
    "idle mark": idle_mark,
    "recycled": recycled,
    "gathered and truncated": gathered_and_truncated,
    "many consumers": many_consumers,
    "rules": rules,
    "one call, several runs": one_call_several_runs,
    "gaps": gaps,
    "one at a time": one_at_a_time,
    "in pieces": in_pieces,
    "options": options,
}


async def contents(log: MultiRecordLog) -> dict[str, Any]:
    """Return what is durable in *log*, with the records that are on the disk only, and a digest of long lists."""
    return {
        "rules": sorted(map(list, log.inspection.consumer_rules())),
        "queues": {queue: await _queue(log, queue) for queue in sorted(log.list_queues())},
    }


async def _queue(log: MultiRecordLog, queue: str) -> dict[str, Any]:
    summary, options = log.queue_summary(queue), log.queue_options(queue)
    digest, count, positions = hashlib.sha256(), 0, []
    async for position, payload in log.read(queue):
        digest.update(b"%d %d " % (position, len(payload)) + payload)
        count += 1
        positions.append(position)
    in_memory = [position for position in positions if position >= log.memory_first(queue)]
    consumers = [[name, one.position, one.epoch, one.owner] for name, one in sorted(log.consumers(queue).items())]
    return {
        "id": summary.id,
        "first": log.first_position(queue),
        "next": log.next_position(queue),
        "sealed": summary.sealed,
        "options": {name: getattr(options, name) for name in OPTIONS},
        "consumers": len(consumers),
        "consumers sha256": hashlib.sha256(json.dumps(consumers).encode()).hexdigest(),
        "records": count,
        "first and last": positions[:1] + positions[-1:],
        "times": [str(log.time_of(queue, position)) for position in in_memory[:1] + in_memory[-1:]],
        "sha256": digest.hexdigest(),
    }


def limits_of(state: str) -> Limits | None:
    """Return the limits with which the log of *state* is opened."""
    return LITTLE_MEMORY if state in LITTLE else None


async def read(state: str, directory: Path) -> dict[str, Any]:
    """Open the log of *state* and return its contents."""
    async with MultiRecordLog.open(directory, limits=limits_of(state), create=False) as log:
        return await contents(log)


async def write_and_die(state: str, directory: Path) -> None:
    """Write the log of *state*, and end the process without closing it."""
    await WRITE[state](directory)
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(write_and_die(sys.argv[1], Path(sys.argv[2])))
