"""An aiohttp application whose orders go to two places, a quick one and a slow one: neither holds up the other.

    python examples/aiohttp_two_speeds.py ./wal 8084
    curl -d 'two coffees' http://127.0.0.1:8084/orders
    curl http://127.0.0.1:8084/behind

A record is removed once both have acknowledged it. After a restart each continues where it was.
"""

import asyncio
import sys
from functools import partial

from aiohttp import web

from mrecordlog_async import MultiRecordLog, QueueOptions
from mrecordlog_async.aiohttp import LOG, setup


async def deliver(name: str, seconds: float, log: MultiRecordLog) -> None:
    async with log.consumer("orders", name) as consumer:
        async for batch in consumer.batches(max_records=100):
            for payload in batch.payloads():
                await asyncio.sleep(seconds)
                print(name, payload.decode(), flush=True)
            await consumer.acknowledge(batch)


async def order(request: web.Request) -> web.Response:
    position = await request.app[LOG].append("orders", await request.read())
    return web.json_response({"position": position}, status=202)


async def behind(request: web.Request) -> web.Response:
    return web.json_response({name: found.records for name, found in request.app[LOG].consumers("orders").items()})


def main(directory: str, port: int) -> None:
    app = web.Application()
    queues = {"orders": QueueOptions(keep="until_acknowledged")}
    consumers = {"orders": ["billing", "search"]}  # both exist before the first record can be removed
    workers = [partial(deliver, "billing", 0.0), partial(deliver, "search", 0.01)]
    setup(app, directory, queues=queues, consumers=consumers, workers=workers)
    app.add_routes([web.post("/orders", order), web.get("/behind", behind)])
    web.run_app(app, host="127.0.0.1", port=port, shutdown_timeout=10)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], int(sys.argv[2]))
