"""A record that always fails is set aside in a second queue after a few attempts, so that its consumer continues.

The log does not count attempts: they begin again after a restart. `mrecordlog cat LOG orders.dead` shows what was set
aside. To try it again, append the payloads to `orders` and truncate `orders.dead`.
"""

import asyncio
import json
from base64 import b64encode

from mrecordlog_async import MultiRecordLog, QueueOptions

ATTEMPTS = 3


async def bill(payload: bytes) -> None:
    if payload == b"broken":
        raise ValueError("no price")


async def process(log: MultiRecordLog, position: int, payload: bytes) -> None:
    why = ""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            await bill(payload)
            return
        except Exception as error:
            why = repr(error)
        await asyncio.sleep(0.01 * 2**attempt)
    facts = {"queue": "orders", "position": position, "why": why, "payload": b64encode(payload).decode()}
    await log.append_json("orders.dead", facts)


async def work(log: MultiRecordLog) -> None:
    async with log.consumer("orders", "billing") as consumer:
        async for batch in consumer.batches(max_records=100):
            for position, payload in batch:
                await process(log, position, payload)
            await consumer.acknowledge(batch)


async def main() -> None:
    queues = {"orders": QueueOptions(keep="until_acknowledged"), "orders.dead": QueueOptions()}
    async with MultiRecordLog.open("./dead", queues=queues) as log:
        await log.append_records("orders", None, [b"espresso", b"broken", b"ristretto"])
        await log.drain(queues=["orders"])  # only so that this program ends; other queues still take records
        await work(log)
        for _, payload in log.range("orders.dead"):
            facts = json.loads(payload)
            print("set aside:", facts["position"], facts["why"])


if __name__ == "__main__":
    asyncio.run(main())
