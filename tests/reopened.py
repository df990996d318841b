"""What a log holds once it is opened again."""

from __future__ import annotations

from pathlib import Path

import pytest

from mrecordlog_async import MultiRecordLog, RecordLogError


async def reopened(directory: Path) -> dict[str, list[tuple[int, bytes]]]:
    """Return the records of each queue. A log that does not open fails the test: it must open, whatever came before."""
    try:
        log = await MultiRecordLog.open(directory)
    except RecordLogError as error:
        pytest.fail(f"it does not open: {error}")
    async with log:
        return {queue: [(at, bytes(payload)) for at, payload in log.range(queue)] for queue in log.list_queues()}
