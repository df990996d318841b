"""A program that ends gracefully at SIGTERM and Ctrl-C: what it accepted is stored, delivered and acknowledged.

    python examples/graceful_shutdown.py
    kill -TERM ...

Applications of aiohttp and FastAPI get the same from `setup(…, workers=[work])` and `lifespan(…, workers=[work])`.
"""

import asyncio
import itertools
import signal
import sys

from mrecordlog_async import LogClosedError, MultiRecordLog


async def produce(log: MultiRecordLog) -> None:
    for number in itertools.count():
        try:
            await log.append("orders", b"order %d" % number)
        except LogClosedError:  # the log is being drained
            return


async def work(log: MultiRecordLog) -> None:
    async with log.consumer("orders", "billing") as consumer:
        async for batch in consumer.batches(max_records=100):
            await asyncio.sleep(0.01)  # deliver
            await consumer.acknowledge(batch)


async def main(directory: str) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with MultiRecordLog.open(directory, queues=["orders"]) as log:
        tasks = [asyncio.create_task(produce(log)), asyncio.create_task(work(log))]
        print("running", flush=True)
        await stop.wait()
        await log.drain()  # appends end, tails and consumers end after what is there; acknowledgements still work
        await asyncio.gather(*tasks)
        print(f"stored {log.next_position('orders')}, delivered {log.consumers('orders')['billing'].position}")


if __name__ == "__main__":
    if len(sys.argv) > 2 or "--help" in sys.argv:
        sys.exit(__doc__)
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "./graceful"))
