from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.http.serving import Served, serving


@pytest.fixture
async def served(directory: Path) -> AsyncIterator[Served]:
    """Serve an empty log with one queue, "q"."""
    async with serving(directory) as served:
        await served.log.create_queue("q")
        yield served


@pytest.fixture
def unused_port() -> int:
    """Name a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
