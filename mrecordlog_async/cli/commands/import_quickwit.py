"""Read a directory of Quickwit's Rust crate mrecordlog into a new log.

It imports the queues, positions and records that the crate would read. It reports what the crate skips silently:
damage, and torn tails, which a crash leaves and which were never acknowledged. If there is damage, it imports nothing
and exits with 3, unless you give --accept-damage. The source is only read, and must not be in use.

  mrecordlog import-quickwit ./quickwit-wal ./wal --empty-name default
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from mrecordlog_async.cli.exit_codes import DAMAGE, FINE, UsageError
from mrecordlog_async.cli.output import plural, size
from mrecordlog_async.cli.parser import CommandLine, Parser, add_segment_bytes
from mrecordlog_async.cli.target import directory_argument
from mrecordlog_async.maintenance.rebuild import QueueCopy, copy_queues, new_log
from mrecordlog_async.memory.reads import check_name
from mrecordlog_async.quickwit.files import Directory
from mrecordlog_async.quickwit.reader import Report, read
from mrecordlog_async.quickwit.scan import Finding
from mrecordlog_async.storage.filesystem import FileSystem
from mrecordlog_async.storage.os_filesystem import OsFileSystem


def add_parser(command_line: CommandLine) -> Parser:
    """Describe the command."""
    parser = command_line.add_command("import-quickwit", "Read files of Quickwit's Rust crate into a new log", __doc__)
    parser.add_argument("source", metavar="SOURCE", help="directory that the Rust crate wrote")
    parser.add_argument(
        "log", metavar="DIR", type=directory_argument, help="directory of the log to create; must not exist yet"
    )
    parser.add_argument("--empty-name", metavar="QUEUE", help="name for a queue whose name is empty")
    parser.add_argument("--accept-damage", action="store_true", help="import what can be read around damage")
    add_segment_bytes(parser)
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Import."""
    source = Directory(OsFileSystem(), arguments.source)
    try:
        report = read(source)
    except FileNotFoundError as error:
        raise FileNotFoundError(error.errno, error.strerror, arguments.source) from None
    finally:
        source.close()
    copies = list(_copies(report, arguments.empty_name))
    accepted = arguments.accept_damage or not report.damage
    if accepted:
        asyncio.run(build(arguments.log, copies, arguments.segment_bytes))
    if arguments.json:
        print(json.dumps(_facts(report, copies, accepted)))
    else:
        sys.stdout.writelines(_lines(report, copies, accepted, arguments.log))
    return FINE if accepted else DAMAGE


async def build(
    directory: str, copies: list[QueueCopy], segment_bytes: int, filesystem: FileSystem | None = None
) -> None:
    """Write *copies* as a new log in *directory*, whole or not at all."""
    async with new_log(directory, segment_bytes, filesystem) as log:
        await copy_queues(log, copies)


def _copies(report: Report, empty_name: str | None) -> Iterator[QueueCopy]:
    queues = report.state.queues
    for name in sorted(queues):
        queue = queues[name]
        new_name = _rename(name, empty_name, queues)
        yield QueueCopy(new_name, queue.first_position, queue.next_position, list(queue.runs()))


def _rename(name: str, empty_name: str | None, taken: Any) -> str:
    if name:
        check_name(name)
        return name
    if empty_name is None:
        raise UsageError("one queue has an empty name, which is not allowed here: give it one with --empty-name")
    check_name(empty_name)
    if empty_name in taken:
        raise UsageError(f"a queue named {empty_name!r} exists already: choose another --empty-name")
    return empty_name


def _records(copies: list[QueueCopy]) -> int:
    return sum(run.record_count for copy in copies for run in copy.runs)


def _facts(report: Report, copies: list[QueueCopy], accepted: bool) -> dict[str, object]:
    return {
        "imported": accepted,
        "queues": len(copies),
        "records": _records(copies),
        "findings": [asdict(finding) for finding in report.findings],
    }


def _lines(report: Report, copies: list[QueueCopy], accepted: bool, log: str) -> Iterator[str]:
    for finding in report.findings:
        yield _sentence(finding) + "\n"
    what = f"{plural(len(copies), 'queue')}, {plural(_records(copies), 'record')}"
    if accepted:
        yield f"imported {what} into {log}\n"
    else:
        yield f"nothing was imported; {what} can be read: import them with --accept-damage\n"


def _sentence(finding: Finding) -> str:
    kind = "torn tail" if finding.torn else "damage"
    hidden = f", hiding {plural(finding.hidden_frames, 'frame')} with data" if finding.hidden_frames else ""
    silent = " (the crate does not mention it)" if finding.silent else ""
    place = f"{finding.file} at offset {finding.offset}, {size(finding.bytes)}"
    return f"{kind}: {place}: {finding.reason}{hidden}{silent}"
