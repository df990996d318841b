"""Calls, cancellations, deaths and power cuts in any order that hypothesis generates, compared with the model."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from contextlib import ExitStack
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from mrecordlog_async import PersistPolicy

from . import sizes
from .driver import Run, repeatable
from .explore import Tally, open_twice
from .judge import BRANCHES_MAX, Verdict, Violation, state_of
from .states import plans

NAMES = st.sampled_from(["a", "b", "c"])
SIZES = st.lists(st.sampled_from([0, 1, 60, 700, 5_000, 33_000]), min_size=1, max_size=3)


class LogMachine(RuleBasedStateMachine):
    """One log over the forgetful disk. Every result and every reopening is checked against the model."""

    policy = PersistPolicy.always()
    tally = Tally()

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.loop = self.stack.enter_context(repeatable())
        self.stack.enter_context(sizes.replaced(sizes.early_roll(8_192)))
        self.run = Run(policy=self.policy)
        self.run.record_moments = False
        self.waiting: list[asyncio.Future[object]] = []
        self._do(self.run.open())

    def teardown(self) -> None:
        try:
            self._settle()
            self._do(self.run.close())
            self._do(self.run.open())
            self._do(self.run.close())
        finally:
            self.stack.close()

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def _begin(self, kind: str, queue: str, **details: Any) -> None:
        async def begin() -> None:
            self.waiting.append(self.run.begin(kind, queue, **details))
            await asyncio.sleep(0)

        self._do(begin())

    def _settle(self) -> None:
        if self.waiting:
            self._do(asyncio.wait(self.waiting))
        self.waiting.clear()

    def _next(self, queue: str) -> int:
        assert self.run.log is not None
        return self.run.log.next_position(queue) if self.run.log.queue_exists(queue) else 0

    @rule(queue=NAMES, exist_ok=st.booleans())
    def create(self, queue: str, exist_ok: bool) -> None:
        self._begin("create", queue, exist_ok=exist_ok)

    @rule(queue=NAMES, sizes=SIZES, soon=st.booleans())
    def append(self, queue: str, sizes: list[int], soon: bool) -> None:
        self._begin("append", queue, payloads=self.run.payloads(*sizes), soon=soon and len(sizes) == 1)

    @rule(queue=NAMES, sizes=SIZES, distance=st.integers(-3, 4))
    def append_at(self, queue: str, sizes: list[int], distance: int) -> None:
        position = max(self._next(queue) + distance, 0)
        self._begin("append", queue, position=position, payloads=self.run.payloads(*sizes))

    @rule(which=st.integers(0, 5))
    @precondition(lambda self: any(call.kind == "append" for call in self.run.model.calls))
    def send_again(self, which: int) -> None:
        """A caller who does not know the outcome sends the same records to the same position."""
        sent = [call for call in self.run.model.calls if call.kind == "append"]
        call = sent[-1 - which % len(sent)]
        position = call.position
        if position is None and isinstance(call.value, int):
            position = call.value - len(call.payloads) + 1
        self._begin("append", call.queue, position=position, payloads=call.payloads)

    @rule(queue=NAMES, distance=st.integers(-5, 2))
    def truncate(self, queue: str, distance: int) -> None:
        self._begin("truncate", queue, position=max(self._next(queue) + distance, 0))

    @rule(queue=NAMES)
    def delete(self, queue: str) -> None:
        self._begin("delete", queue)

    @rule()
    def sync(self) -> None:
        self._begin("sync", "")

    @rule(turns=st.integers(1, 8))
    def turn(self, turns: int) -> None:
        """Let the writer advance a little."""
        self._do(self.run.turns(turns))

    @rule()
    def wait(self) -> None:
        """Let every call complete, and timers run."""
        self._settle()
        self._do(self.run.idle())

    @rule(which=st.integers(0, 7))
    @precondition(lambda self: self.waiting and self._cancelled() < BRANCHES_MAX - 4)
    def cancel(self, which: int) -> None:
        task = self.waiting.pop(which % len(self.waiting))
        task.cancel()
        self._do(asyncio.wait([task]))

    def _cancelled(self) -> int:
        return sum(call.outcome == "cancelled" for call in self.run.model.calls)

    @rule()
    def reopen(self) -> None:
        self._settle()
        self._do(self.run.close())
        self._do(self.run.open())

    @rule()
    @precondition(lambda self: self._cancelled() + len(self.waiting) < BRANCHES_MAX)
    def die(self) -> None:
        """The process dies with calls in progress. The next one finds what was written to the operating system."""
        self._do(self.run.kill())
        self._settle()
        self._do(self.run.open())

    @rule(seed=st.integers(0, 10_000))
    @precondition(lambda self: self._cancelled() + len(self.waiting) < BRANCHES_MAX)
    def power_cut(self, seed: int) -> None:
        """Open every state that a power cut could leave now, and continue from one of them."""
        snapshot, bounds = self.run.disk.snapshot(), self.run.model.bounds()
        chance = random.Random(seed)
        states = list(plans(snapshot, chance, 3))
        chosen = chance.sample(states, min(len(states), 6))
        self._do(self.run.kill())
        self._settle()
        verdict = Verdict(self.run.model)
        for name, plan in chosen:
            verdict.check(open_twice(snapshot.crash(plan), name), bounds, f"power cut, {name}")
            self.tally.crash_states += 1
        self.run.use(snapshot.crash(chosen[0][1]))
        self._do(self.run.open())

    @invariant()
    def readers_see_a_whole_state(self) -> None:
        """Memory never shows half a batch, and never loses an acknowledged call."""
        if any(call.outcome == "open" for call in self.run.model.calls) or self.run.log is None:
            return
        seen = self._do(state_of(self.run.log))
        Verdict(self.run.model).check(seen, self.run.model.bounds(), "in memory")
        if self.run.disk.misuse:
            raise Violation(str(self.run.disk.misuse))


class WeakLogMachine(LogMachine):
    """The same with a policy that acknowledges before the sync."""

    policy = PersistPolicy.interval(0.5)


def test_any_history_with_policy_always(tally: Tally) -> None:
    """In any order of steps, the model and the log agree, before and after every crash."""
    _run(LogMachine, tally)


def test_any_history_with_policy_interval(tally: Tally) -> None:
    """A power cut loses at most whole batches at the end."""
    _run(WeakLogMachine, tally)


def _run(machine: type[LogMachine], tally: Tally) -> None:
    machine.tally = tally
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=120,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
