"""The writer may continue between any two calls of a reader. Each reader sees whole, acknowledged batches."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from unittest.mock import patch

import pytest

from mrecordlog_async.maintenance.snapshot import snapshot
from mrecordlog_async.readonly import ReadOnlyLog
from tests.faults.damage import on_disk
from tests.faults.driver import COPY, DIRECTORY, Run, without_chance
from tests.faults.explore import Tally
from tests.faults.histories import CASES, Case, recycles_long
from tests.faults.judge import State, Verdict, Violation, brief, state_in
from tests.faults.moving import MovingDisk

HISTORIES = [
    "concurrent",
    "rolls",
    "recreated",
    "idle roll",
    "never, rolls",
    "busy",
    "never, busy",
    "large",
    "reopened",
    "recycles",
]
ROUNDS = 60
PACES = [0.02, 0.2, 0.5, 0.9]


class Watcher:
    """A history that passes while a reader reads, and what the reader may see."""

    def __init__(self, run: Run, seed: int) -> None:
        self.moments = [(number, moment) for number, life in enumerate(run.lives) if number for moment in life.moments]
        self.chance = random.Random(seed)
        self.disk = MovingDisk([moment.snapshot for _, moment in self.moments], self.chance, PACES[seed % len(PACES)])
        self.disk.at = self.chance.randrange(len(self.moments))
        self._verdicts = [Verdict(life.model) for life in run.lives]

    def check(self, state: State, since: int, where: str) -> None:
        """Raise Violation unless the log was in *state* at some moment between *since* and now."""
        (first, then), (last, now) = self.moments[since], self.moments[self.disk.at]
        for number in range(first, last + 1):
            least = then.killed.at_least if number == first else 0
            most = now.bounds.at_most if number == last else 1 << 30
            if any(least <= count <= most for count in self._verdicts[number].counts(state)):
                return
        raise Violation(f"{where}, moments {since} to {self.disk.at}: {then.killed} was due, not {brief(state)}")

    def sees_all(self) -> bool:
        return self.disk.at == len(self.moments) - 1


def watchers(name: str, *, recycle: bool = True) -> Iterator[Watcher]:
    run = replace(CASES[name], recycle=recycle).run()
    for seed in range(ROUNDS):
        yield Watcher(run, seed)


@pytest.mark.parametrize("name", HISTORIES)
def test_open_and_refresh_beside_a_writer(name: str, tally: Tally) -> None:
    """What was acknowledged before the call is visible after it; False means that nothing is new."""
    with without_chance():
        for watcher in watchers(name):
            _follow(watcher)
            tally.crash_states += 1


def _follow(watcher: Watcher) -> None:
    disk = watcher.disk
    since = disk.at
    reader = ReadOnlyLog.open(DIRECTORY, filesystem=disk)
    state = state_in(reader)
    watcher.check(state, since, "opened")
    for number in range(40):
        since, before, last_look = disk.at, state, watcher.sees_all()
        changed = reader.refresh()
        state = state_in(reader)
        watcher.check(state, since, f"refreshed for the {number + 1}th time, {changed}")
        if not changed and state != before:
            raise Violation(f"refresh says that nothing is new, and shows {brief(state)} after {brief(before)}")
        assert not disk.open_handles()
        if last_look:
            return
        disk.at = min(disk.at + watcher.chance.choice([0, 0, 1, 3, 20]), len(watcher.moments) - 1)


@pytest.mark.parametrize("name", HISTORIES)
@pytest.mark.parametrize("link", [True, False], ids=["link", "copy"])
def test_snapshot_beside_a_writer(name: str, link: bool, tally: Tally) -> None:
    """A snapshot is one state that the log had while it was taken, even if segments came and went meanwhile."""
    with without_chance():
        for watcher in watchers(name, recycle=False):  # a writer that recycles would see the snapshot's links
            disk = watcher.disk
            since = disk.at
            snapshot(DIRECTORY, COPY, link=link, filesystem=disk)
            watcher.check(_copy(watcher), since, "snapshot")
            assert not disk.open_handles()
            disk.at = len(watcher.moments) - 1
            watcher.check(_copy(watcher), since, "snapshot, later")
            tally.crash_states += 1


def test_reader_whose_last_segment_becomes_another_one_lists_again(tally: Tally) -> None:
    """Between two reads the writer rolls, and uses the segment again: what was read then is not taken for the log."""
    case = Case(recycles_long, small=True)
    watcher = Watcher(case.run(), 0)
    last = len(watcher.moments) - 1
    with without_chance(), case.sizes():
        for since in range(30, last - 150, 17):
            for call in range(8, 24):
                for now in {min(since + later, last) for later in (150, 260, 330)}:
                    disk = watcher.disk = JumpingDisk(watcher.disk, since, call, now)
                    state = state_in(ReadOnlyLog.open(DIRECTORY, filesystem=disk))
                    watcher.check(state, since, f"opened, with a jump at call {call}")
                    tally.crash_states += 1


class JumpingDisk(MovingDisk):
    """The disk at one moment, and from a call of the reader on at another."""

    def __init__(self, disk: MovingDisk, at: int, call: int, then: int) -> None:
        super().__init__(disk.snapshots, random.Random(0), 0.0)
        self.at, self._calls_left, self._then = at, call, then

    def let_pass(self) -> None:
        self._calls_left -= 1
        if not self._calls_left:
            self.at = self._then


def _copy(watcher: Watcher) -> State:
    return state_in(ReadOnlyLog.open(COPY, filesystem=watcher.disk))


def test_another_log_takes_the_place_of_one_whose_end_says_nothing() -> None:
    """It begins with the same table: only the header tells the two apart, and the other one is shown whole."""

    async def no_batch(run: Run) -> None:
        await run.open()

    async def two_batches(run: Run) -> None:
        await run.open()
        await run.create("a")
        await run.append("a", 40)

    runs = [Case(no_batch).run(moments=False)]
    with patch("tests.faults.inside.LOG_ID", b"another log's id"):
        runs.append(Case(two_batches).run(moments=False))
    one, other = ({n: data for n, data in run.disk.content(DIRECTORY).items() if n != "LOCK"} for run in runs)
    disk = on_disk(dict(one))
    reader = ReadOnlyLog.open(DIRECTORY, filesystem=disk)
    for name, data in other.items():
        disk.put(f"{DIRECTORY}/{name}", data)
    reader.refresh()
    assert state_in(reader) == state_in(ReadOnlyLog.open(DIRECTORY, filesystem=disk))
