"""Set the options of a queue, which say how long it keeps records and how many, or seal the queue.

All options are replaced: an option that you do not give gets its default. A sealed queue never accepts records again,
and its readers end after the last one.

  mrecordlog configure ./wal orders --keep until_acknowledged
  mrecordlog configure ./wal clicks --max-bytes 2GiB --when-full drop_oldest
  mrecordlog configure http://127.0.0.1:8080 clicks --create --max-age 7d
  mrecordlog configure http://127.0.0.1:8080 orders --seal
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from functools import partial
from typing import Any

from mrecordlog_async.cli.shell.change import Done, change
from mrecordlog_async.cli.shell.exit_codes import UsageError
from mrecordlog_async.cli.shell.parser import COUNT, SIZE, TIME, Parser
from mrecordlog_async.cli.shell.target import add_log, run_async
from mrecordlog_async.options import QUEUE_CHOICES, QUEUE_OPTIONS, OptionFacts, QueueOptions

_LIMITS = {"bytes": (SIZE, "SIZE"), "records": (COUNT, "N"), "seconds": (TIME, "TIME")}
"""Parser and placeholder of a limit, by its unit."""


def add_parser(command_line: Parser) -> Parser:
    """Describe the command."""
    parser = command_line.add_command("configure", "Set the options of a queue, or seal it", __doc__)
    add_log(parser)
    parser.add_argument("queue", metavar="QUEUE", help="queue to configure")
    parser.add_argument("--create", action="store_true", help="create the queue if it does not exist")
    for name, facts in QUEUE_OPTIONS.items():
        _add_option(parser, name, facts)
    parser.add_argument("--seal", action="store_true", help="accept no more records; keeps the options as they are")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


def _add_option(parser: Parser, name: str, facts: OptionFacts) -> None:
    flag = f"--{name.replace('_', '-')}"
    if facts.unit:
        read, shown = _LIMITS[facts.unit]
        parser.add_argument(flag, type=read, metavar=shown, help=f"{facts.help} (default: {facts.unset})")
    else:
        words = QUEUE_CHOICES[name]
        parser.add_argument(flag, choices=words, help=f"{facts.help} (default: {words[0]})")


def run(arguments: argparse.Namespace) -> int:
    """Configure the queue."""
    given = {name: value for name in QUEUE_OPTIONS if (value := getattr(arguments, name)) is not None}
    if arguments.seal and (given or arguments.create):
        raise UsageError("--seal cannot be combined with other options: set them first")
    try:
        options = QueueOptions(**given)
    except ValueError as error:
        raise UsageError(str(error)) from None
    limits_of = None if arguments.seal else arguments.queue
    call = partial(_configure, arguments=arguments, options=options)
    return run_async(change(arguments, call, create=arguments.create, limits_of=limits_of))


async def _configure(log: Any, arguments: argparse.Namespace, options: QueueOptions) -> Done:
    """Configure the queue in a log, or through a client."""
    queue = arguments.queue
    if arguments.seal:
        ends = await log.seal_queue(queue)
        return {"queue": queue, "next_position": ends}, f"{queue}: sealed, ends before position {ends}"
    created = arguments.create and await log.create_queue(queue, exist_ok=True, options=options)
    if not created:
        await log.configure_queue(queue, options)
    facts = {"queue": queue, "created": bool(created), **asdict(options)}
    return facts, f"{queue}: created" if created else f"{queue}: configured"
