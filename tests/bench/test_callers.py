"""The measurement of `mrecordlog bench`, with short rounds."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mrecordlog_async import MultiRecordLog
from mrecordlog_async.bench.callers import CALLERS, QUEUE, NotReadBackError, check_read_back, measure
from mrecordlog_async.bench.disk import WRITE_BYTES, DiskProbe
from mrecordlog_async.storage.os_filesystem import OsFileSystem


async def test_each_number_of_callers_has_its_speed(tmp_path: Path) -> None:
    """One speed for each, in order, and the progress names them."""
    said: list[str] = []
    found = await measure(str(tmp_path), 0.01, 2, said.append)
    assert [speed.callers for speed in found.speeds] == list(CALLERS)
    assert len(said) == len(CALLERS)
    assert not (tmp_path / "probe").exists()


async def test_record_that_is_missing_in_the_files_is_an_error(tmp_path: Path) -> None:
    """A table whose records are not all in the files is an error, not a number."""
    async with MultiRecordLog.open(tmp_path) as log:
        await log.append(QUEUE, b"one", create=True)
    await asyncio.to_thread(check_read_back, str(tmp_path), 1)
    with pytest.raises(NotReadBackError, match="2 records were acknowledged, 1 are in the files"):
        await asyncio.to_thread(check_read_back, str(tmp_path), 2)


def test_probe_syncs_each_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time that it reports contains a sync; it measures at least once, and wraps at the end of its file."""
    synced: list[int] = []
    monkeypatch.setattr(OsFileSystem, "sync", lambda self, handle: synced.append(handle))
    probe = DiskProbe(str(tmp_path))
    times = [*probe.measure(0.0), *probe.measure(0.02)]
    assert len(times) == len(synced) >= 2
    assert (tmp_path / "probe").stat().st_size % WRITE_BYTES == 0
    probe.close()
    assert not (tmp_path / "probe").exists()
