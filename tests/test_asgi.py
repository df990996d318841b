"""The HTTP API as an ASGI application: alone under a server, and mounted where no lifespan of its own runs."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from starlette.applications import Starlette
from starlette.routing import Mount

from mrecordlog_async import MultiRecordLog
from mrecordlog_async.asgi import LogApplication, ServiceOptions, app
from mrecordlog_async.client import OutcomeUnknownError, RecordLogClient
from tests.asgi import call_asgi
from tests.cached_files import HangingDisk
from tests.holder import Holder
from tests.service.uvicorn_served import port_of, running, service_of
from tests.serving import free_port
from tests.test_taking_the_log_over import starting

ROOT = Path(__file__).parent.parent

HOST = [(b"host", b"localhost")]


async def lifespan_of(application: Any) -> list[dict[str, Any]]:
    """Run the lifespan of an application from its start to its end; return what it sent."""
    messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return next(messages)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await application({"type": "lifespan"}, receive, send)
    return sent


async def test_an_application_opens_its_log_with_the_server_and_closes_it(directory: Path) -> None:
    """`uvicorn module:app` is a whole service, with the page, the API and the health checks."""
    application: Any = app(directory, queues=["q"])
    async with running(application) as server, ClientSession(f"http://127.0.0.1:{port_of(server)}") as session:
        async with RecordLogClient(str(session._base_url)) as client:
            assert await client.append("q", b"a") == 0
            assert [record.payload async for record in client.range("q")] == [b"a"]
        async with session.get("/readyz") as ready, session.get("/", headers={"Accept": "text/html"}) as page:
            assert (ready.status, page.status) == (200, 200)
    async with MultiRecordLog.open(directory) as log:
        assert log.recovery_report.clean


async def test_a_bare_server_ends_at_a_signal_although_tails_are_open(tmp_path: Path) -> None:
    """They end with their last event, before the server waits for requests."""
    (tmp_path / "wal.py").write_text('from mrecordlog_async.asgi import app\n\napp = app("./log", queues=["q"])\n')
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "uvicorn",
        "wal:app",
        "--port",
        str(port),
        "--app-dir",
        ".",
        "--log-level",
        "error",
    ]
    process = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        async with (
            RecordLogClient(f"http://127.0.0.1:{port}", retry_seconds=60.0) as client,
            ClientSession() as http,
        ):
            assert await client.append("q", b"a") == 0
            tail = await http.get(f"http://127.0.0.1:{port}/v1/queues/q/tail")
            assert (await tail.content.readline()).startswith(b"id: 0-")
            process.send_signal(signal.SIGTERM)
            assert b"event: end\ndata: closing" in await tail.read()
        assert await asyncio.to_thread(process.wait, 60) in (0, -signal.SIGTERM)
    finally:
        process.kill()
    async with MultiRecordLog.open(tmp_path / "log") as log:
        assert log.recovery_report.clean


async def test_a_log_that_cannot_be_opened_fails_the_start(directory: Path) -> None:
    """The server reports why, and ends: it never serves a log that is not there."""
    async with MultiRecordLog.open(directory):
        (failed,) = await lifespan_of(app(directory, lock_seconds=0.0))
    assert failed["type"] == "lifespan.startup.failed"
    assert "LogLockedError" in failed["message"]
    started, ended = await lifespan_of(app(directory))
    assert (started["type"], ended["type"]) == ("lifespan.startup.complete", "lifespan.shutdown.complete")


UNDER_UVICORN = """
import sys, uvicorn
from mrecordlog_async.asgi import app
uvicorn.run(app(sys.argv[1], lock_seconds=1e6), port=int(sys.argv[2]))
"""


def test_a_signal_ends_a_start_that_waits_for_the_lock(directory: Path) -> None:
    """The process ends by the signal, not as after a start that failed, for which a supervisor would start it again."""
    with Holder(directory) as holder, starting(UNDER_UVICORN, directory) as process:
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        out = process.stdout.read()
        assert process.wait() == -signal.SIGTERM, out
        assert "told to stop (SIGTERM) before the log was open" in out and "Traceback" not in out, out
        assert holder.process.poll() is None


async def test_a_request_before_the_start_or_after_the_end_is_an_error(directory: Path) -> None:
    """Not a response that looks like the log's."""
    application = app(directory)
    await lifespan_of(application)
    with pytest.raises(RuntimeError, match="the log is not open"):
        await call_asgi(application, "/readyz", {}, headers=HOST)


