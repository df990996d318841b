"""Appends of single records: the compiled part and its twin admit, refuse, charge, wait and fail alike."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrecordlog_async.engine.intake import admission
from mrecordlog_async.errors import LogClosedError

loops = pytest.importorskip("mrecordlog_async.compiled._loops", reason="nothing is compiled: python hatch_build.py")

KINDS: dict[str, Any] = {"pure": admission.SingleAppends, "compiled": admission.joining(loops.JoinedAppends)}
OVERHEAD = 260
RECORD_BYTES = 1_000


class Group:
    """What `AppendGroup` is to them."""

    def __init__(self) -> None:
        self.queues: list[Any] = []
        self.payloads: list[Any] = []
        self.futures: list[asyncio.Future[Any]] = []


class Gate:
    """What `Admission` is to them. It notes every call."""

    def __init__(self, kind: str, loop: asyncio.AbstractEventLoop) -> None:
        self.said: list[Any] = []
        self.groups: list[Group] = []
        self.loop = loop
        self.singles = KINDS[kind](self, loop, RECORD_BYTES, OVERHEAD)

    def open_group(self) -> Group:
        self.check_loop()
        self.groups.append(Group())
        self.singles.group = self.groups[-1]
        return self.groups[-1]

    def check_loop(self) -> None:
        self.said.append("check_loop")
        if threading.get_ident() != threading.main_thread().ident:
            raise LogClosedError("another thread")

    async def append(self, queue: Any, position: int | None, payloads: list[Any]) -> int | None:
        self.said.append(("append", queue, position, payloads))
        await asyncio.sleep(0)
        return 99

    def append_now_or_never(self, queue: Any, payload: Any) -> asyncio.Future[Any]:
        self.said.append(("now or never", queue, payload))
        future = self.loop.create_future()
        future.set_result(98)
        return future

    def state(self) -> Any:
        columns = [(group.queues, group.payloads, len(group.futures)) for group in self.groups]
        return self.said, columns, self.singles.budget, self.singles.group is not None


class LongBytes(bytes):
    """Claims to be long."""

    def __len__(self) -> int:
        return 2_000_000_000


class OtherStr(str):
    """A name that is not exactly a str."""


QUEUES: list[Any] = ["q", "r", OtherStr("s"), None, 7]
PAYLOADS: list[Any] = [b"", b"abc", bytes(RECORD_BYTES), bytes(RECORD_BYTES + 1), LongBytes(b"x"), None, 3]
STEPS = st.lists(
    st.tuples(st.sampled_from(["wait", "soon"]), st.sampled_from(QUEUES), st.sampled_from(PAYLOADS))
    | st.tuples(st.just("budget"), st.integers(-1, 5_000), st.none())
    | st.tuples(st.sampled_from(["take", "cancel", "fail"]), st.none(), st.none()),
    max_size=12,
)


async def outcome_of(kind: str, steps: list[tuple[str, Any, Any]]) -> list[Any]:
    """Return everything that can be seen of one kind after each step, and the outcome of every call."""
    gate = Gate(kind, asyncio.get_running_loop())
    seen: list[Any] = []
    calls: list[asyncio.Future[Any]] = []
    for step, first, second in steps:
        if step == "budget":
            gate.singles.budget = first
        elif step == "wait":
            calls.append(asyncio.ensure_future(gate.singles.append_single(first, second)))
        elif step == "soon":
            try:
                calls.append(gate.singles.append_soon(first, second))
            except Exception as error:
                seen.append((type(error), str(error)))
        elif step == "cancel" and calls:
            calls[-1].cancel()
        elif gate.singles.group is not None:
            group, gate.singles.group = gate.singles.group, None
            for position, future in enumerate(group.futures):
                if not future.done():
                    future.set_result(position) if step == "take" else future.set_exception(RuntimeError("failed"))
        await asyncio.sleep(0)
        seen.append(gate.state())
    for group in gate.groups:
        for future in group.futures:
            if not future.done():
                future.set_result(-1)
    done = await asyncio.gather(*calls, return_exceptions=True)
    return [*seen, *((type(found), str(found)) for found in done)]


@given(STEPS)
def test_the_same_calls_have_the_same_outcome(steps: list[tuple[str, Any, Any]]) -> None:
    """Charges, groups, refusals, cancelled and failed calls are the same, whatever the names, payloads and budgets."""
    asyncio.run(compare(steps))


async def compare(steps: list[tuple[str, Any, Any]]) -> None:
    assert await outcome_of("compiled", steps) == await outcome_of("pure", steps)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_call_from_another_thread_is_checked(kind: str) -> None:
    """`Admission` decides about it, before anything is charged."""
    gate = Gate(kind, asyncio.get_running_loop())
    gate.singles.budget = 1_000
    found: list[Exception] = []

    def call() -> None:
        try:
            gate.singles.append_soon("q", b"x")
        except LogClosedError as error:
            found.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert [error.args for error in found] == [("another thread",)] or str(found[0])
    assert gate.state() == (["check_loop"], [], 1_000, False)


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_on_a_second_loop_of_the_thread_is_withdrawn(kind: str) -> None:
    """asyncio refuses to wait for a future of another loop: the call fails, so its record must not be stored."""
    first = asyncio.new_event_loop()
    gate = Gate(kind, first)
    gate.singles.budget = 1_000

    async def call() -> None:
        with pytest.raises(LogClosedError, match="another event loop"):
            await gate.singles.append_single("q", b"x")

    asyncio.run(call())
    assert [future.cancelled() for future in gate.groups[0].futures] == [True]
    first.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_happens_before_the_call_is_awaited(kind: str) -> None:
    """It is a coroutine in both builds: one that is closed unawaited has charged nothing."""
    gate = Gate(kind, asyncio.get_running_loop())
    gate.singles.budget = 1_000
    call = gate.singles.append_single("q", b"x")
    assert asyncio.iscoroutine(call)
    call.close()
    assert gate.state() == ([], [], 1_000, False)
