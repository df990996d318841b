"""A worker next to the program that stores its records: it takes batches, delivers them and acknowledges them.

    seq 1 1000 | python examples/worker.py ./work
    seq 1001 2000 | python examples/worker.py ./work

Each line of the input becomes a record. The worker prints what it delivers. Stop the program at any moment, even with
`kill -9`: the next run continues after the last acknowledgement, so a record may be delivered twice, but none is lost.
The queue keeps the options that it was created with: use a directory where it does not exist yet.
"""

import asyncio
import signal
import sys

from mrecordlog_async import Batch, MultiRecordLog, QueueOptions


async def work(log: MultiRecordLog) -> None:
    async with log.consumer("orders", "billing") as consumer:
        async for batch in consumer.batches(max_records=100, max_wait=0.2):
            deliver(batch)
            await consumer.acknowledge(batch)


def deliver(batch: Batch) -> None:
    for position, payload in batch:
        print(position, payload.decode(errors="replace"), flush=True)


async def main(directory: str) -> None:
    queues = {"orders": QueueOptions(keep="until_acknowledged")}  # records are removed once they are acknowledged
    async with MultiRecordLog.open(directory, queues=queues) as log:
        worker = asyncio.create_task(work(log))
        while line := await asyncio.to_thread(sys.stdin.buffer.readline):
            await log.append("orders", line.rstrip(b"\n"))
        await log.drain()  # no more records: the worker ends after the last one
        await worker


if __name__ == "__main__":
    if len(sys.argv) > 2 or "--help" in sys.argv:
        sys.exit(__doc__)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it at once, even while a thread waits for input
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "./work"))
