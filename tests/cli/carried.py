"""A log with options, seals, consumers and rules, for commands that carry them to another log."""

from __future__ import annotations

import uuid
from pathlib import Path

from mrecordlog_async import MultiRecordLog, QueueOptions, ReadOnlyLog
from mrecordlog_async.maintenance.queue_settings import QueueSettings

OWNER = str(uuid.UUID(int=7))


async def all_settings(log: MultiRecordLog) -> None:
    """Fill queues up to their limits, and set every value for one of them; a rule concerns those called job-…"""
    full = QueueOptions(max_records=4, max_bytes=400, max_age=86_400.5)
    await log.create_queue("full", options=full)
    await log.append_records("full", 3, [b"x" * 100] * 4)
    await log.create_queue("ring", options=QueueOptions(max_records=3, when_full="drop_oldest"))
    await log.append_records("ring", None, [b"1", b"2", b"3"])
    await log.create_queue("kept", options=QueueOptions(keep="until_acknowledged", keep_at_least=3_600.0))
    await log.append_records("kept", None, [b"a", b"b", b"c", b"d"])
    await log.create_consumer("kept", "späte", start=4)  # the records before it stay
    await log.create_consumer("kept", "mailer", start=2)
    await log.create_consumer("job-*", "lake")
    for queue in ("job-1", "job-2"):
        await log.create_queue(queue)
        await log.append_records(queue, None, [b"one", b"two"])
    async with log.consumer("job-1", "lake", owner=OWNER) as lake:
        await lake.acknowledge(0)
    await log.seal_queue("job-1")
    await log.create_queue("sealed and empty")
    await log.truncate("sealed and empty", 9)
    await log.seal_queue("sealed and empty")
    await log.create_queue("plain")


def settings_seen(directory: Path) -> tuple[dict[str, QueueSettings], list[tuple[str, str]]]:
    """Return what is set in a log: by queue, and the rules."""
    with ReadOnlyLog.open(directory, keep_records=False) as log:
        return {queue: QueueSettings.of(log.state_of(queue)) for queue in log.list_queues()}, log.consumer_rules()
