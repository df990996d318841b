"""A drain into a Delta table on a disk that fails: it ends, and nothing is truncated too early."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyarrow.parquet import ParquetWriter

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.spark import local_lake
from mrecordlog_async.spark.consumer import committed
from mrecordlog_async.spark.lake import SyncFailedError, WriteFailedError
from tests.spark.delta_campaign import Crash
from tests.spark.delta_engine import DeltaEngine
from tests.spark.services import ThreadedService, numbered


class FailingSyncs:
    """Makes one sync of a drain fail, and counts them."""

    def __init__(self, patch: pytest.MonkeyPatch, root: Path, nth: int) -> None:
        self._root, self._nth, self.seen = root, nth, 0
        for place in (os, "fsync"), (local_lake, "syncfs"), (committed, "syncfs"):
            patch.setattr(*place, self._failing(getattr(*place)))

    def _failing(self, sync: Callable[[int], None]) -> Callable[[int], None]:
        def called(handle: int) -> None:
            if Path(os.readlink(f"/proc/self/fd/{handle}")).is_relative_to(self._root):
                self.seen += 1
                if self.seen == self._nth:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
            sync(handle)

        return called


def test_whichever_sync_fails_the_drain_ends_and_nothing_is_lost(
    service: ThreadedService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed sync is never tried again and believed: what the disk lost after it is still in the log."""
    crash, chance, failed, nth = Crash(service, tmp_path), random.Random(1), 0, 1
    crash.feed(10)
    with crash.medium.attached(monkeypatch):
        crash.engine.drain()
        while failed == nth - 1:
            crash.feed(10)
            with monkeypatch.context() as patch, suppress(SyncFailedError, WriteFailedError, OSError):
                syncs = FailingSyncs(patch, tmp_path / "lake", nth)
                crash.engine.drain()
            failed += syncs.seen == nth  # no sync follows the one that failed
            crash.medium.cut(chance)  # what was not synced is lost
            nth += 1
        assert failed > 8
        crash.check()
    crash.medium.close()


def test_a_full_disk_ends_the_drain_and_loses_nothing(
    service: ThreadedService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a task and in the commit, the sentence names the table and what to do; with space, the batch runs again."""
    engine = DeltaEngine(f"a={service.url}", tmp_path, minPartitions="1")
    service.append("q", numbered("q", 0, 10))
    engine.drain()
    service.append("q", numbered("q", 10, 20), 10)

    def full(*arguments: object, **named: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for place, name, sentence in (
        (ParquetWriter, "write_table", r"a file of the table .* \(No space left on device\); .* Free space"),
        (DeltaTable, "create_write_transaction", r"batch 2 could not be committed to .*: \[Errno 28\] No space left"),
    ):
        with monkeypatch.context() as patch, pytest.raises(RecordLogError, match=sentence):
            patch.setattr(place, name, full)
            engine.drain()
        assert service.positions("q") == (10, 20)
    engine.drain()
    assert [payload for _, _, payload in engine.rows()] == numbered("q", 0, 20)
