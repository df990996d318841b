"""Store lines of JSON, as dump prints them, in a log.

A missing directory or queue is created. A directory must not be in use. Records are stored at the positions in the
lines, so loading the same lines again stores nothing twice; a record without a position is appended at the end. An
empty queue continues at the position in its line. Options, consumers, seals and rules are set when all records are
stored. A consumer of a queue that already existed stays where it is if the queue has it. If such a queue keeps records
until they are acknowledged, a consumer that reads it during the load removes records that a new one of the dump has yet
to read: create the new one first. Times of records begin again with the load.

When the command ends, a directory is durable; what a service stored is as durable as its `serve --persist` says. At an
invalid line the command stops and prints the line's number. If the end of a dump is missing, it stores the lines that
there are, and fails; so it does if there are none. After that, and after a kill, load the complete lines: records that
are stored already are compared with them, and the others are appended. A kill may leave an empty record before the
first one of a queue in a service; the next load removes it. If nothing of the first line can be loaded, no directory is
created.

  mrecordlog dump ./wal | mrecordlog load ./copy
  mrecordlog load http://127.0.0.1:8080 wal.ndjson
  echo '{"queue": "orders", "text": "hello"}' | mrecordlog load ./wal
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import AsyncIterable, Iterable
from dataclasses import replace

from mrecordlog_async.cli.output.standard_input import read_text_lines
from mrecordlog_async.cli.output.text import plural
from mrecordlog_async.cli.shell.exit_codes import FINE, UsageError
from mrecordlog_async.cli.shell.parser import Parser, add_segment_bytes
from mrecordlog_async.cli.shell.target import WRITE_RETRY_SECONDS, add_log, connect, is_service, run_async
from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.maintenance.dumped_lines import InvalidLineError
from mrecordlog_async.maintenance.load import Loader, begun, load
from mrecordlog_async.maintenance.transfer import BUILD_LIMITS
from mrecordlog_async.options import GIB, PersistPolicy


def add_parser(command_line: Parser) -> Parser:
    """Describe the command."""
    parser = command_line.add_command("load", "Store lines of JSON, as dump prints them", __doc__)
    add_log(parser)
    parser.add_argument("file", nargs="?", metavar="FILE", help="file with the lines (default: standard input)")
    add_segment_bytes(parser, "size of a segment file, for a directory")
    parser.set_defaults(segment_bytes=None)
    parser.add_argument("--json", action="store_true", help="print the counts as one JSON object")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Load the lines."""
    if is_service(arguments.log) and arguments.segment_bytes is not None:
        raise UsageError("--segment-bytes is for a directory; a service has that of `mrecordlog serve --segment-bytes`")
    if arguments.file is None:
        return run_async(_run(arguments, read_text_lines()))
    if os.path.isdir(arguments.file):
        raise UsageError(
            f"{arguments.file} is a directory: give a file with lines as `mrecordlog dump` prints them. Recipes "
            "show how the rows of a Delta table are appended at their positions"
        )
    with open(arguments.file, encoding="utf-8", errors="surrogateescape") as lines:
        return run_async(_run(arguments, lines))


async def _run(arguments: argparse.Namespace, lines: Iterable[str] | AsyncIterable[str]) -> int:
    try:
        if is_service(arguments.log):
            async with connect(arguments, WRITE_RETRY_SECONDS) as client:
                loaded = await load(client, lines)
        else:
            loaded = await _load_directory(arguments.log, arguments.segment_bytes, lines)
    except InvalidLineError as error:
        raise UsageError(str(error)) from None
    if arguments.json:
        print(json.dumps({"queues": loaded.queues, "records": loaded.records, "repeats": loaded.repeats}))
    else:
        repeats = f", {plural(loaded.repeats, 'record')} already there" if loaded.repeats else ""
        print(f"{plural(loaded.queues, 'queue')} created, {plural(loaded.records, 'record')} stored{repeats}")
    return FINE


async def _load_directory(
    directory: str, segment_bytes: int | None, lines: Iterable[str] | AsyncIterable[str]
) -> Loader:
    if _is_new(directory):
        lines = await begun(lines)  # input of which nothing can be loaded leaves no log behind
    # One sync at the end: nothing is promised before the command ends.
    async with MultiRecordLog.open(
        directory,
        persist_policy=PersistPolicy.never(),
        limits=replace(BUILD_LIMITS, memory_bytes=None, beyond_memory="disk"),
        segment_bytes=GIB if segment_bytes is None else segment_bytes,
        retention=False,
    ) as log:
        log.inspection.keep_unclosed()
        loaded = await load(log, lines)
        await log.sync()
    return loaded


def _is_new(directory: str) -> bool:
    return not os.path.isdir(directory) or not os.listdir(directory)
