"""Opens the log in every crash state of a run and checks the result. Counts what it did, in `Tally`.

In every state the log must open, twice with the same result. Everything promised must exist, everything else must be
whole or absent. Files that are no longer needed must be deleted, and no handle may be left open.

In some states more is tried: recovery is interrupted at each of its calls; the successor of a dead process shows what
it reads before the power fails; or the successor writes, in one of several ways, and the power fails at any of its
calls. A copy made by `snapshot` is judged like the log. Each of the two is emptied, and the other must not change.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

from mrecordlog_async.engine.commit.batch import CommitRequest
from mrecordlog_async.engine.commit.open import OpenedLog, OpenOptions, open_log
from mrecordlog_async.engine.intake.commands import Reserve
from mrecordlog_async.engine.planning.draft import PlannedRun
from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.format.controls import (
    ConsumerDelete,
    ConsumerRule,
    ConsumerState,
    Create,
    Delete,
    Opened,
    SetConsumer,
    Truncate,
)
from mrecordlog_async.format.record import MANY_RECORDS_MAX, LogRecord, Many
from mrecordlog_async.format.table import Table
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.readonly import ReadOnlyLog
from mrecordlog_async.recovery.beyond_memory import MemoryBounds
from mrecordlog_async.storage.directory import LogDirectory
from mrecordlog_async.storage.gathered_files import GATHERED_SUFFIX
from mrecordlog_async.storage.lock_file import LOCK_NAME
from mrecordlog_async.storage.segment import list_segments
from tests.format.every_kind import EVERY_VALUE

from .disk import Disk, Plan, Snapshot
from .driver import COPY, DIRECTORY, SEGMENT_BYTES, Moment, Run, without_chance
from .judge import State, Verdict, Violation, state_of
from .states import few_plans, plans, some_plans


@dataclass(slots=True)
class Tally:
    """Counts of what was tried."""

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


TALLY = Tally()
"""What the tests of this process tried."""

OpenedAgain = dict[tuple[str, int], tuple[State, Table]]
"""What a log was found to hold when it was opened again, by its directory and the fingerprint of the disk."""


@dataclass(slots=True)
class Known:
    """What was found on disks that were opened before with the same sizes, by directory and the bytes on them."""

    cut: dict[tuple[str, int], State] = field(default_factory=dict)  # after a power cut
    again: OpenedAgain = field(default_factory=dict)
    states: dict[State, State] = field(default_factory=dict)  # most disks hold what others do: each is kept once


class Family:
    """What is known of the disks of histories that are tried one after another, and leave many of the same bytes."""

    def __init__(self) -> None:
        self._name = ""
        self._known: dict[Hashable, Known] = {}

    def known(self, name: str, sizes: Hashable) -> Known:
        """Return what is known in the family *name* under the same *sizes*; forget all other families."""
        if name != self._name:
            self._name, self._known = name, {}
        return self._known.setdefault(sizes, Known())


FAMILY = Family()
"""Of the histories that this process tries now."""


_bounds: MemoryBounds | None = None  # of every log that is opened here


@contextmanager
def bounded(memory_bytes: int) -> Iterator[None]:
    """Have the logs that are opened here keep this much in memory, by their gathered files where these fit."""
    global _bounds
    before, _bounds = _bounds, MemoryBounds(memory_bytes, by_index=True, is_usual=True)
    try:
        with patch("mrecordlog_async.recovery.beyond_memory.SLACK_BYTES_MAX", memory_bytes // 16):
            yield
    finally:
        _bounds = before


def recover(disk: Disk, where: str, directory: str = DIRECTORY) -> OpenedLog:
    """Open the log on *disk*; raise Violation if it does not open, for any reason."""
    options = OpenOptions(SEGMENT_BYTES, 1 << 40, direct=disk.has_direct, bounds=_bounds)
    try:
        return open_log(LogDirectory(disk, directory), options)
    except (RecordLogError, OSError) as error:
        raise Violation(f"{where}: the log does not open: {type(error).__name__}: {error}") from error


@dataclass(slots=True)
class Explorer:
    """Explores the moments of runs.

    deep_every: one of this many states is explored further (0: none). kill_every: at one of this many moments the
    process dies and its successor writes (0: at none).
    """

    seed: int = 0
    subsets: int = 4
    deep_every: int = 25
    kill_every: int = 0
    tally: Tally = field(default_factory=Tally)
    _directory: str = DIRECTORY
    _seen: set[int] = field(default_factory=set)
    known: Known = field(default_factory=Known)

    def open_twice(self, left: Snapshot, where: str, directory: str = DIRECTORY) -> State:
        """Do as `open_twice` with what a power cut *left*, or return what it found before in the same bytes."""
        key = directory, _fingerprint(left)
        known = self.known
        if key not in known.cut:
            found = open_twice(left.kill(), where, directory, known.again)
            known.cut[key] = known.states.setdefault(found, found)
        return known.cut[key]

    def explore(self, run: Run, every: int = 1, first: int = 0) -> None:
        """Judge every crash state of every *every*-th moment of *run* and of its copies, beginning with *first*."""
        with without_chance():
            for each in (run, *run.copies):
                self._directory, self._seen = each.directory, set()
                self._explore(each, every, first)
            self._directory = DIRECTORY
            if run.copies:
                self._empty_each(run, every, first)

    def _explore(self, run: Run, every: int, first: int) -> None:
        chance = random.Random(self.seed)
        for life_number, life in enumerate(run.lives):
            verdict = Verdict(life.model)
            for index, moment in enumerate(life.moments):
                if index % every != first:
                    continue
                place = f"{run.directory}, life {life_number}, before call {moment.number} ({moment.call})"
                for name, plan in plans(moment.snapshot, chance, self.subsets):
                    self._judge(moment, plan, verdict, f"{place}, {name}", chance)
                if self.deep_every and (index % 5 == 0 or moment.call in ("sync", "write_durable", "finish_writes")):
                    self._kill_read_cut(moment, verdict, place)
                if self.kill_every and index % self.kill_every == 0:
                    self._kill_write_cut(moment, verdict, place, chance)

    def _judge(self, moment: Moment, plan: Plan, verdict: Verdict, where: str, chance: random.Random) -> None:
        left = moment.snapshot.cut(plan)
        if moment.absent and not left.kill().exists(self._directory):
            return
        key = _fingerprint(left)
        state = self.open_twice(left, where, self._directory)
        if key not in self._seen:
            self.tally.crash_states += 1
            self._seen.add(key)
            if self.deep_every and self.tally.crash_states % self.deep_every == self.deep_every // 2:
                self._interrupt_recovery(moment.snapshot.crash(plan), state, where, chance)
                self._append_again(moment.snapshot.crash(plan), state, where, chance)
        verdict.check(state, moment.bounds, where)

    def _interrupt_recovery(self, disk: Disk, state: State, where: str, chance: random.Random) -> None:
        """Cut the power at every call of a recovery. The next recovery must find the same."""
        moments: list[Snapshot] = []
        disk.on_call = lambda call: moments.append(disk.snapshot())
        recover(disk, where, self._directory).close()
        for index, moment in enumerate(_distinct(moments)):
            for name, plan in few_plans(moment, chance):
                self._same(moment.cut(plan), state, f"{where}; recovery cut at its step {index}, {name}")

    def _kill_read_cut(self, moment: Moment, verdict: Verdict, where: str) -> None:
        """Let the process die, let the next one read, then cut the power. What it read must still exist."""
        for reader in ("writer", "reader"):
            disk = moment.snapshot.kill()
            place = f"{where}; killed, seen by the next {reader}, then power cut"
            if moment.absent and not disk.exists(self._directory):
                return
            if reader == "writer":
                opened = recover(disk, place, self._directory)
                seen = shown(opened)
            else:
                try:
                    seen = state_of(ReadOnlyLog.open(self._directory, filesystem=disk).recovered.queues)
                except FileNotFoundError:
                    continue
            verdict.check(seen, moment.killed, place)
            if not seen.queues:
                continue
            self.tally.nested_states += 1
            self._same(disk.snapshot().cut(Plan()), seen, place)

    def _kill_write_cut(self, moment: Moment, verdict: Verdict, where: str, chance: random.Random) -> None:
        """Let the process die, let the next one recover and write, and cut the power at any of its calls."""
        way = FOLLOW_UPS[moment.number % len(FOLLOW_UPS)]
        disk = moment.snapshot.kill()
        if moment.absent and not disk.exists(self._directory):
            return
        where = f"{where}; killed, reopened, {way.__name__}"
        moments: list[tuple[Snapshot, int, int]] = []  # with the numbers of batches that are durable and written
        states: list[State] = []
        durable = 0
        disk.on_call = lambda call: moments.append((disk.snapshot(), durable, len(states)))
        disk.on_half_written = lambda: disk.on_call("half of a write")
        opened = recover(disk, where, self._directory)
        states.append(shown(opened))
        verdict.check(states[0], moment.killed, where)
        for records, synced in way(opened.queues):
            commit(opened, records, sync=synced)
            states.append(shown(opened))
            durable = len(states) - 1 if synced else durable
        moments.append((disk.snapshot(), durable, len(states)))
        opened.close()
        for step, (snapshot, least, most) in enumerate(moments):
            if step and snapshot == moments[step - 1][0]:
                continue
            for name, plan in some_plans(snapshot, chance):
                place = f"{where}, cut at its step {step}, {name}"
                self.tally.nested_states += 1
                found = self.open_twice(snapshot.cut(plan), place, self._directory)
                if not most:
                    verdict.check(found, moment.bounds, place)
                elif found not in states[least : most + 1]:
                    raise Violation(f"{place}: something else returned: {found}")

    def _empty_each(self, run: Run, every: int, first: int) -> None:
        """Empty the log, or its copy, and free all its space. The other one must not change."""
        for index, moment in enumerate(run.copies[0].lives[-1].moments):
            if index % (7 * every) != first or moment.absent:
                continue
            for emptied, kept in ((DIRECTORY, COPY), (COPY, DIRECTORY)):
                disk = moment.snapshot.crash(Plan())
                place = f"before call {moment.number} ({moment.call}), {emptied} emptied"
                before = open_twice(disk, place, kept)
                opened = recover(disk, place, emptied)
                empty(opened)
                opened.close()
                self.tally.nested_states += 1
                if open_twice(disk, place, kept) != before:
                    raise Violation(f"{place}: {kept} is another one")

    def _append_again(self, disk: Disk, state: State, where: str, chance: random.Random) -> None:
        """Append after the crash, with sizes like those that were lost, and crash again. No stale byte may return."""
        opened = recover(disk, where, self._directory)
        if not state.queues:
            opened.close()
            return
        moments: list[Snapshot] = []
        disk.on_call = lambda call: moments.append(disk.snapshot())
        allowed = [state]
        for size in (40, 700):
            _append(opened, state.queues[0].name, b"again" * (size // 5))
            allowed.append(shown(opened))
        moments.append(disk.snapshot())
        for index, moment in enumerate(_distinct(moments)):
            for name, plan in few_plans(moment, chance):
                place = f"{where}; appended again, cut at step {index}, {name}"
                self.tally.nested_states += 1
                found = self.open_twice(moment.cut(plan), place, self._directory)
                if found not in allowed:
                    raise Violation(f"{place}: something else returned: {found}")
        opened.close()

    def _same(self, left: Snapshot, state: State, where: str) -> None:
        self.tally.nested_states += 1
        if (found := self.open_twice(left, where, self._directory)) != state:
            raise Violation(f"{where}: the state changed from {state} to {found}")


def open_twice(disk: Disk, where: str, directory: str = DIRECTORY, found_again: OpenedAgain | None = None) -> State:
    """Open and release the log, read it without the lock, open it again. All three must find the same.

    found_again: what was found by the second and third opening of disks before this one. Most torn tails are cut at the
    same place: if the first opening leaves the same disk as another one did, the others find the same on it.
    """
    opened = recover(disk, where, directory)
    state, table = shown(opened), opened.queues.table()
    _check_files(disk, opened, where, directory)
    opened.close()
    found_again = {} if found_again is None else found_again
    key = directory, disk.fingerprint()
    if key not in found_again:
        found_again[key] = _open_again(disk, where, directory)
    if found_again[key] != (state, table):
        raise Violation(f"{where}: opened again it is another log")
    if disk.open_handles() or disk.misuse:
        raise Violation(f"{where}: {disk.open_handles()} handles left open; {disk.misuse}")
    return state


def _open_again(disk: Disk, where: str, directory: str) -> tuple[State, Table]:
    reader = state_of(ReadOnlyLog.open(directory, filesystem=disk).recovered.queues)
    again = recover(disk, where, directory)
    state = shown(again)
    if reader != state:
        raise Violation(f"{where}: a reader sees another log than its next writer")
    if not again.report.clean:
        raise Violation(f"{where}: the torn tail that was cut is still there")
    table = again.queues.table()
    again.close()
    return state, table


def shown(opened: OpenedLog) -> State:
    """Return what an open log holds, in memory and on the disk."""
    return state_of(opened.queues, opened.directory.log)


def _check_files(disk: Disk, opened: OpenedLog, where: str, directory: str) -> None:
    names = set(disk.content(directory))
    last, spare = opened.journal.end.segment, f"wal-{opened.journal.end.segment + 1:020}.tmp"
    oldest = min([number for number, _ in opened.journal.space.complete], default=last)
    due = {f"wal-{number:020}" for number in range(oldest, last + 1)} | {LOCK_NAME, spare}
    names -= {f"{name}{GATHERED_SUFFIX}" for name in due}  # they may be there, as long as their segment is
    if names != due or list_segments(list(names))[-1] != last:
        raise Violation(f"{where}: files {sorted(names)}, due were {sorted(due)}")


def check_openings(run: Run) -> int:
    """Lose all that was not synced, at every moment after an acknowledgement; return how often.

    Raises Violation if the log does not know the opening that acknowledged.
    """
    due = [(life.first_batch, moment) for life in run.lives[1:] for moment in life.moments if moment.killed.at_least]
    for first_batch, moment in due:
        with without_chance():
            opened = recover(moment.snapshot.crash(Plan()), f"before call {moment.number}")
        found = [opening.first_batch for opening in opened.queues.openings]
        opened.close()
        if found[-1:] != [first_batch]:
            raise Violation(f"before call {moment.number}: openings at {found}, the last one due was at {first_batch}")
    return len(due)


def _append(opened: OpenedLog, name: str, payload: bytes) -> None:
    queue = opened.queues.get(name)
    assert queue is not None
    commit(opened, [PlannedRun(queue.id, queue.next_position, [payload])])


def commit(opened: OpenedLog, records: Sequence[LogRecord | PlannedRun], *, sync: bool = True) -> None:
    """Store a batch and apply it, as the writer does."""
    request = CommitRequest(records, opened.queues.pins.oldest(), sync, Reserve.NOTHING)
    result = opened.journal.commit(request)
    assert result is not None
    opened.queues.apply_all(result.segment, result.records, result.tick)


def empty(opened: OpenedLog) -> None:
    """Truncate everything, roll, and free all space."""
    records: list[LogRecord] = [
        Truncate(queue.id, queue.next_position - 1) for queue in opened.queues if queue.next_position
    ]
    commit(opened, records)
    opened.journal.roll(opened.queues.pins.oldest())
    opened.journal.dead.reclaim(opened.journal.durable_oldest)
    while opened.journal.space.unfreed:
        opened.journal.dead.shrink(False)


# What the successor of a process that died does, as (records, synced) of batch after batch.

Step = tuple[Sequence[LogRecord | PlannedRun], bool]


def appends_a_little(queues: Queues) -> Iterator[Step]:
    """Append small batches, of which one is not synced by itself, and is longer than a block of a direct write."""
    yield [*_record(queues, 40)], True
    yield [*_record(queues, 130)], True
    yield [*_record(queues, 5_000)], False
    yield [*_record(queues, 30)], True


def appends_much(queues: Queues) -> Iterator[Step]:
    """Append two batches that fill the segment, and one after the roll."""
    yield [*_record(queues, 14_000)], True
    yield [*_record(queues, 20_000)], True
    yield [*_record(queues, 60)], True


def makes_and_deletes(queues: Queues) -> Iterator[Step]:
    """Create a queue with a record, and delete an old queue."""
    new, old = queues.next_queue_id, list(queues)[:1]
    yield [Create(new, "new"), PlannedRun(new, 0, [b"in the new queue"])], True
    yield [Delete(queue.id) for queue in old], True
    yield [PlannedRun(new, 1, [b"second" * 30])], True


def appends_to_many(queues: Queues) -> Iterator[Step]:
    """Two batches of single records of many queues in one log record each, and one that truncates between them."""
    some = list(queues)[: MANY_RECORDS_MAX // 2]
    ids, ends = [queue.id for queue in some], [queue.next_position for queue in some]
    if ids:
        twice = [*ends, *[end + 1 for end in ends]]
        yield [Many.of(ids * 2, twice, [b"M" * (100 + at) for at in range(len(twice))])], True
        yield [Many.of(ids, [end + 2 for end in ends], [b"m"] * len(ids)), Truncate(ids[0], ends[0] + 1)], False
        yield [Many.of(ids, [end + 3 for end in ends], [b""] * len(ids))], True


def changes_settings(queues: Queues) -> Iterator[Step]:
    """Every log record that concerns no payloads, then a roll, whose table must hold them."""
    batch = max([opening.first_batch for opening in queues.openings], default=0) + 1_000
    yield [Opened(7, batch), ConsumerRule("*", f"every {batch}", removes=False)], True
    for queue in list(queues)[:2]:
        state = ConsumerState(queue.first_position, batch, b"o" * 16)
        yield [SetConsumer(queue.id, "a", state), SetConsumer(queue.id, "b", state)], True
        yield [*EVERY_VALUE.replacements(queue.id), ConsumerDelete(queue.id, "b")], False
    yield [*_record(queues, 33_000)], True
    yield [Truncate(queue.id, queue.next_position - 1) for queue in list(queues)[:1] if queue.next_position], True
    yield [*_record(queues, 33_000)], True


def truncates_all(queues: Queues) -> Iterator[Step]:
    """Truncate everything, then append one record."""
    yield [Truncate(queue.id, queue.next_position + 3) for queue in queues], True
    yield [*_record(queues, 90)], True


def appends_in_one_batch(queues: Queues) -> Iterator[Step]:
    """Append records to all queues in one batch, as long as the bytes that a dead process may have left."""
    yield [PlannedRun(queue.id, queue.next_position, [b"N" * 350, b"E" * 30]) for queue in queues], True


FOLLOW_UPS = [
    appends_a_little,
    makes_and_deletes,
    appends_in_one_batch,
    appends_to_many,
    appends_much,
    changes_settings,
    truncates_all,
]


def _record(queues: Queues, size: int) -> Iterator[PlannedRun]:
    for queue in list(queues)[:1]:
        yield PlannedRun(queue.id, queue.next_position, [(b"again" * (size // 5 + 1))[:size]])


def _distinct(moments: list[Snapshot]) -> list[Snapshot]:
    return [moment for index, moment in enumerate(moments) if not index or moment != moments[index - 1]]


def _fingerprint(snapshot: Snapshot) -> int:
    """Return a number that differs for other durable bytes or names; after a power cut, these are all there are."""
    return hash(
        (
            tuple((number, state.durable) for number, state in snapshot.files.items()),
            tuple((number, tuple(state.durable.items())) for number, state in snapshot.directories.items()),
        )
    )
