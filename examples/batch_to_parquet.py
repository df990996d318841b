"""An ingest endpoint whose records go to Parquet files: one for every 10,000 records, or for what 5 seconds bring.

    python examples/batch_to_parquet.py ./wal ./lake 8083
    curl -d '{"event": 1}' http://127.0.0.1:8083/ingest

A file is named after its first position and is on the disk before its records are acknowledged. A crash in between
writes it again under the same name, perhaps with more records. So every record is in exactly one file.
It needs pyarrow.
"""

import asyncio
import os
import sys
from functools import partial
from pathlib import Path

import pyarrow
import pyarrow.parquet
from aiohttp import web

from mrecordlog_async import Batch, MultiRecordLog, QueueOptions
from mrecordlog_async.aiohttp import LOG, setup


async def upload(log: MultiRecordLog, lake: Path) -> None:
    async with log.consumer("events", "parquet") as consumer:
        async for batch in consumer.batches(max_records=10_000, max_bytes=64 << 20, max_wait=5.0):
            await asyncio.to_thread(write, batch, lake)
            await consumer.acknowledge(batch)


def write(batch: Batch, lake: Path) -> None:
    """Write a file with the positions and payloads of *batch*, completely or not at all."""
    positions, payloads = zip(*batch, strict=True)
    table = pyarrow.table({"position": pyarrow.array(positions), "payload": pyarrow.array(payloads, pyarrow.binary())})
    path = lake / f"events-{batch.queue_id}-{batch.first_position:020}.parquet"
    unfinished = path.with_suffix(".tmp")
    with unfinished.open("wb") as file:
        pyarrow.parquet.write_table(table, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(path)
    directory = os.open(lake, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


async def ingest(request: web.Request) -> web.Response:
    return web.json_response({"position": await request.app[LOG].append("events", await request.read())}, status=202)


def make_app(directory: str, lake: str) -> web.Application:
    Path(lake).mkdir(parents=True, exist_ok=True)
    app = web.Application()
    queues = {"events": QueueOptions(keep="until_acknowledged")}
    consumers, workers = {"events": ["parquet"]}, [partial(upload, lake=Path(lake))]
    setup(app, directory, queues=queues, consumers=consumers, workers=workers)
    app.router.add_post("/ingest", ingest)
    return app


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    web.run_app(make_app(sys.argv[1], sys.argv[2]), host="127.0.0.1", port=int(sys.argv[3]), shutdown_timeout=10)
