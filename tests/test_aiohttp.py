"""The log inside an aiohttp application: `setup`, and who is admitted to the API below its prefix."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from unittest import mock

import pytest
from aiohttp import ClientSession, UnixConnector, web
from aiohttp.test_utils import make_mocked_request
from yarl import URL

from mrecordlog_async import LogLockedError, LogState, MultiRecordLog, QueueNotFoundError
from mrecordlog_async.aiohttp import LOG, setup
from mrecordlog_async.client import RecordLogClient
from mrecordlog_async.service import ServiceOptions, bridge
from mrecordlog_async.service.bridge import Bridge

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


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
        assert app[LOG].state is LogState.OPEN  # the log closes after later cleanup contexts

    app = web.Application()
    setup(app, directory)
    app.cleanup_ctx.append(make_queue)
    app.router.add_post("/ingest", ingest)
    async with serving_app(app) as url, ClientSession() as session:
        async with session.post(url + "/ingest", data=b"a") as response:
            assert await response.json() == {"position": 0}
        async with session.get(url + "/v1/queues") as response:
            assert response.status == 404  # without a prefix there is no API
    async with MultiRecordLog.open(directory) as log:
        assert log.recovery_report.clean
        assert [record.payload for record in log.range("q")] == [b"a"]


async def test_the_api_below_a_prefix_has_its_own_token(directory: Path) -> None:
    """The options protect the routes of the log; the application protects its own."""
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


async def test_the_page_is_found_without_its_slash(directory: Path) -> None:
    """And what only `serve` knows is not in the metrics: an application's connections are not counted."""
    app = web.Application()
    setup(app, directory, prefix="/of/wal")
    async with serving_app(app) as url, ClientSession() as session:
        async with session.get(url + "/of/wal", headers={"Accept": "text/html"}) as response:
            assert (response.status, response.url.path) == (200, "/of/wal/")
            assert "<title>mrecordlog</title>" in await response.text()
        async with session.get(url + "/of/wal/metrics") as response:
            text = await response.text()
            assert "mrecordlog_http_requests_total" in text and "mrecordlog_http_connections" not in text


async def test_open_tails_do_not_hold_up_the_application(directory: Path) -> None:
    """They end when the application shuts down."""
    app = web.Application()
    setup(app, directory, prefix="/wal")
    async with ClientSession() as session:
        async with serving_app(app) as url:
            await app[LOG].create_queue("q")
            tail = await session.get(url + "/wal/v1/queues/q/tail")
        assert b"event: end\ndata: closing" in await tail.read()


@pytest.mark.filterwarnings("ignore:Changing state of started or joined application:DeprecationWarning")
async def test_an_application_may_start_again(directory: Path) -> None:
    """Its second log is as ready as the first one, and its tails last until the second end."""
    app = web.Application()
    setup(app, directory, queues=["q"], prefix="/wal")
    for position in range(2):
        async with ClientSession() as session:
            async with serving_app(app) as url:
                async with session.get(url + "/wal/readyz") as response:
                    assert response.status == 200
                tail = await session.get(url + "/wal/v1/queues/q/tail?start=next")
                assert await app[LOG].append("q", b"a") == position
                assert (await tail.content.readline()).startswith(b"id: %d-" % position)
            assert b"event: end\ndata: closing" in await tail.read()


