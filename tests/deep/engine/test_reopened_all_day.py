"""A log that is opened every minute for hours, by a process that its supervisor restarts, still removes for age."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mrecordlog_async import QueueOptions
from mrecordlog_async.engine.readers import expiry
from tests.engine.test_retention import Clocks, expire, opened, positions

HOUR, DAY = 3_600.0, 86_400.0
DAY_MINUTES = 24 * 60
MINUTES = 240
"""How long it goes on; a day with `--nightly`."""


@pytest.fixture
def directory() -> Iterator[Path]:
    """Name a directory in memory, where a day of openings takes seconds."""
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=memory) as parent:
        yield Path(parent, "wal")


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    """Clocks that the test sets."""
    monkeypatch.setattr(expiry, "SLEEP_SECONDS_MAX", 1_000.0)
    return Clocks()


@pytest.mark.parametrize("closed_days", [0, 40], ids=["at once", "after forty days"])
async def test_a_log_that_is_opened_every_minute_still_removes(
    directory: Path, clocks: Clocks, caplog: pytest.LogCaptureFixture, closed_days: int, pytestconfig: pytest.Config
) -> None:
    """Never open for ten minutes, it holds an hour of records; only the first two openings after a pause wait."""
    async with opened(directory, clocks, queues={"q": QueueOptions(max_age=HOUR)}, segment_bytes=32_768) as log:
        await log.append_records("q", None, [b"old"] * 5)
    clocks.pass_by(closed_days * DAY)
    removed, minutes = 0, DAY_MINUTES if pytestconfig.getoption("--nightly") else MINUTES
    for minute in range(minutes):
        async with opened(directory, clocks, segment_bytes=32_768) as log:
            await log.append("q", b"new")
            await expire(log)
            clocks.pass_by(60)
            held = len(positions(log))
            assert held <= 67, minute
            removed += minute >= 2 and held <= 61 + 1
    assert removed > minutes - 10
    assert sum("the clock is in doubt" in record.getMessage() for record in caplog.records) == (2 if closed_days else 0)
