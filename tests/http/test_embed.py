"""The log inside other people's applications."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web

from mrecordlog_async import LogLockedError, LogState, MultiRecordLog
from mrecordlog_async.http import LOG, ServiceOptions, setup


@asynccontextmanager
async def serving_app(app: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{site.port}"
    finally:
        await runner.cleanup()


async def test_setup_opens_and_closes_the_log_with_the_application(directory: Path) -> None:
    """Handlers find it under LOG; after the end the directory is free and the log closed cleanly."""

    async def ingest(request: web.Request) -> web.Response:
        position = await request.app[LOG].append_record("q", None, await request.read())
        return web.json_response({"position": position})

    async def make_queue(app: web.Application) -> AsyncIterator[None]:
        await app[LOG].create_queue("q", exist_ok=True)
        yield
        assert app[LOG].state is LogState.OPEN  # what began later ends earlier

    app = web.Application()
    setup(app, directory)
    app.cleanup_ctx.append(make_queue)
    app.router.add_post("/ingest", ingest)
    async with serving_app(app) as url, ClientSession() as session:
        async with session.post(url + "/ingest", data=b"a") as response:
            assert await response.json() == {"position": 0}
        async with session.get(url + "/v1/queues") as response:
            assert response.status == 404  # the API is there only where it was asked for
    async with MultiRecordLog.open(directory) as log:
        assert log.recovery_report.clean
        assert [record.payload for record in log.range("q")] == [b"a"]


async def test_the_api_below_a_prefix_has_its_own_token(directory: Path) -> None:
    """The application decides about its own routes, the options about those of the log."""
    app = web.Application()
    setup(app, directory, prefix="/wal", options=ServiceOptions(tokens=frozenset({b"0123456789abcdef"})))
    async with serving_app(app) as url, ClientSession() as session:
        headers = {"Authorization": "Bearer 0123456789abcdef"}
        for expected, sent in ((401, {}), (201, headers)):
            async with session.put(url + "/wal/v1/queues/a%2Fb", headers=sent) as response:
                assert response.status == expected
        async with session.post(url + "/wal/v1/queues/a%2Fb/records", data=b"x", headers=headers) as response:
            assert await response.json() == {"position": 0, "records": 1, "duplicate": False}
        async with session.get(url + "/wal/nothing", headers=headers) as response:
            assert (response.status, (await response.json())["code"]) == (404, "no_route")
        assert app[LOG].list_queues() == ["a/b"]


async def test_open_tails_do_not_hold_up_the_application(directory: Path) -> None:
    """They end when the application shuts down."""
    app = web.Application()
    setup(app, directory, prefix="/wal")
    async with ClientSession() as session:
        async with serving_app(app) as url:
            await app[LOG].create_queue("q")
            tail = await session.get(url + "/wal/v1/queues/q/tail")
        assert b"event: end\ndata: closing" in await tail.read()


async def test_a_host_applications_signals_see_every_answer(directory: Path) -> None:
    """Headers that the application adds to all responses are on appends too."""

    async def add_header(request: web.Request, response: web.StreamResponse) -> None:
        response.headers["X-Request-Id"] = "7"

    app = web.Application()
    app.on_response_prepare.append(add_header)
    setup(app, directory, prefix="/wal")
    async with (
        serving_app(app) as url,
        ClientSession() as session,
        session.post(url + "/wal/v1/queues/q/records?create=1", data=b"a") as response,
    ):
        assert (response.status, response.headers["X-Request-Id"]) == (200, "7")


async def test_a_second_application_on_the_directory_does_not_start(directory: Path) -> None:
    """It names the ways out; the first one goes on."""
    async with MultiRecordLog.open(directory):
        app = web.Application()
        setup(app, directory)
        with pytest.raises(LogLockedError, match="Use one worker"):
            async with serving_app(app):
                raise AssertionError("it must not start")


async def test_fastapi_lifespans_are_composed(directory: Path) -> None:
    """The application's own lifespan runs inside the log's, and what it yields is the application's state."""
    from fastapi import FastAPI

    from mrecordlog_async.http.fastapi import lifespan, log_of

    seen: list[Any] = []

    @asynccontextmanager
    async def own(app: FastAPI) -> AsyncIterator[dict[str, int]]:
        await log_of(app).create_queue("q")
        yield {"answer": 42}
        seen.append(log_of(app).state)

    app = FastAPI()
    async with lifespan(directory, own)(app) as state:
        assert state == {"answer": 42}
        log = log_of(app)
        assert log.list_queues() == ["q"]
    assert seen == [LogState.OPEN]
    assert log.state is LogState.CLOSED


async def test_fastapi_without_lifespan_says_what_is_missing() -> None:
    """Forgetting the lifespan is found by its message."""
    from fastapi import FastAPI

    from mrecordlog_async.http.fastapi import log_of

    with pytest.raises(RuntimeError, match="lifespan"):
        log_of(FastAPI())


async def test_a_fastapi_tail_ends_with_its_client_queue_or_log(log: MultiRecordLog) -> None:
    """A stream never outlives what it is about."""
    from mrecordlog_async.http.fastapi import tail_until_disconnect

    class Client:
        gone = False

        async def is_disconnected(self) -> bool:
            return self.gone

    async def read(client: Any) -> list[bytes]:
        return [record.payload async for record in tail_until_disconnect(client, log, "q", look_seconds=0.01)]

    await log.append_record("q", None, b"a")
    leaving = Client()
    reading = asyncio.create_task(read(leaving))
    await log.append_record("q", None, b"b")
    leaving.gone = True
    assert (await reading)[:1] == [b"a"]
    reading = asyncio.create_task(read(Client()))
    await asyncio.sleep(0)
    await log.delete_queue("q")
    assert await reading == [b"a", b"b"]
