"""A FastAPI application that stores each order before it responds, and a worker that puts each into SQLite, once.

    export WAL=./wal DATABASE=./orders.sqlite
    uvicorn --app-dir examples fastapi_sqlite:app --port 8083 --timeout-graceful-shutdown 10
    curl -d 'two coffees' http://127.0.0.1:8083/orders
    sqlite3 ./orders.sqlite 'SELECT * FROM orders'

Stop it at any moment, even with `kill -9`. The next run may hand out a batch again; its rows are there already.
"""

import asyncio
import os
import sqlite3

from fastapi import FastAPI, Request

from mrecordlog_async import Batch, MultiRecordLog, QueueOptions
from mrecordlog_async.fastapi import Log, add_exception_handlers, lifespan


def connect() -> sqlite3.Connection:
    database = sqlite3.connect(os.environ.get("DATABASE", "./orders.sqlite"), check_same_thread=False)
    database.execute("PRAGMA synchronous = FULL")  # on the disk before the acknowledgement
    database.execute("CREATE TABLE IF NOT EXISTS orders (queue_id, position, text, PRIMARY KEY (queue_id, position))")
    return database


def store(database: sqlite3.Connection, batch: Batch) -> None:
    rows = [(batch.queue_id, position, payload.decode()) for position, payload in batch]
    with database:  # one transaction
        database.executemany("INSERT OR IGNORE INTO orders VALUES (?, ?, ?)", rows)


async def deliver(log: MultiRecordLog) -> None:
    database = connect()
    async with log.consumer("orders", "sqlite") as consumer:
        async for batch in consumer.batches():
            await asyncio.to_thread(store, database, batch)
            await consumer.acknowledge(batch)


queues = {"orders": QueueOptions(keep="until_acknowledged")}
consumers = {"orders": ["sqlite"]}
directory = os.environ.get("WAL", "./wal")
app = FastAPI(lifespan=lifespan(directory, queues=queues, consumers=consumers, workers=[deliver]))
add_exception_handlers(app)


@app.post("/orders", status_code=202)
async def order(request: Request, log: Log) -> dict[str, int]:
    return {"position": await log.append("orders", await request.body())}
