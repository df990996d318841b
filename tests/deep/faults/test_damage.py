"""Damage to acknowledged bytes is refused with its place, a torn tail is cut, and a wrong record is never shown."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

import pytest

from mrecordlog_async import CorruptionError
from mrecordlog_async.readonly import ReadOnlyLog
from mrecordlog_async.support.clock import STAMP_NS_MIN
from tests.faults.damage import Damaged, Due, Files, Intact, damages, on_disk
from tests.faults.disk import Disk, Fault
from tests.faults.driver import DIRECTORY, Run
from tests.faults.explore import Tally, exploring, opened_on
from tests.faults.histories import NEVER, Case
from tests.faults.judge import State, as_shown, state_in


async def several_segments(run: Run) -> None:
    """Three live segments, all kinds of records, gaps, and batches of different lengths."""
    await run.open()
    await run.create("a")
    await run.create("b")
    await run.append("a", 20_000, 300)
    await run.append("b", *[50] * 20)
    await run.append("a", 15_000, position=10)
    await run.append("a", 700)
    await run.truncate("b", 3)
    await run.append("a", 9_000)
    await run.append("a", 21_000)
    await run.create("c")
    await run.append("b", 33_000)
    for size in (10, 400, 0, 9_000):
        await run.append("b", size)
    await run.delete("c")
    await asyncio.gather(run.begin_append("a", 700), run.begin_append("b", 700, 20), run.begin_append("a", 5))
    await run.truncate("a", 0)
    await run.append("a", 14_000)
    await run.append("a", 4_000)


async def with_idle_marks(run: Run) -> None:
    """Batches with idle times between them. After each, an empty batch records that it is durable."""
    await run.open()
    await run.create("a")
    for size in (300, 20, 5_000):
        await run.append("a", size)
        await run.idle()
    await run.append("a", 40)


LOGS = {
    "closed": (Case(several_segments), True),
    "not closed": (Case(several_segments), False),
    "idle marks": (Case(with_idle_marks), False),
    "never synced by itself": (Case(several_segments, NEVER), False),
}


@pytest.mark.parametrize("name", LOGS)
def test_damage_at_every_frame_is_refused_or_cut_never_misread(name: str, tally: Tally) -> None:
    """Damage to acknowledged data is refused, with nothing changed; a torn tail is cut exactly after the last batch."""
    case, closed = LOGS[name]
    with exploring():
        intact = Intact.of(case.run(), closed=closed)
        assert len(intact.batches) > 4
        verdicts = set()
        for damaged in damages(intact):
            due = intact.verdict(damaged)
            verdicts.add(due is None)
            _check(damaged, due)
            tally.damaged_logs += 1
    assert verdicts == {True, False}


def _check(damaged: Damaged, due: Due | None) -> None:
    disk = on_disk(damaged.files)
    before = _content(disk)
    refused = due is None or due.may_refuse
    try:
        seen = state_in(ReadOnlyLog.open(DIRECTORY, filesystem=disk))
    except CorruptionError as error:
        assert refused, f"{damaged.what}: the reader refuses what nobody was promised: {error}"
        assert error.segment.startswith("wal-") or error.segment == "CLOSED"
        assert error.reason
    else:
        assert due is not None, f"{damaged.what}: the reader shows less than was promised"
        assert due.state is not None and seen == as_shown(due.state), f"{damaged.what}: the reader sees {seen}"
    assert _content(disk) == before
    try:
        opened = opened_on(disk)
    except CorruptionError as error:
        assert refused, f"{damaged.what}: refused, but nobody was promised it: {error}"
        assert _content(disk) == before, f"{damaged.what}: refused, and yet something was changed"
    else:
        assert due is not None, f"{damaged.what}: opened with less than was promised"
        assert opened.state() == due.state, f"{damaged.what}: opened with a wrong state"
        opened.close()
    assert not disk.open_handles() and not disk.misuse


def _content(disk: Disk) -> dict[str, bytes]:
    return {name: data for name, data in disk.content(DIRECTORY).items() if name != "LOCK"}


def _refused(files: Files) -> CorruptionError:
    disk = on_disk(files)
    before = _content(disk)
    with pytest.raises(CorruptionError) as caught:
        opened_on(disk)
    with pytest.raises(CorruptionError):
        ReadOnlyLog.open(DIRECTORY, filesystem=disk)
    assert _content(disk) == before and not disk.open_handles()
    return caught.value


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "not closed"])
def test_missing_swapped_and_renamed_files_are_refused(closed: bool, tally: Tally) -> None:
    """Opening checks the numbers, the log id and the order of the segments."""
    with exploring():
        intact = Intact.of(Case(several_segments).run(moments=False), closed=closed)
        names = sorted(intact.ends)
        files: Files = dict(intact.files)
        damaged: dict[str, Files] = {}
        for name in names[:-1]:
            damaged[f"{name} removed"] = {**files, name: None}
            damaged[f"{name} is the last one"] = {**files, name: files[names[-1]]}
        damaged["swapped"] = {**files, names[0]: files[names[1]], names[1]: files[names[0]]}
        later = f"wal-{len(names) + 3:020}"
        damaged["last renamed to a later number"] = {**files, names[-1]: None, later: files[names[-1]]}
        damaged["a copy under the next number"] = {**files, f"wal-{len(names):020}": files[names[-1]]}
        damaged["an empty next segment"] = {**files, f"wal-{len(names):020}": b""}
        damaged["another log's segment"] = {**files, names[0]: _other_log()[names[0]]}
        if closed:
            damaged["last removed"] = {**files, names[-1]: None}
            damaged["all removed"] = {"CLOSED": files["CLOSED"]}
        for what, content in damaged.items():
            tally.damaged_logs += 1
            error = _refused(content)
            assert error.reason, what


def _other_log() -> Files:
    with patch("tests.faults.inside.LOG_ID", b"another log's id"):
        return dict(Intact.of(Case(several_segments).run(moments=False), closed=False).files)


def test_last_segment_removed_from_a_log_that_was_not_closed_is_the_known_limit() -> None:
    """If a log was not closed, a single copy cannot show that its end is missing. Everything before it is intact."""
    with exploring():
        run = Case(several_segments).run(moments=False)
        intact = Intact.of(run, closed=False)
        seen = _seen({**intact.files, intact.last: None})
        assert seen in map(as_shown, run.model.states()[0])


def test_zeros_from_some_batch_to_the_end_look_like_a_torn_tail() -> None:
    """The same limit applies within a segment. If the log was closed, it is refused."""
    with exploring():
        for closed in (False, True):
            intact = Intact.of(Case(several_segments).run(moments=False), closed=closed)
            start = intact.batches[-3].end
            content = intact.files[intact.last]
            files: Files = {**intact.files, intact.last: content[:start] + bytes(len(content) - start)}
            if closed:
                _refused(files)
            else:
                due = intact.states[-3]
                assert due is not None and _seen(files) == as_shown(due)


def test_damage_is_seen_when_the_clock_stood_at_its_beginning() -> None:
    """A COMMIT may end in zero bytes, as its time does on a machine without a clock, and still proves other batches."""
    with patch("tests.faults.inside.TIME_NS", STAMP_NS_MIN), exploring():
        intact = Intact.of(Case(several_segments).run(moments=False), closed=False)
        for damaged in damages(intact):
            _check(damaged, intact.verdict(damaged))


def test_read_errors_are_not_taken_for_damage() -> None:
    """EIO while reading is not damaged content: the OSError is raised and nothing is changed."""
    with exploring():
        intact = Intact.of(Case(several_segments).run(moments=False), closed=False)
        for number in range(1, 40):
            disk = on_disk(dict(intact.files))
            before = _content(disk)
            disk.fault = Fault(number, calls=frozenset({"read"}), on=True)
            try:
                opened_on(disk).close()
            except OSError:
                assert _content(disk) == before
            assert not disk.open_handles()


def _seen(files: Files) -> State:
    return state_in(ReadOnlyLog.open(DIRECTORY, filesystem=on_disk(files)))
