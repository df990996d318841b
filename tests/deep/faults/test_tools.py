"""If a command that makes a log from another one fails, the source is unchanged and the new log is whole or absent.

Nothing writes to the source meanwhile. The histories "copied" and "copy drained" cover a log that is written meanwhile.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest

from mrecordlog_async import QueueOptions, RecordLogError
from mrecordlog_async.format.header import HEADER_BYTES, decode_header
from mrecordlog_async.maintenance.repair import write_log
from mrecordlog_async.maintenance.salvage import salvage, salvage_from
from mrecordlog_async.maintenance.snapshot import snapshot
from mrecordlog_async.readonly import ReadOnlyLog
from mrecordlog_async.storage.directory import LogDirectory
from tests.deep.faults.test_damage import several_segments
from tests.faults import sizes
from tests.faults.damage import Intact, on_disk
from tests.faults.disk import Disk, Fault, Plan, Snapshot
from tests.faults.driver import DIRECTORY, SEGMENT_BYTES, UNEVENTFUL, Run, repeatable, without_chance
from tests.faults.explore import Tally, open_twice, run_in
from tests.faults.histories import NEVER, Case
from tests.faults.inject import faults
from tests.faults.judge import State, as_shown, state_in
from tests.faults.states import plans

TARGET = "/data/new"
Work = Callable[[Disk], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Command:
    """What is done to which disk. step: the suite checks one of this many moments and faults."""

    work: Work
    disk: Callable[[], Disk]
    step: int
    is_synced: bool = True  # all of the source is durable when the command begins


async def repair(disk: Disk) -> None:
    """Do what `mrecordlog repair --apply` does."""
    source = LogDirectory.at(DIRECTORY, disk)
    found = salvage_from(source, on_progress=lambda progress: None, keeps_payloads=False)
    assert found.damage
    await write_log(TARGET, source, found, SEGMENT_BYTES)


async def take_snapshot(disk: Disk) -> None:
    """Do what `mrecordlog snapshot` does."""
    made = snapshot(DIRECTORY, TARGET, filesystem=disk)
    assert made.linked_bytes or disk.fault is not None  # a link that fails may be one that is impossible


async def take_copy(disk: Disk) -> None:
    """Do what `mrecordlog snapshot --copy` does."""
    made = snapshot(DIRECTORY, TARGET, link=False, filesystem=disk)
    assert not made.linked_bytes


async def take_snapshot_without_links(disk: Disk) -> None:
    """Do what `mrecordlog snapshot` does on a file system without links."""

    def refuse(old: str, new: str) -> None:
        disk.on_call("link")
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), new)

    with patch.object(disk, "link", refuse):
        made = snapshot(DIRECTORY, TARGET, filesystem=disk)
    assert not made.linked_bytes


def log_disk(*, closed: bool) -> Disk:
    """Return a disk with a log of several segments, all of it durable."""
    return on_disk(dict(Intact.of(Case(several_segments).run(moments=False), closed=closed).files))


async def never_synced(run: Run) -> None:
    """A process that dies before the operating system has written its data to the disk."""
    await several_segments(run)
    await run.kill()


def cached_log() -> Disk:
    """Return a disk with a log whose last bytes are only in the operating system's cache."""
    return Case(never_synced, NEVER).run(moments=False).disk.snapshot().kill()


