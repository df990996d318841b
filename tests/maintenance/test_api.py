"""The maintenance functions as Python users call them: paths of any kind, results as values, errors by class."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mrecordlog_async import LogLockedError, MultiRecordLog, ReadOnlyLog
from mrecordlog_async.maintenance.repair import repair
from mrecordlog_async.maintenance.salvage import salvage
from mrecordlog_async.maintenance.snapshot import snapshot
from mrecordlog_async.maintenance.verify import verify
from tests import damage
from tests.cli.running import build, three_queues
from tests.conftest import contents


def damaged_log(tmp_path: Path) -> Path:
    directory = build(tmp_path / "wal", three_queues)
    damage.flip_byte(damage.segments(directory)[1], 20_000)
    return directory


def test_each_function_documents_what_it_does() -> None:
    """Its arguments, result and errors."""
    for function in (snapshot, verify, salvage, repair):
        assert all(section in (function.__doc__ or "") for section in ("Args:", "Returns:", "Raises:")), function


async def test_a_log_in_use_is_copied_and_verified(tmp_path: Path, log: MultiRecordLog, directory: Path) -> None:
    """None of these functions takes the lock."""
    await log.append_record("q", None, b"hello")
    made = await asyncio.to_thread(snapshot, directory, tmp_path / "copy")
    assert (made.segments, made.linked_bytes) == (1, 0)
    for path in (directory, tmp_path / "copy"):
        found = await asyncio.to_thread(verify, path)
        assert found.ok and found.report is not None and found.report.records == 1


def test_damage_is_returned_with_every_place(tmp_path: Path) -> None:
    """`verify` raises for what cannot be read, not for damage."""
    directory = damaged_log(tmp_path)
    found = verify(directory)
    assert not found.ok and found.report is None and found.error is not None
    assert [place.segment for place in found.damage] == [damage.segments(directory)[1].name]
    assert found.file_bytes == {found.damage[0].segment: damage.segments(directory)[1].stat().st_size}


def test_a_damaged_log_is_repaired_into_a_new_one(tmp_path: Path) -> None:
    """The damaged log does not change; a second repair fails because the target exists."""
    directory = damaged_log(tmp_path)
    before = damage.snapshot(directory)
    assert not repair(directory, write=False).written
    done = repair(directory)
    assert (done.written, done.target) == (True, f"{directory}.repaired")
    assert damage.snapshot(directory) == before
    assert verify(done.target).ok
    with ReadOnlyLog.open(done.target) as repaired:
        held = {name: len(records) for name, (_, _, records) in contents(repaired).items()}
    assert held == {queue.name: queue.record_count for queue in salvage(directory).queues}
    with pytest.raises(FileExistsError):
        repair(directory)


async def test_a_log_in_use_is_not_repaired(log: MultiRecordLog, directory: Path) -> None:
    """Repair raises LogLockedError while a writer has the log open."""
    with pytest.raises(LogLockedError):
        await asyncio.to_thread(repair, directory)
