"""`examples/aiohttp_two_speeds.py` with queues in memory."""

import asyncio
import sys
from collections.abc import AsyncIterator

from aiohttp import web

QUEUES = {"billing": asyncio.Queue[bytes](), "search": asyncio.Queue[bytes]()}


async def deliver(name: str, seconds: float, queue: asyncio.Queue[bytes]) -> None:
    while True:
        payload = await queue.get()
        await asyncio.sleep(seconds)
        print(name, payload.decode(), flush=True)


async def order(request: web.Request) -> web.Response:
    payload = await request.read()
    for queue in QUEUES.values():
        await queue.put(payload)
    return web.json_response({}, status=202)


async def behind(request: web.Request) -> web.Response:
    return web.json_response({name: queue.qsize() for name, queue in QUEUES.items()})


async def run_workers(app: web.Application) -> AsyncIterator[None]:
    seconds = {"billing": 0.0, "search": 0.01}
    workers = [asyncio.create_task(deliver(name, seconds[name], QUEUES[name])) for name in QUEUES]
    yield
    for worker in workers:
        worker.cancel()


def main(port: int) -> None:
    app = web.Application()
    app.cleanup_ctx.append(run_workers)
    app.add_routes([web.post("/orders", order), web.get("/behind", behind)])
    web.run_app(app, host="127.0.0.1", port=port)


if __name__ == "__main__":
    main(int(sys.argv[1]))
