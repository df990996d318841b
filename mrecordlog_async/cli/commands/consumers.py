"""List the consumers of a log: where each stands, and what waits for it. Create, delete or move one.

A queue that contains * is a pattern: --create and --delete then concern every queue that matches, and every one that is
created later. --seek moves a consumer to a position or a time, and fences off the process that holds it.

  mrecordlog consumers http://127.0.0.1:8080
  mrecordlog consumers ./wal orders
  mrecordlog consumers http://127.0.0.1:8080 '*' --create lake
  mrecordlog consumers http://127.0.0.1:8080 orders --seek billing 4000
  mrecordlog consumers ./wal orders --seek billing 10min
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from mrecordlog_async.cli.output.text import columns, open_log, printable, size
from mrecordlog_async.cli.shell.change import Done, change
from mrecordlog_async.cli.shell.exit_codes import FINE, UsageError
from mrecordlog_async.cli.shell.parser import START, Parser
from mrecordlog_async.cli.shell.target import add_log, connect, is_service, run_async
from mrecordlog_async.maintenance.queue_settings import QueueSettings
from mrecordlog_async.model import ConsumerSummary, Start
from mrecordlog_async.patterns import is_pattern
from mrecordlog_async.quantities import age

if TYPE_CHECKING:
    from mrecordlog_async.client.client import RecordLogClient

HEADER = ("queue", "consumer", "position", "records", "bytes", "oldest", "holder seen", "skipped", "owner")


def add_parser(command_line: Parser) -> Parser:
    """Describe the command."""
    parser = command_line.add_command("consumers", "List, create, delete or move consumers", __doc__)
    add_log(parser)
    parser.add_argument(
        "queue",
        nargs="?",
        metavar="QUEUE",
        help="queue, or a pattern with --create and --delete (default: list the consumers of all queues)",
    )
    changes = parser.add_mutually_exclusive_group()
    changes.add_argument("--create", metavar="NAME", help="create a consumer")
    changes.add_argument("--delete", metavar="CONSUMER", help="delete a consumer")
    changes.add_argument(
        "--seek", nargs=2, metavar=("CONSUMER", "START"), help="move a consumer to a position, or a time as for --start"
    )
    parser.add_argument(
        "--start",
        type=START,
        metavar="START",
        help="where --create begins: a position, a time such as 2026-11-22T09:30, or 10min ago (default: first record)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """List the consumers, or change one."""
    if "" in (arguments.create, arguments.delete, *(arguments.seek or ())[:1]):
        raise UsageError("the name of a consumer must not be empty")
    if arguments.start is not None and not arguments.create:
        raise UsageError("--start is where --create begins: add --create NAME, or use --seek CONSUMER START")
    if arguments.create or arguments.delete or arguments.seek:
        if arguments.queue is None:
            raise UsageError("name the queue, or '*' for all of them")
        return run_async(_change(arguments))
    if is_service(arguments.log):
        return run_async(_list_service(arguments))
    _show(_in_directory(arguments), arguments.json)
    return FINE


async def _list_service(arguments: argparse.Namespace) -> int:
    async with connect(arguments) as client:
        found = await _consumers(client, arguments.queue)
    _show([_of_service(one) for one in found], arguments.json)
    return FINE


async def _consumers(client: RecordLogClient, queue: str | None) -> list[ConsumerSummary]:
    if queue is None:
        return await client.all_consumers()
    return list((await client.consumers(queue)).values())


def _of_service(one: ConsumerSummary) -> dict[str, Any]:
    names = ("queue", "consumer", "position", "records", "bytes", "oldest_seconds", "idle_seconds", "skipped", "owner")
    return {name: getattr(one, name) for name in names}


def _in_directory(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the consumers in the files. What waits is not counted: that would read the records."""
    with open_log(arguments.log) as log:
        queues = log.list_queues() if arguments.queue is None else [arguments.queue]
        return [
            {"queue": queue, "consumer": consumer, "position": position, "owner": settings.owners.get(consumer)}
            for queue, settings in ((queue, QueueSettings.of(log.state_of(queue))) for queue in queues)
            for consumer, position in settings.consumers.items()
        ]


def _show(found: Iterable[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        sys.stdout.writelines(json.dumps(one) + "\n" for one in found)
        return
    sys.stdout.writelines(columns([HEADER, *map(_row, found)], left=2))


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    known = "records" in one
    oldest, idle = one.get("oldest_seconds"), one.get("idle_seconds")
    return (
        printable(one["queue"]),
        printable(one["consumer"]),
        str(one["position"]),
        str(one["records"]) if known else "-",
        size(one["bytes"]) if known else "-",
        age(oldest),
        f"{age(idle)} ago" if idle is not None else "-",
        str(one["skipped"]) if known else "-",
        one.get("owner") or "-",
    )


async def _change(arguments: argparse.Namespace) -> int:
    """Create, delete or move a consumer. With a pattern, --create can be repeated."""
    queue = arguments.queue
    start = _start(arguments.seek[1]) if arguments.seek else arguments.start
    exist_ok = is_pattern(queue)

    async def act(log: Any) -> Done:
        if arguments.create:
            created = await log.create_consumer(queue, arguments.create, start=start, exist_ok=exist_ok)
            done = {"queue": queue, "consumer": arguments.create, "created": created}
        elif arguments.delete:
            await log.delete_consumer(queue, arguments.delete)
            done = {"queue": queue, "consumer": arguments.delete, "deleted": True}
        else:
            name, _ = arguments.seek
            position = await log.seek_consumer(queue, name, start)
            done = {"queue": queue, "consumer": name, "position": position}
        return done, _sentence(done)

    return await change(arguments, act)


def _start(text: str) -> Start:
    try:
        return START(text)
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"--seek: {error}") from None


def _sentence(done: dict[str, Any]) -> str:
    if "created" in done:
        what = "created" if done["created"] else "exists"
    else:
        what = "deleted" if "deleted" in done else f"is at {done['position']}"
    return f"{done['queue']}: consumer {done['consumer']} {what}"
