"""Servers as a user names them: URLs, with or without names, and DNS names that stand for all of their addresses.

| written | stands for |
|---|---|
| `http://wal-0:8080`, `unix:/run/wal.sock` | one server |
| `a=http://wal-0:8080` | the same, called `a` |
| `dns+http://wal:8080` | every address of the name `wal`, by the resolver of the event loop |
| `dns+http://_http._tcp.wal` | every host and port of the SRV records of this name; needs dnspython |
| `wal=dns+http://wal:8080` | the same; the name is for the token of these servers, which name themselves |
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Mapping, Sequence

from mrecordlog_async.client.fleet.roster import Place
from mrecordlog_async.client.transport import check_url
from mrecordlog_async.dns_names import DNS, Lookup, parse_lookup

__all__ = ["DNS", "Lookup", "Resolver", "is_several", "look_up", "names_of", "parse"]


class Resolver:
    """Finds the servers of a DNS name. Another one can be passed to `RecordLogFleet`."""

    async def addresses(self, host: str, port: int) -> Sequence[str]:
        """Return the addresses of *host*. Raises OSError if there are none, or no name server responds."""
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return sorted({str(address[0]) for *_, address in found})

    async def services(self, name: str) -> Sequence[tuple[str, int]]:
        """Return host and port of each SRV record of *name*. Raises OSError as `addresses` does."""
        from dns.asyncresolver import resolve
        from dns.exception import DNSException

        try:
            records = await resolve(name, "SRV")
        except DNSException as error:
            raise OSError(f"no SRV records of {name}: {error}") from None
        return sorted((str(record.target).rstrip("."), int(record.port)) for record in records)


def parse(servers: str | Mapping[str, str] | Iterable[str]) -> list[Place | Lookup]:
    """Return the servers that a user wrote.

    Args:
        servers: One text, with commas between several; several texts; or names with URLs.

    Raises:
        ValueError: There are none, or one is not the URL of a service, or a name stands for two.
    """
    if isinstance(servers, Mapping):
        written = [f"{name}={url}" for name, url in servers.items()]
    else:
        texts = servers.split(",") if isinstance(servers, str) else servers
        written = [one.strip() for text in texts for one in text.split(",") if one.strip()]
    found = [_parse_one(text) for text in dict.fromkeys(written)]
    if not found:
        raise ValueError("a fleet needs servers: http://host:port, or dns+http://host:port for all addresses of a name")
    names = names_of(found)
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two servers are called {name!r}: give each its own name")
    return found


def names_of(servers: Iterable[Place | Lookup]) -> list[str]:
    """Return the names that the user gave to servers and DNS names."""
    return [one.name for one in servers if one.name]


def is_several(text: str) -> bool:
    """Return whether *text* names more than one server, or may."""
    return text.startswith(DNS) or "," in text


async def look_up(lookup: Lookup, resolver: Resolver) -> list[Place]:
    """Return the places of a DNS name. Raises OSError."""
    if lookup.port is None:
        found = await resolver.services(lookup.host)
        return [Place(lookup.url(host, port), origin=lookup.name) for host, port in found]
    addresses = await resolver.addresses(lookup.host, lookup.port)
    return [Place(lookup.url(), address, origin=lookup.name) for address in addresses]


def _parse_one(text: str) -> Place | Lookup:
    name, equals, url = text.partition("=")
    if not equals or ":" in name or "/" in name:  # the "=" is part of the URL
        name, url = "", text
    if url.startswith(DNS):
        check_url(url.removeprefix(DNS))
        return parse_lookup(url)._replace(name=name)
    check_url(url)
    return Place(url, None, name)
