"""Snapshots of a log in use: one consistent prefix, made whole or not at all."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from mrecordlog_async import CorruptionError, MultiRecordLog, ReadOnlyLog
from mrecordlog_async.cli.snapshot import snapshot
from tests import damage
from tests.cli.running import BLOCK_BYTES, build, mrecordlog, three_queues
from tests.conftest import contents


def test_a_snapshot_shows_what_the_log_shows(tmp_path: Path) -> None:
    """Finished segments are the same files, the last one is a copy of its own."""
    directory = build(tmp_path / "wal", three_queues)
    ran = mrecordlog("snapshot", directory, tmp_path / "copy", "--json")
    assert ran.code == 0
    facts = json.loads(ran.out)
    assert facts["segments"] == 4
    with ReadOnlyLog.open(directory) as before, ReadOnlyLog.open(tmp_path / "copy") as after:
        assert contents(after) == contents(before)
    *finished, last = damage.segments(directory)
    assert all(os.path.samefile(path, tmp_path / "copy" / path.name) for path in finished)
    assert not os.path.samefile(last, tmp_path / "copy" / last.name)
    assert mrecordlog("verify", tmp_path / "copy").code == 0


async def test_a_snapshot_beside_a_busy_writer_is_a_prefix(tmp_path: Path) -> None:
    """What was acknowledged before is in it; of what comes meanwhile, each queue holds a prefix without holes."""
    async with MultiRecordLog.open(tmp_path / "wal", segment_bytes=BLOCK_BYTES) as log:
        for queue in ("a", "b"):
            await log.create_queue(queue)
        acknowledged = 0
        done = asyncio.Event()

        async def produce() -> None:
            nonlocal acknowledged
            while not done.is_set():
                await asyncio.gather(
                    log.append_record("a", None, b"a" * 500),
                    log.append_records("b", None, [b"b" * 100] * 3),
                )
                acknowledged += 1

        producer = asyncio.create_task(produce())
        for number in range(5):
            while acknowledged < 20 * (number + 1):
                assert not producer.done(), producer.exception()
                await asyncio.sleep(0)
            before = acknowledged
            await asyncio.to_thread(snapshot, str(tmp_path / "wal"), str(tmp_path / f"copy{number}"))
            with await asyncio.to_thread(ReadOnlyLog.open, tmp_path / f"copy{number}") as copy:
                queues = contents(copy)
            assert [position for position, _ in queues["a"][2]] == list(range(queues["a"][1]))
            assert queues["a"][1] >= before
            assert queues["b"][1] % 3 == 0
            assert queues["b"][1] >= 3 * before
        done.set()
        await producer


async def test_a_snapshot_can_be_opened_and_written(tmp_path: Path, log: MultiRecordLog, directory: Path) -> None:
    """It is a log of its own: writing to it leaves the original alone."""
    for _ in range(20):
        await log.append_record("q", None, bytes(10_000))
    await asyncio.to_thread(snapshot, str(directory), str(tmp_path / "copy"))
    async with MultiRecordLog.open(tmp_path / "copy", segment_bytes=4 * BLOCK_BYTES, create=False) as copy:
        assert await copy.append_record("q", None, b"only here") == 20
        await copy.truncate("q", 15)
    assert (log.first_position("q"), log.next_position("q")) == (0, 20)
    assert await log.append_record("q", None, b"only there") == 20
    assert (await asyncio.to_thread(mrecordlog, "verify", directory)).code == 0


def test_a_copy_shares_no_bytes(tmp_path: Path) -> None:
    """With --copy, damage to the original leaves the snapshot whole."""
    directory = build(tmp_path / "wal", three_queues)
    ran = mrecordlog("snapshot", directory, tmp_path / "copy", "--copy", "--json")
    assert json.loads(ran.out)["linked_bytes"] == 0
    damage.flip_byte(damage.segments(directory)[1], 20_000)
    assert mrecordlog("verify", directory).code == 3
    assert mrecordlog("verify", tmp_path / "copy").code == 0


def test_a_damaged_log_is_not_copied(tmp_path: Path) -> None:
    """A backup of damage would pass for one of data; nothing is left behind."""
    directory = build(tmp_path / "wal", three_queues)
    damage.flip_byte(damage.last_segment(directory), 20_000)
    with pytest.raises(CorruptionError):
        snapshot(str(directory), str(tmp_path / "copy"))
    assert [path.name for path in tmp_path.iterdir()] == ["wal"]


def test_an_existing_target_is_left_alone(tmp_path: Path) -> None:
    """A snapshot never replaces anything."""
    directory = build(tmp_path / "wal", three_queues)
    before = damage.snapshot(directory)
    assert mrecordlog("snapshot", directory, directory).code == 2
    assert damage.snapshot(directory) == before


def test_a_queue_is_deleted(tmp_path: Path) -> None:
    """With all it holds."""
    directory = build(tmp_path / "wal", three_queues)
    ran = mrecordlog("delete", "audit", "--dir", directory)
    assert (ran.code, ran.out) == (0, "audit: deleted\n")
    with ReadOnlyLog.open(directory) as log:
        assert log.list_queues() == ["idle", "orders"]
    assert mrecordlog("delete", "audit", "--dir", directory).code == 1
