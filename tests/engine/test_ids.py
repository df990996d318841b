"""Ids of queues and epochs of holders: none is given twice, not even by copies of a log."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from mrecordlog_async import ConsumerFencedError, Limits, LogFullError, MultiRecordLog, PersistPolicy
from mrecordlog_async.maintenance.snapshot import snapshot
from mrecordlog_async.maintenance.verify import verify
from tests.docs.blocks import ROOT

OLDER = "58623fa"
"""The commit of 0.2.0."""

READ = """
import asyncio, json, sys
from mrecordlog_async import MultiRecordLog

async def main():
    async with MultiRecordLog.open(sys.argv[1]) as log:
        await log.create_queue("of the older version")
        print(json.dumps({queue: [one.id, one.next_position] for queue, one in log.summary().items()}))

asyncio.run(main())
"""


def copy_of(directory: Path, name: str = "copy") -> Path:
    return Path(shutil.copytree(directory, directory.parent / name))


async def draw(directory: Path) -> set[int]:
    """Open the log, create two queues and attach twice; return the ids and epochs that were drawn."""
    async with MultiRecordLog.open(directory) as log:
        await log.create_queue("new")
        first = await log.inspection.attach_consumer("q", "c", create=True)
        second = await log.inspection.attach_consumer("q", "c", create=True)
        await log.create_queue("newer")
        drawn = {log.queue_summary("new").id, log.queue_summary("newer").id, first.epoch, second.epoch}
        await log.delete_queue("new")
        await log.delete_queue("newer")
        return drawn


async def test_copies_of_a_log_draw_different_ids(directory: Path) -> None:
    """The log, a copy of its files and a snapshot of it while it was open each go on with separate ids."""
    async with MultiRecordLog.open(directory, queues=["q"]) as log:
        await log.append("q", b"a")
        live = directory.parent / "live"
        await asyncio.to_thread(snapshot, str(directory), str(live))
    drawn = [await draw(each) for each in (copy_of(directory), directory, live)]
    assert len(set.union(*drawn)) == sum(map(len, drawn)) == 12


async def test_a_log_that_was_restored_draws_nothing_that_it_drew_before(directory: Path) -> None:
    """Whichever of its openings came after the copy was made."""
    async with MultiRecordLog.open(directory, queues=["q"]):
        pass
    copy, drawn = copy_of(directory), set[int]()
    for number in range(4):
        more = await draw(directory)
        assert not drawn & more
        drawn |= more
        if number % 2:
            shutil.rmtree(directory)
            shutil.copytree(copy, directory)


@pytest.mark.parametrize("policy", [PersistPolicy.always(), PersistPolicy.never()], ids=["always", "never"])
async def test_the_holder_of_a_log_that_was_replaced_is_fenced(directory: Path, policy: PersistPolicy) -> None:
    """Its epoch is not that of the holder which attaches after the restore, so it acknowledges nothing unseen."""
    async with MultiRecordLog.open(directory, persist_policy=policy, queues=["q"]) as log:
        await log.append_records("q", None, [b"0", b"1", b"2"])
        await log.create_consumer("q", "c")
    copy = copy_of(directory)
    async with MultiRecordLog.open(directory, persist_policy=policy) as log:
        old = await log.inspection.attach_consumer("q", "c")
    shutil.rmtree(directory)
    copy.rename(directory)
    async with MultiRecordLog.open(directory, persist_policy=policy) as log:
        new = await log.inspection.attach_consumer("q", "c")
        with pytest.raises(ConsumerFencedError):
            await log.inspection.acknowledge("q", "c", 2, queue_id=old.queue_id, epoch=old.epoch)
        assert await log.inspection.acknowledge("q", "c", 0, queue_id=new.queue_id, epoch=new.epoch) == 1


async def roll(log: MultiRecordLog) -> None:
    """Append until the log has begun another segment; nothing is drawn."""
    rolls = log.stats().rolls
    while log.stats().rolls == rolls:
        await log.append("q", bytes(5_000))


async def test_a_log_that_rolls_before_it_draws_opens_again(directory: Path) -> None:
    """The step is in the record that draws: the table of the next segment follows from the records before it."""
    for draws in (False, False, True, False):
        async with MultiRecordLog.open(directory, segment_bytes=65_536, queues=["q"]) as log:
            await roll(log)
            if draws:
                await log.create_queue("drawn between rolls")
            await roll(log)
        assert (await asyncio.to_thread(verify, directory)).ok


async def test_an_opening_moves_up_once_and_one_that_draws_nothing_does_not(directory: Path) -> None:
    """Ids after the first are consecutive, even if a create was refused between them."""
    async with MultiRecordLog.open(directory, queues=["q"], limits=Limits(queues=2)) as log:
        first = log.queue_summary("q").id
        await log.create_queue("r")
        with pytest.raises(LogFullError):
            await log.create_queue("s")
        await log.delete_queue("r")
        await log.create_queue("s")
        assert log.queue_summary("s").id == first + 2
    for _ in range(3):
        async with MultiRecordLog.open(directory, queues=["q"]) as log:
            await log.append("q", b"")
            assert log._engine.queues.next_queue_id == first + 3


def older_version(directory: Path) -> Path:
    """Put the package of 0.2.0 into *directory*; skip the test where its commit is not at hand."""
    try:
        archive = subprocess.run(
            ["git", "archive", "--format=tar", OLDER, "mrecordlog_async"], cwd=ROOT, capture_output=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"needs git, and a clone with the commit {OLDER}")
    with tarfile.open(fileobj=BytesIO(archive)) as packed:
        packed.extractall(directory, filter="data")
    return directory


def test_an_older_version_opens_a_log_whose_ids_have_gaps(directory: Path, tmp_path: Path) -> None:
    """0.2.0 goes on with the ids that the records name, over a roll and after an opening that drew nothing."""
    package, drawn = older_version(tmp_path / "older"), {}

    async def write() -> None:
        for queue in ("a", "b"):
            async with MultiRecordLog.open(directory, segment_bytes=65_536, queues=["q", queue]) as log:
                await roll(log)
                drawn.update({name: [one.id, one.next_position] for name, one in log.summary().items()})
        async with MultiRecordLog.open(directory, segment_bytes=65_536) as log:
            await roll(log)
            drawn["q"][1] = log.next_position("q")

    asyncio.run(write())
    command = [sys.executable, "-c", READ, str(directory)]
    result = subprocess.run(command, cwd=package, capture_output=True, text=True, check=True, env={})
    found = json.loads(result.stdout)
    made = found.pop("of the older version")
    assert found == drawn
    assert made[0] == max(queue_id for queue_id, _ in drawn.values()) + 1
    assert drawn["b"][0] > drawn["a"][0] + 1
    asyncio.run(write())
