"""Commands that make a log out of another one: whatever fails, the source stays, and the new one is whole or not there.

`snapshot` has its own histories, in which the log goes on meanwhile ("copied" and "copy drained").
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from mrecordlog_async import RecordLogError
from mrecordlog_async.cli.commands.import_quickwit import build
from mrecordlog_async.format.header import HEADER_BYTES, decode_header
from mrecordlog_async.maintenance.rebuild import QueueCopy
from mrecordlog_async.maintenance.repair import write_log
from mrecordlog_async.maintenance.salvage import salvage
from mrecordlog_async.maintenance.usage import usage
from mrecordlog_async.model import Run as Records
from mrecordlog_async.readonly import ReadOnlyLog

from .damage import Intact, on_disk
from .disk import Disk, Fault, Plan, Snapshot
from .driver import DIRECTORY, SEGMENT_BYTES, UNEVENTFUL, repeatable, without_chance
from .explore import Tally, open_twice
from .histories import Case, small_sizes
from .inject import faults
from .judge import State, state_of
from .states import plans
from .test_damage import several_segments

TARGET = "/data/new"
Work = Callable[[Disk], Coroutine[Any, Any, None]]


async def repair(disk: Disk) -> None:
    """Do what `mrecordlog repair --apply` does."""
    found = salvage(DIRECTORY, on_progress=lambda progress: None, filesystem=disk)
    assert found.damage
    await write_log(TARGET, found.queues, SEGMENT_BYTES, disk)


async def import_queues(disk: Disk) -> None:
    """Do what `mrecordlog import-quickwit` does once it has read its source."""
    copies = [
        QueueCopy("first", 3, 9, [Records.of(3, [b"x" * 3_000] * 2), Records.of(5, [b"y" * 9_000] * 4)]),
        QueueCopy("empty", 7, 7, []),
        QueueCopy("third", 0, 2, [Records.of(0, [b"z" * 40_000, b""])]),
    ]
    await build(TARGET, copies, SEGMENT_BYTES, disk)


COMMANDS = {"repair": (repair, 9), "import": (import_queues, 1)}
"""Each with how many moments and faults share one that the suite looks at."""


def damaged_log() -> Disk:
    """Return a disk with a log of which a batch in the middle is damaged."""
    intact = Intact.of(Case(several_segments).run(moments=False), closed=True)
    name = sorted(intact.ends)[1]
    content = bytearray(intact.files[name])
    content[intact.ends[name] // 2] ^= 0x40
    return on_disk({**intact.files, name: bytes(content)})


def source(disk: Disk) -> dict[str, bytes]:
    return {name: data for name, data in disk.content(DIRECTORY).items() if name != "LOCK"}


def run(work: Work, disk: Disk) -> BaseException | None:
    """Run a command; return what it ended with."""
    with repeatable() as loop, small_sizes():
        try:
            loop.run_until_complete(work(disk))
        except (OSError, RecordLogError) as error:
            return error
    return None


@pytest.mark.parametrize("name", COMMANDS)
def test_power_cut_leaves_the_source_and_no_half_of_a_log(name: str, tally: Tally) -> None:
    """At every call: the source is as it was, and the new log is whole under its name or has not got it yet."""
    (work, step), disk = COMMANDS[name], damaged_log()
    before, moments = source(disk), list[Snapshot]()

    def note(call: str) -> None:
        if call not in UNEVENTFUL:
            moments.append(disk.snapshot())

    disk.on_call = note
    assert run(work, disk) is None
    disk.on_call = lambda call: None
    due = state_of(ReadOnlyLog.open(TARGET, filesystem=disk).recovered.queues)
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
    """A command that ended well left a whole log, and one that did not says why; no handle stays open."""
    (work, step), disk = COMMANDS[name], damaged_log()
    assert run(work, disk) is None
    due = state_of(ReadOnlyLog.open(TARGET, filesystem=disk).recovered.queues)
    calls = disk.call_names
    for fault in list(faults(calls))[:: 5 * step]:
        disk = damaged_log()
        before, disk.fault = source(disk), fault
        error = run(work, disk)
        disk.fault = None
        where = f"{calls[fault.at - 1]} (call {fault.at}) failed {fault.effect}"
        assert not disk.open_handles() and not disk.misuse, where
        assert error is not None or disk.snapshot().crash(Plan()).exists(TARGET), where
        _check(disk.snapshot().crash(Plan()), before, due, where, set())
        _check(disk.snapshot().kill(), before, due, where, set())
        tally.faults += 1


def _check(disk: Disk, before: dict[str, bytes], due: State, where: str, known: set[object]) -> None:
    assert source(disk) == before, f"{where}: the source has changed"
    if disk.exists(TARGET):
        content = tuple(disk.content(TARGET).items())
        if content not in known:
            with without_chance():
                assert open_twice(disk, where, TARGET) == due, f"{where}: half of a log has the name of the whole"
            known.add(content)


@pytest.mark.parametrize("look", [salvage, usage], ids=["salvage", "usage"])
def test_looking_at_a_log_leaves_no_handle(look: Callable[..., object]) -> None:
    """Whatever call fails on the way."""
    disk = damaged_log()
    look(DIRECTORY, filesystem=disk)
    assert not disk.open_handles()
    for number in range(1, disk.calls + 1, 5):
        disk = damaged_log()
        disk.fault = Fault(number)
        with suppress(OSError, RecordLogError):
            look(DIRECTORY, filesystem=disk)
        assert not disk.open_handles(), disk.call_names[number - 1]


def test_damage_at_the_end_of_a_segment_names_the_last_batch() -> None:
    """The segment behind it says how many batches there were."""
    intact = Intact.of(Case(several_segments).run(moments=False), closed=True)
    first, second = sorted(intact.ends)[:2]
    content = bytearray(intact.files[first])
    content[intact.ends[first] - 3] ^= 0x40
    disk = on_disk({**intact.files, first: bytes(content)})
    [damage] = salvage(DIRECTORY, filesystem=disk).damage
    due = decode_header(intact.files[second][:HEADER_BYTES]).first_batch - 1
    assert (damage.segment, damage.first_batch, damage.last_batch) == (first, due, due)


def test_fault_is_told(tally: Tally) -> None:
    """A failed sync at the end is not passed over: the new log does not get its name."""
    disk = damaged_log()
    disk.fault = Fault(1, calls=frozenset({"sync"}), on=True)
    assert run(import_queues, disk) is not None
    assert not disk.exists(TARGET)
    tally.faults += 1
