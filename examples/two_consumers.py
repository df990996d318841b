"""Two consumers of one queue, each at its own pace. A record is removed once both have acknowledged it.

    python examples/two_consumers.py ./two_consumers

The queue keeps the options that it was created with: use a directory where it does not exist yet.
"""

import asyncio
import sys
from contextlib import suppress

from mrecordlog_async import MultiRecordLog, QueueOptions


async def consume(log: MultiRecordLog, name: str, seconds_per_batch: float) -> None:
    async with log.consumer("orders", name) as consumer:
        async for batch in consumer.batches(max_records=100, max_wait=0.05):
            await asyncio.sleep(seconds_per_batch)
            await consumer.acknowledge(batch)
            print(f"{name} took {len(batch)}, the log still holds {log.queue_summary('orders').records}")


async def main(directory: str) -> None:
    queues = {"orders": QueueOptions(keep="until_acknowledged")}
    consumers = {"orders": ["billing", "search"]}  # both exist before the first record can be removed
    opening = MultiRecordLog.open(directory, queues=queues, consumers=consumers)
    async with opening as log, asyncio.TaskGroup() as tasks:
        tasks.create_task(consume(log, "billing", 0.0))
        tasks.create_task(consume(log, "search", 0.02))
        for number in range(1_000):
            await log.append("orders", b"order %d" % number)
        await log.drain()  # both end after the last record


if __name__ == "__main__":
    if len(sys.argv) > 2 or "--help" in sys.argv:
        sys.exit(__doc__)
    with suppress(KeyboardInterrupt):  # Ctrl-C
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "./two_consumers"))
