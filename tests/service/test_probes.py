"""Health checks of balancers and orchestrators."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from mrecordlog_async.service.options import ServiceOptions
from tests.served import Served, serving

PROBES = {
    "HEAD of kubelet, by the pod's address": b"HEAD /readyz HTTP/1.1\r\nHost: 10.1.2.3:8080\r\n\r\n",
    "HTTP/1.0 without a host": b"GET /healthz HTTP/1.0\r\n\r\n",
    "a balancer's own host name": b"GET /readyz HTTP/1.1\r\nHost: lb.eu.example\r\n\r\n",
    "HEAD of the page": b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n",
}


@pytest.mark.parametrize("name", PROBES)
async def test_a_probe_gets_its_response_and_the_next_client_too(
    directory: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A service with a token is checked without one."""
    async with serving(directory, ServiceOptions(tokens=frozenset({b"secret"}))) as served:
        with caplog.at_level(logging.WARNING):
            line = await _first_line(served, PROBES[name])
        assert line.split(b" ")[1] == b"200"
        assert (await served.call("GET", "/readyz")).status == 200
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_check_is_served_beside_many_silent_connections(directory: Path) -> None:
    """Balancers open connections in advance, and send nothing on most of them."""
    async with serving(directory) as served:
        silent = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(300)]
        assert (await served.call("GET", "/readyz")).status == 200
        for _, writer in silent:
            writer.close()


async def _first_line(served: Served, sent: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(sent)
    async with asyncio.timeout(60):
        line = await reader.readline()
    writer.close()
    return line
