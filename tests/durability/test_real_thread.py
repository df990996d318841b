"""The log's real threads, each of which stops at every call to the disk until the test lets it continue.

The other histories run on a model of the thread. Here the threads are those of the log: the one that writes, those that
gather segments, and those that read them. While one is inside a call, the event loop reads, truncates, appends, deletes
and at last closes the log. Nothing waits for time to pass.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from mrecordlog_async import Limits, MultiRecordLog, PersistPolicy, ReadOnlyLog, RecordLogError
from mrecordlog_async.model import TICK_NS
from mrecordlog_async.storage.filesystem import FileSystem
from tests.faults.disk import Disk, Plan
from tests.faults.driver import DIRECTORY, SEGMENT_BYTES, coroutine_of
from tests.faults.explore import open_twice
from tests.faults.inside import FIRST_QUEUE_ID, TIME_NS, without_chance
from tests.faults.judge import Call, Model, State, Verdict, as_payloads, state_in, state_of

MEMORY_BYTES = 128_000


class Gate:
    """Where the threads stop: `pass_one` lets the one that came first make its call."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._owner = threading.get_ident()
        self._waiting: deque[tuple[str, threading.Event]] = deque()
        self._came = asyncio.Event()
        self._is_open = False
        self.passed: list[tuple[str, str]] = []  # each call, and the thread that made it

    def stop(self, call: str) -> None:
        """Stop until it is this thread's turn. The event loop's own calls do not stop."""
        if threading.get_ident() == self._owner:
            raise AssertionError(f"the event loop calls {call}: a slow disk would hold up everything")
        if self._is_open:
            return
        turn = threading.Event()
        self._loop.call_soon_threadsafe(self._come, call, turn, threading.current_thread().name)
        turn.wait()

    def _come(self, call: str, turn: threading.Event, thread: str) -> None:
        self._waiting.append((call, turn))
        self.passed.append((call, thread))
        self._came.set()
        if self._is_open:
            turn.set()

    def open(self) -> None:
        """Let everything through from now on: the test has ended, and its threads must end."""
        self._is_open = True
        for _, turn in self._waiting:
            turn.set()

    async def reached(self) -> str:
        """Wait until a thread stands at the gate; return the call that it is about to make."""
        await self._came.wait()
        return self._waiting[0][0]

    def pass_one(self) -> None:
        """Let the first thread continue."""
        self._waiting.popleft()[1].set()
        if not self._waiting:
            self._came.clear()


class GatedDisk:
    """A disk whose calls stop at the gate."""

    def __init__(self, disk: Disk, gate: Gate) -> None:
        self._disk, self._gate = disk, gate
        self._one_at_a_time = threading.RLock()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._disk, name)

        def call(*arguments: Any, **options: Any) -> Any:
            self._gate.stop(name)
            with self._one_at_a_time:
                return method(*arguments, **options)

        return call


