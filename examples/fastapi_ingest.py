"""A FastAPI endpoint that responds once the record is on the disk."""

from fastapi import FastAPI, Request

from mrecordlog_async import QueueOptions
from mrecordlog_async.fastapi import Log, add_exception_handlers, lifespan, mount

queues = {"clicks": QueueOptions(keep="until_acknowledged")}
consumers = {"clicks": ["lake"]}  # a record stays until all of these have acknowledged it: name those that you run
app = FastAPI(lifespan=lifespan("./wal", queues=queues, consumers=consumers))
add_exception_handlers(app)  # a full log becomes 429, an unknown queue 404, …
mount(app, "/wal")  # a page, the HTTP API, metrics and health checks


@app.post("/ingest")
async def ingest(request: Request, log: Log) -> dict[str, int]:
    return {"position": await log.append("clicks", await request.body())}  # written and synced
