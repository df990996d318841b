"""The recipes that start programs work with them, even if these are killed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest

from mrecordlog_async.client import RecordLogClient
from tests.docs.blocks import ROOT, blocks
from tests.serving import TIMEOUT_SECONDS, free_port

WORKERS = 4


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """The directory in which the recipe's service runs; it starts there as the recipe says, on a Unix socket."""
    page = blocks(ROOT / "docs" / "recipes.md")
    (app,) = (block.text for block in page if '"unix:./wal.sock"' in block.text)
    (start,) = (block.text for block in page if "--uds ./wal.sock" in block.text)
    assert f"uvicorn app:app --workers {WORKERS}" in start
    (tmp_path / "app.py").write_text(app)
    command = [sys.executable, "-m", "mrecordlog_async", "serve", str(tmp_path / "wal"), "--uds", "./wal.sock"]
    with subprocess.Popen(command, cwd=tmp_path, env=_environment()) as service:
        yield tmp_path
        service.terminate()


def test_four_workers_of_uvicorn_share_a_log(directory: Path) -> None:
    """Each request that any of the processes responds to is in the log once, at the position of the response."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "app:app", "--workers", str(WORKERS), "--port", str(port)]
    with subprocess.Popen([*command, "--log-level", "warning"], cwd=directory, env=_environment()) as workers:
        try:
            _post(port, 0)
            with ThreadPoolExecutor(16) as pool:
                told = list(pool.map(lambda number: _post(port, number), range(1, 101)))
        finally:
            workers.terminate()
    stored = asyncio.run(_stored(directory / "wal.sock"))
    assert sorted(stored.values()) == sorted(b"click %d" % number for number in range(101))
    assert [stored[position] for position in told] == [b"click %d" % number for number in range(1, 101)]


def _post(port: int, number: int) -> int:
    """Post one click; return its position."""
    click = _posted(Request(f"http://127.0.0.1:{port}/ingest", b"click %d" % number))
    return int(click.partition(b":")[2].rstrip(b"}"))


def _posted(request: Request) -> bytes:
    """Send *request*, once the workers listen; return the response."""
    end = time.monotonic() + TIMEOUT_SECONDS
    while True:
        try:
            with urlopen(request, timeout=TIMEOUT_SECONDS) as response:
                return bytes(response.read())
        except HTTPError:
            raise
        except URLError:
            assert time.monotonic() < end, "uvicorn does not listen"
            time.sleep(0.05)


async def _stored(socket: Path) -> dict[int, bytes]:
    async with RecordLogClient(f"unix:{socket}") as client:
        return {record.position: record.payload async for record in client.range("clicks")}


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def test_a_webhook_is_stored_once_by_its_id_even_after_kill_9(tmp_path: Path) -> None:
    """Repeated one after another, at the same time, and after a crash, even if a worker has acknowledged the record."""
    (webhook,) = (block.text for block in blocks(ROOT / "docs" / "recipes.md") if block.note == "file: webhook.py")
    (tmp_path / "webhook.py").write_text(webhook + ACKNOWLEDGING)
    ids = [f"delivery {number}" for number in range(20)]
    port = free_port()
    with _webhooks(tmp_path, port):
        _deliver(port, ids[0])
        with ThreadPoolExecutor(16) as pool:
            told = list(pool.map(lambda delivery: _deliver(port, delivery), ids * 4))
    with _webhooks(tmp_path, port):
        again = [_deliver(port, delivery) for delivery in ids]
        last = _deliver(port, "another one")
    assert again * 4 == told
    assert sorted(again) == list(range(20)) and last == 20


ACKNOWLEDGING = """

@app.post("/acknowledge")
async def acknowledge(log: Log) -> None:
    async with log.consumer("hooks", "delivery") as consumer:
        async for batch in consumer.available():
            await consumer.acknowledge(batch)
"""


@contextmanager
def _webhooks(directory: Path, port: int) -> Iterator[None]:
    """Run the application; at the end all records are acknowledged, and it is killed."""
    command = [sys.executable, "-m", "uvicorn", "webhook:app", "--port", str(port), "--log-level", "warning"]
    with subprocess.Popen(command, cwd=directory, env=_environment()) as process:
        try:
            yield
            _posted(Request(f"http://127.0.0.1:{port}/acknowledge", b""))
        finally:
            process.kill()


def _deliver(port: int, delivery: str) -> int:
    request = Request(f"http://127.0.0.1:{port}/hooks", b"paid", {"X-Delivery-Id": delivery})
    return int(_posted(request).partition(b":")[2].rstrip(b"}"))
