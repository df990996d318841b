"""`examples/fastapi_sqlite.py` with a queue in memory."""

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request


def connect() -> sqlite3.Connection:
    database = sqlite3.connect(os.environ.get("DATABASE", "./orders.sqlite"), check_same_thread=False)
    database.execute("PRAGMA synchronous = FULL")
    database.execute("CREATE TABLE IF NOT EXISTS orders (text)")
    return database


def store(database: sqlite3.Connection, orders: list[bytes]) -> None:
    rows = [(payload.decode(),) for payload in orders]
    with database:
        database.executemany("INSERT INTO orders VALUES (?)", rows)


async def deliver(queue: asyncio.Queue[bytes]) -> None:
    database = connect()
    while True:
        await asyncio.to_thread(store, database, [await queue.get()])


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    worker = asyncio.create_task(deliver(queue))
    yield
    worker.cancel()


queue = asyncio.Queue[bytes]()
app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=202)
async def order(request: Request) -> dict[str, int]:
    await queue.put(await request.body())
    return {}
