"""A drain into a Delta table on a disk that fails: it ends, and nothing is truncated too early."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyarrow.parquet import ParquetWriter

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.spark.checkpoints import local_lake
from mrecordlog_async.spark.checkpoints.lake import SyncFailedError, WriteFailedError
from mrecordlog_async.spark.checkpoints.local_lake import LocalLake
from mrecordlog_async.spark.consumer import committed
from mrecordlog_async.spark.delta import entries
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


@dataclass
class Noted:
    """Which entries of a table's log are written again, and which directories are synced with their file system."""

    written: list[int] = field(default_factory=list)
    synced: list[str] = field(default_factory=list)


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Noted:
    """Note what is made durable."""
    found, write, sync = Noted(), entries.write_again, LocalLake.sync

    def written(lake: LocalLake, number: int, content: bytes) -> None:
        found.written.append(number)
        write(lake, number, content)

    def synced(lake: LocalLake) -> None:
        found.synced.append(lake.path)
        sync(lake)

    monkeypatch.setattr(entries, "write_again", written)
    monkeypatch.setattr(LocalLake, "sync", synced)
    return found


def described(engine: DeltaEngine, times: int) -> int:
    """Add entries of another writer; return the number of the last one."""
    for number in range(times):
        DeltaTable(engine.place.uri).alter.set_table_description(str(number))
    return DeltaTable(engine.place.uri).version()


def test_a_batch_after_many_entries_of_others_syncs_them_at_once(
    service: ThreadedService, tmp_path: Path, noted: Noted
) -> None:
    """One sync of the file system; only the newest entries are written again, with that of the batch."""
    engine = DeltaEngine(f"a={service.url}", tmp_path)
    service.append("q", numbered("q", 0, 10))
    engine.drain()
    assert noted.written[:2] == [0, 1], "with that of the table's creation"
    last = described(engine, 40) + 1
    service.append("q", numbered("q", 10, 20))
    with engine.started() as run:
        noted.written.clear()
        noted.synced.clear()
        assert run.batch()
    assert noted.written == [last - 2, last - 1, last] and noted.synced.count(str(engine.table_path)) == 1
    service.append("q", numbered("q", 20, 30))
    engine.drain()
    assert noted.written[3] == last + 1


def test_a_batch_that_is_skipped_is_written_again_below_others(
    service: ThreadedService, tmp_path: Path, noted: Noted
) -> None:
    """Its sync may have failed, and nothing says so after the start; whatever others have committed since."""
    engine = DeltaEngine(f"a={service.url}", tmp_path)
    service.append("q", numbered("q", 0, 10))
    assert engine.kill_at("commits")
    own = DeltaTable(engine.place.uri).version()
    last = described(engine, 10)
    noted.written.clear()
    engine.drain()
    assert noted.written[:4] == [own, last - 2, last - 1, last] and len(engine.rows()) == 10
