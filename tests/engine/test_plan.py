"""The plan: positions, refusals and what may be acknowledged before the sync."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from mrecordlog_async.engine.commit.batch import build_records
from mrecordlog_async.engine.intake.commands import AppendGroup, AppendRecords, Command
from mrecordlog_async.engine.intake.controls import CreateQueue, DeleteQueue, TruncateQueue
from mrecordlog_async.engine.planning import plan as planning
from mrecordlog_async.engine.planning.draft import CommandOutcome, PlannedMany, PlannedRun, PlannedSingles, QueueView
from mrecordlog_async.engine.planning.plan import RUN_RECORDS_MIN, plan
from mrecordlog_async.errors import LogFullError, PositionInPastError, QueueNameError, QueueNotFoundError
from mrecordlog_async.format.controls import Create, Delete, Truncate
from mrecordlog_async.format.record import Append
from mrecordlog_async.format.stored_options import DROP_OLDEST, SetOptions, StoredOptions
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.model import POSITION_MAX, Run
from mrecordlog_async.options import Limits


def future() -> asyncio.Future[Any]:
    """Make a future; a plan never touches it."""
    return asyncio.get_running_loop().create_future()


def append(queue: str, position: int | None, *payloads: bytes) -> AppendRecords:
    """Make an append call."""
    return AppendRecords(future(), queue, position, list(payloads))


def group(queue: str, *payloads: bytes) -> AppendGroup:
    """Make a group of single records for one queue."""
    return singles(*((queue, payload) for payload in payloads))


def state() -> Queues:
    """Make two queues: "q" with records 0 and 1, "r" without."""
    queues = Queues(1)
    queues.apply(0, Create(1, "q"))
    queues.apply(0, Create(2, "r"))
    queues.apply(0, Append(1, Run.of(0, [b"a", b"b"])))
    return queues


def planned(commands: list[Command]) -> tuple[list[Any], list[Any], list[Any]]:
    """Plan; return the records, the immediate results and those due after the sync."""
    made = plan(commands, state(), Limits())
    reported = [[type(a.error) if a.error else a.value for a in group] for group in (made.immediate, made.outcomes)]
    return made.records, reported[0], reported[1]


async def test_positions_are_given_in_order_across_groups_and_calls() -> None:
    """Each command continues where the one before it ended."""
    records, now, later = planned([group("q", b"c", b"d"), append("q", None, b"e"), append("q", 7, b"f")])
    assert records == [PlannedRun(1, 2, [b"c", b"d"]), PlannedRun(1, 4, [b"e"]), PlannedRun(1, 7, [b"f"])]
    assert (now, later) == ([], [2, 4, 7])


async def test_refusal_that_rests_on_stored_state_is_reported_at_once() -> None:
    """Nothing that this batch writes could change it."""
    _, now, later = planned([append("q", 0, b"other"), append("nowhere", None, b"x"), append("q", 0, b"a")])
    assert now == [PositionInPastError, QueueNotFoundError, None]
    assert later == []


async def test_outcome_that_rests_on_the_batch_waits_for_its_sync() -> None:
    """A repeat of a planned record, or a queue just created or deleted, waits for the batch's sync."""
    _, now, later = planned([group("q", b"c"), append("q", 2, b"c"), append("q", 2, b"other")])
    assert (now, later) == ([], [2, None, PositionInPastError])
    _, now, later = planned([DeleteQueue(future(), "q"), append("q", None, b"x")])
    assert (now, later[1:]) == ([], [QueueNotFoundError])
    _, now, later = planned([CreateQueue(future(), "new", False), CreateQueue(future(), "new", True)])
    assert (now, later) == ([], [True, False])


async def test_repeat_may_span_stored_and_planned_records() -> None:
    """A call that was half in memory and half in this batch is still the same call."""
    _, now, later = planned([append("q", 2, b"c"), append("q", 1, b"b", b"c")])
    assert (now, later) == ([], [2, None])


async def test_truncate_past_the_end_ends_what_is_known_of_the_last_append() -> None:
    """The repeat is refused, not acknowledged, with the truncate in the same batch or an earlier one."""
    truncate = TruncateQueue(future(), "q", 5, None)
    _, now, later = planned([append("q", 2, b"c"), truncate, append("q", 2, b"c")])
    assert (now, later) == ([], [2, None, PositionInPastError])


