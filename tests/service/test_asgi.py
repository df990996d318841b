"""The service mounted in FastAPI, under a real uvicorn: the same tests as under aiohttp, and what only ASGI has."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fastapi import FastAPI, Request, Response
from starlette.middleware.base import RequestResponseEndpoint
from yarl import URL

from mrecordlog_async.fastapi import ServiceOptions, lifespan, log_of, mount
from tests.asgi import call_asgi
from tests.served import Served
from tests.service import test_queues, test_records, test_tails
from tests.service.uvicorn_served import Mounted, mounted, port_of, running, service_of

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])  # what uvicorn uses where it is installed

RECORDS = "/v1/queues/q/records"

for _module in (test_records, test_queues, test_tails):
    for _name, _test in vars(_module).items():
        if _name.startswith("test_") and "served" in inspect.signature(_test).parameters:
            globals().setdefault(_name, _test)


@pytest.fixture
async def served(directory: Path) -> AsyncIterator[Served]:
    """Serve an empty log with one queue, "q", below a path of a FastAPI application."""
    async with mounted(directory) as served:
        await served.log.create_queue("q")
        yield served


async def test_page_metrics_health_and_documents_are_below_the_path(served: Mounted) -> None:
    """A FastAPI application has what `mrecordlog serve` has."""
    page = await served.call("GET", "/", headers={"Accept": "text/html"})
    assert (page.status, page.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert b"mrecordlog_queues 1.0" in (await served.call("GET", "/metrics")).body
    assert (await served.call("GET", "/healthz")).status == (await served.call("GET", "/readyz")).status == 200
    assert "/v1/queues" in (await served.call("GET", "/openapi.json")).json()["paths"]
    assert (await served.call("HEAD", "/healthz")).body == b""
    missing = await served.call("GET", "/nothing")
    assert (missing.status, missing.json()["code"]) == (404, "no_route")
    assert (await served.call("PATCH", "/v1/queues")).status == 405


async def test_a_body_in_chunks_arrives_whole(served: Mounted) -> None:
    """The client need not know the length."""

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"x" * 3_000

    assert (await served.call("POST", RECORDS, pieces())).status == 200
    (record,) = served.log.range("q")
    assert record.payload == b"x" * 300_000


async def test_an_encoded_slash_is_part_of_a_name_below_any_root_path(directory: Path) -> None:
    """Even if a proxy serves the application below a path that is not its own."""
    app = FastAPI(lifespan=lifespan(directory))
    mount(app, "/deep/wal")
    async with running(app, root_path="/api") as server, aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{port_of(server)}/deep/wal/v1/queues/a%2Fb"
        async with session.post(URL(url + "/records?create=1", encoded=True), data=b"x") as response:
            assert response.status == 200
        assert log_of(app).list_queues() == ["a/b"]


async def test_a_refused_request_need_not_send_its_body(directory: Path) -> None:
    """With `Expect: 100-continue` the refusal comes instead of the 100, and the connection closes."""
    async with mounted(directory, ServiceOptions(tokens=frozenset({b"0123456789abcdef"}))) as served:
        head = b"POST /wal/v1/queues/q/records?create=1 HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
        for token, status, comes in ((b"wrong", b"401", b"unauthorized"), (b"0123456789abcdef", b"100", b"")):
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(head + b"Authorization: Bearer %b\r\nContent-Length: 1\r\n\r\n" % token)
            line = await reader.readline()
            assert line.split(b" ")[1] == status
            if comes:
                assert comes in await reader.read()
            else:
                await reader.readline()
                writer.write(b"a")
                assert (await reader.readline()).split(b" ")[1] == b"200"
            writer.close()


async def test_a_reader_that_stops_is_cut_and_holds_no_more_than_a_few_pieces(directory: Path) -> None:
    """Back-pressure reaches the service: it builds no piece that uvicorn cannot send, and its deadline counts."""
    options = ServiceOptions(write_seconds=0.5)
    async with mounted(directory, options) as served:
        await served.log.create_queue("q")
        for _ in range(40):
            await served.log.append("q", bytes(1_000_000))
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=1)
        writer.write(
            b"GET /wal%s HTTP/1.1\r\nHost: localhost\r\nAccept: application/octet-stream\r\n\r\n" % RECORDS.encode()
        )
        assert await reader.read(15) == b"HTTP/1.1 200 OK"
        while not served.service.sending.dropped:
            await asyncio.sleep(0.01)
        assert served.service.sending.used == 0
        taken = 0
        while piece := await reader.read(1 << 20):
            taken += len(piece)
        assert taken < 40_000_000  # the response is shorter than its Content-Length says
        writer.close()


async def test_hosts_and_tokens_are_checked_as_below_aiohttp(directory: Path) -> None:
    """On loopback by Host; a Unix socket has its own permissions; an address that is not named is not loopback."""
    app = FastAPI(lifespan=lifespan(directory))
    mount(app)
    scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/wal/v1/queues", "root_path": ""}
    async with app.router.lifespan_context(app):
        for server, host, expected in (
            (("127.0.0.1", 80), b"localhost", 200),
            (("127.0.0.1", 80), b"evil.example", 421),
            (("10.0.0.7", 80), b"localhost", 403),
            (("/run/socket", None), b"any", 200),
            (("10.0.0.7", None), b"localhost", 403),
            (("127.0.0.1", None), b"evil.example", 421),
            (("", None), b"localhost", 403),
            (None, b"localhost", 403),
        ):
            headers = [(b"host", host)]
            assert (await call_asgi(app, scope["path"], {}, server=server, headers=headers))[0] == expected


async def test_the_test_client_of_starlette_counts_as_loopback(directory: Path) -> None:
    """It needs neither a token nor another `base_url`. From a network, its names open nothing."""
    app = FastAPI(lifespan=lifespan(directory))
    mount(app)
    there, here = ("testserver", 80), ("testclient", 50_000)
    async with app.router.lifespan_context(app):
        for server, client, host, expected in (
            (there, here, b"testserver", 200),
            (there, here, b"evil.example", 421),
            (("127.0.0.1", 80), here, b"testserver", 421),
            (("10.0.0.7", 80), here, b"testserver", 403),
            (("10.0.0.7", 80), ("10.0.0.9", 50_000), b"testserver", 403),
            (there, ("10.0.0.9", 50_000), b"testserver", 403),
            (there, ("testclient", 0), b"testserver", 403),
            (there, None, b"testserver", 403),
        ):
            more: dict[str, Any] = {"server": server, "client": client, "headers": [(b"host", host)]}
            assert (await call_asgi(app, "/wal/v1/queues", {}, **more))[0] == expected
    with_token = FastAPI(lifespan=lifespan(directory))
    mount(with_token, options=ServiceOptions(tokens=frozenset({b"0123456789abcdef"})))
    async with with_token.router.lifespan_context(with_token):
        more = {"server": there, "client": here, "headers": [(b"host", b"testserver")]}
        assert (await call_asgi(with_token, "/wal/v1/queues", {}, **more))[0] == 401


async def test_what_a_proxy_on_this_machine_passes_on_comes_from_elsewhere(directory: Path) -> None:
    """The server says for whom, as uvicorn does with `X-Forwarded-For`. nginx sends a loopback address as the Host."""
    app, exposed = FastAPI(lifespan=lifespan(directory)), FastAPI(lifespan=lifespan(directory))
    mount(app, options=ServiceOptions(hosts=frozenset({"wal.example.com"})))
    mount(exposed, exposed=True)
    for application, client, host, expected in (
        (app, ("10.0.0.9", 0), b"127.0.0.1:8000", 403),
        (app, ("10.0.0.9", 0), b"wal.example.com", 403),
        (app, ("unknown", 0), b"127.0.0.1:8000", 403),
        (app, ("::ffff:127.0.0.1", 1), b"127.0.0.1:8000", 200),
        (app, None, b"127.0.0.1:8000", 200),
        (app, ("testclient", 50_000), b"127.0.0.1", 200),  # with a `base_url` of loopback
        (exposed, ("10.0.0.9", 0), b"127.0.0.1:8000", 200),
    ):
        async with application.router.lifespan_context(application):
            more: dict[str, Any] = {"client": client, "headers": [(b"host", host)]}
            assert (await call_asgi(application, "/wal/v1/queues", {}, **more))[0] == expected, client


async def test_an_application_may_start_again(directory: Path) -> None:
    """Test clients start the same application several times."""
    app = FastAPI(lifespan=lifespan(directory, queues=["q"]))
    mount(app)
    for _ in range(2):
        async with app.router.lifespan_context(app):
            headers = [(b"host", b"localhost")]
            assert (await call_asgi(app, "/wal/readyz", {}, headers=headers))[0] == 200


async def test_a_mount_without_a_log_says_what_is_missing() -> None:
    """Not a response that looks like the service's."""
    app = FastAPI()
    mount(app)
    with pytest.raises(RuntimeError, match="lifespan of the log"):
        await call_asgi(app, "/wal/readyz", {})


