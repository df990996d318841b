"""The limit of memory that nobody set: it fits the machine, and follows the other limits."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from mrecordlog_async import Limits, LogFullError, MultiRecordLog
from mrecordlog_async.engine import fitted
from mrecordlog_async.options import GIB, MIB
from mrecordlog_async.support.machine import MachineMemory


def with_memory(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Have logs be opened in a container of *size* bytes."""
    monkeypatch.setattr(fitted, "machine_memory", lambda: MachineMemory(size, "/cgroup/memory.max"))


async def test_a_new_log_gets_what_the_machine_has_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`log.limits` has the number; an explicit one stays, whatever the machine has."""
    with_memory(monkeypatch, GIB)
    async with MultiRecordLog.open(tmp_path / "default") as log:
        assert log.limits.memory_bytes == log.resource_usage().memory_limit_bytes == 340 * MIB
    async with MultiRecordLog.open(tmp_path / "set", limits=Limits(memory_bytes=8 * GIB)) as log:
        assert log.limits.memory_bytes == 8 * GIB


async def test_a_default_of_memory_is_at_most_the_disk_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where records leave memory: otherwise memory is the limit that is reached first, or never."""
    with_memory(monkeypatch, GIB)
    async with MultiRecordLog.open(tmp_path / "disk", limits=Limits(beyond_memory="disk", disk_bytes=MIB)) as log:
        assert log.limits.memory_bytes == MIB
    async with MultiRecordLog.open(tmp_path / "refuse", limits=Limits(disk_bytes=MIB)) as log:
        assert log.limits.memory_bytes == 340 * MIB


async def test_a_log_that_holds_more_keeps_4_gib_and_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With the default of the machine, each of its appends would be refused."""
    with_memory(monkeypatch, 64 * MIB)
    async with MultiRecordLog.open(tmp_path, limits=Limits(memory_bytes=64 * MIB), queues=["q"]) as log:
        for _ in range(10):
            await log.append("q", bytes(MIB))
    async with MultiRecordLog.open(tmp_path) as log:
        assert log.limits.memory_bytes == 4 * GIB
        assert await log.append("q", bytes(MIB)) == 10
        assert len(list(log.range("q"))) == 11
        await log.truncate("q", 8)
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "the log holds more than 8 MiB, the default memory limit for 64 MiB (/cgroup/memory.max)" in warning
    assert "Limits(memory_bytes=...)" in warning and 'beyond_memory="disk"' in warning


async def test_a_log_that_holds_less_is_refused_more_at_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Opened when it is full, it has the same limit, holds what it held, and says nothing."""
    with_memory(monkeypatch, 64 * MIB)
    async with MultiRecordLog.open(tmp_path, queues=["q"]) as log:
        with pytest.raises(LogFullError):
            for _ in range(10):
                await log.append("q", bytes(MIB))
        held = log.next_position("q")
    async with MultiRecordLog.open(tmp_path) as log:
        assert log.limits.memory_bytes == 8 * MIB
        assert [len(payload) for _, payload in log.range("q")] == [MIB] * held
    assert not [record for record in caplog.records if "default memory limit" in record.getMessage()]


async def test_a_log_that_holds_more_leaves_memory_where_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With `beyond_memory="disk"` the default of the machine holds, and every record is still read."""
    with_memory(monkeypatch, 64 * MIB)
    before = Limits(memory_bytes=64 * MIB)
    async with MultiRecordLog.open(tmp_path, limits=before, queues=["q"], segment_bytes=4 * MIB) as log:
        for _ in range(20):
            await log.append("q", bytes(MIB))
    async with MultiRecordLog.open(tmp_path, limits=Limits(beyond_memory="disk")) as log:
        assert log.resource_usage().memory_bytes <= log.limits.memory_bytes == 8 * MIB  # type: ignore[operator]
        assert len([record async for record in log.read("q")]) == 20
    assert not [record for record in caplog.records if "default memory limit" in record.getMessage()]
