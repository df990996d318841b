"""Write a log's content as a directory that Quickwit's Rust crate `mrecordlog` opens.

The bytes are those the crate itself would have written for the same calls: per queue a create, a truncate where its
records do not begin at 0, and appends at their positions. The log is only read, also beside a running service; what is
exported is the state it had then.

  mrecordlog export-quickwit ./wal ./quickwit-wal
"""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from mrecordlog_async.cli.exit_codes import FINE, UsageError
from mrecordlog_async.cli.output import Progress, plural
from mrecordlog_async.maintenance.rebuild import QueueCopy, Truncate, calls
from mrecordlog_async.quickwit.files import Directory
from mrecordlog_async.quickwit.writer import Writer
from mrecordlog_async.readonly import ReadOnlyLog
from mrecordlog_async.storage.directory import make_directories
from mrecordlog_async.storage.filesystem import FileSystem, OsFileSystem


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Describe the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "export-quickwit",
        help="write a log as the Rust crate's files",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("log", help="the log's directory")
    parser.add_argument("target", help="directory to make for the crate; must be new or empty")
    parser.add_argument("--json", action="store_true", help="the report as one JSON object")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Export."""
    with Progress("reading") as progress, ReadOnlyLog.open(arguments.log, on_progress=progress) as log:
        files = OsFileSystem()
        _make_empty(files, arguments.target)
        target = Directory(files, arguments.target)
        try:
            records = export(log, Writer(target))
            queues = len(log.list_queues())
        finally:
            target.close()
    if arguments.json:
        print(json.dumps({"queues": queues, "records": records}))
    else:
        print(f"exported {plural(queues, 'queue')}, {plural(records, 'record')} to {arguments.target}")
    return FINE


def export(log: ReadOnlyLog, writer: Writer) -> int:
    """Do the calls that make *log*'s queues anew; return how many records there were."""
    records = 0
    for name, summary in log.summary().items():
        writer.create_queue(name)
        queue = QueueCopy(name, summary.first_position, summary.next_position, log.runs(name))
        for call in calls(queue):
            if isinstance(call, Truncate):
                writer.truncate(name, call.position)
            else:
                writer.append(name, call.first_position, call.payloads())
                records += call.records
    writer.sync()
    return records


def _make_empty(files: FileSystem, path: str) -> None:
    """Make the directory, durably in its parents, unless it is there; UsageError if anything is in it."""
    make_directories(files, os.path.abspath(path))
    if files.names(path):
        raise UsageError(f"{path} is not empty: name a directory that does not exist yet")
