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

The line has options, seal and consumers only if they are set. Times of records are not dumped. "remaining" is how many
queues and rules follow, so that load notices if the end of a dump is missing. Of a log without queues and rules, one
line has only that.
A payload is base64. With --text it is text if it is valid UTF-8. Both load back to the same bytes. The dump of a
directory shows the log as it was when the dump began, even while a service uses it. Through a service, each queue is
dumped as it is when the dump reaches it. Records that the service truncates meanwhile may be missing; if they are the
last ones of a queue, another line of the queue follows, in which it is empty. So is a queue that is deleted meanwhile.

  mrecordlog dump ./wal > wal.ndjson
  mrecordlog dump ./wal --queue orders --text | jq -r .text
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from mrecordlog_async.cli.output.standard_output import as_utf_8
from mrecordlog_async.cli.output.text import open_log
from mrecordlog_async.cli.shell.exit_codes import FINE
from mrecordlog_async.cli.shell.parser import Parser
from mrecordlog_async.cli.shell.target import add_log, connect, is_service, run_async
from mrecordlog_async.errors import QueueNotFoundError
from mrecordlog_async.maintenance.dumped_lines import empty_line, end_line, queue_line, record_lines, rule_lines
from mrecordlog_async.maintenance.queue_settings import QueueSettings
from mrecordlog_async.model import QueueSummary

if TYPE_CHECKING:
    from mrecordlog_async.client.client import RecordLogClient


def add_parser(command_line: Parser) -> Parser:
    """Describe the command."""
    parser = command_line.add_command("dump", "Print queues and records as lines of JSON", __doc__)
    add_log(parser)
    parser.add_argument("--queue", action="append", metavar="QUEUE", help="dump only this queue; may be repeated")
    parser.add_argument("--text", action="store_true", help='print payloads that are UTF-8 as "text", not base64')
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Dump."""
    as_utf_8(sys.stdout)
    if is_service(arguments.log):
        return run_async(_dump_service(arguments))
    with open_log(arguments.log) as log:
        rules = log.consumer_rules() if arguments.queue is None else []
        remaining = len(arguments.queue or log.list_queues()) + len(rules)
        sys.stdout.write(empty_line(remaining))
        for name, first_position, next_position, runs in log.contents(arguments.queue):
            remaining -= 1
            settings = QueueSettings.of(log.state_of(name))
            sys.stdout.write(queue_line(name, first_position, next_position, remaining, settings))
            end = first_position
            for run in runs:
                sys.stdout.writelines(record_lines(name, run.records(), text=arguments.text))
                end = run.next_position
            sys.stdout.write(end_line(name, end, next_position, remaining, settings))
        sys.stdout.writelines(rule_lines(rules))
    return FINE


async def _dump_service(arguments: argparse.Namespace) -> int:
    async with connect(arguments) as client:
        rules = await client.consumer_rules() if arguments.queue is None else []
        listed = await _list(client, arguments.queue)
        remaining = len(listed) + len(rules)
        sys.stdout.write(empty_line(remaining))
        for queue in listed:
            remaining -= 1
            async for line in _lines_of(client, queue, remaining, text=arguments.text):
                sys.stdout.write(line)
        sys.stdout.writelines(rule_lines(rules))
    return FINE


async def _list(client: RecordLogClient, queues: Sequence[str] | None) -> list[QueueSummary]:
    """Return the queues to dump; raise QueueNotFoundError before anything is printed if one does not exist."""
    if queues is None:
        return list((await client.summary()).values())
    return [await client.queue_summary(queue) for queue in queues]


async def _lines_of(client: RecordLogClient, listed: QueueSummary, remaining: int, *, text: bool) -> AsyncIterator[str]:
    """Yield the lines of a queue. One that was deleted since it was listed is empty, so that no line is missing."""
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
    consumers = await client.consumers(queue)
    return QueueSettings(
        await client.queue_options(queue),
        consumers={name: found.position for name, found in consumers.items()},
        owners={name: found.owner for name, found in consumers.items() if found.owner is not None},
    )
