"""Damage in a log that has gathered files is found by everything that promises to read every byte."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from mrecordlog_async import CorruptionError, Limits, MultiRecordLog
from mrecordlog_async.format.header import HEADER_BYTES
from mrecordlog_async.maintenance.repair import repair
from mrecordlog_async.maintenance.snapshot import snapshot
from mrecordlog_async.maintenance.verify import verify
from tests import damage

MIB = 1 << 20
STEP = int(os.environ.get("FLIP_STEP", "99700"))
"""Offsets between two flips. With `FLIP_STEP=997` in the environment it takes minutes."""
LIMITS = Limits(memory_bytes=MIB, beyond_memory="disk")


async def build(directory: Path) -> None:
    """Create a log of 3 MiB in two queues, most of which has left memory."""
    async with MultiRecordLog.open(directory, limits=LIMITS, segment_bytes=8 * 32_768, queues=["q", "r"]) as log:
        for at in range(0, 1_600, 20):
            for queue in ("q", "r"):
                await log.append_records(queue, at, [at.to_bytes(4, "little") * 250] * 20)
        while log.resource_usage().memory_bytes > MIB:
            await asyncio.sleep(0.01)


async def open_and_verify_all(directory: Path) -> None:
    async with MultiRecordLog.open(directory, limits=LIMITS, verify_all=True):
        pass


def test_a_flipped_byte_is_found_although_its_records_are_gathered(directory: Path, tmp_path: Path) -> None:
    """The gathered files are intact and have all records: what is checked are the segments, at every place of them."""
    asyncio.run(build(directory))
    assert len(list(directory.glob("*.runs"))) > 5
    flips = 0
    for segment in (file for file in damage.segments(directory) if not file.suffix):
        end = damage.batch_ends(segment)[-1]
        for offset in range(HEADER_BYTES, end, STEP):
            damage.flip_byte(segment, offset)
            at = f"{segment.name} at {offset}"
            assert not verify(directory).ok, at
            assert repair(directory, write=False).salvage.damage, at
            with pytest.raises(CorruptionError):
                snapshot(directory, tmp_path / "copy", check=True)
            with pytest.raises(CorruptionError):
                asyncio.run(open_and_verify_all(directory))
            damage.flip_byte(segment, offset)
            flips += 1
    assert flips > 20
    assert verify(directory).ok
