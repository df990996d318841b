"""Who is let in: token, Host and Origin. Checked before the body is read and before a route does anything.

1. A token, where the service has any: its digest is compared with every known one in constant time, so neither the
   length nor a common beginning can be measured. 401 says nothing more.
2. Host, where the service knows its names: a page elsewhere that made its own name point to 127.0.0.1 still sends that
   name (DNS rebinding).
3. Origin, always: browsers send it with every request that a foreign page may make them do. Only the service's own
   page passes. There is no CORS.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from aiohttp import web

from mrecordlog_async.http.problems import ProblemError

LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})

ACCEPTED_MAX = 100


class Guard:
    """The checks of one service."""

    def __init__(self, tokens: Iterable[bytes], hosts: Iterable[str]) -> None:
        self._digests = [hashlib.sha256(token).digest() for token in tokens]
        self._hosts = frozenset(host.lower() for host in hosts)
        self._accepted: set[str] = set()  # Host headers as they came that were found right

    def check(self, request: web.BaseRequest, *, open_to_all: bool = False) -> None:
        """Raise the problem that keeps *request* out. *open_to_all*: no token needed (health)."""
        headers = request.headers
        # A request with two Hosts or none does not get through the parser.
        if self._hosts and headers.get("Host") not in self._accepted:
            self._check_host(headers.get("Host", ""))
        if "Origin" in headers:
            self._check_origin(headers.getall("Origin"), headers.get("Host", ""))
        if self._digests and not open_to_all:
            self._check_token(headers.getall("Authorization", []))

    def _check_host(self, host: str) -> None:
        if host_name(host) not in self._hosts:
            raise ProblemError(421, "host", "this service does not answer under that Host")
        if len(self._accepted) < ACCEPTED_MAX:
            self._accepted.add(host)

    def _check_origin(self, origins: list[str], host: str) -> None:
        if len(origins) != 1 or origins[0].lower() not in (f"http://{host}".lower(), f"https://{host}".lower()):
            raise ProblemError(403, "origin", "requests of other sites' pages are refused")

    def _check_token(self, given: list[str]) -> None:
        scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        digest = hashlib.sha256(token.strip().encode("utf-8", "surrogateescape")).digest()
        found = False
        for expected in self._digests:
            found |= hmac.compare_digest(digest, expected)
        if not found or scheme.lower() != "bearer":
            challenge = {"WWW-Authenticate": "Bearer"}
            raise ProblemError(401, "unauthorized", "a bearer token is needed", headers=challenge)


def host_name(host: str) -> str:
    """Return the name in a Host header, without the port, in lower case."""
    if host.startswith("["):
        return host[: host.find("]") + 1].lower()
    return host.partition(":")[0].lower()
