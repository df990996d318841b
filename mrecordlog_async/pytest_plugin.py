"""Fixtures of `mrecordlog_async.testing`: pytest finds them by the entry point of the package.

It imports nothing of the log before a test asks for a fixture: pytest loads it at every start.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

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
except ModuleNotFoundError:

    @pytest.fixture(name="memory_log")
    def memory_log_without_asyncio() -> None:
        """Say what is missing."""
        pytest.fail("the fixture memory_log needs pytest-asyncio: pip install pytest-asyncio")

else:
    memory_log = pytest_asyncio.fixture(_memory_log, name="memory_log")
