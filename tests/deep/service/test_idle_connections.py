"""A connection that a client keeps for its next request is closed later than proxies and pools forget it."""

from __future__ import annotations

import socket
import time
from pathlib import Path

from tests.serving import Process

PROXIES_SECONDS = 60.0
"""For so long nginx and the balancers of AWS keep a connection: a request that meets its close is an error there."""


def test_an_idle_connection_outlives_those_of_common_proxies(tmp_path: Path) -> None:
    """It ends without a byte, after one request was served on it."""
    with Process(tmp_path / "wal") as service, socket.create_connection(("127.0.0.1", service.port)) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        head, _, body = client.recv(65_536).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ") and f"Content-Length: {len(body)}".encode() in head
        idle = time.monotonic()
        assert client.recv(1) == b""
        assert time.monotonic() - idle > PROXIES_SECONDS
