"""A group of workers divides queues among its processes, and takes over those of a worker that died.

The producer chooses one of the queues by a key, so records of one key stay in order. Each worker holds at most three
queues. The workers that are left must be able to hold all of them: with `MOST = 2`, a third would wait for a restart.
Choose more partitions than you will ever have workers: changing their number moves keys. If each worker has a number,
as in a StatefulSet, it can hold `PARTITIONS[number::workers]`, without `MOST` and `if_idle_for`.
"""

import asyncio
from zlib import crc32

from mrecordlog_async import ConsumerFencedError, ConsumerHeldError
from mrecordlog_async.client import RecordLogClient

PARTITIONS = [f"jobs-{number}" for number in range(6)]
MOST = 3  # of one worker


async def produce(client: RecordLogClient, key: bytes, payload: bytes) -> None:
    await client.append(PARTITIONS[crc32(key) % len(PARTITIONS)], payload, create=True)


async def work(client: RecordLogClient, queue: str, share: asyncio.Semaphore) -> None:
    while True:
        try:
            async with share, client.consumer(queue, "workers", if_idle_for=10.0) as c:
                async for batch in c.batches():
                    print(queue, batch.payloads())  # each record at least once
                    await c.acknowledge(batch)
                return  # the queue is sealed, and everything is done
        except (ConsumerHeldError, ConsumerFencedError):
            await asyncio.sleep(2.0)  # another worker has it


async def worker(url: str) -> None:  # for example in three processes: two work, one waits
    share = asyncio.Semaphore(MOST)
    async with RecordLogClient(url) as client, asyncio.TaskGroup() as tasks:
        await client.create_queues(PARTITIONS, exist_ok=True)
        for queue in PARTITIONS:
            tasks.create_task(work(client, queue, share))


if __name__ == "__main__":
    asyncio.run(worker("http://localhost:8080"))
