"""A webhook that is delivered again: its id is stored with the record, and a repeated delivery gets the first position.

Start it with `uvicorn webhook:app --timeout-graceful-shutdown 10`. The sender names a delivery in the header
`X-Delivery-Id`. At the start, the ids come from the log; `keep_at_least` keeps them for as long as the sender repeats.
"""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import FastAPI, Header, Request

from mrecordlog_async import MultiRecordLog, QueueOptions
from mrecordlog_async.fastapi import Log, add_exception_handlers, lifespan, log_of

queues = {"hooks": QueueOptions(keep="until_acknowledged", keep_at_least=3 * 86_400.0)}  # the sender gives up earlier
consumers = {"hooks": ["delivery"]}
seen: dict[str, int] = {}  # id → position, in the order of the positions
storing: dict[str, asyncio.Task[int]] = {}  # those that are not stored yet


@asynccontextmanager
async def remembered(app: FastAPI) -> AsyncGenerator[None]:
    log = log_of(app)
    async for position, payload in log.read("hooks", log.first_position("hooks"), log.next_position("hooks")):
        seen[json.loads(payload)["id"]] = position
    yield


app = FastAPI(lifespan=lifespan("./hooks", remembered, queues=queues, consumers=consumers))
add_exception_handlers(app)  # a delivery that was not stored gets an error, and is repeated


async def store(log: MultiRecordLog, delivery: str, body: str) -> int:
    try:
        position = seen[delivery] = await log.append_json("hooks", {"id": delivery, "body": body})
        while seen and seen[oldest := next(iter(seen))] < log.first_position("hooks"):
            del seen[oldest]  # the log has deleted its record
        return position
    finally:
        del storing[delivery]


@app.post("/hooks")
async def hook(request: Request, log: Log, x_delivery_id: Annotated[str, Header()]) -> dict[str, int]:
    body = (await request.body()).decode()
    if x_delivery_id in seen:
        return {"position": seen[x_delivery_id]}
    if x_delivery_id not in storing:  # no await since the last line: a repeated delivery waits for the same task
        storing[x_delivery_id] = asyncio.create_task(store(log, x_delivery_id, body))
    return {"position": await asyncio.shield(storing[x_delivery_id])}
