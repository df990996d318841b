"""What the bridge relies on in aiohttp: public names, of which some are in no documentation. Each has a test here."""

from __future__ import annotations

import ast
import asyncio
import tomllib
from pathlib import Path
from typing import Any

from aiohttp import web

from mrecordlog_async.service.bridge import SENT
from tests.served import Served
from tests.service.test_security import raw

ROOT = Path(__file__).parents[2]


def test_the_service_uses_no_private_member_of_another_library() -> None:
    """A program that wants another version of aiohttp can install this package."""
    package = ROOT / "mrecordlog_async"
    frameworks = [package / f"{name}.py" for name in ("aiohttp", "asgi", "embedding", "fastapi")]
    for path in [*package.glob("service/**/*.py"), *frameworks]:
        assert "SLF001" not in path.read_text(), path  # ruff finds those that are used by their names
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.ImportFrom) and not str(node.module).startswith("mrecordlog_async"):
                names = [*str(node.module).split("."), *(one.name for one in node.names)]
            elif isinstance(node, ast.Import):
                names = [part for one in node.names for part in one.name.split(".")]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith("attr"):
                names = [str(one.value) for one in node.args[1:2] if isinstance(one, ast.Constant)]
            assert [name for name in names if name.startswith("_") and not name.startswith("__")] == [], path
    own = set(vars(SENT)) - set(vars(web.StreamResponse()))
    assert own and not own & set(dir(web.StreamResponse)), "a subclass must not hide a private member of its base"
    (aiohttp,) = (
        one
        for one in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["server"]
        if one.startswith("aiohttp")
    )
    assert "<" not in aiohttp


class Heard(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.written, self.closed = b"", False

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


async def served_by(handler: Any, *data: bytes, **options: Any) -> Heard:
    """Pass *data* to a connection of aiohttp's low-level server; return its transport once nothing happens any more."""
    server, transport = web.Server(handler, **options), Heard()
    connection = server()
    connection.connection_made(transport)
    for piece in data:
        connection.data_received(piece)
        for _ in range(10):
            await asyncio.sleep(0)
    connection.connection_lost(None)
    return transport


async def test_a_malformed_request_has_the_method_unknown() -> None:
    """The factory of requests sees it before aiohttp responds, and may make a plain `BaseRequest` of its arguments."""
    methods = []

    def make(*arguments: Any) -> web.BaseRequest:
        methods.append(arguments[0].method)
        factory: Any = web.BaseRequest
        made: web.BaseRequest = factory(*arguments, asyncio.get_running_loop())
        return made

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text="fine")

    good = await served_by(handle, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", request_factory=make)
    await served_by(handle, b"junk\r\n\r\n", request_factory=make)
    assert methods == ["GET", "UNKNOWN"]
    assert good.written.endswith(b"fine")


async def test_a_body_counts_what_has_arrived_and_says_where_it_ends() -> None:
    """By these two the guard knows what a request has not taken, and where the next one begins."""
    seen = []

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        seen.append((request.content.total_bytes, request.content.is_eof()))
        await request.content.readexactly(2)
        seen.append((request.content.total_bytes, request.content.is_eof()))
        await request.read()
        seen.append((request.content.total_bytes, request.content.is_eof()))
        return web.Response()

    await served_by(handle, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\na", b"bc", b"de")
    assert seen == [(1, False), (3, False), (5, True)]


async def test_aiohttp_calls_three_members_of_a_response() -> None:
    """So a response that is sent already needs no others."""
    called = set()

    class Noted(type(SENT)):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> Any:
            called.add(name)
            return super().__getattribute__(name)

    response = Noted(True)
    called.clear()

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        transport = request.transport
        assert transport is not None
        transport.write(b"sent")
        found: web.StreamResponse = response
        return found

    request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    assert (await served_by(handle, request * 3, access_log=None)).written == b"sent" * 3
    assert {name for name in called if not name.startswith("__")} <= {"keep_alive", "_keeps", "prepare", "write_eof"}


async def test_a_refused_request_is_read_to_its_end(served: Served) -> None:
    """A reset would hide the response: what still arrives is discarded for a while."""
    async with raw(served) as connection:
        sending = asyncio.create_task(
            connection.send(b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 1_000_000 + b"\r\n\r\n")
        )
        assert await connection.status() in (400, 431)
        assert (await connection.reader.read()).endswith(b"}")
        await sending
