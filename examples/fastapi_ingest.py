"""A FastAPI application that stores each request before it responds with 202, and streams the records back.

The log's page is at http://127.0.0.1:8082/wal/, its HTTP API, metrics and health checks below it.

    WAL=./wal uvicorn --app-dir examples fastapi_ingest:app --port 8082
    curl -d '{"event": 1}' http://127.0.0.1:8082/ingest/clicks
    curl http://127.0.0.1:8082/recent/clicks
    curl -N http://127.0.0.1:8082/follow/clicks
    curl http://127.0.0.1:8082/wal/metrics

Use one worker, because only one process can open a directory. With `--workers 2` one worker fails and says what to do
instead, and uvicorn stops both. Only requests that name this machine are accepted; for others add a proxy and a token.
"""

import os
from collections.abc import AsyncIterator

from fastapi import FastAPI, Request
from fastapi.middleware.trustedhost import TrustedHostMiddleware
from fastapi.responses import StreamingResponse

from mrecordlog_async.fastapi import Log, add_exception_handlers, lifespan, mount, tail_until_disconnect

app = FastAPI(lifespan=lifespan(os.environ.get("WAL", "./wal"), queues=["clicks"]))
add_exception_handlers(app)
mount(app, "/wal")
app.add_middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])


@app.post("/ingest/{queue}", status_code=202)
async def ingest(queue: str, request: Request, log: Log) -> dict[str, int]:
    return {"position": await log.append(queue, await request.body())}


@app.get("/recent/{queue}")
async def recent(queue: str, log: Log) -> list[str]:
    start = max(log.next_position(queue) - 10, log.first_position(queue))
    return [record.payload.decode(errors="replace") for record in log.range(queue, start)]


@app.get("/follow/{queue}")
async def follow(queue: str, request: Request, log: Log) -> StreamingResponse:
    log.queue_summary(queue)  # 404 before the response begins

    async def lines() -> AsyncIterator[bytes]:
        async for record in tail_until_disconnect(request, log, queue):
            yield record.payload + b"\n"

    return StreamingResponse(lines(), media_type="application/x-ndjson")
