"""Opens the log in every crash state of a run and judges what it finds. Counts what it did, in `Tally`.

In every state: the log opens, twice with the same result; what was promised is there, what was not is whole or
absent; files that should be gone are gone; no handle is left. In some of them also: recovery is interrupted at each of
its calls; a dead process's successor shows something and then the power fails; records of the same sizes are appended
and the power fails again.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from mrecordlog_async.engine.batch import PlannedRun
from mrecordlog_async.engine.opening import OpenedLog, open_log
from mrecordlog_async.engine.orders import Order
from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.readonly import ReadOnlyLog
from mrecordlog_async.storage.lock import LOCK_NAME
from mrecordlog_async.storage.segment import list_segments

from .disk import Disk, Plan, Snapshot
from .driver import DIRECTORY, SEGMENT_BYTES, Run, without_chance
from .judge import Bounds, State, Verdict, Violation, state_of
from .states import few_plans, plans


@dataclass(slots=True)
class Tally:
    """What was tried."""

    crash_states: int = 0
    nested_states: int = 0
    faults: int = 0
    damaged_logs: int = 0
    seeded_bugs: int = 0
    fuzzed: int = 0

    def line(self) -> str:
        """Sum up in one line."""
        return (
            f"{self.crash_states} crash states and {self.nested_states} nested ones explored, {self.faults} faults "
            f"injected, {self.damaged_logs} damaged logs opened, {self.seeded_bugs} seeded bugs caught, "
            f"{self.fuzzed} hostile inputs parsed"
        )

    def add(self, other: Tally) -> None:
        """Add up."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


def recover(disk: Disk, where: str) -> OpenedLog:
    """Open the log on *disk*; Violation if it does not open, whatever the reason."""
    try:
        return open_log(disk, DIRECTORY, create=True, segment_bytes=SEGMENT_BYTES, disk_bytes_limit=1 << 40)
    except (RecordLogError, OSError) as error:
        raise Violation(f"{where}: the log does not open: {type(error).__name__}: {error}") from error


