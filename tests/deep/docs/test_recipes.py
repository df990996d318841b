"""The recipe that starts two programs works with both of them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

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
    """Post one click, once the workers listen; return its position."""
    end = time.monotonic() + TIMEOUT_SECONDS
    while True:
        try:
            with urlopen(f"http://127.0.0.1:{port}/ingest", b"click %d" % number, timeout=TIMEOUT_SECONDS) as response:
                return int(response.read().partition(b":")[2].rstrip(b"}"))
        except URLError:
            assert time.monotonic() < end, "uvicorn does not listen"
            time.sleep(0.05)


async def _stored(socket: Path) -> dict[int, bytes]:
    async with RecordLogClient(f"unix:{socket}") as client:
        return {record.position: record.payload async for record in client.range("clicks")}


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}
