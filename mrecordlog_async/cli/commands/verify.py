"""Verify every byte of a log: every checksum, every position, every segment against the one before it.

It reads the log as opening does, but takes no lock and writes nothing, so it can run while a service uses the log. A
torn tail is not damage: it is a batch that was not finished before a crash, and the next open removes it. If there is
damage, the command lists all of it and exits with 3. `mrecordlog repair` then shows what can still be read.

  mrecordlog verify ./wal
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict

from mrecordlog_async.cli.commands.repair import describe
from mrecordlog_async.cli.output.text import ProgressBar, plural, size, speed, wants_colour
from mrecordlog_async.cli.shell.exit_codes import DAMAGE, FINE
from mrecordlog_async.cli.shell.parser import Parser
from mrecordlog_async.cli.shell.target import directory_argument
from mrecordlog_async.maintenance import Verification, verify
from mrecordlog_async.model import RecoveryReport
from mrecordlog_async.storage.lock_file import LOCK_NAME

STRIP_WIDTH = 60
RED = "\x1b[31m"
PLAIN = "\x1b[0m"


def add_parser(command_line: Parser) -> Parser:
    """Describe the command."""
    parser = command_line.add_command("verify", "Verify every byte of a log", __doc__)
    parser.add_argument(
        "directory", metavar="DIR", type=directory_argument, help="directory of the log; only read, may be in use"
    )
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Verify."""
    with ProgressBar("verifying") as progress:
        found = verify(arguments.directory, on_progress=progress)
    if found.report is None:
        return _report_damage(arguments, found)
    if arguments.json:
        print(json.dumps({"ok": True, **asdict(found.report), "read_bytes": progress.bytes}))
    else:
        sys.stdout.writelines(_lines(found.report, progress))
    return FINE


def _lines(report: RecoveryReport, progress: ProgressBar) -> Iterator[str]:
    counted = f"{plural(report.segments, 'segment')}, {plural(report.batches, 'batch')}"
    yield f"OK: {counted}, {plural(report.records, 'record')} of {size(report.bytes)}\n"
    yield f"read {size(progress.bytes)} in {report.seconds:.3f} s ({speed(progress.bytes, report.seconds)})\n"
    if not report.clean:
        yield f"torn tail: {size(report.dropped_bytes)} of an unfinished batch in {report.segment}"
        yield f" at offset {report.offset}; the next open removes it\n"


def _report_damage(arguments: argparse.Namespace, found: Verification) -> int:
    error = found.error
    assert error is not None, "a log without a report is damaged"
    if arguments.json:
        first = {"segment": error.segment, "offset": error.offset, "reason": error.reason}
        print(json.dumps({"ok": False, **first, "damage": [asdict(damage) for damage in found.damage]}))
        return DAMAGE
    print(f"damaged: {error}")
    for damage in found.damage:
        print(describe(damage))
    if error.segment == LOCK_NAME:  # it says what to do; nothing is left to repair
        return DAMAGE
    sys.stdout.writelines(_pictures(found, colour=wants_colour()))
    print("open refuses this log and changes nothing. To see what can still be read, and what is lost:")
    print(f"  mrecordlog repair {arguments.directory}")
    return DAMAGE


def _pictures(found: Verification, *, colour: bool) -> Iterator[str]:
    """Draw each segment that has damage: X for damaged bytes, a dot for intact ones."""
    for name, total in found.file_bytes.items():
        cells = ["."] * STRIP_WIDTH
        for damage in found.damage:
            if damage.segment == name:
                first = damage.offset * STRIP_WIDTH // max(total, 1)
                last = (damage.offset + damage.bytes - 1) * STRIP_WIDTH // max(total, 1)
                for cell in range(min(first, STRIP_WIDTH - 1), min(last, STRIP_WIDTH - 1) + 1):
                    cells[cell] = f"{RED}X{PLAIN}" if colour else "X"
        yield f"{name} |{''.join(cells)}|\n"
