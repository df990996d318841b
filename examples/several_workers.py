"""Workers that divide jobs among themselves, each in its own process. One that dies is replaced by the others.

    mrecordlog serve ./wal --port 8080 &
    for n in 1 2 3; do python examples/several_workers.py work http://127.0.0.1:8080 & done
    python examples/several_workers.py send http://127.0.0.1:8080 < jobs.txt

Each line of jobs.txt is a job, and its first word is the customer that it is for. The jobs of a customer are in one of
six queues, and stay in order. A worker holds at most three of the queues: two workers do all jobs, and a third waits
until one of them was not seen for ten seconds.
"""

import asyncio
import os
import sys
from contextlib import suppress
from zlib import crc32

from mrecordlog_async import ConsumerFencedError, ConsumerHeldError
from mrecordlog_async.client import RecordLogClient

QUEUES = [f"jobs-{number}" for number in range(6)]
MOST = 3
IDLE_SECONDS = float(os.environ.get("IDLE_SECONDS", "10"))  # longer than a batch takes


async def send(client: RecordLogClient) -> None:
    await client.create_queues(QUEUES, exist_ok=True)
    for job in sys.stdin.buffer.read().splitlines():
        customer = job.partition(b" ")[0]
        await client.append(QUEUES[crc32(customer) % len(QUEUES)], job)


async def work(client: RecordLogClient) -> None:
    await client.create_queues(QUEUES, exist_ok=True)
    share = asyncio.Semaphore(MOST)
    await asyncio.gather(*(work_off(client, queue, share) for queue in QUEUES))


async def work_off(client: RecordLogClient, queue: str, share: asyncio.Semaphore) -> None:
    while True:
        try:
            async with share, client.consumer(queue, "workers", if_idle_for=IDLE_SECONDS) as consumer:
                async for batch in consumer.batches(max_records=20):
                    for job in batch.payloads():
                        print(job.decode(), flush=True)  # do it; after a crash it may come again
                    await consumer.acknowledge(batch)
                return  # the queue is sealed, and everything is done
        except (ConsumerHeldError, ConsumerFencedError):
            await asyncio.sleep(IDLE_SECONDS / 5)  # another worker has it


async def main(what: str, url: str) -> None:
    async with RecordLogClient(url) as client:
        await (send(client) if what == "send" else work(client))


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("send", "work"):
        sys.exit(__doc__)
    with suppress(KeyboardInterrupt):  # Ctrl-C
        asyncio.run(main(sys.argv[1], sys.argv[2]))
