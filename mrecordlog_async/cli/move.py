"""The commands that move queues between logs: dump and load."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from mrecordlog_async.cli.errors import FINE, UsageError
from mrecordlog_async.cli.logs import WRITE_RETRY_SECONDS, Log, takes_log
from mrecordlog_async.cli.logs import queues as complete_queues
from mrecordlog_async.cli.params import FILE, argument, command
from mrecordlog_async.cli.text import plural

if TYPE_CHECKING:
    from mrecordlog_async.client.client import RecordLogClient
    from mrecordlog_async.maintenance.load import Loader
    from mrecordlog_async.maintenance.queue_settings import QueueSettings
    from mrecordlog_async.model import QueueSummary


@command()
@takes_log
@argument(
    "queues", nargs=-1, metavar="[QUEUE...]", shell_complete=complete_queues, help="Queues to dump (default: all)."
)
@click.option("--text", is_flag=True, help='Print payloads that are UTF-8 as "text", not base64.')
def dump(log: Log, queues: tuple[str, ...], text: bool) -> int:
    """Print queues and records as lines of JSON, for load, jq or your own eyes.

    Each queue is one line, followed by one line for each of its records. At the end, each rule that gives new queues a
    consumer is one line, unless queues were named:

      {"queue": "orders", "first_position": 0, "next_position": 2, "remaining": 2}
      {"queue": "orders", "position": 0, "payload": "aGVsbG8="}
      {"queue": "orders", "position": 1, "text": "héllo"}
      {"queue": "jobs", "first_position": 0, "next_position": 0, "remaining": 1,
       "sealed": true, "options": {"max_records": 1000},
       "consumers": [{"consumer": "mailer", "position": 0}]}
      {"pattern": "*", "consumer": "lake", "remaining": 0}

    The line has options, seal and consumers only if they are set. Times of records are not dumped. "remaining" is how
    many queues and rules follow, so that load notices if the end of a dump is missing. Of a log without queues and
    rules, one line has only that. A payload is base64. With --text it is text if it is valid UTF-8. Both load back to
    the same bytes. The dump of a directory shows the log as it was when the dump began, even while a service uses it.
    Through a service, each queue is dumped as it is when the dump reaches it. Records that the service truncates
    meanwhile may be missing; if they are the last ones of a queue, another line of the queue follows, in which it is
    empty. So is a queue that is deleted meanwhile.

      mrecordlog dump ./wal > wal.ndjson
      mrecordlog dump ./wal orders --text | jq -r .text
    """
    import asyncio

    from mrecordlog_async.cli.streams import as_utf_8

    as_utf_8(sys.stdout)
    if log.is_service:
        asyncio.run(_dump_service(log, queues, text))
    else:
        _dump_directory(log, queues, text)
    return FINE


def _dump_directory(log: Log, queues: Sequence[str], text: bool) -> None:
    from mrecordlog_async.maintenance.dumped_lines import empty_line, end_line, queue_line, record_lines, rule_lines
    from mrecordlog_async.maintenance.queue_settings import QueueSettings

    with log.read() as stored:
        rules = [] if queues else stored.consumer_rules()
        remaining = len(queues or stored.list_queues()) + len(rules)
        sys.stdout.write(empty_line(remaining))
        for name, first_position, next_position, runs in stored.contents(queues or None):
            remaining -= 1
            settings = QueueSettings.of(stored.state_of(name))
            sys.stdout.write(queue_line(name, first_position, next_position, remaining, settings))
            end = first_position
            for run in runs:
                sys.stdout.writelines(record_lines(name, run.records(), text=text))
                end = run.next_position
            sys.stdout.write(end_line(name, end, next_position, remaining, settings))
        sys.stdout.writelines(rule_lines(rules))


async def _dump_service(log: Log, queues: Sequence[str], text: bool) -> None:
    from mrecordlog_async.maintenance.dumped_lines import empty_line, rule_lines

    async with log.connect() as client:
        rules = [] if queues else await client.consumer_rules()
        listed = await _list(client, queues)
        remaining = len(listed) + len(rules)
        sys.stdout.write(empty_line(remaining))
        for queue in listed:
            remaining -= 1
            async for line in _lines_of(client, queue, remaining, text=text):
                sys.stdout.write(line)
        sys.stdout.writelines(rule_lines(rules))


async def _list(client: RecordLogClient, queues: Sequence[str]) -> list[QueueSummary]:
    """Return the queues to dump; raise QueueNotFoundError before anything is printed if one does not exist."""
    if not queues:
        return list((await client.summary()).values())
    return [await client.queue_summary(queue) for queue in queues]


async def _lines_of(client: RecordLogClient, listed: QueueSummary, remaining: int, *, text: bool) -> AsyncIterator[str]:
    """Yield the lines of a queue. One that was deleted since it was listed is empty, so that no line is missing."""
    from mrecordlog_async.errors import QueueNotFoundError
    from mrecordlog_async.maintenance.dumped_lines import end_line, queue_line, record_lines
    from mrecordlog_async.maintenance.queue_settings import QueueSettings

    queue, next_position = listed.queue, listed.next_position
    end, settings = next_position, QueueSettings()
    with suppress(QueueNotFoundError):
        summary, settings = await _as_it_is(client, listed)
        end, next_position = summary.first_position, summary.next_position
    yield queue_line(queue, end, next_position, remaining, settings)
    with suppress(QueueNotFoundError):
        async for run in client.runs(queue, end, next_position):
            for line in record_lines(queue, run.records(), text=text):
                yield line
            end = run.next_position
    yield end_line(queue, end, next_position, remaining, settings)


async def _as_it_is(client: RecordLogClient, listed: QueueSummary) -> tuple[QueueSummary, QueueSettings]:
    """Return positions and settings of a queue, both before or both after it was deleted and created again."""
    known = listed
    while True:
        settings = await _settings_of(client, listed.queue)
        summary = await client.queue_summary(listed.queue)
        if summary.id == known.id:
            settings.sealed = summary.sealed
            return summary, settings
        known = summary


async def _settings_of(client: RecordLogClient, queue: str) -> QueueSettings:
    """Return options and consumers of *queue*. Consumers are asked for before positions, so none is past the end."""
    from mrecordlog_async.maintenance.queue_settings import QueueSettings

    consumers = await client.consumers(queue)
    return QueueSettings(
        await client.queue_options(queue),
        consumers={name: found.position for name, found in consumers.items()},
        owners={name: found.owner for name, found in consumers.items() if found.owner is not None},
    )


@command()
@takes_log
@argument("file", required=False, metavar="FILE", type=FILE, help="File with the lines (default: standard input).")
def load(log: Log, file: str | None) -> int:
    """Store lines of JSON, as dump prints them, in a log.

    A missing directory or queue is created; a new log has segments of MRECORDLOG_SEGMENT_BYTES (default: 1GiB). A
    directory must not be in use. Records are stored at the positions in the lines, so loading the same lines again
    stores nothing twice; a record without a position is appended at the end. An empty queue continues at the position
    in its line. Options, consumers, seals and rules are set when all records are stored. A consumer of a queue that
    already existed stays where it is if the queue has it. If such a queue keeps records until they are acknowledged, a
    consumer that reads it during the load removes records that a new one of the dump has yet to read: create the new
    one first. Times of records begin again with the load.

    When the command ends, a directory is durable; what a service stored is as durable as its `serve --persist` says. At
    an invalid line the command stops and prints the line's number. If the end of a dump is missing, it stores the lines
    that there are, and fails; so it does if there are none. After that, and after a kill, load the complete lines:
    records that are stored already are compared with them, and the others are appended. A kill may leave an empty
    record before the first one of a queue in a service; the next load removes it. If nothing of the first line can be
    loaded, no directory is created.

      mrecordlog dump ./wal | mrecordlog load ./copy
      mrecordlog load http://127.0.0.1:8080 wal.ndjson
      echo '{"queue": "orders", "text": "hello"}' | mrecordlog load ./wal
    """
    import asyncio

    from mrecordlog_async.cli.streams import read_text_lines

    if file is None:
        return asyncio.run(_load(log, read_text_lines()))
    if os.path.isdir(file):
        raise UsageError(
            f"{file} is a directory: give a file with lines as `mrecordlog dump` prints them. Recipes "
            "show how the rows of a Delta table are appended at their positions"
        )
    with open(file, encoding="utf-8", errors="surrogateescape") as lines:
        return asyncio.run(_load(log, lines))


async def _load(log: Log, lines: Iterable[str] | AsyncIterable[str]) -> int:
    from mrecordlog_async.maintenance.dumped_lines import InvalidLineError
    from mrecordlog_async.maintenance.load import load

    try:
        if log.is_service:
            async with log.connect(WRITE_RETRY_SECONDS) as client:
                loaded = await load(client, lines)
        else:
            loaded = await _load_directory(log.place, lines)
    except InvalidLineError as error:
        raise UsageError(str(error)) from None
    repeats = f", {plural(loaded.repeats, 'record')} already there" if loaded.repeats else ""
    print(f"{plural(loaded.queues, 'queue')} created, {plural(loaded.records, 'record')} stored{repeats}")
    return FINE


async def _load_directory(directory: str, lines: Iterable[str] | AsyncIterable[str]) -> Loader:
    from mrecordlog_async.log import MultiRecordLog
    from mrecordlog_async.maintenance.load import begun, load
    from mrecordlog_async.maintenance.transfer import BUILD_LIMITS
    from mrecordlog_async.options import PersistPolicy

    segment_bytes = _segment_bytes()
    if _is_new(directory):
        lines = await begun(lines)  # input of which nothing can be loaded leaves no log behind
    # One sync at the end: nothing is promised before the command ends.
    async with MultiRecordLog.open(
        directory,
        persist_policy=PersistPolicy.never(),
        limits=replace(BUILD_LIMITS, memory_bytes=None, beyond_memory="disk"),
        segment_bytes=segment_bytes,
        retention=False,
    ) as log:
        log.inspection.keep_unclosed()
        loaded = await load(log, lines)
        await log.sync()
    return loaded


def _segment_bytes() -> int:
    """Return the size of the segments of a new log: that of the setting, as `serve` would make it."""
    from mrecordlog_async.options import GIB, check_segment_bytes
    from mrecordlog_async.quantities import parse_size

    try:
        found = parse_size(os.environ.get("MRECORDLOG_SEGMENT_BYTES") or str(GIB))
        check_segment_bytes(found)
    except ValueError as error:
        raise UsageError(f"MRECORDLOG_SEGMENT_BYTES: {error}") from None
    return found


def _is_new(directory: str) -> bool:
    return not os.path.isdir(directory) or not os.listdir(directory)
