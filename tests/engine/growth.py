"""What the event loop does for consumers, rules, limits and queues, to be counted in instructions under callgrind.

Run as a script, each piece of work is done for two numbers of items, of which the second is twice the first.
`os.sched_yield` stands before and after it: callgrind writes what it has counted there to a separate file. `ORDER` says
which files are which.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator

from mrecordlog_async.engine.commit.batch import build_records
from mrecordlog_async.engine.intake.commands import AppendGroup, Command
from mrecordlog_async.engine.intake.controls import (
    ChangeRule,
    ConfigureQueue,
    CreateQueue,
    DeleteQueue,
    MoveConsumer,
    TruncateQueue,
)
from mrecordlog_async.engine.planning.plan import plan
from mrecordlog_async.format.controls import NO_OWNER, ConsumerRule, ConsumerState, Create, SetConsumer
from mrecordlog_async.format.record import Append
from mrecordlog_async.format.stored_options import DROP_OLDEST, SetOptions, StoredOptions
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.memory.settings import consumer_summaries
from mrecordlog_async.model import Run
from mrecordlog_async.options import Limits
from mrecordlog_async.patterns import matches

LINEAR_SIZES = (1_000, 2_000)
CONSTANT_SIZES = (2_000, 4_000)
"""A call that visits every item costs the more, the more there are: next to many, it must show in few calls."""
FEW = 50
"""This many calls are made next to many items."""

LIMITED = StoredOptions(DROP_OLDEST, 0, 10, 0)

Work = Callable[[], object]

NOBODY = None
"""Stands for a caller's future: a plan never touches it."""


def do(queues: Queues, commands: Iterable[Command]) -> None:
    """Plan and apply *commands* as one batch, which may be larger than the writer's: so what each adds to it shows."""
    made = plan(list(commands), queues, Limits())
    assert not any(outcome.error for outcome in (*made.immediate, *made.outcomes))
    queues.apply_all(0, build_records(made.records))


def each_alone(queues: Queues, commands: Iterable[Command]) -> None:
    """Plan and apply each of *commands* in a separate batch."""
    for command in commands:
        do(queues, [command])


# Consumers.


def with_consumers(count: int) -> Queues:
    """Return a queue of ten records and many consumers, all of which have acknowledged none of them."""
    queues = Queues(1)
    queues.apply(0, Create(1, "q"))
    queues.apply(0, Append(1, Run.of(0, [b"x"] * 10)))
    for number in range(count):
        queues.apply(0, SetConsumer(1, f"c{number}", ConsumerState(0, 2 + number, NO_OWNER)))
    return queues


def acknowledgements(numbers: Iterable[int], position: int = 5) -> Iterator[Command]:
    """Yield an acknowledgement of each of these consumers."""
    return (MoveConsumer(NOBODY, "q", f"c{number}", position, False, 1, 2 + number) for number in numbers)  # type: ignore[arg-type]


def all_acknowledge(count: int) -> Work:
    """All consumers of a queue acknowledge at once."""
    queues = with_consumers(count)
    return lambda: do(queues, acknowledgements(range(count)))


def show_consumers(count: int) -> Work:
    """A few of many consumers are shown, one after the other."""
    queues = with_consumers(count)
    queue = queues.by_id(1)
    assert queue is not None
    return lambda: [consumer_summaries(queue, (f"c{number}",)) for number in range(FEW)]


# Rules.


def with_rules(count: int) -> Queues:
    """Return a log with many rules, each for other queues."""
    queues = Queues(1)
    for number in range(count):
        queues.apply(0, ConsumerRule(f"tenant-{number}-*", "c", removes=False))
    return queues


def create_rules(count: int) -> Work:
    """Many rules are created at once."""
    queues = Queues(1)
    return lambda: do(queues, (ChangeRule(NOBODY, f"t{number}-*", "c", False, False) for number in range(count)))  # type: ignore[arg-type]


def create_next_to_rules(count: int) -> Work:
    """A few queues are created, each of which matches one of many rules."""
    queues = with_rules(count)
    return lambda: each_alone(queues, creates(f"tenant-{number}-q" for number in range(FEW)))


def match_long_names(count: int) -> Work:
    """A name is compared with a pattern that needs most of it again and again."""
    return lambda: [matches("*a" * 20 + "b*", "a" * count * 10) for _ in range(FEW)]


# Limits and names.


def creates(names: Iterable[str], options: StoredOptions | None = None) -> Iterator[Command]:
    """Yield a call that creates each of these queues."""
    return (CreateQueue(NOBODY, name, False, options) for name in names)  # type: ignore[arg-type]


def with_queues(count: int, options: StoredOptions | None = None) -> Queues:
    """Return a log with many queues."""
    queues = Queues(1)
    for number in range(1, count + 1):
        queues.apply(0, Create(number, f"q{number}"))
        if options is not None:
            queues.apply(0, SetOptions(number, options))
    return queues


def create(count: int) -> Work:
    """Many queues are created at once."""
    queues = Queues(1)
    return lambda: do(queues, creates(f"q{number}" for number in range(count)))


def create_limited(count: int) -> Work:
    """Many queues with a limit are created at once."""
    queues = Queues(1)
    return lambda: do(queues, creates((f"q{number}" for number in range(count)), LIMITED))


def create_next_to_queues(count: int) -> Work:
    """A few queues with a limit are created next to many others."""
    queues = with_queues(count, LIMITED)
    return lambda: each_alone(queues, creates((f"new{number}" for number in range(FEW)), LIMITED))


def append_next_to_limited(count: int) -> Work:
    """Records for a few queues, of which some have a limit, are appended next to many others that have one."""
    queues = with_queues(count, LIMITED)
    do(queues, creates(["plain"]))

    def work() -> None:
        for number in range(1, FEW):
            group = AppendGroup()
            group.queues, group.payloads, group.futures = ["plain", f"q{number}"], [b"x", b"y"], [NOBODY] * 2  # type: ignore[list-item]
            do(queues, [group])

    return work


def configure(count: int) -> Work:
    """Many queues get a limit at once."""
    queues = with_queues(count)
    return lambda: do(queues, (ConfigureQueue(NOBODY, f"q{number}", LIMITED) for number in range(1, count + 1)))  # type: ignore[arg-type]


def truncate_and_delete(count: int) -> Work:
    """Many queues are truncated and deleted at once."""
    queues = with_queues(count)

    def work() -> None:
        do(queues, (TruncateQueue(NOBODY, f"q{number}", 0, None) for number in range(1, count + 1)))  # type: ignore[arg-type]
        do(queues, (DeleteQueue(NOBODY, f"q{number}") for number in range(1, count + 1)))  # type: ignore[arg-type]

    return work


LINEAR: tuple[Callable[[int], Work], ...] = (
    all_acknowledge,
    create_rules,
    match_long_names,
    create,
    create_limited,
    configure,
    truncate_and_delete,
)
"""Work that each of the items causes."""

CONSTANT: tuple[Callable[[int], Work], ...] = (
    show_consumers,
    create_next_to_rules,
    create_next_to_queues,
    append_next_to_limited,
)
"""Work of a few calls next to many items."""

ORDER = (
    *((prepare, size) for prepare in LINEAR for size in LINEAR_SIZES),
    *((prepare, size) for prepare in CONSTANT for size in CONSTANT_SIZES),
)
"""File 2 * n + 2 of callgrind has what is counted for item n."""


def main() -> None:
    """Do all the work."""
    gc.disable()  # a collection at another moment would be counted for other work
    for prepare, size in ORDER:
        work = prepare(size)
        os.sched_yield()
        work()
        os.sched_yield()


if __name__ == "__main__":
    main()
