"""Runs the real `MultiRecordLog` over the forgetful disk, the same way every time.

1. A history makes calls from outside of the process that has the log: see `process`. A process that dies runs no more.
2. Results are recorded inside the future, at the moment they are set. Before every call to the disk, the whole disk is
   recorded together with what had been promised by then.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mrecordlog_async import (
    Attached,
    Limits,
    LogFailedError,
    MultiRecordLog,
    PersistPolicy,
    ReadOnlyLog,
    RecordLogError,
)
from mrecordlog_async.format.controls import NO_OWNER
from mrecordlog_async.maintenance.snapshot import snapshot
from mrecordlog_async.model import TICK_NS

from . import inside
from .disk import Disk, Fault, Snapshot
from .inside import FIRST_QUEUE_ID, TIME_NS, Changing, TruncateQueue, without_chance
from .judge import Bounds, Call, Model, State, Verdict, Violation, as_payloads, state_in, state_of
from .process import Hanging, Process, VirtualLoop, pause_job, repeatable

__all__ = ["TIME_NS", "Hanging", "VirtualLoop", "repeatable", "without_chance"]

DIRECTORY = "/data/wal"
COPY = "/data/copy"
EMPTY = State(FIRST_QUEUE_ID, ())
SEGMENT_BYTES = 32_768
UNEVENTFUL = (
    *("read", "read_into", "size", "list_names", "open", "open_directory", "lock", "links", "space_of"),
    *(
        "set_direct",
        "recycles",
        "is_at",
        "is_alone",
        "is_replaceable",
        "mode",
        "drop_cache",
        "open_writes",
    ),
)
"""Calls that change nothing: the moment before them is the same as the moment before the next call."""


@dataclass(slots=True)
class Moment:
    """The disk before one call to it, or in the middle of a write, and what a crash at this moment may leave.

    bounds: after a power cut. killed: after the death of the process. absent: the log need not exist yet.
    """

    snapshot: Snapshot
    bounds: Bounds
    killed: Bounds
    call: str
    number: int
    absent: bool = False


@dataclass(slots=True)
class Life:
    """The time from one opening of a log to the next: its calls and all its moments.

    first_batch: the number of the first batch that can be written in it.
    """

    model: Model
    first_batch: int = 0
    moments: list[Moment] = field(default_factory=list)


class Run:
    """One history being run. Histories use its methods for everything that they do to the log."""

    def __init__(
        self,
        disk: Disk | None = None,
        policy: PersistPolicy | None = None,
        limits: Limits | None = None,
        directory: str = DIRECTORY,
    ) -> None:
        self.policy = policy or PersistPolicy.always()
        self.limits = limits or Limits()
        self.directory = directory
        self.segment_bytes = SEGMENT_BYTES
        self.recycle = self.retention = True
        self.lives = [Life(Model.under(self.policy, EMPTY))]
        self.disk = disk or Disk()
        self.copies: list[Run] = []
        self.before: dict[str, bytes] = {}  # the files at a moment that a history chose
        self.halves = 0  # writes that were recorded half-way
        self.by_result = False  # calls count in the order of their results, because some wait in line
        self.shown: list[tuple[Model, Bounds, State]] = []  # what readers saw during the run
        self.loop: asyncio.AbstractEventLoop | None = None
        self.process: Process | None = None
        self._original: list[Run] = []  # what this is a copy of
        self.opened = False
        self.first_is: tuple[Verdict, Bounds] | None = None  # what judges the first opening, of a log that was there
        self.holders: dict[tuple[str, str], Attached] = {}  # by queue and consumer: the last result of "attach"
        self.ended_holders: set[tuple[int, int]] = set()  # queue id and epoch: from before a crash under a weak policy
        self.unfinished = False  # a copy that is still being made
        self.log: MultiRecordLog | None = None
        self.changing: Changing | None = None  # `log` without its records
        self.stopped: BaseException | None = None
        self.in_doubt: Mapping[str, int] = {}  # what the last close named: the lowest position by queue
        self.seen: State | None = None  # what a reader saw at the end of the history
        self.record_moments = True
        self.each_call: Callable[[], None] | None = None  # called before each call and inside each write
        self.on_expiry: Callable[[TruncateQueue], None] | None = None  # called before retention truncates
        self._counter = 0
        self._watch(self.disk)

    @property
    def model(self) -> Model:
        """The calls of the present life."""
        return self.lives[-1].model

    # What histories do.

    @property
    def handed_over(self) -> int:
        """How many jobs the threads of the process got so far."""
        return self.process.handed_over if self.process is not None else 0

    async def open(self) -> None:
        """Open the log, check it against the calls so far, and begin a new life. A copy that failed does not exist."""
        if self.unfinished:
            return
        opening = MultiRecordLog.open(
            self.directory,
            filesystem=self.disk,
            segment_bytes=self.segment_bytes,
            persist_policy=self.policy,
            limits=self.limits,
            recycle=self.recycle,
            retention=self.retention,
        )
        was_closed = not self.opened or self.disk.exists(f"{self.directory}/CLOSED")
        await self._inside(self._open(opening, was_closed))

    async def open_without_records(self, policy: PersistPolicy | None = None) -> None:
        """Open the log as `mrecordlog truncate DIR` does, with *policy* or that of the run, and begin a new life."""
        policy = policy or self.policy
        was_closed = not self.opened or self.disk.exists(f"{self.directory}/CLOSED")
        opening = inside.open_without_records(self.directory, policy, self.limits, self.disk, self.segment_bytes)
        self.changing = await self._inside(opening)
        self.log = self.changing.log
        (next_queue_id, _), _ = self.log.inspection.names()
        state = self._look(self.directory)._replace(next_queue_id=next_queue_id)
        self._begin_life(state, policy, was_closed, "reopened without records")

    async def _open(self, opening: Awaitable[MultiRecordLog], was_closed: bool) -> None:
        """Begin a life with what the log holds before it does anything by itself."""
        self.log, self.changing, self.opened = await opening, None, True
        inside.tell_of_truncates(self.log, self._expire)
        with self.unnoticed():
            state = await state_of(self.log)
        self._begin_life(state, self.policy, was_closed, "reopened")

    async def _inside(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Do *work* in the process, which begins if there is none."""
        loop = self.loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        if self.process is None:
            self.process = loop.new_process()
        return await self.process.begin(work)

    def _begin_life(self, state: State, policy: PersistPolicy, was_closed: bool, where: str) -> None:
        assert self.log is not None
        self.model.end()  # of calls that were cancelled: the others have ended with their log
        verdict, bounds = self.first_is or (Verdict(self.model), self.model.bounds())
        verdict.check(state, bounds, where)
        self.first_is = None
        _, last_batch = self.log.inspection.at
        self.lives.append(Life(Model.under(policy, state, was_closed), last_batch + 1))
        self.model.begun = [] if self.by_result else None
        # What the log does by itself before the first call: it ends the holders from before a crash.
        if self.model.epochs_from and any(queue.consumers for queue in state.queues):
            may_refuse = self.disk.fault is not None or self.disk.capacity_bytes is not None
            self.model.add(Call(0, "fence", "", outcome="cancelled" if may_refuse else "silent"))
        self.note("opened")

    def _expire(self, command: TruncateQueue) -> None:
        """Make a truncate of the log's retention as a call of the model."""
        assert command.queue_id is not None
        if self.on_expiry is not None:
            self.on_expiry(command)
        holder = (command.queue_id, 0)
        call = self.begin("truncate", command.queue, position=command.position, holder=holder, forced=True)
        call.add_done_callback(partial(_pass_on, command.future))

    async def close(self) -> None:
        """Close the log and check that no handle stays open. Only a failed log may report calls as in doubt."""
        if self.unfinished:
            return
        assert self.log is not None
        self.in_doubt = {}
        try:
            await self._inside(self.log.close())
        except LogFailedError as error:
            self.in_doubt = error.in_doubt
            if self.log.inspection.failure is None or not error.in_doubt or self.policy.syncs_each_batch:
                raise Violation(f"close of a log without doubts says {error}") from error
        self.log = self.changing = None
        self.note("closed")
        alone = all(other.log is None for other in (*self.copies, *self._original))
        if (alone and self.disk.open_handles()) or self.disk.misuse:
            raise Violation(f"after close {self.disk.open_handles()} handles are open; {self.disk.misuse}")

    async def kill(self) -> None:
        """Let the process die: nothing of it runs again. The next process, which `open` begins, finds the disk."""
        self.note("killed")
        if not self.policy.syncs_each_batch:
            self.ended_holders |= {(held.queue_id, held.epoch) for held in self.holders.values()}
        dead, old = self.disk, self.log
        self.disk = dead.snapshot().kill()
        self.disk.fault, self.disk.calls, self.disk.call_names = dead.fault, dead.calls, list(dead.call_names)
        for copy in self.copies:
            assert copy.log is None, "the death of a process with two logs is not modelled"
            copy.disk = self.disk
        for call in self.model.calls:
            call.cancel()
        for call in self.model.begun or ():
            call.cancel()
        self.model.end()
        if self.process is not None:
            self.process.die()
        dead.on_call, dead.on_half_written = _ignore, None
        dead.cut_power()  # for its disk, nothing more can come of it
        self.log = self.changing = self.process = None
        if old is not None:
            inside.forget(old)
        self._watch(self.disk)

    def use(self, disk: Disk) -> None:
        """Continue with another disk; call `open` for it."""
        self.disk = disk
        self._watch(disk)

    def begin(self, kind: str, queue: str = "", **details: Any) -> asyncio.Future[Any]:
        """Make a call without waiting for it. If the process dies, what is returned is cancelled."""
        return self._begin(self._make(Call(0, kind, queue, **details)))

    def _begin(self, work: Coroutine[Any, Any, object]) -> asyncio.Future[Any]:
        if self.process is not None:
            return self.process.begin(work)
        work.close()
        nothing = asyncio.get_running_loop().create_future()
        nothing.set_result(None)
        return nothing

    async def do(self, kind: str, queue: str = "", **details: Any) -> object:
        """Make a call and wait for its result; errors are recorded, not raised."""
        return await self.begin(kind, queue, **details)

    async def create(self, queue: str) -> object:
        return await self.do("create", queue)

    async def delete(self, queue: str) -> object:
        return await self.do("delete", queue)

    async def truncate(self, queue: str, position: int) -> object:
        return await self.do("truncate", queue, position=position)

    async def sync(self) -> object:
        return await self.do("sync")

    async def drain(self) -> object:
        return await self.do("sync", forced=True)

    async def append(self, queue: str, *sizes: int, position: int | None = None) -> object:
        """Append records of these sizes, with payloads that no other call appends."""
        return await self.do("append", queue, position=position, payloads=self.payloads(*sizes))

    def begin_append(
        self, queue: str, *sizes: int, position: int | None = None, soon: bool = False
    ) -> asyncio.Future[Any]:
        return self.begin("append", queue, position=position, payloads=self.payloads(*sizes), soon=soon)

    async def attach(self, queue: str, consumer: str, **details: Any) -> object:
        """Attach to a consumer, and remember what the next calls of its holder carry."""
        held = await self.do("attach", queue, consumer=consumer, **details)
        if isinstance(held, Attached):
            self.holders[queue, consumer] = held
        return held

    def begin_move(self, kind: str, queue: str, consumer: str, position: int) -> asyncio.Future[Any]:
        """Begin to acknowledge or to seek for the last holder that this run attached."""
        held = self.holders.get((queue, consumer), Attached(0, 0, 0))
        holder = (held.queue_id, held.epoch)
        return self.begin(kind, queue, consumer=consumer, position=position, holder=holder)

    async def acknowledge(self, queue: str, consumer: str, position: int) -> object:
        return await self.begin_move("acknowledge", queue, consumer, position)

    async def seek(self, queue: str, consumer: str, position: int) -> object:
        return await self.begin_move("seek", queue, consumer, position)

    async def idle(self, seconds: float = 2.5) -> None:
        """Let timers run."""
        await asyncio.sleep(seconds)

    @property
    def waiting(self) -> int:
        """How many calls have no result yet."""
        return len(self.process.waiting) if self.process is not None else 0

    async def settle(self, seconds: float = 5.0) -> None:
        """Wait this long for calls that have no result yet."""
        if self.process is not None and self.process.waiting:
            await asyncio.wait(list(self.process.waiting), timeout=seconds)

    async def turns(self, count: int) -> None:
        """Let the loop turn *count* times."""
        for _ in range(count):
            await asyncio.sleep(0)

    def payloads(self, *sizes: int) -> tuple[bytes, ...]:
        """Return payloads. Each begins with a unique number, as far as its size allows."""
        made = []
        for size in sizes:
            self._counter += 1
            made.append((b"<%d>" % self._counter * (size // 3 + 1))[:size])
        return as_payloads(made)

    async def take_snapshot(self, *, link: bool = True) -> Run:
        """Copy the log as `mrecordlog snapshot` does. The copy is a separate run, which may be opened."""
        copy = Run(self.disk, self.policy, self.limits, COPY)
        copy.unfinished, copy._counter = True, 1_000  # its own payloads, which the log never held
        self.copies.append(copy)
        copy._original.append(self)
        self._watch(self.disk)
        before = self.model.bounds()
        try:
            snapshot(self.directory, COPY, link=link, filesystem=self.disk)
        except (OSError, RecordLogError):
            return copy
        copy.unfinished = False
        state = self._look(COPY)
        self.shown.append((self.model, Bounds(before.at_least, self.model.most), state))
        copy.lives[0].model.base = await self._base_of(copy, state)
        return copy

    async def _base_of(self, copy: Run, state: State) -> State:
        """Return *state* with the next id, which only a writer knows: that of the log, or of what it was before.

        A copy of a log whose last write failed may hold queues of that write, which the log does not know.
        """
        assert self.log is not None
        (next_queue_id, _), _ = self.log.inspection.names()
        return state._replace(next_queue_id=max([next_queue_id, *(queue.id + 1 for queue in state.queues)]))

    def _look(self, directory: str) -> State:
        """Read a log without faults, and without counting the calls."""
        with self.unnoticed():
            return state_in(ReadOnlyLog.open(directory, filesystem=self.disk))

    async def state(self) -> State:
        """Return what the open log holds, in memory and on the disk."""
        assert self.log is not None
        with self.unnoticed():
            state: State = await self._inside(state_of(self.log))
            return state

    @contextmanager
    def unnoticed(self) -> Iterator[None]:
        """Use the disk without faults, and without counting the calls."""
        disk = self.disk
        kept = disk.on_call, disk.fault, disk.calls
        disk.on_call, disk.fault = lambda call: None, None
        yield
        disk.on_call, disk.fault, disk.calls = kept
        del disk.call_names[disk.calls :]

    def check_shown(self) -> None:
        """Check what readers saw during the run against the results of the calls."""
        for model, bounds, state in self.shown:
            Verdict(model).check(state, bounds, "shown by a snapshot")

    def note(self, call: str) -> None:
        """Record this moment, before *call*, for this log and its copies."""
        if self.record_moments:
            snapshot, number = self.disk.snapshot(), self.disk.calls
            for run in (self, *self.copies):
                run._note(Moment(snapshot, run._bounds(), run.model.bounds_of_kill(), call, number, run.unfinished))

    # Steps.

    def _note(self, moment: Moment) -> None:
        self.lives[-1].moments.append(moment)

    def _bounds(self) -> Bounds:
        return self.model.bounds(self.loop.time() if self.loop is not None else 0.0)

    def _watch(self, disk: Disk) -> None:
        def on_call(call: str) -> None:
            if self.each_call is not None:
                self.each_call()
            if call not in UNEVENTFUL:
                self.note(call)
            pause_job()

        def on_half_written() -> None:
            if self.each_call is not None:
                self.each_call()
            self.halves += 1
            self.note("half of a write")
            pause_job()

        disk.on_call, disk.on_half_written = on_call, on_half_written

    async def _make(self, call: Call) -> object:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        if self.log is None:
            return None
        call.tick = time.time_ns() // TICK_NS
        self.model.begin(call)
        if call.kind != "truncate" or self.changing is None:  # whose result is not what its future holds
            loop.next_call = call
        try:
            value = await coroutine_of(self.log, self.changing, call)
        except asyncio.CancelledError:
            call.cancel()
            raise
        except (RecordLogError, OSError) as error:
            call.fail(error)
            return error
        finally:
            loop.next_call = None
        call.answer(value)  # if it needed no future
        if call.holder in self.ended_holders:
            raise Violation(f"a holder from before a crash moved consumer {call.consumer!r} of {call.queue!r}")
        return value


def _pass_on(future: asyncio.Future[object], made: asyncio.Task[object]) -> None:
    """Pass the result of a call on to who waits for it; a call that was not made is cancelled."""
    result = None if made.cancelled() else made.result()
    if isinstance(result, BaseException):
        future.set_exception(result)
    elif result is None:
        future.cancel()
    else:
        future.set_result(result)


def _ignore(call: str) -> None:
    pass


def coroutine_of(log: MultiRecordLog, changing: Changing | None, call: Call) -> Coroutine[Any, Any, object]:
    if call.soon:
        return _append_soon(log, call)
    if call.kind == "append" and len(call.payloads) == 1:
        return log.append_record(call.queue, call.position, call.payloads[0])
    if call.kind == "append":
        return log.append_records(call.queue, call.position, call.payloads)
    if call.kind == "create":
        return log.create_queue(call.queue, exist_ok=call.exist_ok, options=call.options)
    if call.kind == "delete":
        return log.delete_queue(call.queue, past_consumers=call.forced)
    if call.kind == "truncate":
        assert call.position is not None
        queue_id = call.holder[0] if call.holder is not None else None
        return (changing or log).truncate(call.queue, call.position, queue_id=queue_id, past_consumers=call.forced)
    if call.kind == "sync":
        return log.drain() if call.forced else log.sync()
    if call.kind == "configure":
        return _configure(log, changing, call)
    return _setting(log, call)


async def _configure(log: MultiRecordLog, changing: Changing | None, call: Call) -> None:
    if changing is not None:
        await changing.count(call.queue)
    await log.configure_queue(call.queue, call.options)


def _setting(log: MultiRecordLog, call: Call) -> Coroutine[Any, Any, object]:
    """Return a call about consumers or options."""
    queue, consumer, position, holder = call.queue, call.consumer, call.position, call.holder
    if call.kind == "attach":
        owner = uuid.UUID(bytes=call.owner) if call.owner != NO_OWNER else None
        return log.inspection.attach_consumer(
            queue, consumer, create=True, start=position, owner=owner, take_over=call.forced
        )
    if call.kind == "consume":
        return log.create_consumer(queue, consumer, start=position)
    if call.kind == "release":
        return log.delete_consumer(queue, consumer)
    if call.kind == "seal":
        return log.seal_queue(queue)
    if call.kind in ("rule", "unrule"):  # the rule alone: what else such a call does are calls like any other
        return inside.change_rule(log, queue, consumer, call.kind == "unrule", call.exist_ok)
    assert position is not None
    if call.kind == "move":
        return log.seek_consumer(queue, consumer, position)
    assert holder is not None
    if call.kind == "seek":
        return log.seek_consumer(queue, consumer, position, queue_id=holder[0], epoch=holder[1])
    assert call.kind == "acknowledge"
    return log.inspection.acknowledge(queue, consumer, position, queue_id=holder[0], epoch=holder[1])


async def _append_soon(log: MultiRecordLog, call: Call) -> object:
    return await log.append_soon(call.queue, *call.payloads)


History = Callable[[Run], Awaitable[None]]


def run_history(history: History, run: Run, fault: Fault | None = None, *, stepping: bool = False) -> Run:
    """Run *history* to its end, close the log, and return the run. Open errors (OSError) end it early."""

    async def whole() -> None:
        run.disk.fault = fault
        try:
            await history(run)
        except (OSError, RecordLogError) as error:
            run.stopped = error
        for copy in run.copies:
            if copy.log is not None:
                await copy.close()
        if run.log is not None:
            await run.settle()
            run.seen = await run.state()  # reads continue even if the log has failed
            await run.close()
        await run.turns(9)  # for the rest of an opening that failed

    with repeatable(stepping=stepping) as loop:
        loop.run_until_complete(whole())
    run.check_shown()
    return run