async def test_planning_leaves_the_queues_alone() -> None:
    """Memory changes after the sync, never before."""
    queues = state()
    before = queues.table()
    commands: list[Command] = [group("q", b"x"), DeleteQueue(future(), "r"), TruncateQueue(future(), "q", 1, None)]
    plan(commands, queues, Limits())
    assert queues.table() == before


def singles(*records: tuple[str, bytes]) -> AppendGroup:
    """Make a group of single records for several queues."""
    made = AppendGroup()
    made.queues, made.payloads = [queue for queue, _ in records], [payload for _, payload in records]
    made.futures = [future() for _ in records]
    return made


def stored(records: Sequence[object]) -> list[tuple[int, int, bytes]]:
    """Return queue, position and payload of each record that is planned to be stored, in order."""
    found: list[tuple[int, int, bytes]] = []
    for record in records:
        if isinstance(record, PlannedMany):
            found += zip(record.ids, record.positions, record.payloads, strict=True)
        elif isinstance(record, PlannedRun):
            found += [(record.id, record.first_position + at, payload) for at, payload in enumerate(record.payloads)]
    return found


def positions_of(outcome: CommandOutcome) -> list[int]:
    """Return the positions that the callers of a group get."""
    group, value = outcome.command, outcome.value
    assert isinstance(group, AppendGroup)
    if isinstance(value, list):
        return value
    assert isinstance(value, int)
    return [*range(value, value + len(group.payloads))]


async def test_single_records_of_several_queues_become_one_many() -> None:
    """A queue may stand in it twice, and each record goes on where the one before it ended."""
    records, _, later = planned([singles(("q", b"c"), ("r", b"x"), ("q", b"d"))])
    assert records == [PlannedMany([1, 2, 1], [2, 0, 3], [b"c", b"x", b"d"])]
    assert later == [[2, 0, 3]]
    records, _, later = planned([singles(("q", b"c"), ("r", b"x"))])
    assert records == [PlannedMany([1, 2], [2, 0], [b"c", b"x"])]
    assert later == [[2, 0]]


async def test_many_records_for_few_queues_become_a_run_for_each_queue() -> None:
    """A run takes less space than this many places in a MANY, on disk and in memory."""
    records, _, later = planned([singles(*[("q", b"c"), ("r", b"x")] * RUN_RECORDS_MIN)])
    assert records == [PlannedRun(1, 2, [b"c"] * RUN_RECORDS_MIN), PlannedRun(2, 0, [b"x"] * RUN_RECORDS_MIN)]
    assert later == [[2, 0, 3, 1, 4, 2, 5, 3]]


async def test_groups_of_one_batch_go_on_where_the_group_before_them_ended() -> None:
    """Even where that group named the queue without a look at each record."""
    pair = (("q", b"c"), ("r", b"x"))
    records, _, later = planned([singles(*pair), singles(*reversed(pair)), group("q", b"d")])
    assert records == [
        PlannedMany([1, 2], [2, 0], [b"c", b"x"]),
        PlannedMany([2, 1], [1, 3], [b"x", b"c"]),
        PlannedRun(1, 4, [b"d"]),
    ]
    assert later == [[2, 0], [1, 3], 4]


