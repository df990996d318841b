"""Fixtures of `mrecordlog_async.testing`: pytest finds them by the entry point of the package.

It imports nothing of the log before a test asks for a fixture: pytest loads it at every start.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from mrecordlog_async.log import MultiRecordLog
    from mrecordlog_async.testing import MemoryDisk


@pytest.fixture
def memory_disk() -> MemoryDisk:
    """Return the disk of `memory_log`: `memory_disk.fail("sync")` has its syncs fail."""
    from mrecordlog_async.testing import MemoryDisk

    return MemoryDisk()


@pytest.fixture
def memory_service() -> Iterator[str]:
    """Yield the URL of a service with a new log in memory, which runs in its own thread."""
    from mrecordlog_async.testing import memory_service

    with memory_service() as url:
        yield url


async def _memory_log(memory_disk: MemoryDisk) -> AsyncIterator[MultiRecordLog]:
    """Open a new log in memory, on the event loop of the test."""
    from mrecordlog_async.testing import memory_log

    async with memory_log(memory_disk) as log:
        yield log


try:
    import pytest_asyncio
except ModuleNotFoundError:  # anyio's plugin runs plain fixtures, and without it pytest says what to install
    _fixture: Any = pytest.fixture
else:
    _fixture = pytest_asyncio.fixture

memory_log = _fixture(name="memory_log")(_memory_log)
