"""Hosts with several addresses, of which one may be dead."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from mrecordlog_async.client import RecordLogClient, ServiceUnreachableError, connecting
from mrecordlog_async.client.connecting import Address, in_turn
from tests.client.faces import Face, faces, outcome
from tests.client.scripted import QUEUE, scripted


async def next_position(face: Face, url: str) -> Any:
    """Return the position, or the error of a call with one attempt."""
    async with face(url, retry_seconds=0.0) as client:
        return await outcome(client.next_position("q"))


@pytest.fixture
def dead() -> Iterator[int]:
    """The port of an address that responds to nothing: its queue of connections is full."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.2", 0), backlog=0))
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


@asynccontextmanager
async def several(
    monkeypatch: pytest.MonkeyPatch, *others: tuple[str, int], service: bool = True
) -> AsyncIterator[str]:
    """Run a service whose host name has *others* as addresses, and last its own; yield its URL."""
    resolve = socket.getaddrinfo
    async with scripted([QUEUE]) as server:
        addresses = [*others, *[("127.0.0.1", urlsplit(server.url).port)] * service]

        def resolved(host: Any, *arguments: Any, **more: Any) -> Any:
            if host != "service.test" or more["flags"] & socket.AI_NUMERICHOST:
                return resolve(host, *arguments, **more)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in addresses]

        monkeypatch.setattr(socket, "getaddrinfo", resolved)
        yield "http://service.test"


@faces
async def test_an_address_that_does_not_respond_holds_up_nobody(
    face: Face, dead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host name with a dead IPv6 address is the common case. Addresses are raced within the time of one attempt."""
    async with several(monkeypatch, ("127.0.0.2", dead)) as url:
        assert await next_position(face, url) == 0


@pytest.mark.parametrize("first", ["dead", "refused"])
def test_under_uvloop_too(first: str, dead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own connecting tries one address after the other."""
    uvloop = pytest.importorskip("uvloop")

    async def main() -> None:
        async with several(monkeypatch, ("127.0.0.2", dead if first == "dead" else unused_port())) as url:
            assert await next_position(RecordLogClient, url) == 0

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def unused_port() -> int:
    with socket.create_server(("127.0.0.2", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@faces
async def test_an_address_that_refuses_is_left_at_once(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one is tried without a pause."""
    monkeypatch.setattr(connecting, "STAGGER_SECONDS", 4.0)
    async with several(monkeypatch, ("127.0.0.2", unused_port()), ("127.0.0.2", unused_port())) as url:
        assert await next_position(face, url) == 0


@faces
async def test_a_host_without_a_living_address_cannot_be_reached(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the reason of the last address; nothing was sent."""
    async with several(monkeypatch, *[("127.0.0.2", unused_port())] * 2, service=False) as url:
        refused = await next_position(face, url)
    assert isinstance(refused, ServiceUnreachableError) and not refused.sent
    assert "connection refused" in str(refused)


def test_families_take_turns() -> None:
    """A network without a route for one of them is left after its first address."""
    six = [Address(socket.AF_INET6, (f"2001:db8::{number}", 80, 0, 0)) for number in range(3)]
    four = [Address(socket.AF_INET, (f"192.0.2.{number}", 80)) for number in range(2)]
    assert in_turn([*six, *six, *four]) == [six[0], four[0], six[1], four[1], six[2]]
