"""From a web request to a result: FastAPI takes orders, the log keeps them, Spark drains them into a Delta table.

    pip install 'mrecordlog_async[server,fastapi,spark,java]' uvicorn
    python examples/spark_pipeline.py

A web application responds with 202 when an order is on the disk, and lets Spark read its log through the service on a
second port. The drain moves every order into the table exactly once, with a column for each field, and truncates the
stored orders; a query of delta-rs adds them up: every reader of Delta tables can.
"""

import asyncio
import json
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request as Post
from urllib.request import urlopen

import pyarrow
import uvicorn
from deltalake import DeltaTable, QueryBuilder
from fastapi import FastAPI, Request
from pyspark.sql import SparkSession

from mrecordlog_async.fastapi import Log, add_exception_handlers, lifespan, log_of
from mrecordlog_async.spark.drain_call import DrainOptions, drain
from mrecordlog_async.spark.session import spark_session
from mrecordlog_async.testing import serving

CUSTOMERS = ("ada", "grace", "edsger")


@asynccontextmanager
async def for_spark(app: FastAPI) -> AsyncIterator[None]:
    """Serve the application's log to Spark, on a separate port."""
    async with serving(log_of(app)) as app.state.spark_url:
        yield


def build(directory: Path) -> FastAPI:
    """Return the application."""
    app = FastAPI(lifespan=lifespan(directory, for_spark, queues=["orders"]))
    add_exception_handlers(app)

    @app.post("/orders", status_code=202)
    async def order(request: Request, log: Log) -> dict[str, int]:
        return {"position": await log.append("orders", await request.body())}

    return app


@contextmanager
def running(app: FastAPI) -> Iterator[str]:
    """Run the application in a thread; yield its address."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", timeout_graceful_shutdown=10))
    listening = threading.Event()
    started = server.startup

    async def startup(sockets: object = None) -> None:
        await started()
        listening.set()

    server.startup = startup  # type: ignore[method-assign]  # uvicorn does not report in another way that it listens
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    listening.wait(60)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def run(session: SparkSession, place: Path, orders: int = 300) -> list[dict[str, Any]]:
    """Post orders, drain them, and ask who ordered how much."""
    app = build(place / "wal")
    with running(app) as url:
        for number in range(orders):
            body = json.dumps({"customer": CUSTOMERS[number % 3], "amount": number}).encode()
            urlopen(Post(f"{url}/orders", body)).close()
        options = DrainOptions(app.state.spark_url, str(place / "lake"), schema="customer string, amount bigint")
        print(drain(options, session).line, file=sys.stderr)
    orders_of = (
        "select customer, count(*) as orders, sum(amount) as amount from orders group by customer order by customer"
    )
    found = QueryBuilder().register("orders", DeltaTable(options.output)).execute(orders_of)
    rows: list[dict[str, Any]] = pyarrow.table(found).to_pylist()
    return rows


if __name__ == "__main__":
    spark = spark_session("orders", settings={"spark.ui.enabled": "false"})
    with tempfile.TemporaryDirectory() as directory:
        for row in run(spark, Path(directory)):
            print("{customer}: {orders} orders, amount {amount}".format(**row))
    spark.stop()
