"""What a log holds, as JSON that can be compared: all that a release must not read differently."""

from __future__ import annotations

from dataclasses import asdict
from hashlib import sha256
from typing import Any

from mrecordlog_async import Limits, MultiRecordLog, QueueOptions

OWNER = "00000000-0000-4000-8000-000000000001"
LITTLE_MEMORY = Limits(memory_bytes=1 << 20, record_bytes=64 << 10, beyond_memory="disk")
LARGE = ("a", "b", "c")
"""The queues of a log that is larger than its memory."""


async def write(log: MultiRecordLog) -> None:
    """Store something of every kind of record: batches, gaps, truncates, deletes, options, seals, consumers, rules."""
    await log.create_consumer("*", "everywhere")
    await log.create_queue("kept", options=QueueOptions(keep="until_acknowledged"))
    await log.create_queue("limited", options=QueueOptions(max_bytes=1 << 20, when_full="drop_oldest"))
    await log.create_queue("ünïcode/queue")
    await log.create_queue("empty")
    await log.append_records("kept", None, [f"record {n}".encode() for n in range(100)])
    async with log.consumer("kept", "reader", create=True, owner=OWNER) as consumer:
        await consumer.acknowledge(41)
    await log.append("limited", b"")
    await log.append("limited", bytes(range(256)) * 512)  # more than one block
    await log.append("ünïcode/queue", b"after a gap", 1_000)
    await log.append("deleted", b"gone", create=True)
    await log.delete_queue("deleted", past_consumers=True)
    await log.append("deleted", b"created again", create=True)
    await log.append_records("truncated", None, [b"a", b"b", b"c"], create=True)
    await log.truncate("truncated", 1, past_consumers=True)
    await log.append("sealed", b"the last one", create=True)
    await log.seal_queue("sealed")


def contents(log: MultiRecordLog) -> dict[str, Any]:
    """Return everything that is durable in *log*, but no times relative to now."""
    return {
        "rules": sorted(map(list, log.inspection.consumer_rules())),
        "queues": {queue: _queue(log, queue) for queue in sorted(log.list_queues())},
    }


def _queue(log: MultiRecordLog, queue: str) -> dict[str, Any]:
    summary = log.queue_summary(queue)
    return {
        "id": summary.id,
        "next": summary.next_position,
        "began": summary.began,
        "sealed": summary.sealed,
        "options": asdict(log.queue_options(queue)),
        "consumers": {
            name: {"position": one.position, "epoch": one.epoch, "owner": one.owner}
            for name, one in sorted(log.consumers(queue).items())
        },
        "records": [
            [position, len(payload), sha256(payload).hexdigest()[:16], str(log.time_of(queue, position))]
            for position, payload in log.range(queue)
        ],
    }


async def write_more_than_memory(log: MultiRecordLog) -> None:
    """Store three times what memory may hold, batch by batch, and remove a part of one queue: most is on the disk."""
    for queue in LARGE:
        await log.create_queue(queue)
    for batch in range(100):
        for queue in LARGE:
            await log.append_records(queue, None, [large_record(queue, batch * 10 + n) for n in range(10)])
    await log.truncate("a", 149)


def large_record(queue: str, position: int) -> bytes:
    """Return the record that belongs there."""
    return f"{queue}:{position} ".encode() * 150


async def on_disk_too(log: MultiRecordLog) -> dict[str, list[list[Any]]]:
    """Return queue → position and beginning of each record, wherever it is."""
    return {
        queue: [[position, bytes(payload[:10]).decode()] async for position, payload in log.read(queue)]
        for queue in LARGE
    }
