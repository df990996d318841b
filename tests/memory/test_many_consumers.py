"""A queue with more consumers than may be created: earlier versions had no limit."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from mrecordlog_async import LogFullError, MultiRecordLog, RecordLogError

STATES = Path(__file__).parents[1] / "compatibility" / "data" / "0.3.0" / "states.tar.xz"
CONSUMERS = 1_170


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Return a log of 0.3.0 as it was before the limit, whose queue "a" has this many consumers."""
    with tarfile.open(STATES) as archive:
        members = [each for each in archive if each.name.removeprefix("./").startswith("many consumers")]
        archive.extractall(tmp_path, members, filter="data")
    return tmp_path / "many consumers"


async def test_a_log_with_more_consumers_than_may_be_created_opens(many: Path) -> None:
    """Opening always works. The consumers move and go as others do; only another one is refused."""
    for gone in range(2):
        try:
            log = await MultiRecordLog.open(many)
        except (RecordLogError, ValueError) as error:
            pytest.fail(f"it does not open: {error}")
        async with log:
            assert len(log.consumers("a")) == CONSUMERS - gone
            with pytest.raises(LogFullError):
                await log.create_consumer("a", "another")
            await log.seek_consumer("a", "reader 2", 5 + gone)
            await log.delete_consumer("a", f"reader {3 + gone}")
            assert log.consumers("a")["reader 2"].position == 5 + gone
            assert len(log.consumers("a")) == CONSUMERS - gone - 1
