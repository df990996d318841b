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
from tests.spark.conftest import NewService, new_service

__all__ = ["new_service"]

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
    webhook = (ROOT / "examples" / "webhook.py").read_text()
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


# Tables of drains.


@pytest.fixture
def table(new_service: NewService, tmp_path: Path) -> Path:
    """The table of a drain of one queue, in as many files as it has rows."""
    from mrecordlog_async.spark.drain_call import DrainOptions, drain

    service = new_service()
    service.append("orders", [b"%d" % number for number in range(10)])
    drain(DrainOptions(f"a={service.url}", str(tmp_path / "lake" / "events"), max_records=1))
    return tmp_path / "lake" / "events"


def run_program(text: str, directory: Path) -> str:
    """Run a program in a directory; return what it printed."""
    command = [sys.executable, "-c", text]
    done = subprocess.run(command, cwd=directory, env=_environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_table_is_compacted_next_to_its_drain(table: Path, new_service: NewService, tmp_path: Path) -> None:
    """One file is left; the drain continues, and its own directory stays."""
    from deltalake import DeltaTable

    from mrecordlog_async.spark.drain_call import DrainOptions, drain

    page = blocks(ROOT / "docs" / "recipes.md")
    (recipe,) = (block.text for block in page if "optimize.compact" in block.text)
    said = run_program(recipe, tmp_path)
    assert "'numFilesRemoved': 10" in said and "deleted: []" in said, "the files are young"
    assert len(DeltaTable(table).file_uris()) == 1
    other = new_service()
    other.append("more", [b"1"])
    summary = drain(DrainOptions(f"b={other.url}", str(table), subscribe=("more",)))
    assert summary.records == 1 and DeltaTable(table).to_pyarrow_table().num_rows == 11
    assert list((table / "_mrecordlog" / "drain").glob("*.json"))


def test_a_table_goes_back_into_a_log(table: Path, new_service: NewService, tmp_path: Path) -> None:
    """At its positions, once, however often; queues that are ahead stay as they are."""
    service = new_service()
    program = (ROOT / "examples" / "table_to_log.py").read_text().replace("http://localhost:8080", service.url)
    for _ in range(2):
        run_program(program, tmp_path)
        assert service.records() == {"orders": [(at, b"%d" % at) for at in range(10)]}
