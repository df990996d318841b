"""Opens the log in every crash state of a run and checks the result. Counts what it did, in `Tally`.

In every state the log must open, twice with the same result. Everything promised must exist, everything else must be
whole or absent. Files that are no longer needed must be deleted, and no handle may be left open.

In some states more is tried: recovery is interrupted at each of its calls; the successor of a dead process shows what
it reads before the power fails; or the successor writes, in one of several ways, and the power fails at any of its
calls. A copy made by `snapshot` is judged like the log. Each of the two is emptied, and the other must not change.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from mrecordlog_async import Limits, MultiRecordLog, PersistPolicy, QueueOptions, ReadOnlyLog, RecordLogError

from . import inside, sizes
from .disk import Disk, Plan, Snapshot
from .driver import COPY, DIRECTORY, SEGMENT_BYTES, Moment, Run
from .judge import State, Verdict, Violation, as_shown, state_in, state_of
from .process import Process, VirtualLoop, repeatable
from .states import few_plans, plans, some_plans

LOCK_NAME, GATHERED_SUFFIX = "LOCK", ".runs"
SEGMENT_NAME = "wal-{:020}"


@dataclass(slots=True)
class Tally:
    """Counts of what was tried."""

    crash_states: int = 0
    nested_states: int = 0
    faults: int = 0
    damaged_logs: int = 0
    fuzzed: int = 0

    def line(self) -> str:
        """Sum up in one line."""
        return (
            f"{self.crash_states} crash states and {self.nested_states} nested ones explored, {self.faults} faults "
            f"injected, {self.damaged_logs} damaged logs opened, {self.fuzzed} hostile inputs parsed"
        )

    def add(self, other: Tally) -> None:
        """Add up."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


TALLY = Tally()
"""What the tests of this process tried."""

Openings = tuple[tuple[int, int], ...]
"""The openings that a log knows: the number of each, and its first batch."""

OpenedAgain = dict[tuple[str, int], tuple[State, Openings]]
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


_limits = Limits()  # of every log that is opened here


@contextmanager
def bounded(memory_bytes: int) -> Iterator[None]:
    """Have the logs that are opened here keep this much in memory, by their gathered files where these fit."""
    global _limits
    before, _limits = _limits, Limits(memory_bytes=memory_bytes, beyond_memory="disk")
    try:
        with sizes.replaced(sizes.little_memory(memory_bytes)):
            yield
    finally:
        _limits = before


_exploring: VirtualLoop | None = None


@contextmanager
def exploring() -> Iterator[VirtualLoop]:
    """Have what is opened here run on one loop of its own; the outermost of these contexts makes it."""
    global _exploring
    if _exploring is not None:
        yield _exploring
        return
    with repeatable() as loop:
        _exploring = loop
        try:
            yield loop
        finally:
            _exploring = None


