"""URLs in messages, and DNS names that stand for several services, as a user writes them.

| written | stands for |
|---|---|
| `dns+http://wal:8080` | every address of the name `wal` |
| `dns+http://_http._tcp.wal` | every host and port of the SRV records of this name; needs dnspython |

Requests to an address of a name carry the name, in `Host` and for TLS, and connect to the address.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import urlsplit

DNS = "dns+"

_USER = re.compile(r"(\b(?!abfss?:|wasbs?:)[\w+]+://)[^\s/]*@")  # abfss://container@account has no user


def shown_url(text: str) -> str:
    """Return *text*, a URL or a sentence with URLs, without users and passwords: for messages."""
    return _USER.sub(r"\1", text)


class Lookup(NamedTuple):
    """A DNS name. port: None for SRV records, which have their own. name: what the user calls it, "" for nothing."""

    scheme: str
    host: str
    port: int | None
    name: str = ""

    def __str__(self) -> str:
        return f"{DNS}{self.scheme}://{self.host}" + ("" if self.port is None else f":{self.port}")

    def url(self, host: str | None = None, port: int | None = None) -> str:
        """Return the URL of a service; without arguments that of every address of the name."""
        return f"{self.scheme}://{_bracketed(host or self.host)}:{port or self.port}"


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


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