def damaged_log() -> Disk:
    """Return a disk with a log that has a damaged batch in the middle."""
    intact = Intact.of(Case(several_segments).run(moments=False), closed=True)
    name = sorted(intact.ends)[1]
    content = bytearray(intact.files[name])
    content[intact.ends[name] // 2] ^= 0x40
    return on_disk({**intact.files, name: bytes(content)})


async def with_settings(run: Run) -> None:
    """A log with options, consumers, a rule and a seal, and records after them."""
    await run.open()
    for queue in ("a", "b"):
        await run.create(queue)
    await run.append("a", 300, 200)
    await run.append("b", *[50] * 20)
    await run.append("a", 20_000)
    log = run.log
    assert log is not None
    await log.configure_queue("a", QueueOptions(keep="until_acknowledged"))
    await log.create_consumer("a", "slow", start=1)
    await log.create_consumer("b*", "by rule", start=7)
    async with log.consumer("b", "owned", start=3, owner=UUID(int=5)):
        pass
    await log.configure_queue("b", QueueOptions(max_records=20))
    await log.seal_queue("b")
    await run.append("a", 14_000)


def damaged_log_with_settings() -> Disk:
    """Return a disk with a log that has settings, and a damaged batch before them."""
    intact = Intact.of(Case(with_settings).run(moments=False), closed=True)
    name = min(intact.ends)
    content = bytearray(intact.files[name])
    content[intact.ends[name] // 2] ^= 0x40
    return on_disk({**intact.files, name: bytes(content)})


COMMANDS = {
    "repair": Command(repair, damaged_log, 9),
    "repair with settings": Command(repair, damaged_log_with_settings, 9),
    "snapshot": Command(take_snapshot, lambda: log_disk(closed=False), 1),
    "snapshot of a closed log": Command(take_snapshot, lambda: log_disk(closed=True), 1),
    "snapshot of a cached log": Command(take_snapshot, cached_log, 1, is_synced=False),
    "snapshot --copy": Command(take_copy, lambda: log_disk(closed=False), 3),
    "snapshot --copy of a cached log": Command(take_copy, cached_log, 3, is_synced=False),
    "snapshot without links": Command(take_snapshot_without_links, lambda: log_disk(closed=False), 3),
}


def source(disk: Disk) -> dict[str, bytes]:
    return {name: data for name, data in disk.content(DIRECTORY).items() if name != "LOCK"}


def run(work: Work, disk: Disk) -> BaseException | None:
    """Run a command; return the error that it ended with."""
    with repeatable() as loop, sizes.replaced(sizes.SMALL):
        try:
            run_in(loop, loop.new_process(), work(disk))
        except (OSError, RecordLogError) as error:
            return error
    return None


@pytest.mark.parametrize("name", COMMANDS)
def test_power_cut_leaves_the_source_and_no_half_of_a_log(name: str, tally: Tally) -> None:
    """After a power cut at any call, the source is unchanged, and only a whole new log has the target's name."""
    command = COMMANDS[name]
    disk, step = command.disk(), command.step
    before, moments = source(disk) if command.is_synced else None, list[Snapshot]()

    def note(call: str) -> None:
        if call not in UNEVENTFUL:
            moments.append(disk.snapshot())

    disk.on_call = note
    assert run(command.work, disk) is None
    disk.on_call = lambda call: None
    due = state_in(ReadOnlyLog.open(TARGET, filesystem=disk))
    moments.append(disk.snapshot())
    chance, known = random.Random(1), set[object]()
    for number, moment in [*list(enumerate(moments))[::step], (len(moments), moments[-1])]:
        for plan_name, plan in plans(moment, chance, 1):
            where = f"at call {number} of {len(moments)}, {plan_name}"
            _check(moment.crash(plan), before, due, where, known)
            tally.crash_states += 1
    assert moments[-1].crash(Plan()).exists(TARGET), "the command ended before its log was durable"


@pytest.mark.parametrize("name", COMMANDS)
def test_fault_at_any_call_leaves_the_source_and_no_half_of_a_log(name: str, tally: Tally) -> None:
    """A command that succeeds leaves a whole log; one that fails raises an error. No handle stays open."""
    command = COMMANDS[name]
    begun = command.disk().snapshot()
    disk = begun.kill()
    before = source(disk)
    assert run(command.work, disk) is None
    due = state_in(ReadOnlyLog.open(TARGET, filesystem=disk))
    calls = disk.call_names
    known_cut, known_killed = set[object](), set[object]()
    for fault in list(faults(calls))[:: 5 * command.step]:
        disk = begun.kill()
        disk.fault = fault
        error = run(command.work, disk)
        disk.fault = None
        where = f"{calls[fault.at - 1]} (call {fault.at}) failed {fault.effect}"
        assert not disk.open_handles() and not disk.misuse, where
        assert error is not None or disk.snapshot().crash(Plan()).exists(TARGET), where
        _check(disk.snapshot().crash(Plan()), before if command.is_synced else None, due, where, known_cut)
        _check(disk.snapshot().kill(), before, due, where, known_killed)
        tally.faults += 1


def _check(disk: Disk, before: dict[str, bytes] | None, due: State, where: str, known: set[object]) -> None:
    assert before is None or source(disk) == before, f"{where}: the source has changed"
    if disk.exists(TARGET):
        content = tuple(disk.content(TARGET).items())
        if content not in known:
            with without_chance():
                found = as_shown(open_twice(disk, where, TARGET))
                assert found == due, f"{where}: half of a log has the name of the whole"
            known.add(content)


def test_looking_at_a_log_leaves_no_handle() -> None:
    """No handle stays open, whichever call fails."""
    disk = damaged_log()
    salvage(DIRECTORY, filesystem=disk)
    assert not disk.open_handles()
    for number in range(1, disk.calls + 1, 5):
        disk = damaged_log()
        disk.fault = Fault(number)
        with suppress(OSError, RecordLogError):
            salvage(DIRECTORY, filesystem=disk)
        assert not disk.open_handles(), disk.call_names[number - 1]


def test_damage_at_the_end_of_a_segment_names_the_last_batch() -> None:
    """The next segment shows how many batches there were."""
    intact = Intact.of(Case(several_segments).run(moments=False), closed=True)
    first, second = sorted(intact.ends)[:2]
    content = bytearray(intact.files[first])
    content[intact.ends[first] - 3] ^= 0x40
    disk = on_disk({**intact.files, first: bytes(content)})
    [damage] = salvage(DIRECTORY, filesystem=disk).damage
    due = decode_header(intact.files[second][:HEADER_BYTES]).first_batch - 1
    assert (damage.segment, damage.first_batch, damage.last_batch) == (first, due, due)


def test_fault_is_told(tally: Tally) -> None:
    """A failed sync at the end is reported, and the new log does not get its name."""
    disk = damaged_log()
    disk.fault = Fault(1, calls=frozenset({"sync"}), on=True)
    assert run(repair, disk) is not None
    assert not disk.exists(TARGET)
    tally.faults += 1
