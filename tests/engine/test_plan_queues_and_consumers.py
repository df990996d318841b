"""The plan of calls about consumers, options and seals, together with appends."""

from __future__ import annotations

import asyncio
from typing import Any

import hypothesis.strategies as st
from hypothesis import example, given, settings

from mrecordlog_async.engine.intake.commands import Command, Reserve
from mrecordlog_async.engine.intake.controls import (
    AttachConsumer,
    ChangeRule,
    ConfigureQueue,
    CreateConsumer,
    CreateQueues,
    Declare,
    DeclaredConsumer,
    DeleteConsumer,
    DeleteQueue,
    FenceHolders,
    MoveConsumer,
    SealQueue,
    Sync,
)
from mrecordlog_async.engine.planning.plan import plan
from mrecordlog_async.errors import ConsumerFencedError, LogFullError, QueueSealedError
from mrecordlog_async.format.controls import NO_OWNER, ConsumerDelete, SetConsumer, TableRule, Truncate
from mrecordlog_async.format.stored_options import DROP_OLDEST, KEEP_UNTIL_ACKNOWLEDGED, StoredOptions
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.options import Limits

from .test_plan import append, carry_out, contents, future, gathered, state

KEEP = StoredOptions(KEEP_UNTIL_ACKNOWLEDGED, 0, 0, 0)
THREE_RECORDS, NO_OPTIONS = StoredOptions(0, 0, 3, 0), StoredOptions(0, 0, 0, 0)

queues = st.sampled_from("qrs")
consumers = st.sampled_from("cd")
positions = st.integers(0, 8)
options = st.sampled_from(
    [StoredOptions(0, 0, 0, 0), KEEP, StoredOptions(0, 0, 3, 0), StoredOptions(DROP_OLDEST, 4, 3, 0)]
)

KINDS = (
    st.tuples(st.just("single"), queues, st.binary(max_size=3)),
    st.tuples(st.just("append"), queues, st.none() | positions, st.integers(0, 3)),
    st.tuples(st.just("truncate"), queues, positions),
    st.tuples(st.just("create"), queues),
    st.tuples(st.just("create_many"), st.lists(st.sampled_from("qrstu"), unique=True, max_size=4), st.booleans()),
    st.tuples(st.just("delete"), queues),
    st.tuples(st.just("attach"), queues, consumers),
    st.tuples(st.just("consume"), queues, consumers, st.none() | positions),
    st.tuples(st.just("release"), queues, consumers),
    st.tuples(st.just("move"), queues, consumers, positions, st.booleans(), st.none() | st.integers(2, 6)),
    st.tuples(st.just("configure"), queues, options),
    st.tuples(st.just("seal"), queues),
    st.tuples(st.just("rule"), st.sampled_from(["*", "s"]), consumers, st.booleans()),
    st.tuples(
        st.just("declare"), st.lists(st.sampled_from("qru"), unique=True, max_size=2), queues, consumers, options
    ),
    st.tuples(st.just("fence"), queues),
    st.tuples(st.just("sync"), queues),
)
CALLS = st.one_of(*KINDS)


def commands_of(calls: list[tuple[Any, ...]]) -> list[Command]:
    """Make commands of *calls*, single records in a row in one group."""
    commands: list[Command] = []
    waiting: list[tuple[Any, ...]] = []
    for call in calls:
        made = setting_command(*call)
        if made is None:
            waiting.append(call)
        else:
            commands += [*gathered(waiting), made]
            waiting = []
    return commands + gathered(waiting)


def setting_command(kind: str, queue: Any, *rest: Any) -> Command | None:
    """Make the command of a call about settings; None for another one."""
    if kind == "attach":
        return AttachConsumer(future(), queue, rest[0], True, None, NO_OWNER, False)
    if kind == "create_many":
        return CreateQueues(future(), queue, rest[0], None)
    if kind == "consume":
        return CreateConsumer(future(), queue, rest[0], rest[1], False)
    if kind == "release":
        return DeleteConsumer(future(), queue, rest[0])
    if kind == "move":
        consumer, position, seeks, epoch = rest
        return MoveConsumer(future(), queue, consumer, position, seeks, None, epoch)
    if kind == "configure":
        return ConfigureQueue(future(), queue, rest[0])
    if kind == "seal":
        return SealQueue(future(), queue)
    if kind == "rule":
        return ChangeRule(future(), queue, rest[0], rest[1], False)
    if kind == "declare":
        owner, consumer, given = rest
        wanted = [DeclaredConsumer(owner, consumer, owner)]
        return Declare(future(), dict.fromkeys(queue, given), wanted, [TableRule(owner, consumer)])
    if kind == "fence":
        return FenceHolders(future())
    if kind == "sync":
        return Sync(future())
    return None


