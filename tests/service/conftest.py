from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.service.serving import Served, serving


@pytest.fixture
async def served(directory: Path) -> AsyncIterator[Served]:
    """Serve an empty log with one queue, "q"."""
    async with serving(directory) as served:
        await served.log.create_queue("q")
        yield served
