"""Decides who is admitted by token, Host and Origin, before the body is read and before a route does anything.

1. Token, if the service has any: its digest is compared with every known digest in constant time, so neither the length
   nor a common prefix can be measured. The 401 says nothing more.
2. Host, if the service knows its names: a foreign page whose name resolves to 127.0.0.1 still sends that name (DNS
   rebinding). Health checks may also use an address, which a page cannot do under its own name.
3. Origin, if it is sent: browsers add it to what foreign pages ask for. Only the service's own page is admitted. CORS
   is not supported.

An API inside another application does not know where that application listens: `EmbeddedGuard` decides for each
connection by its local address.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache

from mrecordlog_async.protocol.problems import ProblemError, bad_request
from mrecordlog_async.service.http import HttpRequest

LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})

TEST_SERVER, TEST_CLIENT = "testserver", ("testclient", 50_000)
"""The addresses that Starlette's TestClient states. A server of a network gives its socket's address."""

ACCEPTED_MAX = 100

logger = logging.getLogger("mrecordlog_async.service")


class Guard:
    """The checks of one service."""

    def __init__(self, tokens: Iterable[bytes], hosts: Iterable[str]) -> None:
        self._digests = [hashlib.sha256(token).digest() for token in tokens]
        self._hosts = frozenset(host.lower() for host in hosts)
        self._accepted: set[str] = set()  # raw Host headers that passed the check

    def check(self, request: HttpRequest, *, open_to_all: bool = False) -> None:
        """Raise the problem that keeps *request* out. *open_to_all*: no token needed (health, the page)."""
        hosts = request.all(b"host")
        if len(hosts) > 1 or (not hosts and request.scope["http_version"] == "1.1"):
            raise bad_request("a request has one Host header", "bad_request")
        host = hosts[0] if hosts else ""
        if self._hosts and host not in self._accepted:
            self._check_host(host, by_address=open_to_all)
        if b"origin" in request.headers:
            self._check_origin(request.all(b"origin"), host)
        if self._digests and not open_to_all:
            self._check_token(request.all(b"authorization"))

    def _check_host(self, host: str, *, by_address: bool) -> None:
        name = host_name(host)
        if name not in self._hosts:
            if by_address and is_address(name):
                return
            raise ProblemError(421, "host", "unknown Host header; allow it with --allow-host or `hosts`")
        if len(self._accepted) < ACCEPTED_MAX:
            self._accepted.add(host)

    def _check_origin(self, origins: list[str], host: str) -> None:
        if len(origins) != 1 or origins[0].lower() not in (f"http://{host}".lower(), f"https://{host}".lower()):
            raise ProblemError(403, "origin", "cross-origin requests are not allowed")

    def _check_token(self, given: list[str]) -> None:
        scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        digest = hashlib.sha256(token.strip(" \t").encode("latin-1")).digest()
        found = False
        for expected in self._digests:
            found |= hmac.compare_digest(digest, expected)
        if not found or scheme.lower() != "bearer":
            challenge = {"WWW-Authenticate": "Bearer"}
            raise ProblemError(401, "unauthorized", "missing or invalid bearer token", headers=challenge)


class EmbeddedGuard:
    """The checks of an API inside another application.

    On loopback, Host must be a loopback name or one of *hosts*. Other machines need a token, except for health and the
    page, unless *exposed* says that the application authenticates requests. A Unix socket is protected by its file
    permissions. Starlette's TestClient has no network and counts as loopback. What a proxy on this machine passes on
    comes from another one, if the server or a middleware says so: the proxy may send a loopback name as the Host.
    """

    def __init__(self, tokens: Iterable[bytes], hosts: Iterable[str], *, exposed: bool = False) -> None:
        tokens, hosts = frozenset(tokens), frozenset(hosts)
        self._on_loopback = Guard(tokens, hosts | LOOPBACK_HOSTS)
        self._in_tests = Guard(tokens, hosts | LOOPBACK_HOSTS | {TEST_SERVER})
        self._elsewhere = Guard(tokens, hosts | LOOPBACK_HOSTS if hosts else ())
        self._open_elsewhere = exposed or bool(tokens)
        self._warned = False

    def check(self, request: HttpRequest, *, open_to_all: bool = False) -> None:
        """Raise the problem that keeps *request* out. *open_to_all*: no token needed (health, the page)."""
        server, client = request.scope.get("server"), request.scope.get("client")
        if server is not None and server[1] is None and server[0] and not is_address(server[0]):  # a Unix socket
            self._elsewhere.check(request, open_to_all=open_to_all)
            return
        local, remote = server[0] if server else "", client[0] if client else None
        if local == TEST_SERVER and client is not None and tuple(client) == TEST_CLIENT:
            self._in_tests.check(request, open_to_all=open_to_all)
        elif is_loopback(local) and not was_passed_on(remote):
            self._on_loopback.check(request, open_to_all=open_to_all)
        elif self._open_elsewhere or open_to_all:
            self._elsewhere.check(request, open_to_all=open_to_all)
        else:
            self._refuse(f"from {remote}" if is_loopback(local) else f"to {local}")

    def _refuse(self, where: str) -> None:
        if not self._warned:
            self._warned = True
            logger.error(
                "the log's API refuses requests %s: other machines can send them, and there is no token. "
                "Pass options=ServiceOptions(tokens=...), or exposed=True if the application authenticates",
                where,
            )
        raise ProblemError(403, "exposed", "this API has no token, so it refuses requests from other machines")


@lru_cache(maxsize=1_024)
def is_loopback(host: str) -> bool:
    """Return whether *host* can be reached from this machine only. Each request of a mount asks twice: 8 µs of 80."""
    if host == "localhost":
        return True
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
        mapped = getattr(address, "ipv4_mapped", None)
        return (mapped or address).is_loopback
    return False


def was_passed_on(remote: str | None) -> bool:
    """Return whether a request to loopback came from *remote* through a proxy; None if that is not known."""
    return remote is not None and remote != TEST_CLIENT[0] and not is_loopback(remote)


def is_address(name: str) -> bool:
    """Return whether the name in a Host header is a loopback name or an address: DNS resolves neither."""
    with suppress(ValueError):
        return name in LOOPBACK_HOSTS or bool(ipaddress.ip_address(name.strip("[]")))
    return False


def host_name(host: str) -> str:
    """Return the name in a Host header, without the port, in lower case."""
    address, bracket, port = host.partition("]")
    if host.startswith("[") and bracket and port[:1] in ("", ":"):
        return f"{address}]".lower()
    return host.partition(":")[0].lower()
