"""An aiohttp application that stores each request before it responds with 202, and serves the whole API below /wal.

python examples/aiohttp_ingest.py ./wal 8081
curl -d '{"event": 1}' http://127.0.0.1:8081/ingest/clicks
curl 'http://127.0.0.1:8081/wal/v1/queues/clicks/records?as=text'
"""

import sys

from aiohttp import web

from mrecordlog_async import LogFullError
from mrecordlog_async.aiohttp import LOG, setup


async def ingest(request: web.Request) -> web.Response:
    queue, payload = request.match_info["queue"], await request.read()
    try:
        position = await request.app[LOG].append(queue, payload, create=True)
    except LogFullError as full:
        raise web.HTTPTooManyRequests(text=str(full), headers={"Retry-After": "1"}) from full
    return web.json_response({"position": position}, status=202)


def make_app(directory: str) -> web.Application:
    app = web.Application()
    setup(app, directory, prefix="/wal")
    app.router.add_post("/ingest/{queue}", ingest)
    return app


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    web.run_app(make_app(sys.argv[1]), host="127.0.0.1", port=int(sys.argv[2]), shutdown_timeout=10)
