"""Opening a log that reads the clocks of a test instead of the machine's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mrecordlog_async import MultiRecordLog, OpeningLog
from mrecordlog_async.support.clock import Clock


def opening(directory: Path, clock: Clock, **options: Any) -> OpeningLog:
    """Open the log in *directory* with *clock*; the other arguments are those of `MultiRecordLog.open`."""
    found = MultiRecordLog.open(directory, **options)
    found._clock = clock
    return found