async def test_heads_that_no_server_should_pass_are_refused(directory: Path) -> None:
    """Servers differ in what they let through, so nothing of such a request is carried out."""
    app = FastAPI(lifespan=lifespan(directory))
    mount(app)
    host = (b"host", b"localhost")
    chunked = (b"transfer-encoding", b"chunked")
    async with app.router.lifespan_context(app):
        for headers, status in (
            ([host, (b"x", b"1\r\n\r\nPUT /v1/queues/evil HTTP/1.0")], 400),
            ([host, (b"x", b"x" * 70_000)], 431),
            ([host, (b"content-length", b"1"), chunked], 400),
            ([host, (b"content-length", b"1"), (b"content-length", b"2")], 400),
            ([host, (b"content-length", b"+1")], 400),
            ([host, host], 400),
            ([], 400),
        ):
            found = await call_asgi(app, "/wal/v1/queues/q/records?create=1", {}, "POST", b"x", headers=headers)
            assert found[0] == status, headers
        assert log_of(app).list_queues() == []


async def test_a_name_that_can_be_read_in_two_ways_is_refused(directory: Path) -> None:
    """Some servers drop how a path was encoded, or pass what no client may send."""
    app = FastAPI(lifespan=lifespan(directory, queues=["a", "a/b", "a#b", "ä", "%20"]))
    mount(app)
    headers = [(b"host", b"localhost")]
    async with app.router.lifespan_context(app):
        for path, raw, status in (
            ("/wal/v1/queues/a", None, 200),
            ("/wal/readyz", None, 200),
            ("/wal/v1/queues/a/b", None, 400),
            ("/wal/v1/queues/ä", None, 400),
            ("/wal/v1/queues/%20", None, 400),
            ("/wal/v1/queues/a/b", b"/wal/v1/queues/a%2Fb", 200),
            ("/wal/v1/queues/ä", b"/wal/v1/queues/%C3%A4", 200),
            ("/wal/v1/queues/%20", b"/wal/v1/queues/%2520", 200),
            ("/wal/v1/queues/a#b", b"/wal/v1/queues/a%23b", 200),
            ("/wal/v1/queues/a#b", b"/wal/v1/queues/a#b", 400),
            ("/wal/v1/queues/ä", "/wal/v1/queues/ä".encode(), 400),
            ("/wal/v1/queues/a", b"/w%61l/v1/queues/%61", 200),
            ("/wal/v1/queues/a", b"/wal%2Fv1/queues/a", 400),
        ):
            found = await call_asgi(app, path, {}, headers=headers, raw_path=raw)
            assert found[0] == status, (path, raw)


