"""Write a log as a directory that Quickwit's Rust crate mrecordlog opens.

The bytes are those that the crate itself would have written for the same calls: for each queue a create, a truncate if
its records do not begin at 0, and appends at their positions. The crate has no options, seals or consumers of queues:
the command names the queues whose settings it leaves out. The log is only read, and may be in use. The target exists
whole or not at all.

  mrecordlog export-quickwit ./wal ./quickwit-wal
"""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from dataclasses import asdict

from mrecordlog_async.cli.output.settings_text import settings_text
from mrecordlog_async.cli.output.text import open_log, plural, printable
from mrecordlog_async.cli.shell.exit_codes import FINE
from mrecordlog_async.cli.shell.parser import Parser
from mrecordlog_async.cli.shell.target import directory_argument
from mrecordlog_async.maintenance.new_directory import free_names, new_directory
from mrecordlog_async.maintenance.stored_log import StoredLog
from mrecordlog_async.maintenance.transfer import QueueShape
from mrecordlog_async.quickwit.files import Directory
from mrecordlog_async.quickwit.writer import CrateWriter
from mrecordlog_async.storage.os_filesystem import OsFileSystem


def add_parser(command_line: Parser) -> Parser:
    """Describe the command."""
    parser = command_line.add_command("export-quickwit", "Write a log as files of Quickwit's Rust crate", __doc__)
    parser.add_argument("log", metavar="DIR", type=directory_argument, help="directory of the log")
    parser.add_argument(
        "target",
        metavar="TARGET",
        type=directory_argument,
        help="directory to write for the crate; must be new or empty",
    )
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Export."""
    files = OsFileSystem()
    free_names(files, arguments.target)  # a name that is taken is reported before the whole log is read
    with (
        open_log(arguments.log) as log,
        new_directory(files, arguments.target, like=arguments.log) as partial,
        closing(Directory(files, partial)) as target,
    ):
        records = export(log, CrateWriter(target))
        names = log.list_queues()
        left_out = {name: found for name in names if (found := log.settings(name))}
        rules = log.consumer_rules()
    if arguments.json:
        rule_facts = [{"pattern": pattern, "consumer": consumer} for pattern, consumer in rules]
        left_out_facts = {
            "settings": {name: asdict(settings) for name, settings in left_out.items()},
            "rules": rule_facts,
        }
        print(json.dumps({"queues": len(names), "records": records, "left_out": left_out_facts}))
    else:
        print(f"exported {plural(len(names), 'queue')}, {plural(records, 'record')} to {arguments.target}")
        for name, settings in left_out.items():
            print(f"left out: {printable(name)}: {settings_text(settings)}")
        for pattern, consumer in rules:
            print(f"left out: rule {printable(pattern)}: consumer {printable(consumer)}")
    return FINE


def export(log: StoredLog, writer: CrateWriter) -> int:
    """Make the calls that recreate the queues of *log*; return the number of records."""
    records = 0
    for name, first, following, runs in log.contents():
        QueueShape(name, first, following).check()
        writer.create_queue(name)
        if first:
            writer.truncate(name, first - 1)
        reached, held = first, 0
        for run in runs:
            writer.append(name, run.first_position, run.payloads())
            reached, held = run.next_position, held + run.record_count
        if reached < following:  # its last records were truncated while it was read, so all of them were
            writer.truncate(name, following - 1)
            held = 0
        records += held
    writer.sync()
    return records