class Opened:
    """A log that a process has opened for the explorer."""

    def __init__(self, loop: VirtualLoop, process: Process, disk: Disk, log: MultiRecordLog) -> None:
        self._loop, self._process, self._disk = loop, process, disk
        self.log = log

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Have the process do this."""
        return run_in(self._loop, self._process, work)

    def state(self) -> State:
        """Return what the log holds, in memory and on the disk."""
        found: State = self.do(state_of(self.log))
        return found

    def openings(self) -> Openings:
        """Return what the log says of its openings."""
        return tuple((opening.nonce, opening.first_batch) for opening in self.log.inspection.openings)

    def die(self) -> Disk:
        """Let the process die; return the disk that the next one finds."""
        left = self._disk.snapshot()
        self._process.die()
        self._disk.on_call, self._disk.on_half_written = _ignore, None
        self._disk.cut_power()
        inside.forget(self.log)
        self._loop.forget(self._process)
        return left.kill()

    def close(self) -> None:
        """Close the log."""
        self.do(self.log.close())
        self._loop.forget(self._process)


def run_in(loop: VirtualLoop, process: Process, work: Coroutine[Any, Any, Any]) -> Any:
    """Run *work* in *process* until it is done."""

    async def whole() -> Any:
        return await process.begin(work)

    return loop.run_until_complete(whole())


def opened_on(disk: Disk, directory: str = DIRECTORY) -> Opened:
    """Open the log on *disk* in a new process. Call it while `exploring`."""

    async def opening() -> MultiRecordLog:
        return await MultiRecordLog.open(
            directory, filesystem=disk, segment_bytes=SEGMENT_BYTES, limits=_limits, retention=False
        )

    assert _exploring is not None
    process = _exploring.new_process()
    return Opened(_exploring, process, disk, run_in(_exploring, process, opening()))


def recover(disk: Disk, where: str, directory: str = DIRECTORY) -> Opened:
    """Open the log on *disk*; raise Violation if it does not open, for any reason. Call it while `exploring`."""
    try:
        return opened_on(disk, directory)
    except (RecordLogError, OSError) as error:
        raise Violation(f"{where}: the log does not open: {type(error).__name__}: {error}") from error


def _ignore(call: str) -> None:
    pass


@dataclass(slots=True)
class Explorer:
    """Explores the moments of runs.

    deep_every: one of this many states is explored further (0: none). kill_every: at one of this many moments the
    process dies and its successor writes (0: at none). steps_max: at about so many steps of that the power is cut.
    """

    seed: int = 0
    subsets: int = 4
    deep_every: int = 25
    kill_every: int = 0
    steps_max: int = 1_000
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
        with exploring():
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
                    self._kill_write_cut(run.policy, moment, verdict, place, chance)

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
                self._append_again(moment, plan, verdict, where, chance)
        verdict.check(state, moment.bounds, where)

    def _interrupt_recovery(self, disk: Disk, state: State, where: str, chance: random.Random) -> None:
        """Cut the power at every call of a recovery. The next recovery must find the same."""
        moments: list[Snapshot] = []
        disk.on_call = lambda call: moments.append(disk.snapshot())
        recover(disk, where, self._directory).die()
        distinct = [moment for at, moment in enumerate(moments) if not at or moment != moments[at - 1]]
        for index, moment in enumerate(distinct):
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
                seen = opened.state()
                disk = opened.die()
            else:
                try:
                    seen = state_in(ReadOnlyLog.open(self._directory, filesystem=disk))
                except FileNotFoundError:
                    continue
            verdict.check(seen, moment.killed, place)
            if not seen.queues:
                continue
            self.tally.nested_states += 1
            self._same(disk.snapshot().cut(Plan()), seen, place)

    def _kill_write_cut(
        self, policy: PersistPolicy, moment: Moment, verdict: Verdict, where: str, chance: random.Random
    ) -> None:
        """Let the process die, let the next one recover and write, and cut the power at any of its calls."""
        way = FOLLOW_UPS[moment.number % len(FOLLOW_UPS)]
        disk = moment.snapshot.kill()
        if moment.absent and not disk.exists(self._directory):
            return
        successor = Run(disk, policy, _limits, self._directory)
        successor.first_is = (verdict, moment.killed)
        self._follow(successor, way, verdict, moment, f"{where}; killed, reopened, {way.__name__}", chance)

    def _append_again(self, moment: Moment, plan: Plan, verdict: Verdict, where: str, chance: random.Random) -> None:
        """Append after the crash, with sizes like those that were lost, and crash again. No stale byte may return."""
        successor = Run(moment.snapshot.crash(plan), None, _limits, self._directory)
        successor.first_is = (verdict, moment.bounds)
        self._follow(successor, appends_again, verdict, moment, f"{where}; appended again", chance)

    def _follow(
        self, successor: Run, way: FollowUp, verdict: Verdict, moment: Moment, where: str, chance: random.Random
    ) -> None:
        """Have a successor open the log and do something, and cut the power at any of its calls."""
        follow(successor, way, where)
        opening, *_ = successor.lives
        for life in successor.lives:
            own = verdict if life is opening else Verdict(life.model)
            distinct = _distinct(life.moments)
            for step, found in list(enumerate(distinct))[:: max(1, len(distinct) // self.steps_max)]:
                bounds = moment.bounds if life is opening else found.bounds
                for name, plan in some_plans(found.snapshot, chance, 3):
                    place = f"{where}, cut at its step {step} ({found.call}), {name}"
                    self.tally.nested_states += 1
                    own.check(self.open_twice(found.snapshot.cut(plan), place, self._directory), bounds, place)

    def _empty_each(self, run: Run, every: int, first: int) -> None:
        """Empty the log, or its copy, and free all its space. The other one must not change."""
        for index, moment in enumerate(run.copies[0].lives[-1].moments):
            if index % (7 * every) != first or moment.absent:
                continue
            for emptied, kept in ((DIRECTORY, COPY), (COPY, DIRECTORY)):
                place = f"before call {moment.number} ({moment.call}), {emptied} emptied"
                before = open_twice(moment.snapshot.crash(Plan()), place, kept)
                successor = Run(moment.snapshot.crash(Plan()), None, _limits, emptied)
                successor.model.base = open_twice(moment.snapshot.crash(Plan()), place, emptied)
                successor.record_moments = False
                follow(successor, empties, place)
                self.tally.nested_states += 1
                if open_twice(successor.disk, place, kept) != before:
                    raise Violation(f"{place}: {kept} is another one")

    def _same(self, left: Snapshot, state: State, where: str) -> None:
        self.tally.nested_states += 1
        found = self.open_twice(left, where, self._directory)
        if state not in (found, as_shown(found)):
            raise Violation(f"{where}: the state changed from {state} to {found}")


def open_twice(disk: Disk, where: str, directory: str = DIRECTORY, found_again: OpenedAgain | None = None) -> State:
    """Open the log, let the process die, read it without the lock, open it again. All three must find the same.

    found_again: what was found by the second and third opening of disks before this one. Most torn tails are cut at the
    same place: if the first opening leaves the same disk as another one did, the others find the same on it.
    """
    with exploring():
        opened = recover(disk, where, directory)
        state, openings = opened.state(), opened.openings()
        _check_files(disk, opened, where, directory)
        if disk.misuse:
            raise Violation(f"{where}: {disk.misuse}")
        left = opened.die()
        found_again = {} if found_again is None else found_again
        key = directory, left.fingerprint()
        if key not in found_again:
            found_again[key] = _open_again(left, where, directory)
    if found_again[key] != (state, openings):
        raise Violation(f"{where}: opened again it is another log")
    return state


def _open_again(disk: Disk, where: str, directory: str) -> tuple[State, Openings]:
    reader = state_in(ReadOnlyLog.open(directory, filesystem=disk))
    again = recover(disk, where, directory)
    state, openings = again.state(), again.openings()
    if reader != as_shown(state):
        raise Violation(f"{where}: a reader sees another log than its next writer")
    if not again.log.recovery_report.clean:
        raise Violation(f"{where}: the torn tail that was cut is still there")
    again.close()
    if disk.open_handles() or disk.misuse:
        raise Violation(f"{where}: {disk.open_handles()} handles left open; {disk.misuse}")
    return state, openings


def _check_files(disk: Disk, opened: Opened, where: str, directory: str) -> None:
    names, segments = set(disk.content(directory)), opened.log.segments
    spare = f"{SEGMENT_NAME.format(segments[-1] + 1)}.tmp"
    due = {*map(SEGMENT_NAME.format, segments), LOCK_NAME, spare}
    names -= {f"{name}{GATHERED_SUFFIX}" for name in due}  # they may be there, as long as their segment is
    if names != due:
        raise Violation(f"{where}: files {sorted(names)}, due were {sorted(due)}")


def check_openings(run: Run) -> int:
    """Lose all that was not synced, at every moment after an acknowledgement; return how often.

    Raises Violation if the log does not know the opening that acknowledged.
    """
    due = [(life.first_batch, moment) for life in run.lives[1:] for moment in life.moments if moment.killed.at_least]
    with exploring():
        for first_batch, moment in due:
            opened = recover(moment.snapshot.crash(Plan()), f"before call {moment.number}")
            found = [first for _, first in opened.openings()]
            opened.die()
            if found[-1:] != [first_batch]:
                raise Violation(f"before call {moment.number}: openings at {found}, the last one due was {first_batch}")
    return len(due)


# What the next process does.

FollowUp = Callable[[Run], Awaitable[None]]


def follow(successor: Run, way: FollowUp, where: str) -> None:
    """Have the next process open the log, do something, and close it."""

    successor.opened, successor.retention = True, False

    async def whole() -> None:
        await successor.open()
        await way(successor)
        await successor.close()

    with exploring() as loop:
        try:
            loop.run_until_complete(whole())
        except (RecordLogError, OSError) as error:
            raise Violation(f"{where}: the log does not open: {type(error).__name__}: {error}") from error


def _queues(run: Run) -> list[str]:
    return run.log.list_queues() if run.log is not None else []


async def appends_again(run: Run) -> None:
    """Append to the first queue."""
    for queue in _queues(run)[:1]:
        await run.append(queue, 40)
        await run.append(queue, 700)


async def appends_a_little(run: Run) -> None:
    """Append small batches, of which one is longer than a block of a direct write."""
    for queue in _queues(run)[:1]:
        for size in (40, 130, 5_000, 30):
            await run.append(queue, size)


async def appends_much(run: Run) -> None:
    """Append two batches that fill the segment, and one after the roll."""
    for queue in _queues(run)[:1]:
        for size in (14_000, 20_000, 60):
            await run.append(queue, size)


async def makes_and_deletes(run: Run) -> None:
    """Create a queue with a record, and delete an old queue."""
    await asyncio.gather(run.begin("create", "new"), run.begin_append("new", 16))
    for queue in _queues(run)[:1]:
        await run.do("delete", queue, forced=True)
    await run.append("new", 180)


async def appends_to_many(run: Run) -> None:
    """Two batches of single records of many queues, and one that truncates between them."""
    some = _queues(run)[:100]
    if some:
        await asyncio.gather(*(run.begin_append(queue, 100 + at) for at, queue in enumerate([*some, *some])))
        last = run.log.next_position(some[0]) if run.log is not None else 0
        await asyncio.gather(
            *(run.begin_append(queue, 1) for queue in some), run.begin("truncate", some[0], position=last, forced=True)
        )
        await asyncio.gather(*(run.begin_append(queue, 0) for queue in some))


async def changes_settings(run: Run) -> None:
    """Everything that is set and concerns no payloads, then a roll, whose table must hold it."""
    queues = _queues(run)[:2]
    await run.do("rule", "*", consumer="every one")
    for queue in queues:
        for consumer in "ab":
            await run.attach(queue, consumer, owner=bytes(15) + b"o")
        await asyncio.gather(
            run.begin("configure", queue, options=QueueOptions(max_age=1e9, max_records=10_000, max_bytes=1 << 40)),
            run.begin("move", queue, consumer="a", position=run.log.next_position(queue) if run.log else 0),
            run.begin("release", queue, consumer="b"),
        )
    for queue in queues[:1]:
        await run.append(queue, 33_000)
        await run.do("truncate", queue, position=1 << 20, forced=True)
        await run.do("seal", queue)
    for queue in queues[1:]:
        await run.append(queue, 33_000)


async def truncates_all(run: Run) -> None:
    """Truncate everything, then append one record."""
    queues = _queues(run)
    if run.log is not None:
        ends = {queue: run.log.next_position(queue) + 3 for queue in queues}
        await asyncio.gather(*(run.begin("truncate", queue, position=end, forced=True) for queue, end in ends.items()))
    for queue in queues[:1]:
        await run.append(queue, 90)


async def appends_in_one_batch(run: Run) -> None:
    """Append records to all queues in one batch, as long as the bytes that a dead process may have left."""
    await asyncio.gather(*(run.begin_append(queue, 350, 30) for queue in _queues(run)))


async def empties(run: Run) -> None:
    """Truncate everything, roll, and let all space be freed."""
    await truncates_all(run)
    await run.do("create", "roll", exist_ok=True)
    for position in range(3):
        await run.append("roll", 33_000)
        await run.do("truncate", "roll", position=position, forced=True)
        await run.idle()


FOLLOW_UPS = [
    appends_a_little,
    makes_and_deletes,
    appends_in_one_batch,
    appends_to_many,
    appends_much,
    changes_settings,
    truncates_all,
]


def _distinct(moments: list[Moment]) -> list[Moment]:
    """Return the moments at which the disk, or what is promised, is not as before."""
    return [
        moment
        for index, moment in enumerate(moments)
        if not index or (moment.snapshot, moment.bounds) != (moments[index - 1].snapshot, moments[index - 1].bounds)
    ]


def _fingerprint(snapshot: Snapshot) -> int:
    """Return a number that differs for other durable bytes or names; after a power cut, these are all there are."""
    return hash(
        (
            tuple((number, state.durable) for number, state in snapshot.files.items()),
            tuple((number, tuple(state.durable.items())) for number, state in snapshot.directories.items()),
        )
    )
