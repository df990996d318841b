"""Servers as a user writes them: URLs, with or without names, and DNS names that stand for several services.

| written | stands for |
|---|---|
| `http://wal-0:8080`, `unix:/run/wal.sock` | one server |
| `a=http://wal-0:8080` | the same, called `a` |
| `dns+http://wal:8080` | every address of the name `wal` |
| `dns+http://_http._tcp.wal` | every host and port of the SRV records of this name; needs dnspython |
| `wal=dns+http://wal:8080` | the same; the name is for the token of these servers, which name themselves |

Requests to an address of a name carry the name, in `Host` and for TLS, and connect to the address.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlsplit

DNS = "dns+"

_USER = re.compile(r"(\b(?!abfss?:|wasbs?:)[\w+]+://)[^\s/]*@")  # abfss://container@account has no user
_HOST_ALONE = re.compile(r"[\w.-]+(:\d+)?(/.*)?")


def shown_url(text: str) -> str:
    """Return *text*, a URL or a sentence with URLs, without users and passwords: for messages."""
    return _USER.sub(r"\1", text)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A way to one server.

    Attributes:
        url: its URL.
        address: what to connect to; None for the host of the URL.
        name: what the user calls it; "" for nothing.
        origin: what the user calls the DNS name that it was found under; "" if it was named itself.
    """

    url: str = field(repr=False)  # it may hold a password
    address: str | None = None
    name: str = ""
    origin: str = ""

    @property
    def token_name(self) -> str:
        """The name by which the user gives its token: that of its DNS name, if it was found by one."""
        return self.origin or self.name

    def __str__(self) -> str:
        """Return where it is, for messages: without a user, and without a query, which may hold a secret, too."""
        is_path = self.url.startswith("unix:")  # of a socket: every character is a part of it
        url = shown_url(self.url if is_path else re.split("[?#]", self.url)[0])
        return url if self.address is None else f"{url} ({self.address})"


class Lookup(NamedTuple):
    """A DNS name. port: None for SRV records, which have their own. name: what the user calls it, "" for nothing."""

    scheme: str
    host: str
    port: int | None
    name: str = ""

    def __str__(self) -> str:
        return f"{DNS}{self.scheme}://{self.host}" + ("" if self.port is None else f":{self.port}")

    def at(self, addresses: Iterable[str]) -> list[Endpoint]:
        """Return the servers at the *addresses* of the name."""
        return [Endpoint(self._url(self.host, self.port), address, origin=self.name) for address in addresses]

    def on(self, services: Iterable[tuple[str, int]]) -> list[Endpoint]:
        """Return the servers on the hosts and ports of its SRV records."""
        return [Endpoint(self._url(host, port), origin=self.name) for host, port in services]

    def _url(self, host: str, port: int | None) -> str:
        return f"{self.scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def check_url(url: str) -> None:
    """Raise ValueError, with what to write instead, unless *url* names a service."""
    if not isinstance(url, str):  # such as an environment variable that is not set
        raise TypeError(f"the URL of a service must be a str, not {type(url).__name__}")
    if url.startswith("unix:"):
        if not url.removeprefix("unix:"):
            raise ValueError("unix: names no socket; write unix:/path/to/socket")
        return
    try:
        parsed = urlsplit(url)
        good = parsed.scheme in ("http", "https") and not parsed.query and not parsed.fragment
        good = good and bool(parsed.hostname) and "\\" not in parsed.netloc
        (parsed.hostname or "").encode("idna")  # a resolver raises for an empty or a long label
        _ = parsed.port
    except (ValueError, TypeError):  # of any part; UnicodeError is one
        good = False
    if not good:
        hint = f"; write http://{url}" if _HOST_ALONE.fullmatch(str(url)) else ""
        shown = re.sub(r"^(\w+://)?\S*@", r"\1", url)  # a password may be what breaks it
        raise ValueError(f"{shown!r} is not the URL of a service (http://host:port or unix:/path/to/socket){hint}")


def parse_lookup(text: str) -> Lookup:
    """Read a DNS name. Raises ValueError, with what to write instead."""
    try:
        parsed = urlsplit(text.removeprefix(DNS))
        host, port = parsed.hostname, parsed.port
        (host or "").encode("idna")  # as a resolver does
    except ValueError:  # UnicodeError is one
        host, port = None, None
    if not host or parsed.scheme not in ("http", "https") or parsed.path not in ("", "/") or "@" in parsed.netloc:
        raise ValueError(f"{shown_url(text)!r} is not a DNS name of services: write dns+http://host:port")
    if host.startswith("_"):
        _check_library(text)
        return Lookup(parsed.scheme, host, None)
    if port is None:
        raise ValueError(f"{text!r} has no port: write {text.rstrip('/')}:8080")
    return Lookup(parsed.scheme, host, port)


def _check_library(text: str) -> None:
    with suppress(ModuleNotFoundError):
        import dns.resolver  # noqa: F401

        return
    raise ValueError(f"{text!r} needs a resolver of SRV records: run pip install dnspython")
