"""The plan: positions, refusals and what may be answered before the sync."""

from __future__ import annotations

import asyncio
from typing import Any

from mrecordlog_async.engine.batch import RUN_BYTES, PlannedRun, build, plan, split_into_runs
from mrecordlog_async.engine.commands import Append, AppendGroup, Command, CreateQueue, DeleteQueue, TruncateQueue
from mrecordlog_async.errors import PositionInPastError, QueueNotFoundError
from mrecordlog_async.format import record as log_record
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.model import Run
from mrecordlog_async.options import Limits


def future() -> asyncio.Future[Any]:
    """Make a future; a plan never touches it."""
    return asyncio.get_running_loop().create_future()


def append(queue: str, position: int | None, *payloads: bytes) -> Append:
    """Make an append call."""
    return Append(future(), queue, position, list(payloads), sum(map(len, payloads)))


def group(queue: str, *payloads: bytes) -> AppendGroup:
    """Make a group of single records."""
    made = AppendGroup(queue)
    made.payloads = list(payloads)
    made.futures = [future() for _ in payloads]
    return made


def state() -> Queues:
    """Make two queues: "q" with records 0 and 1, "r" without."""
    queues = Queues(1)
    queues.apply(0, log_record.Create(1, "q"))
    queues.apply(0, log_record.Create(2, "r"))
    queues.apply(0, log_record.Append(1, Run.of(0, [b"a", b"b"])))
    return queues


def answers(commands: list[Command]) -> tuple[list[Any], list[Any], list[Any]]:
    """Plan; return the records, the answers at once and the answers after the sync."""
    made = plan(commands, state(), Limits())
    told = [[type(a.error) if a.error else a.value for a in group] for group in (made.immediate, made.answers)]
    return made.records, told[0], told[1]


async def test_positions_are_given_in_order_across_groups_and_calls() -> None:
    """Each command goes on where the one before it ended."""
    records, now, later = answers([group("q", b"c", b"d"), append("q", None, b"e"), append("q", 7, b"f")])
    assert records == [PlannedRun(1, 2, [b"c", b"d"]), PlannedRun(1, 4, [b"e"]), PlannedRun(1, 7, [b"f"])]
    assert (now, later) == ([], [2, 4, 7])


async def test_refusal_that_rests_on_stored_state_is_told_at_once() -> None:
    """Nothing that this batch writes could change it."""
    _, now, later = answers([append("q", 0, b"other"), append("nowhere", None, b"x"), append("q", 0, b"a")])
    assert now == [PositionInPastError, QueueNotFoundError, None]
    assert later == []


async def test_answer_that_rests_on_the_batch_waits_for_its_sync() -> None:
    """A repeat of a planned record, a queue just created or deleted: told after the sync, for it fails with it."""
    _, now, later = answers([group("q", b"c"), append("q", 2, b"c"), append("q", 2, b"other")])
    assert (now, later) == ([], [2, None, PositionInPastError])
    _, now, later = answers([DeleteQueue(future(), "q"), append("q", None, b"x")])
    assert (now, later[1:]) == ([], [QueueNotFoundError])
    _, now, later = answers([CreateQueue(future(), "new", False), CreateQueue(future(), "new", True)])
    assert (now, later) == ([], [True, False])


async def test_repeat_may_span_stored_and_planned_records() -> None:
    """A call that was half in memory and half in this batch is still the same call."""
    _, now, later = answers([append("q", 2, b"c"), append("q", 1, b"b", b"c")])
    assert (now, later) == ([], [2, None])


async def test_planning_leaves_the_queues_alone() -> None:
    """Memory changes after the sync, never before."""
    queues = state()
    before = queues.table()
    commands: list[Command] = [group("q", b"x"), DeleteQueue(future(), "r"), TruncateQueue(future(), "q", 1, None)]
    plan(commands, queues, Limits())
    assert queues.table() == before


async def test_runs_are_about_a_block() -> None:
    """Records of a batch share runs of at most a block; a larger one has its own."""
    payloads = [b"x" * 100] * 1000 + [b"y" * 100_000] + [b"z"] * 3
    runs = split_into_runs(5, payloads)
    assert [record for run in runs for record in run.each()] == list(
        zip(range(5, 5 + len(payloads)), payloads, strict=True)
    )
    assert all(len(run.payload) + len(run.offsets) <= RUN_BYTES + 4 for run in runs if run.records > 1)
    assert [run.records for run in runs if len(run.payload) >= 100_000] == [1]
    assert build([PlannedRun(1, 5, payloads)]) == [log_record.Append(1, run) for run in runs]
