"""The machine of hypothesis: any history of a log that it can think of, against the judge's dictionary.

Calls of every kind, cancellations, faults of the disk, deaths and power cuts come in any order, on a log of any
configuration: every policy, every way to write, small disks, little memory, calls that wait for space. After each step
a reader sees a whole state that the model allows. After each death and each power cut, in every state that the disk may
have been left in, the log opens twice with the same result: with all that was acknowledged, nothing that was refused.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from mrecordlog_async import Limits, LogFailedError, PersistPolicy, QueueOptions, ReadOnlyLog, RecordLogError
from mrecordlog_async.format.controls import NO_OWNER
from tests.faults.disk import Disk, Fault
from tests.faults.driver import Run, repeatable
from tests.faults.explore import open_twice
from tests.faults.histories import Case
from tests.faults.inject import ERRORS, READING
from tests.faults.judge import BRANCHES_MAX, Bounds, Verdict, Violation, state_in
from tests.faults.states import plans

QUEUES = st.sampled_from(["a", "b", "c"])
CONSUMERS = st.sampled_from(["c", "d"])
OWNERS = st.sampled_from([NO_OWNER, bytes(15) + b"1", bytes(15) + b"2"])
SIZES = st.lists(st.sampled_from([0, 1, 60, 500, 700, 5_000, 9_000, 33_000]), min_size=1, max_size=3)
KEEP = QueueOptions(keep="until_acknowledged")
OPTIONS = st.sampled_from(
    [
        QueueOptions(),
        KEEP,
        replace(KEEP, max_records=4),
        replace(KEEP, keep_at_least=1e9),
        QueueOptions(max_records=3, when_full="drop_oldest"),
        QueueOptions(max_bytes=6_000, max_records=7, when_full="drop_oldest"),
    ]
)
POLICIES = st.sampled_from([PersistPolicy.always()] * 3 + [PersistPolicy.interval(0.5), PersistPolicy.never()])
OFTEN = ("write", "write_durable", "sync", "reserve", "create", "sync_directory", "unlink", "rename")
FAULTS = st.sampled_from([(call, *each) for call in OFTEN for each in ERRORS[call]]) | st.sampled_from(
    [(call, *each) for call, found in ERRORS.items() for each in found]
)
WAYS: dict[str, dict[str, Any]] = {
    "direct": {},
    "cached": {"has_direct": False},
    "pieces": {"piece_bytes": 4_096, "staging_bytes": 40_960},
    "prepared": {"has_prepared": True},
    "pages": {"sector_bytes": 4_096},
}
"""How segments are written, as options of `Case`."""


class AnyLog(RuleBasedStateMachine):
    """One log over a disk that forgets what was not synced."""

    memory = st.sampled_from([0, 0, 0, 32_000, 64_000, 200_000])

    @initialize(data=st.data(), policy=POLICIES, way=st.sampled_from(sorted(WAYS)), flags=st.integers(0, 15))
    def begin(self, data: st.DataObject, policy: PersistPolicy, way: str, flags: int) -> None:
        """Open a log: its policy, how it writes, how much it has of memory and of the disk, and what calls do then."""
        stepping, small, is_full, waits = (bool(flags & 1 << bit) for bit in range(4))
        options = WAYS[way]
        self.memory_bytes = data.draw(self.memory)
        case = Case(_nothing, policy, small=small, early_roll_bytes=8_192, memory_bytes=self.memory_bytes, **options)
        self.stack = ExitStack()
        self.loop = self.stack.enter_context(repeatable(stepping=stepping))
        self.stack.enter_context(case.sizes())
        disk = Disk(
            capacity_bytes=400_000 if is_full else None,
            sector_bytes=case.sector_bytes,
            has_direct=case.has_direct,
            has_prepared=case.has_prepared,
        )
        limits = Limits(on_full="wait" if waits else "raise")
        if self.memory_bytes:
            limits = replace(limits, memory_bytes=self.memory_bytes, beyond_memory="disk")
        self.run = Run(disk, policy, limits)
        self.run.record_moments = False
        self.run.by_result = bool(waits or self.memory_bytes)
        self.waiting: list[asyncio.Future[object]] = []
        self.do(self.run.open())
        for queue in "ab":
            self.do(self.run.create(queue))

    def teardown(self) -> None:
        if not hasattr(self, "run"):
            return
        try:
            self.reopen()
            self.do(self.run.close())
            self.run.check_shown()
        finally:
            self.stack.close()

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Let the loop turn until *work* is done."""
        return self.loop.run_until_complete(work)

    def call(self, kind: str, queue: str = "", **details: Any) -> None:
        """Begin a call, and let the loop turn once."""

        async def begin() -> None:
            self.waiting.append(self.run.begin(kind, queue, **details))
            await asyncio.sleep(0)

        self.do(begin())

    def settle(self) -> None:
        """Wait for every call; those that wait for space wait on."""
        if self.waiting:
            self.do(asyncio.wait(self.waiting, timeout=30 if self.run.limits.on_full == "wait" else None))
        self.waiting = [each for each in self.waiting if not each.done()]

    def next(self, queue: str) -> int:
        """Return the next position of *queue*."""
        log = self.run.log
        return log.next_position(queue) if log is not None and log.queue_exists(queue) else 0

    def unsure(self) -> int:
        """Return how many calls may or may not be stored: the judge follows a limited number of them."""
        unsure = sum(call.outcome in ("cancelled", "unknown") for call in self.run.model.calls)
        return unsure + sum(not each.done() for each in self.waiting)

    def exact(self, options: QueueOptions) -> QueueOptions:
        """Return *options* as far as the model knows their effect: of the disk more than one record is dropped."""
        return QueueOptions() if self.memory_bytes and options.when_full == "drop_oldest" else options

    # Calls.

    @rule(queue=QUEUES, exist_ok=st.booleans(), options=OPTIONS)
    def create(self, queue: str, exist_ok: bool, options: QueueOptions) -> None:
        self.call("create", queue, exist_ok=exist_ok, options=self.exact(options))

    @rule(queue=QUEUES, sizes=SIZES, soon=st.booleans())
    def append(self, queue: str, sizes: list[int], soon: bool) -> None:
        self.call("append", queue, payloads=self.run.payloads(*sizes), soon=soon and len(sizes) == 1)

    @rule(queue=QUEUES, sizes=SIZES, times=st.integers(1, 4))
    @precondition(lambda self: self.run.limits.on_full == "raise")
    def appends(self, queue: str, sizes: list[int], times: int) -> None:
        """One caller, which waits each time: what the first case of the writer, and prepared writes, are for."""
        self.settle()
        for size in sizes * times:
            self.do(self.run.append(queue, size))

    @rule(sizes=st.lists(st.sampled_from([0, 20, 300]), min_size=4, max_size=9))
    def singles(self, sizes: list[int]) -> None:
        """Single records of several queues at the same time share a batch."""

        async def begin() -> None:
            for at, size in enumerate(sizes[: max(BRANCHES_MAX - self.unsure(), 0)]):
                self.waiting.append(self.run.begin_append("aabc"[at % 4], size))
            await self.run.turns(1)

        self.do(begin())

    @rule(queue=QUEUES, sizes=SIZES, distance=st.integers(-3, 4))
    def append_at(self, queue: str, sizes: list[int], distance: int) -> None:
        self.call("append", queue, position=max(self.next(queue) + distance, 0), payloads=self.run.payloads(*sizes))

    @rule(which=st.integers(0, 5))
    @precondition(lambda self: any(call.kind == "append" for call in self.run.model.calls))
    def send_again(self, which: int) -> None:
        """A caller who does not know the outcome sends the same records to the same position."""
        sent = [call for call in self.run.model.calls if call.kind == "append"]
        call = sent[-1 - which % len(sent)]
        position = call.position
        if position is None and isinstance(call.value, int):
            position = call.value - len(call.payloads) + 1
        self.call("append", call.queue, position=position, payloads=call.payloads)

    @rule(queue=QUEUES, distance=st.integers(-5, 2), forced=st.booleans())
    def truncate(self, queue: str, distance: int, forced: bool) -> None:
        self.call("truncate", queue, position=max(self.next(queue) + distance, 0), forced=forced)

    @rule(queue=QUEUES, forced=st.booleans(), again=st.sampled_from([True, True, True, False]))
    def delete(self, queue: str, forced: bool, again: bool) -> None:
        self.call("delete", queue, forced=forced)
        if again:
            self.call("create", queue)

    @rule(queue=QUEUES, consumer=CONSUMERS, owner=OWNERS, forced=st.booleans())
    def attach(self, queue: str, consumer: str, owner: bytes, forced: bool) -> None:
        async def begin() -> None:
            self.waiting.append(self.loop.create_task(self.run.attach(queue, consumer, owner=owner, forced=forced)))
            await self.run.turns(2)

        self.do(begin())

    @rule(
        seed=st.integers(0, 999), kind=st.sampled_from(["acknowledge", "acknowledge", "seek"]), ahead=st.integers(-1, 2)
    )
    def move(self, seed: int, kind: str, ahead: int) -> None:
        """A holder, present or fenced off, acknowledges or seeks."""
        chance, held = random.Random(seed), sorted(self.run.holders.items())
        if not held or self.run.log is None:
            return
        (queue, consumer), holder = chance.choice(held)
        found = self.run.log.consumers(queue).get(consumer) if self.run.log.queue_exists(queue) else None
        position = max((found.position if found is not None else 0) + ahead, 0)
        epoch = holder.epoch - (chance.random() < 0.15)
        self.call(kind, queue, consumer=consumer, position=position, holder=(holder.queue_id, epoch))

    @rule(queue=QUEUES, consumer=CONSUMERS, kind=st.sampled_from(["consume", "move", "release", "seal"]))
    def manage(self, queue: str, consumer: str, kind: str) -> None:
        self.call(kind, queue, consumer=consumer, position=max(self.next(queue) - 2, 0))

    @rule(pattern=st.sampled_from(["*", "a*"]), consumer=CONSUMERS, kind=st.sampled_from(["rule", "unrule"]))
    def change_rule(self, pattern: str, consumer: str, kind: str) -> None:
        self.call(kind, pattern, consumer=consumer)

    @rule(queue=QUEUES, options=OPTIONS)
    def configure(self, queue: str, options: QueueOptions) -> None:
        self.call("configure", queue, options=self.exact(options))

    @rule()
    def sync(self) -> None:
        self.call("sync")

    # Time.

    @rule(turns=st.integers(1, 8))
    def turn(self, turns: int) -> None:
        """Let the writer advance a little."""
        self.do(self.run.turns(turns))

    @rule()
    def wait(self) -> None:
        """Let every call complete, and timers run."""
        self.settle()
        self.do(self.run.idle())

    @rule(which=st.integers(0, 7))
    @precondition(lambda self: self.waiting and self.unsure() < BRANCHES_MAX - 4)
    def cancel(self, which: int) -> None:
        task = self.waiting.pop(which % len(self.waiting))
        task.cancel()
        self.do(asyncio.wait([task]))
        self.do(self.run.turns(2))

    # Others who look.

    @rule()
    def look(self) -> None:
        """A reader of the directory sees what a power cut may leave, or more, and never half a batch."""
        model, bounds = self.run.model, self.run.model.bounds()
        with self.run.unnoticed():
            try:
                seen = state_in(ReadOnlyLog.open(self.run.directory, filesystem=self.run.disk))
            except (OSError, RecordLogError) as error:
                raise Violation(f"a reader beside the log is refused: {error!r}") from error
        self.run.shown.append((model, Bounds(bounds.at_least, bounds.at_most), seen))

    @rule(link=st.booleans())
    @precondition(lambda self: not self.run.copies and self.run.disk.fault is None)
    def copy(self, link: bool) -> None:
        """Copy the log while it works, as `mrecordlog snapshot` does."""
        self.do(self.run.take_snapshot(link=link))

    # Ends, and what is left.

    @rule(fault=FAULTS, distance=st.integers(1, 12), on=st.booleans())
    @precondition(lambda self: self.unsure() < BRANCHES_MAX - 5 and self.run.disk.fault is None)
    def fail(self, fault: tuple[str, str, int], distance: int, on: bool) -> None:
        """Have a call to the disk fail soon, once or for good."""
        call, effect, code = fault
        once = not on or effect in ("short", "after") or (bool(self.memory_bytes) and call in READING)
        self.run.disk.fault = Fault(self.run.disk.calls + distance, code, True, effect, frozenset({call}), once)

    @rule()
    def reopen(self) -> None:
        """Close the log, which ends the calls that wait for space, and open it again."""
        self.settle()
        self.run.disk.fault = None
        self.do(self.run.close())
        self.settle()
        self.do(self.run.open())

    @rule()
    @precondition(lambda self: self.unsure() < BRANCHES_MAX)
    def die(self) -> None:
        """The process dies with calls in progress. The next one finds what was written to the operating system."""
        self.run.disk.fault = None
        self.do(self.run.kill())
        self.settle()
        self.do(self.run.open())

    @rule(seed=st.integers(0, 9_999), is_seen=st.booleans())
    @precondition(lambda self: self.unsure() < BRANCHES_MAX)
    def power_cut(self, seed: int, is_seen: bool) -> None:
        """Open every state that a power cut could leave now, and continue from one of them.

        *is_seen*: the process dies first, and the next one shows what it finds; that survives the power cut.
        """
        self.run.disk.fault = None
        if is_seen:
            self.die()
        snapshot, bounds = self.run.disk.snapshot(), self.run.model.bounds()
        chance = random.Random(seed)
        states = list(plans(snapshot, chance, 3))
        chosen = chance.sample(states, min(len(states), 6))
        self.do(self.run.kill())
        self.settle()
        verdict = Verdict(self.run.model)
        for name, plan in chosen:
            verdict.check(open_twice(snapshot.crash(plan), name), bounds, f"power cut, {name}")
        self.run.use(snapshot.crash(chosen[0][1]))
        self.do(self.run.open())

    @invariant()
    def readers_see_a_whole_state(self) -> None:
        """Memory never shows half a batch, and never loses an acknowledged call."""
        run = self.run
        if run.log is None or run.model.begun or any(call.outcome == "open" for call in run.model.calls):
            return
        Verdict(run.model).check(self.do(run.state()), run.model.bounds(), "in memory")
        if run.disk.misuse:
            raise Violation(str(run.disk.misuse))
        if run.log.inspection.pending_records:  # whatever was refused or cancelled is let go
            raise Violation(f"{run.log.inspection.pending_records} records wait, and nobody waits for them")

    @invariant()
    def a_failed_log_acknowledges_nothing(self) -> None:
        """After the first call that the log failed with, no call with an effect was acknowledged."""
        calls = self.run.model.calls
        failed = min((call.ended_at for call in calls if isinstance(call.error, LogFailedError)), default=None)
        if failed is not None and any(call.outcome == "answered" and call.ended_at > failed for call in calls):
            raise Violation("a call was answered by a failed log")


class LogWithLittleMemory(AnyLog):
    """The same where records leave memory, and where calls may wait until they have."""

    memory = st.sampled_from([32_000, 64_000, 128_000])


async def _nothing(run: Run) -> None:
    """The machine makes the history."""


def run_machine(machine: type[AnyLog], examples: int, phases: tuple[Phase, ...] = tuple(Phase)) -> None:
    """Make histories until one breaks a promise: the same ones in every run."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=phases,
        ),
    )
