"""The yardstick does what the log did, and nothing else."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from mrecordlog_async import MultiRecordLog
from mrecordlog_async.compiled import new_disk_thread
from mrecordlog_async.options import MIB
from tests.benchmarks.raw import SYNC, FreshDisk, RawDisk, RecordingFiles, without_padding


def test_recorder_notes_writes_and_syncs_in_order(tmp_path: Path) -> None:
    """What is replayed is what the log asked of the disk."""
    files = RecordingFiles()
    handle = files.create(str(tmp_path / "file"))
    files.write(handle, [b"abc", b"de"], 0)
    files.sync(handle)
    files.write(handle, [b"f"], 5)
    files.close(handle)
    assert files.calls == [5, SYNC, 1]
    assert (tmp_path / "file").read_bytes() == b"abcdef"


async def test_recorder_notes_what_the_disk_thread_writes(tmp_path: Path) -> None:
    """One caller's record is one write of whole blocks that is a sync as well, whichever thread makes it."""
    files = RecordingFiles()
    async with MultiRecordLog.open(tmp_path / "wal", filesystem=files) as log:
        assert (log._engine.opened.journal.disk is None) == (new_disk_thread is None)
        await log.create_queue("q")
        await log.append_record("q", None, b"x")
        await asyncio.sleep(0.01)
        files.calls.clear()
        files.sync_seconds.clear()
        for _ in range(3):
            await log.append_record("q", None, b"x")
        assert files.calls == [4_096, SYNC] * 3
        assert len(files.sync_seconds) == 3


async def test_recorder_notes_the_pieces_of_large_batches(tmp_path: Path) -> None:
    """However the pieces of a large batch reach the disk, what is replayed has all of its bytes."""
    files, size = RecordingFiles(), 8 * MIB
    async with MultiRecordLog.open(tmp_path / "wal", filesystem=files) as log:
        await log.create_queue("q")
        files.calls.clear()
        await log.append_record("q", None, bytes(size))
        assert sum(call for call in files.calls if call != SYNC) >= size
        assert SYNC in files.calls


def test_padding_of_direct_writes_is_left_out() -> None:
    """The raw disk writes as many bytes as the log stored, in as many calls."""
    assert without_padding([4_096, SYNC, 8_192, SYNC], 4_288) == [96, SYNC, 4_192, SYNC]
    assert without_padding([100, SYNC, 60], 160) == [100, SYNC, 60]
    assert without_padding([], 0) == []


def test_replay_times_each_batch_with_its_sync(tmp_path: Path) -> None:
    """A batch of several writes and one sync is one latency."""
    raw = RawDisk(str(tmp_path), 64 * 1024)
    measurement = raw.replay([100, 50, SYNC, 4_096, SYNC])
    raw.close()
    assert len(measurement.latencies) == 2
    assert sum(measurement.latencies) <= measurement.seconds


def test_replay_without_syncs_times_each_write(tmp_path: Path) -> None:
    """Under a policy that never syncs the yardstick does not either."""
    raw = RawDisk(str(tmp_path), 64 * 1024)
    assert len(raw.replay([100, 200, 300]).latencies) == 3
    raw.close()


def test_file_never_grows_behind_its_blocks(tmp_path: Path) -> None:
    """Writes wrap around, even those larger than the file: allocating is not the disk's work."""
    raw = RawDisk(str(tmp_path), 64 * 1024)
    raw.replay([40_000, 40_000, 200_000, SYNC])
    assert os.path.getsize(tmp_path / "raw") == 64 * 1024
    raw.close()
    assert not (tmp_path / "raw").exists()


def test_fresh_disk_replays_every_batch_and_leaves_nothing(tmp_path: Path) -> None:
    """Each replay has its own blocks, which were never written before."""
    fresh = FreshDisk(str(tmp_path))
    for _ in range(2):
        assert len(fresh.replay([100, SYNC, 3 << 20, SYNC, 50, 50, SYNC]).latencies) == 3
        assert os.listdir(tmp_path) == []