@pytest.mark.parametrize("headers", [[(b"transfer-encoding", b"chunked")], []], ids=["chunked", "HTTP/2"])
async def test_a_body_of_unknown_length_that_a_middleware_has_read_is_no_empty_record(
    directory: Path, headers: list[tuple[bytes, bytes]], pytestconfig: pytest.Config
) -> None:
    """Nobody can say how long it was: it is refused, not acknowledged."""
    if pytestconfig.getoption("--eager-tasks"):
        pytest.skip("the middleware opens a task group of anyio, whose scopes do not bear tasks that start at once")
    app = FastAPI(lifespan=lifespan(directory, queues=["q"]))
    mount(app)

    @app.middleware("http")
    async def read_the_body(request: Request, call_next: RequestResponseEndpoint) -> Response:
        assert b"".join([piece async for piece in request.stream()]) == b"abc"
        return await call_next(request)

    async with app.router.lifespan_context(app) as state:
        more: dict[str, Any] = {"headers": [(b"host", b"127.0.0.1"), *headers]}
        status, body = await call_asgi(app, "/wal" + RECORDS, dict(state or {}), "POST", b"abc", **more)
        assert (status, b"send Content-Length: 0" in body) == (400, True)
        assert log_of(app).next_position("q") == 0


@pytest.mark.parametrize("method", ["body", "stream"])
async def test_a_body_that_a_middleware_has_read(
    directory: Path, method: str, pytestconfig: pytest.Config, caplog: pytest.LogCaptureFixture
) -> None:
    """It is passed on if it was read as a whole. Otherwise that is an error at once, not a client that is too slow."""
    if pytestconfig.getoption("--eager-tasks"):
        pytest.skip("the middleware opens a task group of anyio, whose scopes do not bear tasks that start at once")
    app = FastAPI(lifespan=lifespan(directory, queues=["q"]))
    mount(app)

    @app.middleware("http")
    async def read_the_body(request: Request, call_next: RequestResponseEndpoint) -> Response:
        if method == "body":
            assert await request.body() == b"abc"
        else:
            assert b"".join([piece async for piece in request.stream()]) == b"abc"
        return await call_next(request)

    headers = [(b"host", b"127.0.0.1"), (b"content-length", b"3"), (b"content-type", b"application/octet-stream")]
    async with app.router.lifespan_context(app) as state:
        sending = call_asgi(app, "/wal" + RECORDS, dict(state or {}), "POST", b"abc", headers=headers)
        if method == "body":
            assert (await sending)[0] == 200
        else:
            assert (await sending)[0] == 500
            assert "middleware has read 3 of 3 bytes of the body: use request.body()" in caplog.text
        assert [record.payload for record in log_of(app).range("q")] == [b"abc"] * (method == "body")


