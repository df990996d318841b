"""Asks name servers which services a DNS name stands for. Blocking: an event loop calls it in a thread."""

from __future__ import annotations

import socket

from mrecordlog_async.servers.names import Endpoint, Lookup


def look_up(lookup: Lookup) -> list[Endpoint]:
    """Return the servers of a DNS name. Raises OSError if there is none, or no name server responds."""
    if lookup.port is None:
        return lookup.on(services(lookup.host))
    return lookup.at(addresses(lookup.host, lookup.port))


def addresses(host: str, port: int) -> list[str]:
    """Return the addresses of *host*. Raises OSError if there are none, or no name server responds."""
    return sorted({str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)})


def services(name: str) -> list[tuple[str, int]]:
    """Return host and port of each SRV record of *name*. Raises OSError as `addresses` does."""
    from dns.exception import DNSException
    from dns.resolver import resolve

    try:
        records = resolve(name, "SRV")
    except DNSException as error:
        raise OSError(f"no SRV records of {name}: {error}") from None
    return sorted((str(record.target).rstrip("."), int(record.port)) for record in records)
