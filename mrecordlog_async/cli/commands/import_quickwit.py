"""Read a directory of Quickwit's Rust crate mrecordlog into a new log.

It imports the queues, positions and records that the crate would read. It reports what the crate skips silently:
damage, and torn tails, which are unfinished writes that a crash leaves. If there is damage, it imports nothing and
exits with 3, unless you give --accept-damage. The source is only read, and must not be in use.

  mrecordlog import-quickwit ./quickwit-wal ./wal --empty-name default
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict
from itertools import accumulate
from typing import Any

from mrecordlog_async.cli.output.text import ProgressBar, plural, size
from mrecordlog_async.cli.shell.exit_codes import DAMAGE, FINE, UsageError
from mrecordlog_async.cli.shell.explain import refuse_log_directory
from mrecordlog_async.cli.shell.parser import Parser, add_segment_bytes
from mrecordlog_async.cli.shell.target import directory_argument
from mrecordlog_async.errors import CorruptionError
from mrecordlog_async.maintenance.new_directory import free_names
from mrecordlog_async.maintenance.transfer import QueueShape, new_log, write_queues
from mrecordlog_async.model import RecoveryProgress, Run
from mrecordlog_async.names import check_name
from mrecordlog_async.quickwit.files import Directory
from mrecordlog_async.quickwit.reader import Report, read, read_appends
from mrecordlog_async.quickwit.scan import Finding, OnBlock
from mrecordlog_async.quickwit.state import runs_of
from mrecordlog_async.storage.filesystem import FileSystem
from mrecordlog_async.storage.os_filesystem import OsFileSystem


def add_parser(command_line: Parser) -> Parser:
    """Describe the command."""
    parser = command_line.add_command("import-quickwit", "Read files of Quickwit's Rust crate into a new log", __doc__)
    parser.add_argument("source", metavar="SOURCE", type=directory_argument, help="directory that the Rust crate wrote")
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
    refuse_log_directory(arguments.source)
    files = OsFileSystem()
    free_names(files, arguments.log)  # a name that is taken is reported before everything is read
    with closing(Directory(files, arguments.source)) as source:
        with ProgressBar("reading") as progress:
            report = _read(source, arguments.source, progress)
        queues = queues_of(report, arguments.empty_name)
        accepted = arguments.accept_damage or not report.damage
        if accepted:
            with ProgressBar("writing") as progress:
                on_block = _meter(source, progress)
                made = build(
                    arguments.log, source, queues, arguments.segment_bytes, on_block=on_block, like=source.path
                )
                asyncio.run(made)
    if arguments.json:
        print(json.dumps(_facts(report, accepted)))
    else:
        sys.stdout.writelines(_lines(report, accepted, arguments.log))
    return FINE if accepted else DAMAGE


def _read(source: Directory, path: str, progress: ProgressBar) -> Report:
    """Read which queues there are and what the crate would skip, without keeping the records."""
    try:
        return read(source, _meter(source, progress))
    except FileNotFoundError as error:
        raise FileNotFoundError(error.errno, error.strerror, path) from None
    except CorruptionError as error:
        raise CorruptionError(f"{path}/{error.segment}", error.offset, error.reason) from None


def _meter(source: Directory, progress: ProgressBar) -> OnBlock:
    """Return a function that takes a place in *source* and reports the bytes before it."""
    sizes = [source.size(number) for number in source.numbers]
    before = dict(zip(source.numbers, accumulate(sizes, initial=0), strict=False))
    total = sum(sizes)
    return lambda file, offset: progress(RecoveryProgress(before[file] + offset, total))


async def build(
    directory: str,
    source: Directory,
    queues: Mapping[int, QueueShape],
    segment_bytes: int,
    filesystem: FileSystem | None = None,
    on_block: OnBlock | None = None,
    like: str | None = None,
) -> None:
    """Write *queues* of *source*, by their numbers, as a new log in *directory*, whole or not at all.

    like: if root writes it, it belongs to the owner of this path.
    """
    async with new_log(directory, segment_bytes, filesystem, like=like) as log:
        await write_queues(log, list(queues.values()), _runs(source, queues, on_block))


def _runs(source: Directory, queues: Mapping[int, QueueShape], on_block: OnBlock | None) -> Iterator[tuple[str, Run]]:
    """Yield the records that *queues* retain, in the order of the files."""
    for queue, record in read_appends(source, on_block):
        shape = queues.get(queue.number)
        if shape is not None:
            for run in runs_of(item for item in record.items if item[0] >= shape.first_position):
                yield shape.name, run


def queues_of(report: Report, empty_name: str | None) -> dict[int, QueueShape]:
    """Return the queues to create, by their numbers in the state."""
    queues = report.state.queues
    found = {}
    for name in sorted(queues):
        queue = queues[name]
        shape = QueueShape(_rename(name, empty_name, queues), queue.first_position, queue.next_position)
        found[queue.number] = shape
    return found


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


def _records(report: Report) -> int:
    return sum(len(queue.positions) for queue in report.state.queues.values())


def _facts(report: Report, accepted: bool) -> dict[str, object]:
    return {
        "imported": accepted,
        "queues": len(report.state.queues),
        "records": _records(report),
        "findings": [asdict(finding) for finding in report.findings],
    }


def _lines(report: Report, accepted: bool, log: str) -> Iterator[str]:
    for finding in report.findings:
        yield _sentence(finding) + "\n"
    what = f"{plural(len(report.state.queues), 'queue')}, {plural(_records(report), 'record')}"
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
