"""A worker that tries each order three times and sets aside what it cannot process; and a replay of the last hour.

    seq 1 100 | python examples/set_aside.py ./wal
    python examples/set_aside.py ./wal --replay

An order that is not a number fails every time: it goes to the queue `orders.dead` with the reason, and the worker goes
on with the others.
`--replay` prints what was stored within the last hour, whether it was processed or not.
"""

import asyncio
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from mrecordlog_async import MultiRecordLog, QueueOptions

ATTEMPTS = 3
QUEUES = {"orders": QueueOptions(keep="until_acknowledged", keep_at_least=3600.0), "orders.dead": QueueOptions()}


async def bill(payload: bytes) -> None:
    print("billed", int(payload))


async def process(log: MultiRecordLog, position: int, payload: bytes) -> None:
    why = ""
    for attempt in range(ATTEMPTS):
        try:
            await bill(payload)
            return
        except Exception as error:
            why = repr(error)
        await asyncio.sleep(0.01 * 2**attempt)
    await log.append_json("orders.dead", {"position": position, "why": why, "text": payload.decode(errors="replace")})


async def work(log: MultiRecordLog) -> None:
    async with log.consumer("orders", "billing") as consumer:
        async for batch in consumer.batches(max_records=100):
            for position, payload in batch:
                await process(log, position, payload)
            await consumer.acknowledge(batch)


async def main(directory: str, replays: bool) -> None:
    async with MultiRecordLog.open(directory, queues=QUEUES) as log:
        if replays:
            for position, payload in log.range("orders", datetime.now(UTC) - timedelta(hours=1)):
                print(position, payload.decode(errors="replace"))
            return
        worker = asyncio.create_task(work(log))
        while line := await asyncio.to_thread(sys.stdin.buffer.readline):
            await log.append("orders", line.rstrip(b"\n"))
        await log.drain(queues=["orders"])  # the worker ends after the last order, and may append until then
        await worker


if __name__ == "__main__":
    if len(sys.argv) < 2 or "--help" in sys.argv:
        sys.exit(__doc__)
    with suppress(KeyboardInterrupt):  # Ctrl-C
        asyncio.run(main(sys.argv[1], "--replay" in sys.argv[2:]))
