"""The log inside a FastAPI application: lifespan, dependency, error handlers and streams."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from fastapi import FastAPI, WebSocket

from mrecordlog_async import Limits, LogState, MultiRecordLog
from mrecordlog_async.fastapi import Log, add_exception_handlers, lifespan, log_of, mount, tail_until_disconnect
from mrecordlog_async.storage.os_filesystem import OsFileSystem
from tests.asgi import call_asgi


async def test_fastapi_lifespans_are_composed(directory: Path) -> None:
    """The application's own lifespan runs inside the log's, and what it yields stays in the application's state."""
    seen: list[Any] = []

    @asynccontextmanager
    async def own(app: FastAPI) -> AsyncIterator[dict[str, int]]:
        await log_of(app).create_queue("q")
        yield {"answer": 42}
        seen.append(log_of(app).state)

    app = FastAPI()
    async with lifespan(directory, own)(app) as state:
        log = log_of(app)
        assert state == {"answer": 42, "mrecordlog": log}  # where mounted applications find it
        assert log.list_queues() == ["q"]
    assert seen == [LogState.OPEN]
    assert log.state is LogState.CLOSED


async def test_fastapi_refuses_a_second_log(directory: Path) -> None:
    """`Log` means one log: records would go to the other one. The first one is closed, and the app can start again."""
    second = directory / "second"
    app = FastAPI(lifespan=lifespan(directory / "first", lifespan(second)))
    for _ in range(2):
        with pytest.raises(ValueError, match=r"has a log already, '.*first': open other logs with MultiRecordLog.open"):
            async with app.router.lifespan_context(app):
                raise AssertionError
        assert log_of(app).state is LogState.CLOSED
    assert not second.exists()


async def test_fastapi_without_lifespan_says_what_is_missing() -> None:
    """The error names the lifespan that was forgotten."""
    with pytest.raises(RuntimeError, match=r"lifespan.*in tests, enter its client"):
        log_of(FastAPI())


async def test_a_lifespan_that_is_not_called_says_so() -> None:
    """Those of applications are passed as they are; this one takes a directory."""
    app = FastAPI(lifespan=cast(Any, lifespan))
    with pytest.raises(TypeError, match=r'must be a path, as in lifespan\("./wal"\) or .*, not FastAPI'):
        async with app.router.lifespan_context(app):
            raise AssertionError


async def test_a_fastapi_tail_ends_with_its_client_queue_or_log(log: MultiRecordLog) -> None:
    """A stream never outlives its client, its queue or its log."""

    class Client:
        gone = False

        async def is_disconnected(self) -> bool:
            return self.gone

    seen: list[bytes] = []

    async def read(client: Any) -> list[bytes]:
        seen.clear()
        async for record in tail_until_disconnect(client, log, "q", poll_seconds=0.01):
            seen.append(record.payload)  # noqa: PERF401  # the test looks at it meanwhile
        return seen.copy()

    await log.append_record("q", None, b"a")
    leaving = Client()
    reading = asyncio.create_task(read(leaving))
    await log.append_record("q", None, b"b")
    leaving.gone = True
    assert (await reading)[:1] == [b"a"]
    reading = asyncio.create_task(read(Client()))
    await asyncio.sleep(0)
    while len(seen) < 2:
        await asyncio.sleep(0.001)
    await log.delete_queue("q")
    assert await reading == [b"a", b"b"]


async def test_a_fastapi_tail_whose_records_were_all_truncated_waits(log: MultiRecordLog) -> None:
    """It looks again when a record comes, not all the time until then."""
    looks = 0

    class Client:
        async def is_disconnected(self) -> bool:
            nonlocal looks
            looks += 1
            return False

    await log.append_records("q", None, [b"a", b"b"])
    await log.truncate("q", 1)
    waiting = asyncio.ensure_future(anext(tail_until_disconnect(cast(Any, Client()), log, "q", 0, poll_seconds=60)))
    for _ in range(100):
        await asyncio.sleep(0)
    await log.append("q", b"c")
    assert await waiting == (2, b"c")
    assert looks == 1


@pytest.mark.parametrize("then", ["deleted", "recreated", "deleted while it waits"])
async def test_a_fastapi_tail_ends_with_a_queue_that_is_deleted_between_two_looks(
    log: MultiRecordLog, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """Whenever that happens the stream ends without an error, and shows no record of a queue that took the name."""

    class Client:
        async def is_disconnected(self) -> bool:
            return False

    wait_for = log.wait_for

    async def late(queue: str, position: int) -> bool:
        """Wait for a record after another task has deleted the queue."""
        if position:
            await log.delete_queue(queue)
            if then == "recreated":
                await log.append_records(queue, None, [b"not of this queue"] * 2, create=True)
            if then == "deleted while it waits":
                await asyncio.Event().wait()
        return await wait_for(queue, position)

    monkeypatch.setattr(log, "wait_for", late)
    await log.append_record("q", None, b"a")
    found = [record.payload async for record in tail_until_disconnect(cast(Any, Client()), log, "q", poll_seconds=0.01)]
    assert found == [b"a"]


async def test_the_dependency_works_in_mounted_applications_and_websockets(directory: Path) -> None:
    """Wherever a route is, `Log` is the log of the application that opened it."""
    app, inner = FastAPI(lifespan=lifespan(directory)), FastAPI()

    @inner.get("/names")
    async def names(log: Log) -> list[str]:
        return log.list_queues()

    @app.websocket("/live")
    async def live(socket: WebSocket, log: Log) -> None:
        await socket.accept()
        await socket.send_json(log.list_queues())
        await socket.close()

    app.mount("/inner", inner)
    async with app.router.lifespan_context(app) as yielded:
        state = dict(yielded or {})
        await state["mrecordlog"].create_queue("q")
        assert await call_asgi(app, "/inner/names", state) == (200, b'["q"]')
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "websocket.connect"}

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(dict(message))

        scope = {"type": "websocket", "path": "/live", "query_string": b"", "headers": [], "state": dict(state)}
        await app(scope, receive, send)
        assert sent[1]["text"] == '["q"]'