@pytest.mark.parametrize("path", ["/wal/v1/queues/q/records", "/wal/v1/truncate"])
async def test_a_body_that_never_arrives_does_not_hold_up_the_end(directory: Path, path: str) -> None:
    """uvicorn waits for requests for ever; the mounted API drops them after `drain_seconds`, with a response."""
    app = FastAPI(lifespan=lifespan(directory, queues=["q"]))
    mount(app, "/wal", options=ServiceOptions(drain_seconds=0.2, body_seconds=3_600))
    async with asyncio.timeout(60), running(app, timeout_graceful_shutdown=None) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(server))
        writer.write(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nabc".encode())
        (mounted_api,) = app.state.mrecordlog_mounts
        while not ((service := service_of(mounted_api)) and service.active):
            await asyncio.sleep(0.001)
        mounted_api.begin_shutdown()  # as at SIGTERM
        mounted_api.begin_shutdown()
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ") and json.loads(body)["code"] == "closing"
    writer.close()


@pytest.mark.parametrize("middlewares", [0, 1, 2])
@pytest.mark.parametrize("dropped", [False, True], ids=["slow reader", "end of the server"])
async def test_a_response_that_breaks_off_never_looks_whole(
    directory: Path, middlewares: int, dropped: bool, pytestconfig: pytest.Config
) -> None:
    """Starlette's BaseHTTPMiddleware ends a response of lines as if it were complete: some would be missing unseen."""
    if pytestconfig.getoption("--eager-tasks"):
        pytest.skip("the middleware opens a task group of anyio, whose scopes do not bear tasks that start at once")
    app = FastAPI(lifespan=lifespan(directory, queues=["q"]))
    mount(app, options=ServiceOptions(write_seconds=3_600.0 if dropped else 0.2, drain_seconds=0.0))
    for _ in range(middlewares):

        @app.middleware("http")
        async def pass_on(request: Request, call_next: RequestResponseEndpoint) -> Response:
            return await call_next(request)

    async with running(app) as server:
        for _ in range(20):
            await log_of(app).append("q", bytes(1_000_000))
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(server), limit=1)
        writer.write(b"GET /wal" + RECORDS.encode() + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert await reader.readexactly(12) == b"HTTP/1.1 200"
        (mounted_api,) = app.state.mrecordlog_mounts
        if dropped:
            mounted_api.begin_shutdown()
        while (service := service_of(mounted_api)) and service.active:
            await asyncio.sleep(0.01)
        taken = b""
        while piece := await reader.read(1 << 20):
            taken = taken[-16:] + piece
        assert not taken.endswith(b"0\r\n\r\n")
        writer.close()