async def test_the_cost_of_a_group_does_not_depend_on_how_many_came_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of a batch with commands between them are compared with a few of the groups before them, not with all."""
    queues = Queues(1)
    for number in range(1, 401):
        queues.apply(0, Create(number, f"q{number}"))
    groups = [singles((f"q{number}", b"x"), (f"q{number + 1}", b"y")) for number in range(1, 401, 2)]
    kept = Counter[str]()

    def counted(*arguments: Any) -> PlannedSingles:
        kept["groups"] += 1
        return PlannedSingles(*arguments)

    monkeypatch.setattr(planning, "PlannedSingles", counted)
    made = plan(groups, queues, Limits())
    assert stored(made.records) == [(n, 0, b"x" if n % 2 else b"y") for n in range(1, 401)]
    assert [position for outcome in made.outcomes for position in positions_of(outcome)] == [0] * 400
    assert kept["groups"] <= 10


async def test_the_cost_of_a_record_in_a_small_queue_does_not_depend_on_what_was_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A batch that fills a queue of ten records a hundred times over looks at ten records at a time."""
    queues, looked_at = state(), list[int]()
    queues.apply(0, SetOptions(1, StoredOptions(DROP_OLDEST, 0, 10, 0)))
    runs_of = QueueView._runs

    def counted(view: QueueView, start: int, stop: int) -> list[Run]:
        looked_at.append(len(view.planned))
        return runs_of(view, start, stop)

    monkeypatch.setattr(QueueView, "_runs", counted)
    made = plan([group("q", *[b"x"] * 1_000)], queues, Limits())
    assert made.outcomes[0].value == [*range(2, 1_002)]
    assert 1 < max(looked_at) <= 11


async def test_commands_between_groups_keep_their_place() -> None:
    """What the log holds follows from the order of its records: no record moves past an append, truncate or delete."""
    records, _, later = planned(
        [
            singles(("q", b"c"), ("r", b"x")),
            append("q", None, b"d", b"e"),
            singles(("q", b"f"), ("r", b"y")),
            TruncateQueue(future(), "r", 1, None),
            singles(("q", b"g"), ("r", b"z")),
            DeleteQueue(future(), "r"),
        ]
    )
    assert records == [
        PlannedMany([1, 2], [2, 0], [b"c", b"x"]),
        PlannedRun(1, 3, [b"d", b"e"]),
        PlannedRun(1, 5, [b"f"]),
        PlannedRun(2, 1, [b"y"]),
        Truncate(2, 1),
        PlannedRun(1, 6, [b"g"]),
        PlannedRun(2, 2, [b"z"]),
        Delete(2),
    ]
    assert later[:4] == [[2, 0], 4, 5, 1]


async def test_later_commands_of_the_batch_see_the_records_of_a_many() -> None:
    """A repeat of one of them is recognized, and its answer waits for the sync as theirs does."""
    group = singles(("q", b"c"), ("r", b"x"), ("q", b"d"))
    _, now, later = planned([group, append("q", 2, b"c", b"d"), append("r", 0, b"x"), append("r", 0, b"other")])
    assert (now, later) == ([], [[2, 0, 3], None, None, PositionInPastError])
    _, now, later = planned(
        [singles(("q", b"c"), ("r", b"x")), TruncateQueue(future(), "q", 2, None), append("q", 2, b"c")]
    )
    assert (now, later) == ([], [[2, 0], None, None])


async def test_position_past_the_last_one_is_refused_alone_in_a_group() -> None:
    """The other records of the group are planned, and so is the one before the limit."""
    queues = state()
    queues.apply(0, Truncate(2, POSITION_MAX - 1))
    made = plan([singles(("q", b"c"), ("r", b"x"), ("r", b"over"), ("q", b"d"))], queues, Limits())
    assert sorted(stored(made.records)) == [(1, 2, b"c"), (1, 3, b"d"), (2, POSITION_MAX, b"x")]
    (refused,) = [outcome for outcome in made.outcomes if outcome.error is not None]
    assert isinstance(refused.error, LogFullError)
    reported = {outcome.command.queues[0]: positions_of(outcome)[0] for outcome in made.outcomes if not outcome.error}  # type: ignore[attr-defined]  # all of them are groups
    assert reported == {"q": 2, "r": POSITION_MAX}


async def test_single_record_for_a_missing_queue_is_refused_alone() -> None:
    """The others of its group are stored, and each caller gets the outcome of its own record."""
    group = singles(("q", b"c"), ("nowhere", b"lost"), ("", b"nameless"), ("q", b"d"), ("r", b"x"))
    made = plan([group], state(), Limits())
    assert made.records == [PlannedMany([1, 1, 2], [2, 3, 0], [b"c", b"d", b"x"])]
    for answer in made.immediate:
        assert answer.error is not None
        answer.command.refuse(answer.error)
    assert [type(future.exception()) if future.done() else None for future in group.futures] == [
        None, QueueNotFoundError, QueueNameError, None, None,
    ]  # fmt: skip
    (outcome,) = made.outcomes
    outcome.command.acknowledge(outcome.value)
    assert [group.futures[at].result() for at in (0, 3, 4)] == [2, 3, 0]