async def test_a_client_that_left_waits_for_no_record(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """aiohttp does not cancel its handlers, unless the application says so; `tails` is about clients that are there."""
    monkeypatch.setattr(bridge, "LOOK_SECONDS", 0.01)
    app = web.Application()
    setup(app, directory, queues=["q"], prefix="/wal")
    async with serving_app(app) as url, ClientSession() as session:

        async def tails() -> int:
            async with session.get(url + "/wal/v1/stats") as response:
                found: int = (await response.json())["tails"]
                return found

        waiting = asyncio.create_task(session.get(url + "/wal/v1/queues/q/records?wait=60"))
        while not await tails():
            await asyncio.sleep(0.001)
        waiting.cancel()
        async with asyncio.timeout(60):
            while await tails():
                await asyncio.sleep(0.001)
        async with session.get(url + "/wal/v1/queues/q/records?wait=1") as response:
            assert (response.status, await response.read()) == (200, b"")


@pytest.mark.parametrize("path", ["/v1/queues/q/records?max_bytes=67108864", "/openapi.json"])
async def test_a_reader_of_nothing_is_cut(directory: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a long response as after many short ones, which aiohttp itself would hold for ever."""
    monkeypatch.setattr("mrecordlog_async.service.watching.watch.CHECK_SECONDS", 0.01)
    app = web.Application()
    setup(app, directory, queues=["q"], prefix="/wal", options=ServiceOptions(write_seconds=0.2))
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    for _ in range(20):
        await app[LOG].append("q", bytes(1_000_000))
    with socket.create_connection(runner.addresses[0][:2]) as client:
        client.sendall(f"GET /wal{path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() * 500)
        assert runner.server is not None
        while not runner.server.connections:
            await asyncio.sleep(0.001)
        async with asyncio.timeout(60):
            while runner.server.connections:
                await asyncio.sleep(0.01)
    await runner.cleanup()


async def test_a_host_applications_signals_see_every_response(directory: Path) -> None:
    """Headers that the application adds to all responses are added to those of appends too."""

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


async def test_a_client_works_where_responses_are_compressed(directory: Path) -> None:
    """An application, or a proxy, compresses them for clients that take it; this one wants them as they are."""

    @web.middleware
    async def compress(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        response = await handler(request)
        response.enable_compression()
        return response

    app = web.Application(middlewares=[compress])
    setup(app, directory, prefix="/wal")
    async with serving_app(app) as url, RecordLogClient(f"{url}/wal") as client:
        assert await client.append("q", b"a" * 10_000, create=True) == 0
        assert [record.payload async for record in client.range("q")] == [b"a" * 10_000]
        with pytest.raises(QueueNotFoundError):
            await client.queue_summary("other")


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("size", [3, 200_000])
@pytest.mark.parametrize("reads", ["read", "content"])
async def test_a_body_that_a_middleware_has_read(
    directory: Path, reads: str, size: int, chunked: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It is stored if `request.read()` read it, which keeps it. Otherwise it is refused, never stored empty."""

    @web.middleware
    async def read_the_body(request: web.Request, handler: Handler) -> web.StreamResponse:
        assert len(await (request.read() if reads == "read" else request.content.read())) == size
        return await handler(request)

    app = web.Application(middlewares=[read_the_body])
    setup(app, directory, queues=["q"], prefix="/wal")

    async def pieces() -> AsyncIterator[bytes]:
        yield bytes(size)

    async with serving_app(app) as url, ClientSession() as session:
        body = pieces() if chunked else bytes(size)
        async with session.post(url + "/wal/v1/queues/q/records", data=body) as response:
            assert response.status == (200 if reads == "read" else 400 if chunked else 500)
        stored = [record.payload for record in app[LOG].range("q")]
    assert stored == [bytes(size)] * (reads == "read")
    assert ("request.read() (aiohttp) there" in caplog.text) == (reads == "content" and not chunked)


async def test_a_second_application_on_the_directory_does_not_start(directory: Path) -> None:
    """It names the remedy; the first one continues."""
    async with MultiRecordLog.open(directory):
        app = web.Application()
        setup(app, directory)
        with pytest.raises(LogLockedError, match="Pass that log on, or close it first"):
            async with serving_app(app):
                raise AssertionError("it must not start")


# Who is admitted below the prefix.


async def asked(url: str, method: str, headers: dict[str, str] | None = None) -> tuple[int, str]:
    async with ClientSession() as session, session.request(method, url, headers=headers) as response:
        body = await response.json() if response.content_type.endswith("json") and response.status != 204 else {}
        return response.status, body.get("code", "")


async def test_the_api_on_loopback_accepts_names_of_this_machine_only(directory: Path) -> None:
    """A foreign page whose name resolves to 127.0.0.1 neither appends nor deletes; configured hosts are admitted."""
    app = web.Application()
    setup(app, directory, prefix="/wal", options=ServiceOptions(hosts=frozenset({"wal.example.com"})))
    async with serving_app(app) as url:
        await app[LOG].create_queue("q")
        evil = {"Host": "evil.com:18121", "Origin": "http://evil.com:18121"}
        for method, path in (("DELETE", "/q"), ("POST", "/q/records"), ("GET", "/q")):
            assert await asked(f"{url}/wal/v1/queues{path}", method, evil) == (421, "host")
        assert await asked(f"{url}/wal/v1/queues/q", "GET", {"Origin": "http://evil.com"}) == (403, "origin")
        assert await asked(f"{url}/wal/v1/queues/q", "GET", {"Host": "localhost:1"}) == (200, "")
        assert await asked(f"{url}/wal/v1/queues/q", "GET", {"Host": "wal.example.com"}) == (200, "")


async def test_other_machines_need_a_token(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a token they reach only health, and the application's log says once what to do."""
    monkeypatch.setattr("mrecordlog_async.service.security.is_loopback", lambda host: False)
    app = web.Application()
    setup(app, directory, prefix="/wal")
    async with serving_app(app) as url:
        for _ in range(2):
            assert await asked(f"{url}/wal/v1/queues/q", "PUT") == (403, "exposed")
        assert await asked(f"{url}/wal/readyz", "GET", {"Host": "10.0.0.7:8080"}) == (200, "")
        assert app[LOG].list_queues() == []
    warnings = [record.message for record in caplog.records if "no token" in record.message]
    assert len(warnings) == 1
    assert "exposed=True" in warnings[0]


async def test_a_token_or_exposed_opens_the_api_to_other_machines(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`exposed` is for applications whose middlewares authenticate requests."""
    monkeypatch.setattr("mrecordlog_async.service.security.is_loopback", lambda host: False)
    token = "0123456789abcdef"
    app = web.Application()
    setup(app, directory, prefix="/wal", options=ServiceOptions(tokens=frozenset({token.encode()})))
    async with serving_app(app) as url:
        assert await asked(f"{url}/wal/v1/queues/q", "PUT") == (401, "unauthorized")
        assert (await asked(f"{url}/wal/v1/queues/q", "PUT", {"Authorization": f"Bearer {token}"}))[0] == 201
    app = web.Application()
    setup(app, directory, prefix="/wal", exposed=True)
    async with serving_app(app) as url:
        assert await asked(f"{url}/wal/v1/queues/q", "GET", {"Host": "anything"}) == (200, "")


@pytest.mark.parametrize("host", ["localhost", "evil.com"])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("DELETE", "/q"),
        ("PUT", "/new"),
        ("POST", "/q/seal"),
        ("POST", "/q/records"),
        ("DELETE", "/q/consumers/c"),
        ("POST", "/q/consumers/c/attach"),
    ],
)
async def test_a_request_whose_client_left_before_it_was_admitted_is_dropped(
    directory: Path, monkeypatch: pytest.MonkeyPatch, method: str, path: str, host: str
) -> None:
    """Without a connection nobody knows where it came from: a middleware that waits must not let anybody in."""
    if host == "localhost":
        monkeypatch.setattr("mrecordlog_async.service.security.is_loopback", lambda host: False)
    handled = asyncio.Event()

    @web.middleware
    async def wait_until_it_left(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            while request.transport is not None:
                await asyncio.sleep(0.001)
            return await handler(request)
        finally:
            handled.set()

    app = web.Application(middlewares=[wait_until_it_left])
    setup(app, directory, queues=["q"], prefix="/wal")
    async with serving_app(app) as url:
        log = app[LOG]
        await log.create_consumer("q", "c")
        epoch = (await log.inspection.attach_consumer("q", "c")).epoch
        head = f"{method} /wal/v1/queues{path} HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\n"
        _, writer = await asyncio.open_connection("127.0.0.1", URL(url).port)
        writer.write(f"{head}Content-Length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
        await handled.wait()
        assert log.list_queues() == ["q"]
        assert (log.queue_summary("q").sealed, log.next_position("q")) == (False, 0)
        assert log.consumers("q")["c"].epoch == epoch


@pytest.mark.parametrize("name", [None, ("10.0.0.7",), 7])
async def test_a_connection_that_does_not_know_its_address_is_no_unix_socket(directory: Path, name: object) -> None:
    """A TLS transport forgets it one turn before the application hears of the loss."""
    bridge = Bridge(mock.Mock())
    transport = mock.Mock(**{"get_extra_info.return_value": name, "is_closing.return_value": False})
    request = make_mocked_request("DELETE", "/v1/queues/q", transport=transport)
    with pytest.raises(ConnectionResetError):
        await bridge.respond(request)


async def test_a_unix_socket_has_its_own_permissions(directory: Path, tmp_path: Path) -> None:
    """A process that may open the socket may use the API, whatever Host a proxy sends."""
    app = web.Application()
    setup(app, directory, prefix="/wal")
    runner = web.AppRunner(app)
    await runner.setup()
    await web.UnixSite(runner, str(tmp_path / "socket")).start()
    connector = UnixConnector(str(tmp_path / "socket"))
    async with (
        ClientSession(connector=connector) as session,
        session.put("http://wal.example.com/wal/v1/queues/q") as response,
    ):
        assert response.status == 201
    await runner.cleanup()


def test_an_application_has_one_log(directory: Path) -> None:
    """The second one would replace the first under `LOG`; a subapplication may have it."""
    app, other = web.Application(), web.Application()
    setup(app, directory)
    with pytest.raises(ValueError, match=r"has a log already: .*add_subapp"):
        setup(app, directory.with_name("other"), prefix="/other")
    setup(other, directory.with_name("other"), prefix="/wal")
    app.add_subapp("/other", other)


@pytest.mark.parametrize(
    "prefix", ["", "/", "wal", "/my wal", "/my%20wal", "/é", "/{wal}", "/wal?a=b", "/wal#a", "//wal"]
)
def test_a_prefix_that_no_request_finds_is_refused(directory: Path, prefix: str) -> None:
    """aiohttp would respond 404 to every request below it."""
    app = web.Application()
    with pytest.raises(ValueError, match="prefix must be a path like '/wal' without characters that URLs encode"):
        setup(app, directory, prefix=prefix)
    setup(app, directory, prefix="/wal")


@pytest.mark.parametrize("prefix", ["/wal", "/wal/", "/a/b", "/a.b-c_d~e", "/a%2Fb", "/a+b@c:d!e$f&g'h(i)j*k,l;m=n"])
async def test_the_api_is_below_any_other_prefix(directory: Path, prefix: str) -> None:
    """What is not refused is found, with and without a queue in the path."""
    app = web.Application()
    setup(app, directory, prefix=prefix)
    async with serving_app(app) as url, ClientSession() as session:
        base = url + prefix.rstrip("/")
        for path in ("/healthz", "/v1/queues"):
            async with session.get(URL(base + path, encoded=True)) as response:
                assert response.status == 200
        async with session.put(URL(base + "/v1/queues/a%2Fb", encoded=True)) as response:
            assert response.status == 201


def test_options_of_another_type_are_refused_at_once(directory: Path) -> None:
    """The error says what is expected, and the application has no log yet."""
    app, wrong = web.Application(), {"tokens": {b"0123456789abcdef"}}
    for options in (wrong, {}):
        with pytest.raises(TypeError, match="options must be ServiceOptions, not dict"):
            setup(app, directory, prefix="/wal", options=options)  # type: ignore[arg-type]  # the mistake under test
    with pytest.raises(TypeError, match=r"queues\['a'\] must be QueueOptions, not dict"):
        setup(app, directory, queues={"a": {}})
    setup(app, directory, prefix="/wal")