@dataclass(slots=True)
class Explorer:
    """Explores the moments of runs. deep_every: how many states share one deep look (0: none gets one)."""

    seed: int = 0
    subsets: int = 4
    deep_every: int = 25
    tally: Tally = field(default_factory=Tally)
    _seen: dict[int, State] = field(default_factory=dict)

    def explore(self, run: Run, every: int = 1) -> None:
        """Judge every crash state of every *every*-th moment of *run*."""
        with without_chance():
            self._explore(run, every)

    def _explore(self, run: Run, every: int) -> None:
        chance = random.Random(self.seed)
        for life_number, life in enumerate(run.lives):
            verdict = Verdict(life.model)
            moments = life.moments
            for index, moment in enumerate(moments):
                if index % every:
                    continue
                place = f"life {life_number}, before call {moment.number} ({moment.call})"
                for name, plan in plans(moment.snapshot, chance, self.subsets):
                    self._judge(moment.snapshot, plan, verdict, moment.bounds, f"{place}, {name}", chance)
                if self.deep_every and (index % 5 == 0 or moment.call == "sync"):
                    self._kill_read_cut(moment.snapshot, verdict, moment.bounds, place)

    def _judge(
        self, snapshot: Snapshot, plan: Plan, verdict: Verdict, bounds: Bounds, where: str, chance: random.Random
    ) -> None:
        disk = snapshot.crash(plan)
        key = _fingerprint(disk)
        state = self._seen.get(key)
        if state is None:
            self.tally.crash_states += 1
            state = self._seen[key] = open_twice(disk, where)
            if self.deep_every and self.tally.crash_states % self.deep_every == 0:
                self._interrupt_recovery(snapshot.crash(plan), state, where, chance)
                self._append_again(snapshot.crash(plan), state, where, chance)
        verdict.check(state, bounds, where)

    def _interrupt_recovery(self, disk: Disk, state: State, where: str, chance: random.Random) -> None:
        """Cut the power at every call of a recovery: the next one finds the same."""
        moments: list[Snapshot] = []
        disk.on_call = lambda call: moments.append(disk.snapshot())
        recover(disk, where).release()
        for index, moment in enumerate(_distinct(moments)):
            for name, plan in few_plans(moment, chance):
                self._same(moment.crash(plan), state, f"{where}; recovery cut at its step {index}, {name}")

    def _kill_read_cut(self, snapshot: Snapshot, verdict: Verdict, bounds: Bounds, where: str) -> None:
        """Let the process die, the next one show what it finds, and the power fail: what was seen stays."""
        for reader in ("writer", "reader"):
            disk = snapshot.kill()
            place = f"{where}; killed, seen by the next {reader}, then power cut"
            if reader == "writer":
                opened = recover(disk, place)
                seen = state_of(opened.queues)
            else:
                try:
                    seen = state_of(ReadOnlyLog.open(DIRECTORY, filesystem=disk).contents.queues)
                except FileNotFoundError:
                    continue
            verdict.check(seen, bounds, place)
            if not seen.queues:
                continue
            self.tally.nested_states += 1
            self._same(disk.snapshot().crash(Plan()), seen, place)

    def _append_again(self, disk: Disk, state: State, where: str, chance: random.Random) -> None:
        """Append after the crash, with sizes like those that were lost, and crash again: no stale byte returns."""
        opened = recover(disk, where)
        if not state.queues:
            opened.release()
            return
        moments: list[Snapshot] = []
        disk.on_call = lambda call: moments.append(disk.snapshot())
        allowed = [state]
        for size in (40, 700):
            _append(opened, state.queues[0].name, b"again" * (size // 5))
            allowed.append(state_of(opened.queues))
        moments.append(disk.snapshot())
        for index, moment in enumerate(_distinct(moments)):
            for name, plan in few_plans(moment, chance):
                place = f"{where}; appended again, cut at step {index}, {name}"
                again = moment.crash(plan)
                self.tally.nested_states += 1
                found = open_twice(again, place)
                if found not in allowed:
                    raise Violation(f"{place}: something else returned: {found}")
        opened.release()

    def _same(self, disk: Disk, state: State, where: str) -> None:
        self.tally.nested_states += 1
        if (found := open_twice(disk, where)) != state:
            raise Violation(f"{where}: the state changed from {state} to {found}")


def open_twice(disk: Disk, where: str) -> State:
    """Open, look, let go; read it without the lock; open again. All three see the same, and nothing is left over."""
    opened = recover(disk, where)
    state = state_of(opened.queues)
    _check_files(disk, opened, where)
    opened.release()
    reader = state_of(ReadOnlyLog.open(DIRECTORY, filesystem=disk).contents.queues)
    again = recover(disk, where)
    if not state == reader == state_of(again.queues):
        raise Violation(f"{where}: opened again it is another log")
    if not again.report.clean:
        raise Violation(f"{where}: the torn tail that was cut is still there")
    again.release()
    if disk.open_handles() or disk.misuse:
        raise Violation(f"{where}: {disk.open_handles()} handles left open; {disk.misuse}")
    return state


def _check_files(disk: Disk, opened: OpenedLog, where: str) -> None:
    names = set(disk.content(DIRECTORY))
    last, spare = opened.journal.at.segment, f"wal-{opened.journal.at.segment + 1:020}.tmp"
    oldest = min([number for number, _ in opened.journal.older], default=last)
    due = {f"wal-{number:020}" for number in range(oldest, last + 1)} | {LOCK_NAME, spare}
    if names != due or list_segments(list(names))[-1] != last:
        raise Violation(f"{where}: files {sorted(names)}, due were {sorted(due)}")


def _append(opened: OpenedLog, name: str, payload: bytes) -> None:
    queue = opened.queues.get(name)
    assert queue is not None
    order = Order([PlannedRun(queue.id, queue.next, [payload])], opened.queues.pins.oldest(), True, True)
    receipt = opened.journal.commit(order)
    for record in receipt.records:
        opened.queues.apply(receipt.segment, record)


def _distinct(moments: list[Snapshot]) -> list[Snapshot]:
    return [moment for index, moment in enumerate(moments) if not index or moment != moments[index - 1]]


def _fingerprint(disk: Disk) -> int:
    snapshot = disk.snapshot()
    return hash(
        (
            tuple((number, state.durable) for number, state in snapshot.files.items()),
            tuple((number, tuple(state.durable.items())) for number, state in snapshot.directories.items()),
        )
    )
