"""What a log holds, as JSON that can be compared: all that a release must not read differently."""

from __future__ import annotations

from dataclasses import asdict
from hashlib import sha256
from typing import Any

from mrecordlog_async import MultiRecordLog, QueueOptions

OWNER = "00000000-0000-4000-8000-000000000001"


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