async def test_starlette_mounts_it_and_its_own_lifespan_opens_the_log(directory: Path) -> None:
    """Starlette runs no lifespan of what it mounts."""
    wal = LogApplication(ServiceOptions(tokens=frozenset({b"0123456789abcdef"})))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with MultiRecordLog.open(directory) as log, wal.serving(log):
            yield

    outer: Any = Starlette(lifespan=lifespan, routes=[Mount("/deep/wal", wal)])
    async with running(outer) as server, ClientSession() as session:
        url, headers = f"http://127.0.0.1:{port_of(server)}/deep/wal", {"Authorization": "Bearer 0123456789abcdef"}
        async with session.put(url + "/v1/queues/a", headers=headers) as created:
            assert created.status == 201
        async with session.put(url + "/v1/queues/a") as refused:
            assert refused.status == 401
        async with session.post(url + "/v1/queues/a/records", data=b"x" * 300_000, headers=headers) as stored:
            assert await stored.json() == {"position": 0, "records": 1, "duplicate": False}
    assert service_of(wal) is None


async def test_requests_above_the_limit_of_connections_get_a_503(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the server counts no connections, the API counts requests, and what it refuses."""
    wal = LogApplication(ServiceOptions(connections=1))
    async with MultiRecordLog.open(directory, queues=["q"]) as log, wal.serving(log):
        polling = asyncio.create_task(call_asgi(wal, "/v1/queues/q/records", {}, headers=HOST, query_string=b"wait=60"))
        while not ((service := service_of(wal)) and service.tails):
            await asyncio.sleep(0.001)
        status, body = await call_asgi(wal, "/healthz", {}, headers=HOST)
        assert (status, b"connections" in body) == (503, True)
        assert service.problems == {503: 1}
        assert "requests are refused: too many connections" in caplog.text
        wal.begin_shutdown()
        assert (await polling)[0] == 200


async def test_an_append_that_the_disk_delays_past_the_end_is_not_reported_as_refused(directory: Path) -> None:
    """It is stored as soon as the disk goes on: a producer that took it for refused would store it twice."""
    disk = HangingDisk()
    wal = LogApplication(ServiceOptions(drain_seconds=0.1))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with MultiRecordLog.open(directory, queues=["q"], filesystem=disk) as log, wal.serving(log):
            yield
            disk.goes_on.set()

    outer: Any = Starlette(lifespan=lifespan, routes=[Mount("/wal", wal)])
    async with running(outer) as server:
        address = f"http://127.0.0.1:{port_of(server)}/wal"
        async with RecordLogClient(address, retry_seconds=0.0) as client:
            disk.goes_on.clear()
            appending = asyncio.create_task(client.append("q", b"a"))
            await asyncio.to_thread(disk.waits.wait)
            wal.begin_shutdown()
            with pytest.raises(OutcomeUnknownError):
                await appending
    async with MultiRecordLog.open(directory) as log:
        assert [record.payload for record in log.range("q")] == [b"a"]


async def test_a_request_whose_body_is_not_there_at_the_end_may_be_sent_again(directory: Path) -> None:
    """Nothing of it was stored."""
    wal = LogApplication(ServiceOptions(drain_seconds=0.0))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with MultiRecordLog.open(directory, queues=["q"]) as log, wal.serving(log):
            yield

    outer: Any = Starlette(lifespan=lifespan, routes=[Mount("/wal", wal)])
    async with running(outer) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(server))
        writer.write(b"POST /wal/v1/queues/q/records HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\na")
        while not ((service := service_of(wal)) and service.active):
            await asyncio.sleep(0.001)
        wal.begin_shutdown()
        response = await reader.read()
        assert response.startswith(b"HTTP/1.1 503") and b'"closing"' in response
        writer.close()


async def test_a_websocket_is_closed(directory: Path) -> None:
    """There is none below the API."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    wal = LogApplication()
    async with MultiRecordLog.open(directory) as log, wal.serving(log):
        await wal({"type": "websocket"}, receive, send)
    assert sent == [{"type": "websocket.close"}]


def test_options_of_another_class_are_refused(directory: Path) -> None:
    """A mistake is found where it is made, not at the first request."""
    with pytest.raises(TypeError):
        LogApplication({"tokens": ()})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="did you mean 'queues'"):
        app(directory, queuse=["q"])  # type: ignore[call-arg]


def test_the_application_needs_no_aiohttp() -> None:
    """FastAPI's extra alone is enough."""
    program = (
        "import sys; sys.modules['aiohttp'] = None\n"
        "import mrecordlog_async.asgi, mrecordlog_async.fastapi\n"
        "from fastapi import FastAPI\n"
        "mrecordlog_async.fastapi.mount(FastAPI())\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