async def test_a_mounted_application_does_not_write_to_the_log_of_another(directory: Path) -> None:
    """Starlette does not run its lifespan. `Log` would be the outer log, and the own directory would stay empty."""
    app, own, shared = (FastAPI(lifespan=lifespan(directory / name)) for name in ("outer", "own", "outer"))
    for path, inner in (("/own", own), ("/shared", shared)):

        @inner.get("/")
        async def where(log: Log) -> str:
            return log.directory

        app.mount(path, inner)
    async with app.router.lifespan_context(app) as yielded:
        state = dict(yielded or {})
        with pytest.raises(RuntimeError, match=r"own' of a mounted application is not open: .* Enter this one there"):
            await call_asgi(app, "/own/", state)
        assert (await call_asgi(app, "/shared/", state))[0] == 200
        async with own.router.lifespan_context(own):
            status, body = await call_asgi(app, "/own/", state)
            assert (status, body) == (200, f'"{directory / "own"}"'.encode())


async def test_fastapi_tells_disk_errors_of_the_log_from_those_of_the_application(directory: Path) -> None:
    """Errors of the log become 503 as in the service; errors of the application's own files are raised again."""

    class Disk(OsFileSystem):
        refuses = False

        def create(self, path: str) -> int:
            if self.refuses:
                raise PermissionError(errno.EACCES, "no new segment", path)
            return super().create(path)

    disk = Disk()
    app = FastAPI(lifespan=lifespan(directory, filesystem=disk, segment_bytes=32_768))
    add_exception_handlers(app)

    @app.get("/log")
    async def use_log(log: Log) -> None:
        await log.append_record("q", None, bytes(40_000))

    @app.get("/own")
    async def use_file() -> None:
        open("/nonexistent/file")  # noqa: SIM115

    async with app.router.lifespan_context(app) as yielded:
        state = dict(yielded or {})
        await state["mrecordlog"].create_queue("q")
        assert (await call_asgi(app, "/log", state))[0] == 200
        disk.refuses = True
        for _ in range(4):  # a segment that is ready is used first
            status, body = await call_asgi(app, "/log", state)
        assert (status, b"storage_error" in body) == (503, True)
        with pytest.raises(FileNotFoundError):
            await call_asgi(app, "/own", state)


async def test_a_call_from_another_thread_is_said_to_be_one(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The response does not say "closing": the log is open, and the application's log explains the mistake."""
    app = FastAPI(lifespan=lifespan(directory))
    add_exception_handlers(app)

    @app.get("/sync")
    def wrong(log: Log) -> int | None:
        return asyncio.run(append(log))

    async def append(log: MultiRecordLog) -> int | None:
        return await log.append_record("q", None, b"a")

    @app.get("/right")
    def right(log: Log) -> int | None:
        position: int | None = anyio.from_thread.run(log.append_record, "q", None, b"a")
        return position

    async with app.router.lifespan_context(app) as yielded:
        state = dict(yielded or {})
        await state["mrecordlog"].create_queue("q")
        status, body = await call_asgi(app, "/sync", state)
        assert (status, b"wrong thread" in body, b"closing" in body) == (500, True, False)
        assert "anyio.from_thread.run" in caplog.text
        assert await call_asgi(app, "/right", state) == (200, b"0")


def test_options_of_another_type_are_refused_by_mount(directory: Path) -> None:
    """The error says what is expected, when the application is built."""
    app, wrong = FastAPI(lifespan=lifespan(directory)), {"tokens": {b"0123456789abcdef"}}
    for options in (wrong, {}):
        with pytest.raises(TypeError, match="options must be ServiceOptions, not dict"):
            mount(app, options=options)  # type: ignore[arg-type]  # the mistake under test
    assert not [route for route in app.routes if getattr(route, "path", "") == "/wal"]


async def test_a_fastapi_tail_reads_records_that_have_left_memory(directory: Path) -> None:
    """From the disk, and those in memory after them."""

    class Client:
        async def is_disconnected(self) -> bool:
            return False

    limits = Limits(memory_bytes=4 << 20, beyond_memory="disk")
    async with MultiRecordLog.open(directory, limits=limits, queues=["q"]) as log:
        async with asyncio.timeout(60):
            while not log.memory_first("q"):
                await log.append_records("q", None, [bytes(50_000)] * 10)
                await asyncio.sleep(0.01)
        end = log.next_position("q")
        await log.seal_queue("q")
        reading = tail_until_disconnect(cast(Any, Client()), log, "q", 0, poll_seconds=0.01)
        assert [record.position async for record in reading] == [*range(end)]
