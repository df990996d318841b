"""Which token each server of a fleet gets."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from mrecordlog_async.client import RecordLogFleet
from mrecordlog_async.client.fleet.membership import Resolver
from mrecordlog_async.client.fleet.server import Connecting, Server, Tokens
from mrecordlog_async.protocol.calls import ServiceCall
from mrecordlog_async.servers.names import Endpoint
from mrecordlog_async.servers.outages import EXPECTED_SECONDS
from mrecordlog_async.servers.roster import Seen
from mrecordlog_async.service.options import ServiceOptions
from tests.served import serving

A, B = "0123456789abcdef-of-a", "fedcba9876543210-of-b"


class Loopback(Resolver):
    async def addresses(self, host: str, port: int) -> list[str]:
        return ["127.0.0.1"]


async def test_each_server_gets_its_own_token(tmp_path: Path) -> None:
    """It belongs to the name of the server, or to its DNS name; a wrong one keeps out one server, and none is shown."""
    only_a, only_b = (ServiceOptions(tokens=frozenset([token.encode()])) for token in (A, B))
    async with serving(tmp_path / "a", only_a) as a, serving(tmp_path / "b", only_b) as b:
        places = {"a": a.url, "b": f"dns+http://localhost:{b.port}"}
        async with RecordLogFleet(places, token=A, tokens={"b": B}, resolver=Loopback()) as fleet:
            await fleet.create_queue("q")
            assert a.log.queue_exists("q") and b.log.queue_exists("q")
            shown = repr(vars(fleet._membership)) + repr(fleet._membership.servers)
        async with RecordLogFleet(places, tokens={"a": B, "b": B}, resolver=Loopback()) as fleet:
            assert [one.log_id for one in fleet.servers()] == [b.log.inspection.public_id]
            (why,) = fleet.failures().values()
        assert "bearer token" in why
        assert not any(token in shown + why for token in (A, B))


async def test_a_token_stays_with_its_address() -> None:
    """A log that moves is sent the token of the new address, and no other."""
    sent: list[tuple[str, str | None]] = []

    async def respond(name: str, request: web.Request) -> web.Response:
        sent.append((name, request.headers.get("Authorization")))
        return web.Response()

    places = []
    for name in ("a", "b"):
        app = web.Application()
        app.router.add_get("/", partial(respond, name))
        server = TestServer(app)
        await server.start_server()
        places.append((server, Endpoint(str(server.make_url("")), None, name)))
    (_, a), (_, b) = places
    moving = Server("a" * 32, a, Connecting(Tokens({"a": A}), 5.0, 5.0, 1), 0.0)
    for place in (a, b, a):
        moving.found(place, Seen("a" * 32, "1", "", True), None, 0.0)
        await moving.client.sender.send(ServiceCall("GET", "/", lambda reply: None))
    assert sent == [("a", f"Bearer {A}"), ("b", None), ("a", f"Bearer {A}")]
    await moving.close()
    for server, _ in places:
        await server.close()


@pytest.mark.parametrize("responds", [True, False], ids=["responds", "is silent"])
async def test_a_server_that_takes_no_records_is_expected_for_a_minute(responds: bool) -> None:
    """Whether it responds meanwhile or not; once it has taken records again, another minute."""
    place = Endpoint("http://127.0.0.1:1")
    server = Server("a" * 32, place, Connecting(Tokens(), 5.0, 5.0, 1), 0.0)

    def probe(now: float, *, ready: bool = False) -> None:
        if ready or responds:
            server.found(place, Seen("a" * 32, "1", "a", ready), None, now)
        else:
            server.lost(now, silent=False)

    for begun in (100.0, 300.0):
        probe(begun - 10.0, ready=True)
        assert not server.is_expected(begun - 10.0)
        for now in (begun, begun + 30.0, begun + EXPECTED_SECONDS - 0.1):
            probe(now)
            assert server.is_expected(now)
        probe(begun + EXPECTED_SECONDS)
        assert not server.is_expected(begun + EXPECTED_SECONDS)
    await server.close()


def test_a_token_for_no_server_is_refused() -> None:
    """The message says which names there are, and shows no token."""
    with pytest.raises(ValueError, match="token for the server 'c', but the servers are called a, b") as refused:
        RecordLogFleet({"a": "http://h:1", "b": "dns+http://h:1"}, tokens={"c": A})
    assert A not in str(refused.value)
    with pytest.raises(ValueError, match="no server has a name"):
        RecordLogFleet("http://h:1", tokens={"c": A})
