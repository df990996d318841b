"""Read everything and check it: every checksum, every position, every segment against the one before it.

It reads as opening does, without the lock and without writing, so it can run beside a service. A torn tail is no
damage: nobody was promised it, and the next open cuts it. With damage the exit code is 3, all of it is listed, and
`mrecordlog repair` shows what can still be read.

  mrecordlog verify ./wal
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from mrecordlog_async.cli.commands.repair import describe
from mrecordlog_async.cli.exit_codes import DAMAGE, FINE
from mrecordlog_async.cli.output import Progress, plural, size, wants_colour
from mrecordlog_async.errors import CorruptionError
from mrecordlog_async.maintenance.layout import Damage
from mrecordlog_async.maintenance.salvage import salvage
from mrecordlog_async.model import RecoveryReport
from mrecordlog_async.readonly import ReadOnlyLog
from mrecordlog_async.storage.filesystem import OsFileSystem

STRIP_WIDTH = 60
RED = "\x1b[31m"
PLAIN = "\x1b[0m"


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Describe the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "verify",
        help="check every byte of a log",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("directory", help="the log's directory; it is only read, also beside a running service")
    parser.add_argument("--json", action="store_true", help="the report as one JSON object")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Verify."""
    with Progress("verifying") as progress:
        try:
            with ReadOnlyLog.open(arguments.directory, on_progress=progress) as log:
                report = log.recovery_report
        except CorruptionError as error:
            return _tell_damage(arguments, error)
    if arguments.json:
        print(json.dumps({"ok": True, **asdict(report), "read_bytes": progress.bytes}))
    else:
        sys.stdout.writelines(_lines(report, progress))
    return FINE


def _lines(report: RecoveryReport, progress: Progress) -> Iterator[str]:
    counted = f"{plural(report.segments, 'segment')}, {plural(report.batches, 'batch')}"
    yield f"fine: {counted}, {plural(report.records, 'record')} of {size(report.bytes)}\n"
    yield f"read {size(progress.bytes)} in {report.seconds:.3f} s ({progress.bytes / report.seconds / 1e9:.2f} GB/s)\n"
    if not report.clean:
        yield f"torn tail: {size(report.dropped_bytes)} of a batch that was never acknowledged, in {report.segment}"
        yield f" at offset {report.offset}; the next open cuts it\n"


def _tell_damage(arguments: argparse.Namespace, error: CorruptionError) -> int:
    """List all damage, not only where reading stopped."""
    try:
        found: list[Damage] = salvage(OsFileSystem(), arguments.directory).damage
    except CorruptionError:
        found = []
    if arguments.json:
        first = {"segment": error.segment, "offset": error.offset, "reason": error.reason}
        print(json.dumps({"ok": False, **first, "damage": [asdict(damage) for damage in found]}))
        return DAMAGE
    print(f"damaged: {error}")
    for damage in found:
        print(describe(damage))
    sys.stdout.writelines(_pictures(arguments.directory, found, colour=wants_colour()))
    print("open refuses this log and changes nothing. What can still be read, and what is lost:")
    print(f"  mrecordlog repair {arguments.directory}")
    return DAMAGE


def _pictures(directory: str, found: list[Damage], *, colour: bool) -> Iterator[str]:
    """Draw each segment that has damage: X where it lies, a dot for what is well."""
    for name in sorted({damage.segment for damage in found if damage.bytes}):
        try:
            total = os.stat(f"{directory}/{name}").st_size
        except FileNotFoundError:
            continue
        cells = ["."] * STRIP_WIDTH
        for damage in found:
            if damage.segment == name:
                first = damage.offset * STRIP_WIDTH // max(total, 1)
                last = (damage.offset + damage.bytes - 1) * STRIP_WIDTH // max(total, 1)
                for cell in range(min(first, STRIP_WIDTH - 1), min(last, STRIP_WIDTH - 1) + 1):
                    cells[cell] = f"{RED}X{PLAIN}" if colour else "X"
        yield f"{name} |{''.join(cells)}|\n"
