"""Power cuts on mounted images of real file systems, with a log that recycles its segments."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from mrecordlog_async import Limits, LogFullError, MultiRecordLog
from mrecordlog_async.model import Record
from tests.faults import real_disk

MIB = 1 << 20


@pytest.mark.parametrize("gather", [False, True])
@pytest.mark.parametrize("kind", real_disk.MAKE)
def test_a_power_cut_on_a_real_file_system_loses_nothing(kind: str, gather: bool) -> None:
    """Every acknowledged append and truncate is there after the image is mounted again, again and again.

    With little memory, segments are gathered and leave it meanwhile.
    """
    if os.geteuid():
        pytest.skip("mounting needs root")
    try:
        with real_disk.image(kind) as (file, mount), real_disk.mounted(file, mount):
            pass
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no image of {kind} can be mounted here: {error}")
    assert real_disk.run_rounds(kind, 3, seed=1, gather=gather) > 2


async def test_a_full_file_system_has_room_for_segments_where_gathered_files_were(tmp_path: Path) -> None:
    """They are removed before an append is refused; every record is read, and a truncate makes room for others."""
    if os.geteuid():
        pytest.skip("mounting needs root")
    mounting = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(tmp_path)]
    if subprocess.run(mounting, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        await _fill_and_read(tmp_path / "wal")
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True, capture_output=True)


async def _fill_and_read(directory: Path) -> None:
    limits = Limits(memory_bytes=2 * MIB, beyond_memory="disk")
    async with MultiRecordLog.open(directory, limits=limits) as log:
        await log.create_queue("q")
        with pytest.raises(LogFullError, match="disk is full") as caught:
            while True:
                at = log.next_position("q")
                await log.append_records("q", at, [b"%d" % position * 500 for position in range(at, at + 20)])
        assert caught.value.resource == "space"
        stored = log.next_position("q")
        assert log.queue_summary("q").bytes > 18 * MIB
        expected = [Record(position, b"%d" % position * 500) for position in range(stored)]
        assert [record async for record in log.read("q")] == expected
        await log.truncate("q", stored // 2)
        await log.append_records("q", stored, [bytes(1_000)] * 1_000)
        assert len([record async for record in log.read("q")]) == stored - stored // 2 - 1 + 1_000
