"""What is behind a DNS name, by the resolver of the event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mrecordlog_async.client.fleet.membership import Resolver, look_up
from mrecordlog_async.servers.names import Endpoint, Lookup, parse


async def test_every_address_behind_a_name_is_a_server() -> None:
    """By the resolver of the loop; requests keep the name, for certificates and the Host header."""
    (found,) = await look_up(Lookup("http", "localhost", 8080, "wal"), Loopback())
    assert found == Endpoint("http://localhost:8080", "127.0.0.1", origin="wal")
    with pytest.raises(OSError, match=r"Name or service|No address|not known|failure"):
        await look_up(Lookup("http", "wal.invalid", 8080), Resolver())


class Loopback(Resolver):
    async def addresses(self, host: str, port: int) -> list[str]:
        return [one for one in await super().addresses(host, port) if one.startswith("127.")]


async def test_srv_records_have_hosts_and_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server of the test's own responds with two; a name that it does not know is an error."""
    resolver = pytest.importorskip("dns.resolver")
    async with name_server({"_http._tcp.wal.": [("wal-1.wal.", 8081), ("wal-0.wal.", 8080)]}) as port:
        own = resolver.Resolver(configure=False)
        own.nameservers, own.port, own.lifetime = ["127.0.0.1"], port, 60.0
        monkeypatch.setattr(resolver, "default_resolver", own)
        (lookup,) = parse("dns+http://_http._tcp.wal")
        assert isinstance(lookup, Lookup)
        assert await look_up(lookup, Resolver()) == [
            Endpoint("http://wal-0.wal:8080"),
            Endpoint("http://wal-1.wal:8081"),
        ]
        with pytest.raises(OSError, match="no SRV records of _http"):
            await look_up(Lookup("http", "_http._tcp.lake", None), Resolver())


@asynccontextmanager
async def name_server(records: dict[str, list[tuple[str, int]]]) -> AsyncIterator[int]:
    """Respond to questions for SRV records over UDP; yield the port."""
    import dns.flags
    import dns.message
    import dns.rcode
    import dns.rrset

    class Serving(asyncio.DatagramProtocol):
        def connection_made(self, transport: Any) -> None:
            self.transport = transport

        def datagram_received(self, data: bytes, address: Any) -> None:
            question = dns.message.from_wire(data)
            response = dns.message.make_response(question)
            response.flags |= dns.flags.RA
            name = question.question[0].name.to_text()
            if name in records:
                lines = [f"0 0 {port} {host}" for host, port in records[name]]
                response.answer.append(dns.rrset.from_text(name, 60, "IN", "SRV", *lines))
            else:
                response.set_rcode(dns.rcode.NXDOMAIN)
            self.transport.sendto(response.to_wire(), address)

    listening = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    listening.bind(("127.0.0.1", 0))
    listening.setblocking(False)
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(Serving, sock=listening)
    try:
        yield listening.getsockname()[1]
    finally:
        transport.close()
