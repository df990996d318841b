"""For any history of calls, a reader, a reopened log and a model made of a dictionary show the same."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from mrecordlog_async import (
    MultiRecordLog,
    PersistPolicy,
    PositionInPastError,
    QueueExistsError,
    QueueNotFoundError,
    ReadOnlyLog,
)
from mrecordlog_async.storage import segment
from tests.conftest import contents

NAMES = ["a", "b", "ç"]
SIZES = [0, 1, 100, 5_000, 32_700, 70_000]

Step = tuple[Any, ...]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read segments block by block, so that every record meets the end of a piece."""
    monkeypatch.setattr(segment, "PIECE_BYTES", 32_768)


names = st.sampled_from(NAMES)
steps = st.one_of(
    st.tuples(st.just("create"), names),
    st.tuples(st.just("delete"), names),
    st.tuples(st.just("append"), names, st.lists(st.sampled_from(SIZES), min_size=1, max_size=4)),
    st.tuples(st.just("append"), names, st.lists(st.sampled_from(SIZES), min_size=1, max_size=4)),
    st.tuples(st.just("append"), names, st.lists(st.sampled_from(SIZES), min_size=1, max_size=4)),
    st.tuples(st.just("append"), names, st.lists(st.sampled_from(SIZES[:3]), min_size=1, max_size=1)),
    st.tuples(st.just("append"), names, st.lists(st.sampled_from(SIZES[:3]), min_size=1, max_size=1)),
    st.tuples(
        st.just("append at"), names, st.integers(-2, 3), st.lists(st.sampled_from(SIZES), min_size=1, max_size=3)
    ),
    st.tuples(st.just("truncate"), names, st.integers(-4, 3)),
)
"""Single records that follow one another are stored as one MANY. Positions are counted from the queue's next one, so
that repeats, gaps and truncates past the end all come up."""


class MayBeRefused:
    """Equal to the result of a repeat and to a refusal: of truncated records only the last append may be known."""

    def __eq__(self, result: object) -> bool:
        return result is None or result is PositionInPastError

    __hash__ = None  # type: ignore[assignment]


class Model:
    """What the log promises, as a dictionary: name → [start, next, {position: payload}, the same of all times]."""

    def __init__(self) -> None:
        self.queues: dict[str, list[Any]] = {}
        self.counter = 0

    def payload(self, size: int) -> bytes:
        """Return a payload that no other call has, if its size allows."""
        self.counter += 1
        return (b"%d," % self.counter * (size // 2 + 1))[:size]

    def prepare(self, step: Step) -> tuple[Step, object]:
        """Turn a step into a call with real positions and payloads, apply it to the model; return call and result."""
        kind, name, *arguments = step
        queue = self.queues.get(name)
        if kind == "create":
            if queue is not None:
                return (kind, name), QueueExistsError
            self.queues[name] = [0, 0, {}, {}]
            return (kind, name), True
        if queue is None:
            return (kind, name, *self._plain(kind, arguments)), QueueNotFoundError
        if kind == "delete":
            del self.queues[name]
            return (kind, name), None
        if kind == "truncate":
            position = max(queue[1] + arguments[0], 0)
            return (kind, name, position), self._truncate(queue, position)
        position = None if kind == "append" else max(queue[1] + arguments[0], 0)
        payloads = [self.payload(size) for size in arguments[-1]]
        return ("append", name, position, payloads), self._append(queue, position, payloads)

    def _plain(self, kind: str, arguments: list[Any]) -> tuple[Any, ...]:
        if kind == "truncate":
            return (0,)
        return (None, [b"x"]) if kind.startswith("append") else ()

    def _truncate(self, queue: list[Any], position: int) -> int:
        if position < queue[0]:
            return 0
        dropped = [p for p in queue[2] if p <= position]
        for p in dropped:
            del queue[2][p]
        queue[0] = position + 1
        queue[1] = max(queue[1], position + 1)
        return len(dropped)

    def _append(self, queue: list[Any], position: int | None, payloads: list[bytes]) -> object:
        first = queue[1] if position is None else position
        stop = first + len(payloads)
        if first < queue[1]:
            if [queue[3].get(p) for p in range(first, stop)] != payloads:
                return PositionInPastError
            return None if first >= queue[0] else MayBeRefused()
        if queue[0] == queue[1] == 0:
            queue[0] = first
        for kept in queue[2:]:
            kept.update(zip(range(first, stop), payloads, strict=True))
        queue[1] = stop
        return stop - 1

    def contents(self) -> dict[str, tuple[int, int, list[tuple[int, bytes]]]]:
        """Return what `tests.conftest.contents` returns for a log."""
        return {name: (q[0], q[1], sorted(q[2].items())) for name, q in sorted(self.queues.items())}


async def call(log: MultiRecordLog, kind: str, name: str, *arguments: Any) -> object:
    """Make a call; return its result, or the class of its error."""
    try:
        if kind == "create":
            return await log.create_queue(name)
        if kind == "delete":
            await log.delete_queue(name)
            return None
        if kind == "truncate":
            return await log.truncate(name, *arguments)
        return await log.append_records(name, *arguments)
    except (QueueExistsError, QueueNotFoundError, PositionInPastError) as error:
        return type(error)


async def run(history: list[list[Step]], policy: PersistPolicy, blocks: int) -> None:
    """Make each round's calls at once, compare, and reopen between rounds."""
    model = Model()
    with tempfile.TemporaryDirectory() as directory:
        for round_ in history:
            options: dict[str, Any] = {"segment_bytes": blocks * 32_768, "persist_policy": policy}
            async with MultiRecordLog.open(Path(directory) / "wal", **options) as log:
                assert contents(log) == model.contents()
                prepared = [model.prepare(step) for step in round_]
                results = await asyncio.gather(*(call(log, *made) for made, _ in prepared))
                assert results == [result for _, result in prepared]
                assert contents(log) == model.contents()
                reader = await asyncio.to_thread(ReadOnlyLog.open, Path(directory) / "wal")
                assert contents(reader) == model.contents()
                summary = log.summary()
                for name, (start, next_position, records) in model.contents().items():
                    assert (summary[name].first_position, summary[name].next_position) == (start, next_position)
                    assert summary[name].records == len(records)
                    assert summary[name].bytes == sum(len(payload) for _, payload in records)
        async with MultiRecordLog.open(Path(directory) / "wal") as log:
            assert contents(log) == model.contents()


@given(
    history=st.lists(st.lists(steps, min_size=1, max_size=20), min_size=1, max_size=6),
    policy=st.sampled_from([PersistPolicy.always(), PersistPolicy.interval(1), PersistPolicy.never()]),
    blocks=st.sampled_from([1, 2, 5]),
)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_live_equals_recovered_equals_model(history: list[list[Step]], policy: PersistPolicy, blocks: int) -> None:
    """Concurrent calls on segments of a few blocks, reopened after every round: all three views agree."""
    asyncio.run(run(history, policy, blocks))