@given(
    calls=st.lists(
        st.one_of(
            st.tuples(st.just("single"), st.sampled_from("qrs"), st.binary(max_size=3)),
            st.tuples(st.just("append"), st.sampled_from("qrs"), st.none() | st.integers(0, 8), st.integers(0, 3)),
            st.tuples(st.just("truncate"), st.sampled_from("qrs"), st.integers(0, 8)),
            st.tuples(st.just("create"), st.sampled_from("qrs")),
            st.tuples(st.just("delete"), st.sampled_from("qrs")),
        ),
        max_size=25,
    )
)
@settings(deadline=None, max_examples=300)
def test_batch_does_what_its_calls_would_do_one_by_one(calls: list[tuple[Any, ...]]) -> None:
    """However calls are grouped, every caller gets the same result and the queues end the same."""

    async def compared() -> None:
        together, alone = state(), state()
        results_together = carry_out(gathered(calls), together)
        results_alone = [outcome for call in calls for outcome in carry_out(gathered([call]), alone)]
        assert results_together == results_alone
        assert contents(together) == contents(alone)

    asyncio.run(compared())


def gathered(calls: list[tuple[Any, ...]]) -> list[Command]:
    """Make commands of *calls*, single records in a row in one group."""
    commands: list[Command] = []
    for kind, queue, *arguments in calls:
        if kind == "single":
            if not commands or not isinstance(commands[-1], AppendGroup):
                commands.append(AppendGroup())
            group = commands[-1]
            assert isinstance(group, AppendGroup)
            group.queues.append(queue)
            group.payloads.append(arguments[0])
            group.futures.append(future())
        elif kind == "append":
            commands.append(append(queue, arguments[0], *[b"%d" % n for n in range(arguments[1])]))
        elif kind == "truncate":
            commands.append(TruncateQueue(future(), queue, arguments[0], None))
        elif kind == "create":
            commands.append(CreateQueue(future(), queue, False))
        else:
            commands.append(DeleteQueue(future(), queue))
    return commands


def carry_out(commands: list[Command], queues: Queues) -> list[Any]:
    """Plan, fold and finish as the writer does; return each caller's result, in call order.

    Raises AssertionError if the table has grown by more than the plan says.
    """
    made = plan(commands, queues, Limits())
    for outcome in made.immediate:
        finish(outcome, outcome.value)
    table_bytes = queues.table_bytes
    dropped = queues.apply_all(0, build_records(made.records))[2]
    assert queues.table_bytes - table_bytes <= made.more_table_bytes, (
        "a disk that is full could not hold the next table"
    )
    for outcome in made.outcomes:
        finish(outcome, dropped[outcome.dropped_by] if outcome.dropped_by >= 0 else outcome.value)
    futures = [each for command in commands for each in getattr(command, "futures", None) or [command.future]]
    return [type(error) if (error := each.exception()) else each.result() for each in futures]


def finish(outcome: CommandOutcome, value: object) -> None:
    """Set the results of one command's callers."""
    if outcome.error is not None:
        outcome.command.refuse(outcome.error)
    else:
        outcome.command.acknowledge(value)


def contents(queues: Queues) -> dict[str, tuple[int, int, list[Any]]]:
    """Return all queues with positions and records."""
    return {
        queue.name: (
            queue.first_position,
            queue.next_position,
            [tuple(r) for run in queue.runs(None, None) for r in run.records()],
        )
        for queue in queues
    }


async def test_a_usual_batch_is_planned_as_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of one group for one plain queue has the same plan, whichever function makes it."""
    queues, records = state(), group("q", b"a", b"b")
    usual = plan([records], queues, Limits())
    monkeypatch.setattr(planning, "_usual", lambda *_: None)
    assert plan([records], queues, Limits()) == usual
    assert [type(record) for record in usual.records] == [PlannedRun]