def everything(queues: Queues) -> object:
    """Return all that the queues hold, without the digests of last appends, which a group of records changes."""
    table = queues.table()
    entries = [(entry.name, entry.options, entry.consumers) for entry in table.entries]
    return contents(queues), table.next_queue_id, entries, table.rules, queues.consumer_count, queues.table_bytes


@given(calls=st.tuples(*KINDS))
@settings(max_examples=3)
def test_every_command_is_tried(calls: tuple[tuple[Any, ...], ...]) -> None:
    """Otherwise the test below passes without it: write a new command there."""

    # Not those that other tests define.
    commands = {one for one in Command.__subclasses__() if one.__module__.startswith("mrecordlog_async.")}

    async def made() -> None:
        assert {type(command) for command in commands_of([*calls])} == commands

    asyncio.run(made())


@given(calls=st.lists(CALLS, max_size=25))
@example(
    [  # what was appended while the queue had no options counts for those that it gets
        ("create", "s"),
        ("configure", "s", THREE_RECORDS),
        ("configure", "s", NO_OPTIONS),
        ("append", "s", None, 3),
        ("append", "s", None, 3),
        ("configure", "s", THREE_RECORDS),
    ]
)
@settings(deadline=None, max_examples=300)
def test_batch_does_what_its_calls_would_do_one_by_one(calls: list[tuple[Any, ...]]) -> None:
    """However calls are grouped, every caller gets the same result and the log ends the same.

    The table grows by no more than each plan has said: see `carry_out`.
    """

    async def compared() -> None:
        together, alone = state(), state()
        results_together = carry_out(commands_of(calls), together)
        results_alone = [outcome for call in calls for outcome in carry_out(commands_of([call]), alone)]
        assert results_together == results_alone
        assert everything(together) == everything(alone)

    asyncio.run(compared())


def kept() -> Queues:
    """Make the queues of `state`, of which "q" keeps its two records for the consumers "c" and "d"."""
    made = state()
    carry_out(commands_of([("configure", "q", KEEP), ("attach", "q", "c"), ("attach", "q", "d")]), made)
    return made


async def test_the_truncate_comes_after_what_moved_the_slowest() -> None:
    """The fold sees the consumer past the records before they go, in the same batch."""
    planned = plan(commands_of([("move", "q", "d", 2, False, 4)]), kept(), Limits())
    assert [type(record) for record in planned.records] == [SetConsumer] and planned.reserve is Reserve.NOTHING
    calls = commands_of([("move", "q", "d", 2, False, 4), ("move", "q", "c", 1, False, 3), ("release", "q", "c")])
    planned = plan(calls, kept(), Limits())
    assert [type(record) for record in planned.records] == [
        SetConsumer,
        SetConsumer,
        Truncate,
        ConsumerDelete,
        Truncate,
    ]
    assert [call.reserve for call in calls] == [Reserve.NOTHING, Reserve.ALL, Reserve.ALL]


async def test_a_refusal_that_rests_on_the_batch_waits_for_it() -> None:
    """A holder that this batch fences off, and an append after a seal of this batch, are refused after the sync."""
    calls = commands_of(
        [("attach", "q", "c"), ("move", "q", "c", 1, False, 3), ("seal", "q"), ("append", "q", None, 1)]
    )
    planned = plan(calls, kept(), Limits())
    assert not planned.immediate
    assert [type(outcome.error) for outcome in planned.outcomes if outcome.error is not None] == [
        ConsumerFencedError,
        QueueSealedError,
    ]
    planned = plan([append("q", 0, b"a"), *commands_of([("move", "q", "c", 1, False, 9)])], kept(), Limits())
    assert len(planned.immediate) == 2


async def test_an_acknowledgement_that_moves_nothing_writes_nothing() -> None:
    """It is reported at once, with the position."""
    planned = plan(commands_of([("move", "q", "c", 0, False, 3)]), kept(), Limits())
    assert [outcome.value for outcome in planned.immediate] == [0]
    assert not planned.records


async def test_a_queue_that_is_deleted_leaves_room_for_other_consumers_of_its_batch() -> None:
    """The limit counts the consumers that are left, as it does one batch later."""
    delete = DeleteQueue(future(), "q", past_consumers=True)
    planned = plan([delete, *commands_of([("attach", "r", "c"), ("attach", "r", "d")])], kept(), Limits(consumers=2))
    assert [outcome.error for outcome in planned.outcomes] == [None, None, None]
    planned = plan(commands_of([("attach", "r", "c")]), kept(), Limits(consumers=2))
    assert [type(outcome.error) for outcome in planned.immediate] == [LogFullError]
