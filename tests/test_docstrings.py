"""The code in the docstrings of the package and of the modules that users import works when it is copied."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

import mrecordlog_async
import mrecordlog_async.aiohttp
import mrecordlog_async.client.client
import mrecordlog_async.fastapi
from tests.asgi import call_asgi
from tests.served import Served


def test_the_session_of_the_package_runs(tmp_path: Path) -> None:
    """What `help(mrecordlog_async)` shows opens a log, stores a record and truncates it."""
    block = "\n".join(line for line in (mrecordlog_async.__doc__ or "").splitlines() if line.startswith("    "))
    assert ".append(" in block
    program = f"""
import asyncio
from mrecordlog_async import MultiRecordLog

async def session():
{block}
    assert log.state.value == 'closed' and position == 0

asyncio.run(session())
"""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def example_of(module: ModuleType) -> str:
    """Return the first block of code in the docstring of *module*."""
    lines = (module.__doc__ or "").splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("    "))
    after = next(number for number, line in enumerate(lines[first:], first) if line and not line.startswith("    "))
    return textwrap.dedent("\n".join(lines[first:after]))


async def test_the_aiohttp_example_stores_what_is_posted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The application opens the log in ./wal, appends through LOG, and serves the API below its prefix."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(example_of(mrecordlog_async.aiohttp), names)
    app: web.Application = names["app"]
    async with TestClient(TestServer(app)) as client:
        for position in range(2):
            response = await client.post("/ingest", data=b"two coffees")
            assert await response.json() == {"position": position}
        listed = await (await client.get("/wal/v1/queues")).json()
    assert [(queue["queue"], queue["records"]) for queue in listed["queues"]] == [("orders", 2)]


async def test_the_fastapi_example_stores_what_is_posted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The application opens the log in ./wal, and its endpoint gets it by type."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(example_of(mrecordlog_async.fastapi), names)
    app = names["app"]
    async with app.router.lifespan_context(app) as state:
        for position in range(2):
            response = await call_asgi(app, "/ingest", state, "POST", b"two coffees")
            assert response == (200, b'{"position":%d}' % position)


async def test_the_client_example_reads_what_it_stored(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    """Position and payload of the record are printed."""
    code = example_of(mrecordlog_async.client.client).replace("http://127.0.0.1:8080", served.url)
    names: dict[str, Any] = {}
    exec("async def example():\n" + textwrap.indent(code, "    "), names)
    await names["example"]()
    assert capsys.readouterr().out == "0 b'two coffees'\n"
