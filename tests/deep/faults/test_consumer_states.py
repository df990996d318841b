"""Consumers, options and seals after crashes and faults, and in any order that hypothesis generates."""

from __future__ import annotations

import random
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import rule, run_state_machine_as_test

from mrecordlog_async import LogFullError, PersistPolicy, QueueOptions
from mrecordlog_async.format.controls import NO_OWNER
from tests.deep.cases import step
from tests.faults.consumer_histories import CONSUMER_CASES, FIRST, KEEP, SECOND
from tests.faults.explore import Explorer, Tally
from tests.faults.inject import faults, inject
from tests.faults.test_state_machine import NAMES, LogMachine

EVERY = {
    "consumers": 7,
    "consumers, stepping": 21,
    "never, consumers": 13,
    "options": 7,
    "options, small": 21,
    "holders": 3,
    "never, holders": 2,
    "zombie": 7,
    "never, zombie": 2,
    "never, tools": 3,
    "owners": 16,
    "rules": 9,
    "never, rules": 15,
    "reserve of consumers": 31,
    "consumers below a limit": 20,
}
"""Histories of which the suite checks only every n-th moment, and tries every n-th fault: half of them in each run."""


@pytest.mark.parametrize("name", CONSUMER_CASES)
def test_every_crash_state_keeps_consumers(name: str, tally: Tally, pytestconfig: pytest.Config) -> None:
    """Positions, epochs, options, seals and rules exist once they are acknowledged, with what they removed."""
    case = CONSUMER_CASES[name]
    run = case.run()
    assert run.stopped is None
    explorer = Explorer(deep_every=100, kill_every=13)
    with case.sizes():
        explorer.explore(run, step(pytestconfig, EVERY.get(name, 1)))
    assert explorer.tally.crash_states + explorer.tally.nested_states > 50
    tally.add(explorer.tally)


@pytest.mark.parametrize("name", CONSUMER_CASES)
def test_a_fault_at_any_call_loses_no_acknowledgement(name: str, tally: Tally, pytestconfig: pytest.Config) -> None:
    """Every call ends; what was acknowledged survives, and a failed log moves no consumer."""
    case, explorer = CONSUMER_CASES[name], Explorer()
    calls = case.run(moments=False).disk.call_names
    for fault in list(faults(calls))[:: step(pytestconfig, 2 * EVERY.get(name, 1))]:
        inject(case, fault, explorer)
    assert explorer.tally.faults > 3
    tally.add(explorer.tally)


@pytest.mark.parametrize("name", ["reserve of consumers", "consumers below a limit"])
def test_the_reserve_is_for_what_truncates(name: str) -> None:
    """On a full disk, acknowledgements that remove records always succeed, attaching does while half is left."""
    calls = CONSUMER_CASES[name].run(moments=False).model.calls
    full = next(call.number for call in calls if call.outcome == "absent")
    later = [call for call in calls if call.number > full]
    assert {call.outcome for call in later if call.kind == "acknowledge" and call.queue == "kept"} == {"answered"}
    refused = [call for call in later if call.kind == "acknowledge" and call.queue == "other"]
    assert any(isinstance(call.error, LogFullError) for call in refused)
    assert {call.outcome for call in later if call.kind == "attach"} == {"answered", "absent"}
    assert {call.outcome for call in later if call.kind == "seal"} == {"answered"}
    assert calls[-1].outcome == "answered"


CONSUMERS = st.sampled_from(["c", "d"])
OWNERS = st.sampled_from([NO_OWNER, FIRST, SECOND])
OPTIONS = st.sampled_from(
    [
        QueueOptions(),
        KEEP,
        replace(KEEP, max_records=4),
        replace(KEEP, keep_at_least=1e9),
        QueueOptions(max_records=3),
        QueueOptions(max_records=3, when_full="drop_oldest"),
        QueueOptions(max_bytes=6_000, max_records=7, when_full="drop_oldest"),
    ]
)


class ConsumerMachine(LogMachine):
    """The machine of all logs, whose queues have consumers and options too."""

    @rule(queue=NAMES, options=OPTIONS, seed=st.integers(0, 10_000))
    def work(self, queue: str, options: QueueOptions, seed: int) -> None:
        """Append and attach; then holders, present ones and some that were fenced off, move in any order."""
        chance = random.Random(seed)
        self._begin("create", queue, options=options, exist_ok=True)
        self._begin("append", queue, payloads=self.run.payloads(5, 6, 700))
        if (queue, "c") not in self.run.holders or not seed % 3:
            self.attach(queue, "c")
            self._do(self.run.turns(12))
        for _ in range(4):
            self._move(chance)

    def _move(self, chance: random.Random) -> None:
        held = sorted(self.run.holders.items())
        if not held or self.run.log is None:
            return
        (queue, consumer), holder = chance.choice(held)
        found = self.run.log.consumers(queue).get(consumer) if self.run.log.queue_exists(queue) else None
        position = max((found.position if found is not None else 0) + chance.randint(-1, 2), 0)
        kind = chance.choice(["acknowledge", "acknowledge", "seek"])
        epoch = holder.epoch - (chance.random() < 0.15)  # of the holder before, or of nobody
        self._begin(kind, queue, consumer=consumer, position=position, holder=(holder.queue_id, epoch))

    @rule(queue=NAMES, consumer=CONSUMERS, owner=OWNERS, forced=st.booleans())
    def attach(self, queue: str, consumer: str, owner: bytes = NO_OWNER, forced: bool = True) -> None:
        self.waiting.append(self._do(self._attaching(queue, consumer, owner, forced)))

    async def _attaching(self, queue: str, consumer: str, owner: bytes, forced: bool) -> object:
        task = self.loop.create_task(self.run.attach(queue, consumer, owner=owner, forced=forced))
        await self.run.turns(1)
        return task

    @rule(queue=NAMES, consumer=CONSUMERS, kind=st.sampled_from(["consume", "move", "release", "seal"]))
    def manage(self, queue: str, consumer: str, kind: str) -> None:
        """An operator creates, moves or deletes a consumer, or seals a queue."""
        position = max(self._next(queue) - 2, 0)
        self._begin(kind, queue, consumer=consumer, position=position)

    @rule(pattern=st.sampled_from(["*", "a*"]), consumer=CONSUMERS, kind=st.sampled_from(["rule", "unrule"]))
    def change_rule(self, pattern: str, consumer: str, kind: str) -> None:
        self._begin(kind, pattern, consumer=consumer)

    @rule(queue=NAMES, options=OPTIONS)
    def configure(self, queue: str, options: QueueOptions) -> None:
        self._begin("configure", queue, options=options)

    @rule(queue=NAMES, distance=st.integers(-5, 2), forced=st.booleans())
    def truncate_past(self, queue: str, distance: int, forced: bool) -> None:
        self._begin("truncate", queue, position=max(self._next(queue) + distance, 0), forced=forced)

    @rule(queue=NAMES)
    def delete_by_force(self, queue: str) -> None:
        self._begin("delete", queue, forced=True)


class WeakConsumerMachine(ConsumerMachine):
    """The same with a policy that acknowledges before the sync."""

    policy = PersistPolicy.interval(0.5)


@pytest.mark.parametrize("machine", [ConsumerMachine, WeakConsumerMachine])
def test_any_history_with_consumers(machine: type[LogMachine], tally: Tally) -> None:
    """In any order of steps, the model and the log agree, before and after every crash."""
    machine.tally = tally
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=50,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
