"""The commands about queues and their consumers: ls, configure, truncate, delete and consumers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from mrecordlog_async.cli import logs
from mrecordlog_async.cli.errors import FAILED, FINE, UsageError
from mrecordlog_async.cli.logs import Log, takes_log, takes_queue
from mrecordlog_async.cli.params import (
    COUNT,
    POSITION,
    SIZE,
    START,
    TIME,
    Value,
    argument,
    as_json,
    command,
    read_start,
)
from mrecordlog_async.cli.text import columns, plural, printable, size
from mrecordlog_async.options import QUEUE_CHOICES, QUEUE_OPTIONS, OptionFacts, QueueOptions
from mrecordlog_async.quantities import age, span

if TYPE_CHECKING:
    from mrecordlog_async.maintenance.queue_settings import QueueSettings
    from mrecordlog_async.model import ConsumerSummary, QueueSummary, Start

QUEUES = ("queue", "first", "next", "records", "bytes", "keeps from", "age")
CONSUMERS = ("queue", "consumer", "position", "records", "bytes", "oldest", "holder seen", "skipped", "owner")

past_consumers = click.option(
    "--past-consumers", is_flag=True, help="Also remove records that consumers have not acknowledged."
)


@command()
@takes_log
@click.option("--drained", is_flag=True, help="List only queues that hold records, and exit with 1 if there are any.")
@as_json
def ls(log: Log, drained: bool, as_json: bool) -> int:
    """List the queues of a log: their positions, records and bytes.

    The column first is the first retained position, and the column next is the next position to be assigned. The column
    keeps from is the oldest segment that the queue keeps on the disk: a log deletes only segments that are older than
    the lowest number there, so truncate or delete the queue that has it to free space. The column age says how long ago
    the oldest record was stored. For a directory, a last column shows options, seal and consumers, if any queue has
    them.

    With --drained, list only the queues that hold records, and exit with 1 if there are any: such a log must not be
    removed yet. Stop its producers first.

      mrecordlog ls ./wal
      mrecordlog ls http://127.0.0.1:8080 --json | jq .records
      until mrecordlog ls http://wal-2:8080 --drained; do sleep 5; done
    """
    summaries, settings = _queues_of(log)
    if drained:
        summaries = [each for each in summaries if each.records]
    if as_json:
        more = {queue: {"settings": asdict(found)} for queue, found in settings.items()}
        facts = (asdict(each) | more.get(each.queue, {}) for each in summaries)
        sys.stdout.writelines(json.dumps(fact, default=_plain) + "\n" for fact in facts)
    else:
        sys.stdout.writelines(_queue_lines(summaries, settings))
    return FAILED if drained and summaries else FINE


def _queues_of(log: Log) -> tuple[list[QueueSummary], dict[str, QueueSettings]]:
    """Return the queues, and of a directory the settings of each."""
    if log.is_service:
        return _from_service(log, lambda client: client.summary()), {}
    from mrecordlog_async.maintenance.queue_settings import QueueSettings

    with log.read() as stored:
        summaries = list(stored.summary().values())
        return summaries, {each.queue: QueueSettings.of(stored.state_of(each.queue)) for each in summaries}


def _from_service(log: Log, ask: Callable[[Any], Any]) -> list[Any]:
    """Return what a service lists by name."""
    import asyncio

    async def listed() -> list[Any]:
        async with log.connect() as client:
            return list((await ask(client)).values())

    return asyncio.run(listed())


def _plain(value: object) -> str:
    """Return a time as JSON has it: with its zone, to 0.1 s."""
    assert isinstance(value, datetime), "a summary holds numbers, texts and times"
    return value.isoformat(timespec="milliseconds")


def _queue_lines(summaries: list[QueueSummary], settings: dict[str, QueueSettings]) -> Iterator[str]:
    rows = [
        (
            printable(each.queue),
            *map(str, (each.first_position, each.next_position, each.records, each.bytes)),
            "-" if each.first_segment is None else str(each.first_segment),
            age(each.age_seconds),
        )
        for each in summaries
    ]
    texts = [settings_text(settings[each.queue]) if settings else "" for each in summaries]
    ends = ["settings" if any(texts) else "", *texts]
    for line, end in zip(columns([QUEUES, *rows]), ends, strict=True):
        yield f"{line.rstrip()}  {end}".rstrip() + "\n"


def settings_text(settings: QueueSettings) -> str:
    """Return options, seal and consumers of a queue, separated by commas; "" if nothing is set."""
    consumers = (f"consumer {printable(name)} at {position}" for name, position in sorted(settings.consumers.items()))
    return ", ".join([*_options_set(settings), *consumers])


def _options_set(settings: QueueSettings) -> Iterator[str]:
    shown: dict[str, Callable[[Any], str]] = {
        "": str,
        "bytes": size,
        "records": lambda records: plural(records, "record"),
        "seconds": span,
    }
    if settings.sealed:
        yield "sealed"
    for name, facts in QUEUE_OPTIONS.items():
        value = getattr(settings.options, name)
        if value != getattr(QueueOptions(), name):
            yield facts.shown.format(shown[facts.unit](value))


def _option(name: str, facts: OptionFacts) -> Callable[[Any], Any]:
    """Return the option of `configure` for an option of a queue."""
    limits: dict[str, Value] = {"bytes": SIZE, "records": COUNT, "seconds": TIME}
    kind = limits[facts.unit] if facts.unit else click.Choice(QUEUE_CHOICES[name])
    unset = facts.unset if facts.unit else QUEUE_CHOICES[name][0]
    return click.option(f"--{name.replace('_', '-')}", type=kind, help=f"{facts.help.capitalize()} (default: {unset}).")


def _queue_options(run: Callable[..., int]) -> Callable[..., int]:
    """Give a command every option of a queue."""
    for name, facts in reversed([*QUEUE_OPTIONS.items()]):
        run = _option(name, facts)(run)
    return run


@command()
@takes_log
@takes_queue("Queue to configure.")
@click.option("--create", is_flag=True, help="Create the queue if it does not exist.")
@_queue_options
@click.option("--seal", is_flag=True, help="Accept no more records; keeps the options as they are.")
def configure(log: Log, queue: str, create: bool, seal: bool, **options: Any) -> int:
    """Set the options of a queue, which say how long it keeps records and how many, or seal the queue.

    All options are replaced: an option that you do not give gets its default. A sealed queue never accepts records
    again, and its readers end after the last one.

      mrecordlog configure ./wal orders --keep until_acknowledged
      mrecordlog configure ./wal clicks --max-bytes 2GiB --when-full drop_oldest
      mrecordlog configure http://127.0.0.1:8080 clicks --create --max-age 7d
      mrecordlog configure http://127.0.0.1:8080 orders --seal
    """
    given = {name: value for name, value in options.items() if value is not None}
    if seal and (given or create):
        raise UsageError("--seal cannot be combined with other options: set them first")
    try:
        wanted = QueueOptions(**given)
    except ValueError as error:
        raise UsageError(str(error)) from None

    async def configured(target: Any) -> str:
        if seal:
            return f"sealed, ends before position {await target.seal_queue(queue)}"
        if create and await target.create_queue(queue, exist_ok=True, options=wanted):
            return "created"
        await target.configure_queue(queue, wanted)
        return "configured"

    return _change(log, queue, configured, create=create, limits_of=None if seal else queue)


def _change(log: Log, queue: str, call: Callable[[Any], Any], **how: Any) -> int:
    """Make a change, and print what was done. *how* is for `Log.open_to_change`."""
    import asyncio

    async def change() -> str:
        async with log.open_to_change(**how) as target:
            return str(await call(target))

    print(f"{queue}: {asyncio.run(change())}")
    return FINE


@command()
@takes_log
@takes_queue("Queue to truncate.")
@argument("position", metavar="POSITION", type=POSITION, help="Last position to remove.")
@past_consumers
def truncate(log: Log, queue: str, position: int, past_consumers: bool) -> int:
    """Remove the records of a queue up to and including a position.

    Their disk space is freed when no queue has a record left in the same segment file or an older one.

      mrecordlog truncate ./wal orders 31
    """
    import asyncio

    if log.is_service:
        dropped = asyncio.run(_truncate_service(log, queue, position, past_consumers))
    else:
        dropped = asyncio.run(_truncate_directory(log, queue, position, past_consumers))
    print(f"{queue}: {plural(dropped, 'record')} removed")
    return FINE


async def _truncate_service(log: Log, queue: str, position: int, past_consumers: bool) -> int:
    async with log.connect() as client:
        return await client.truncate(queue, position, past_consumers=past_consumers)


async def _truncate_directory(log: Log, queue: str, position: int, past_consumers: bool) -> int:
    opened = await log.changing()
    async with opened.log as target:
        next_position = target.next_position(queue)
        if position >= next_position:
            # The log would skip the positions in between; from a shell it is a typing error.
            raise UsageError(
                f"queue {queue!r}: position {position} has not been assigned yet; the next position is {next_position}"
            )
        return await opened.truncate(queue, position, past_consumers=past_consumers)


@command()
@takes_log
@takes_queue("Queue to delete.")
@past_consumers
def delete(log: Log, queue: str, past_consumers: bool) -> int:
    """Delete a queue with all its records.

    A queue created later under the same name is a new one and begins at position 0.

      mrecordlog delete http://127.0.0.1:8080 orders
    """

    async def deleted(target: Any) -> str:
        await target.delete_queue(queue, past_consumers=past_consumers)
        return "deleted"

    return _change(log, queue, deleted)


@command()
@takes_log
@argument(
    "queue",
    required=False,
    metavar="QUEUE",
    shell_complete=logs.queues,
    help="Queue, or a pattern with --create and --delete (default: list the consumers of all queues).",
)
@click.option("--create", metavar="NAME", help="Create a consumer.")
@click.option("--delete", metavar="CONSUMER", shell_complete=logs.consumers, help="Delete a consumer.")
@click.option(
    "--seek",
    nargs=2,
    metavar="CONSUMER START",
    shell_complete=logs.consumers,
    help="Move a consumer to a position, or a time as for --start.",
)
@click.option(
    "--start",
    type=START,
    help="Where --create begins: a position, a time such as 2026-11-22T09:30, or 10min ago (default: first record).",
)
@as_json
def consumers(
    log: Log,
    queue: str | None,
    create: str | None,
    delete: str | None,
    seek: tuple[str, str] | None,
    start: Start | None,
    as_json: bool,
) -> int:
    """List the consumers of a log: where each stands, and what waits for it. Create, delete or move one.

    A queue that contains * is a pattern: --create and --delete then concern every queue that matches, and every one
    that is created later. --seek moves a consumer to a position or a time, and fences off the process that holds it.

      mrecordlog consumers http://127.0.0.1:8080
      mrecordlog consumers ./wal orders
      mrecordlog consumers http://127.0.0.1:8080 '*' --create lake
      mrecordlog consumers http://127.0.0.1:8080 orders --seek billing 4000
      mrecordlog consumers ./wal orders --seek billing 10min
    """
    changes = [name for name in (create, delete, seek and seek[0]) if name is not None]
    if "" in changes:
        raise UsageError("the name of a consumer must not be empty")
    if len(changes) > 1:
        raise UsageError("--create, --delete and --seek exclude each other: give one")
    if start is not None and create is None:
        raise UsageError("--start is where --create begins: add --create NAME, or use --seek CONSUMER START")
    if as_json and changes:
        raise UsageError("--json is for the list of consumers: leave it out")
    if not changes:
        _show_consumers(_consumers_of(log, queue), as_json)
        return FINE
    if queue is None:
        raise UsageError("name the queue, or '*' for all of them")
    return _change(log, queue, _change_of_consumer(queue, create, delete, _seek(seek), start))


def _seek(typed: tuple[str, str] | None) -> tuple[str, Start] | None:
    try:
        return typed and (typed[0], read_start(typed[1]))
    except ValueError as error:
        raise UsageError(f"--seek: {error}") from None


def _change_of_consumer(
    queue: str, create: str | None, delete: str | None, seek: tuple[str, Start] | None, start: Start | None
) -> Callable[[Any], Any]:
    """Return what creates, deletes or moves a consumer. With a pattern, --create can be repeated."""
    from mrecordlog_async.patterns import is_pattern

    async def change(target: Any) -> str:
        if create is not None:
            created = await target.create_consumer(queue, create, start=start, exist_ok=is_pattern(queue))
            return f"consumer {create} {'created' if created else 'exists'}"
        if delete is not None:
            await target.delete_consumer(queue, delete)
            return f"consumer {delete} deleted"
        assert seek is not None, "one of the three was given"
        return f"consumer {seek[0]} is at {await target.seek_consumer(queue, *seek)}"

    return change


def _consumers_of(log: Log, queue: str | None) -> list[dict[str, Any]]:
    """Return the consumers. What waits in a directory is not counted: that would read the records."""
    if log.is_service:
        return [_of_service(one) for one in _listed_by_service(log, queue)]
    from mrecordlog_async.maintenance.queue_settings import QueueSettings

    with log.read() as stored:
        queues = stored.list_queues() if queue is None else [queue]
        return [
            {"queue": queue, "consumer": consumer, "position": position, "owner": settings.owners.get(consumer)}
            for queue, settings in ((queue, QueueSettings.of(stored.state_of(queue))) for queue in queues)
            for consumer, position in settings.consumers.items()
        ]


def _listed_by_service(log: Log, queue: str | None) -> list[ConsumerSummary]:
    async def every(client: Any) -> dict[int, ConsumerSummary]:
        return dict(enumerate(await client.all_consumers()))

    return _from_service(log, every if queue is None else lambda client: client.consumers(queue))


def _of_service(one: ConsumerSummary) -> dict[str, Any]:
    names = ("queue", "consumer", "position", "records", "bytes", "oldest_seconds", "idle_seconds", "skipped", "owner")
    return {name: getattr(one, name) for name in names}


def _show_consumers(found: Iterable[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        sys.stdout.writelines(json.dumps(one) + "\n" for one in found)
    else:
        sys.stdout.writelines(columns([CONSUMERS, *map(_consumer_row, found)], left=2))


def _consumer_row(one: dict[str, Any]) -> tuple[str, ...]:
    known, idle = "records" in one, one.get("idle_seconds")
    return (
        printable(one["queue"]),
        printable(one["consumer"]),
        str(one["position"]),
        str(one["records"]) if known else "-",
        size(one["bytes"]) if known else "-",
        age(one.get("oldest_seconds")),
        f"{age(idle)} ago" if idle is not None else "-",
        str(one["skipped"]) if known else "-",
        one.get("owner") or "-",
    )