class Caller:
    """Makes calls of the model without waiting for them."""

    def __init__(self, log: MultiRecordLog, model: Model) -> None:
        self.log, self.model = log, model
        self.tasks: list[asyncio.Task[None]] = []
        self.number = 0

    def begin(self, kind: str, queue: str, *sizes: int, **details: Any) -> None:
        """Begin a call; its payloads have these sizes, and none that another call has."""
        payloads = []
        for size in sizes:
            self.number += 1
            payloads.append((b"<%d>" % self.number * (size // 3 + 1))[:size])
        call = self.model.begin(
            Call(0, kind, queue, payloads=as_payloads(payloads), tick=TIME_NS // TICK_NS, **details)
        )
        self.tasks.append(asyncio.get_running_loop().create_task(self._make(call)))

    async def _make(self, call: Call) -> None:
        try:
            call.answer(await coroutine_of(self.log, None, call))
        except (RecordLogError, OSError) as error:
            call.fail(error)


def read_all(log: MultiRecordLog) -> None:
    """Read what is in memory, as the loop does while a thread is inside a call."""
    for queue, summary in log.summary().items():
        first = log.memory_first(queue)
        positions = [position for position, _ in log.range(queue, first)]
        assert positions == list(range(first, summary.next_position))


async def let_through(gate: Gate, busy: list[asyncio.Task[Any]], work: Callable[[int], object], passed: int = 0) -> int:
    """Let the threads make one call after another until all of *busy* are done; do *work* while each of them waits.

    Returns:
        How many calls were made so far, beginning with *passed*.
    """
    while not all(task.done() for task in busy):
        came = asyncio.ensure_future(gate.reached())
        await asyncio.wait([came, *(task for task in busy if not task.done())], return_when=asyncio.FIRST_COMPLETED)
        if not came.done():
            came.cancel()
            continue
        work(passed)
        for _ in range(3):  # turns of the loop, while the thread stands
            await asyncio.sleep(0)
        gate.pass_one()
        passed += 1
    return passed


@pytest.mark.parametrize("policy", [PersistPolicy.always(), PersistPolicy.never()], ids=["always", "never"])
def test_the_loop_works_while_each_call_to_the_disk_is_under_way(policy: PersistPolicy) -> None:
    """Reads see whole states, calls keep their order, and what was acknowledged is there after close and power cut."""
    disk = Disk()
    model = asyncio.run(at_the_gate(policy, disk))
    verdict, snapshot = Verdict(model), disk.snapshot()
    verdict.check(state_in(ReadOnlyLog.open(DIRECTORY, filesystem=disk)), model.bounds(), "closed")
    for left in (snapshot.kill(), snapshot.crash(Plan())):
        verdict.check(open_twice(left, "opened again"), model.bounds(), "opened again")


async def at_the_gate(policy: PersistPolicy, disk: Disk) -> Model:
    """Work at the gate, and let every thread end, whatever happens."""
    gate = Gate(asyncio.get_running_loop())
    try:
        return await work_at_the_gate(policy, disk, gate)
    finally:
        gate.open()


async def work_at_the_gate(policy: PersistPolicy, disk: Disk, gate: Gate) -> Model:
    """Open a log, make calls while its threads stand at the gate, and close it; return the calls."""
    files: FileSystem = GatedDisk(disk, gate)
    limits = Limits(memory_bytes=MEMORY_BYTES, beyond_memory="disk")
    with without_chance():
        opening = asyncio.ensure_future(
            _opened(
                MultiRecordLog.open(
                    DIRECTORY, filesystem=files, limits=limits, persist_policy=policy, segment_bytes=SEGMENT_BYTES
                )
            )
        )
        await let_through(gate, [opening], lambda passed: None)
        log = opening.result()
        model = Model.under(policy, State(FIRST_QUEUE_ID, ()))
        model.begun = []
        caller = Caller(log, model)
        for queue in "ab":
            caller.begin("create", queue)

        def work(passed: int) -> None:
            read_all(log)
            if passed % 2 == 0 and passed < 120:
                caller.begin("append", "ab"[passed % 4 // 2], 4_000, 70)
            if passed % 11 == 10 and log.queue_exists("a"):
                caller.begin("truncate", "a", position=max(log.next_position("a") - 40, 0))
            if passed % 17 == 16 and log.queue_exists("b"):
                reads.append(asyncio.ensure_future(_read(log, "b")))
            if passed == 60:
                caller.begin("delete", "a")
                caller.begin("create", "a")

        reads: list[asyncio.Task[Any]] = []
        passed = 0
        while pending := [task for task in (*caller.tasks, *reads) if not task.done()]:
            passed = await let_through(gate, pending[:1], work, passed)
        looking = asyncio.ensure_future(state_of(log))
        await let_through(gate, [looking], lambda number: None)
        verdict = Verdict(model)
        verdict.check(looking.result(), model.bounds(), "in memory")
        assert passed > 200 and any(log.memory_first(queue) > log.first_position(queue) for queue in "ab")
        closing = asyncio.ensure_future(log.close())
        await let_through(gate, [closing], lambda number: read_all(log) if log.state.value != "closed" else None)
        threads = {thread for _, thread in gate.passed}
        assert len(threads) >= 3, f"only {threads} made calls: nothing was gathered or read beside the log's thread"
        assert not disk.open_handles() and not disk.misuse, disk.misuse
        return model


async def _opened(opening: Any) -> MultiRecordLog:
    log: MultiRecordLog = await opening
    return log


async def _read(log: MultiRecordLog, queue: str) -> None:
    """Read a queue from the beginning, from the disk where its records have left memory."""
    last = -1
    async for position, payload in log.read(queue):
        assert position > last and payload
        last = position
