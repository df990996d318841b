"""Copy a log while it is in use: a backup that holds one consistent prefix.

The snapshot contains every call that was acknowledged before it began. A later call is in it whole or not at all.
Finished segments never change, so they become hard links, which cost neither time nor space. Only the last segment is
copied, up to its last whole batch. A service that uses the log does not wait.

A log never writes to a file that has a second name, and never shortens one. So you can write to the log or to its
snapshot without changing the other. Only damage on the disk itself affects both. With --copy, or if the target is on
another file system, all segments are copied.

The snapshot is a log: you can open, verify or dump it. It has the identity of the original, so keep it as a backup and
do not write to both.

Linking reads only the last segment, so damage in an older one gets into the snapshot unnoticed. With --verify, every
byte of the snapshot is checked before it gets its name, and a snapshot of a damaged log is refused: the exit code is 3,
and nothing is left of it. Use it in scripts that remove older backups.

  mrecordlog snapshot ./wal ./backups/2026-01-31 --verify
  mrecordlog snapshot ./wal /mnt/backup/2026-01-31 --copy
"""

from __future__ import annotations

import argparse
import json

from mrecordlog_async.cli.output.text import ProgressBar, plural, size
from mrecordlog_async.cli.shell.exit_codes import FINE
from mrecordlog_async.cli.shell.parser import Parser
from mrecordlog_async.cli.shell.target import directory_argument
from mrecordlog_async.maintenance import snapshot


def add_parser(command_line: Parser) -> Parser:
    """Describe the command."""
    parser = command_line.add_command("snapshot", "Copy a log while it is in use", __doc__)
    parser.add_argument("directory", metavar="DIR", type=directory_argument, help="directory of the log; only read")
    parser.add_argument("target", metavar="TARGET", type=directory_argument, help="directory to create for the copy")
    parser.add_argument("--copy", action="store_true", help="copy finished segments instead of linking them")
    parser.add_argument("--verify", action="store_true", help="check every byte; refuse a snapshot of a damaged log")
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Take the snapshot."""
    with ProgressBar("verifying") as progress:
        made = snapshot(
            arguments.directory,
            arguments.target,
            link=not arguments.copy,
            check=arguments.verify,
            on_progress=progress,
        )
    if arguments.json:
        print(json.dumps({"target": arguments.target, **made._asdict()}))
    else:
        print(
            f"snapshot of {plural(made.segments, 'segment')} in {arguments.target}: "
            f"{size(made.linked_bytes)} linked, {size(made.copied_bytes)} copied"
            f"{', every byte verified' if arguments.verify else ''}"
        )
    return FINE
