"""Show the Delta table of a drain: its size, its columns, and how far each log is stored.

mrecordlog lake show ./lake/events
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from mrecordlog_async.cli.output.text import plural, size
from mrecordlog_async.cli.shell.exit_codes import FINE
from mrecordlog_async.cli.shell.parser import Parser
from mrecordlog_async.spark.drain_arguments import pair_of

if TYPE_CHECKING:
    from mrecordlog_async.spark.lake_show import Shown, StoredBy


def add_parser(command_line: Parser) -> Parser:
    """Describe the command."""
    parser = command_line.add_command("lake", "Show the table of a drain", __doc__)
    parser.add_argument("action", choices=("show",), metavar="ACTION", help="show")
    parser.add_argument("path", metavar="PATH", help="the table: a directory, or s3://…, gs://…, az://…")
    parser.add_argument(
        "--storage-option",
        type=pair_of,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="option of the table's object store; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Show the table."""
    from mrecordlog_async.spark.lake_show import show
    from mrecordlog_async.spark.table_files import TableFiles

    found = show(TableFiles(arguments.path, dict(arguments.storage_option)))
    print(json.dumps(asdict(found)) if arguments.json else "\n".join(_lines(found)))
    return FINE


def _lines(found: Shown) -> Iterator[str]:
    yield f"version {found.version}: {plural(found.rows, 'row')} in {plural(found.files, 'file')}, {size(found.bytes)}"
    if found.partition_by:
        yield f"{plural(found.partitions, 'partition')} by {', '.join(found.partition_by)}"
    if found.earlier is not None:
        yield f"drained by an earlier version, as query {found.earlier}: continue it with `drain --migrate-from`"
    elif not found.drains:
        yield "not written by a drain"
    for name, kind in found.columns.items():
        yield f"  {name:<20}{kind}"
    for name, each in found.drains.items():
        yield from _drain_lines(name, each)


def _drain_lines(name: str, found: StoredBy) -> Iterator[str]:
    yield f"drain {name!r}, up to batch {found.batch}:"
    for log, each in found.logs.items():
        yield f"  server {each.server!r}, log {log}"
        for queue, (number, position) in sorted(each.queues.items()):
            yield (
                f"    {queue!r} (id {number}) up to position {position - 1}" if position else f"    {queue!r}: nothing"
            )
