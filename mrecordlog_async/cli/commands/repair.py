"""Read around the damage in a log and, with --apply, write what is left as a new log.

Every record that can still be read keeps its position. The report names what is lost, queue by queue. Without --apply
nothing is written. With --apply the new log is created next to the damaged one (DIR.repaired, or --to), whole or not at
all. The damaged directory is never changed; move it away yourself when you no longer need it in place.

Lost batches may have contained truncates and deletes. So records that were truncated may reappear, and a queue that no
intact data after the last damage mentions may have been deleted; the report says which. Records of a queue whose name
is lost go to lost-and-found-ID, never to another queue. Options, seals and consumers come with the queues; a consumer
stands where the last data that can be read shows it, so it may read records again. The queues of the new log have new
ids, so readers that keep positions, such as a Spark checkpoint, must start over.

The exit code is 0 if there was nothing to repair or the new log was written, and 3 if there is damage to repair.

  mrecordlog repair ./wal
  mrecordlog repair ./wal --apply
  mv ./wal ./wal.damaged && mv ./wal.repaired ./wal
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from mrecordlog_async.cli.output.text import ProgressBar, plural, printable, ranges, size
from mrecordlog_async.cli.shell.exit_codes import DAMAGE, FINE
from mrecordlog_async.cli.shell.parser import Parser, add_segment_bytes
from mrecordlog_async.cli.shell.target import directory_argument
from mrecordlog_async.errors import CorruptionError
from mrecordlog_async.maintenance import Damage, Salvage, SalvagedQueue, repair
from mrecordlog_async.maintenance.repair import REPAIRED_SUFFIX
from mrecordlog_async.options import GIB

MAYBE_GONE = """\
may have been deleted: no intact data after the last damage mentions the queue, so lost batches may have deleted it, or
deleted it and created another queue with the same name
"""


def add_parser(command_line: Parser) -> Parser:
    """Describe the command."""
    parser = command_line.add_command("repair", "Write what can be read of a damaged log as a new one", __doc__)
    parser.add_argument(
        "directory",
        metavar="DIR",
        type=directory_argument,
        help="directory of the damaged log; only read; must not be in use",
    )
    parser.add_argument("--apply", action="store_true", help="write the new log")
    parser.add_argument(
        "--to", metavar="TARGET", type=directory_argument, help="directory to write (default: DIR.repaired)"
    )
    add_segment_bytes(parser)
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Repair."""
    directory = arguments.directory.rstrip("/") or arguments.directory
    target = arguments.to or _named(directory) + REPAIRED_SUFFIX
    try:
        with ProgressBar("reading") as reading, ProgressBar("writing") as writing:
            outcome = repair(
                directory,
                target,
                write=arguments.apply,
                segment_bytes=arguments.segment_bytes,
                on_progress=reading,
                on_write=writing,
            )
    except CorruptionError as error:
        print(f"mrecordlog: {directory}: nothing of it can be read: {error}; restore a snapshot", file=sys.stderr)
        return DAMAGE
    found, written = outcome.salvage, outcome.written
    if arguments.json:
        print(json.dumps({**_facts(found, target if written else None), "raised": outcome.raised}))
    else:
        advised = _advised(arguments, directory, target)
        sys.stdout.writelines(_lines(found, directory, target, None if written else advised, outcome.raised))
    return DAMAGE if found.damage and not written else FINE


def _named(directory: str) -> str:
    """Return a path that ends with the directory's name: a suffix of `.` or `..` would name something inside it."""
    return os.path.abspath(directory) if os.path.basename(directory) in ("", os.curdir, os.pardir) else directory


def _facts(found: Salvage, written_to: str | None) -> dict[str, object]:
    return {
        "damage": [asdict(damage) for damage in found.damage],
        "torn_bytes": found.torn_bytes,
        "rules": [{"pattern": pattern, "consumer": consumer} for pattern, consumer in found.rules],
        "written_to": written_to,
        "queues": [
            {
                "queue": queue.name,
                "id": queue.id,
                "name_lost": queue.name_lost,
                "maybe_gone": queue.maybe_gone,
                "first_position": queue.first_position,
                "next_position": queue.readable_next_position,
                "records": queue.record_count,
                "missing": queue.missing,
                "settings": asdict(queue.settings),
            }
            for queue in found.queues
        ],
    }


def _advised(arguments: argparse.Namespace, directory: str, target: str) -> str:
    """Return the command that writes what this one has shown."""
    words = ["mrecordlog", "repair", directory, "--apply"]
    if target != _named(directory) + REPAIRED_SUFFIX:
        words += ["--to", target]
    if arguments.segment_bytes != GIB:
        words += ["--segment-bytes", str(arguments.segment_bytes)]
    return shlex.join(words)


def _lines(found: Salvage, directory: str, target: str, advised: str | None, raised: Sequence[str]) -> Iterator[str]:
    """Yield the report. advised: the command that writes the new log; None if it was written."""
    for damage in found.damage:
        yield describe(damage) + "\n"
    if found.torn_bytes:
        yield f"torn tail: {size(found.torn_bytes)} of an unfinished batch; the next open removes it\n"
    if not found.damage:
        yield f"nothing to repair in {plural(found.segments, 'segment')}\n"
        return
    for queue in found.queues:
        yield _queue_line(queue) + "\n"
    if any(queue.maybe_gone for queue in found.queues):
        yield MAYBE_GONE
    for name in raised:
        yield f"queue {printable(name)}: removed records are back; its limits were raised to what it holds\n"
    if advised is None:
        yield f"written to {target}; {directory} is unchanged\n"
    else:
        yield f"nothing was written; `{advised}` writes this to {target}\n"


def describe(damage: Damage) -> str:
    """Return one damaged place as a sentence."""
    place = f"{damage.segment} at offset {damage.offset}, {size(damage.bytes)}" if damage.bytes else damage.segment
    text = f"damage: {place}: {damage.reason}"
    first, last = damage.first_batch, damage.last_batch
    if first is not None or last is not None:
        span = f"up to {last}" if first is None else f"{first} to {'the end' if last is None else last}"
        batches = f"batch {first}" if first == last else f"batches {span}"
        text += f"; {batches} affected, {plural(damage.rescued_records, 'record')} of it still readable"
    return text


def _queue_line(queue: SalvagedQueue) -> str:
    text = f"queue {printable(queue.name)}: {plural(queue.record_count, 'record')} readable"
    if not queue.missing:
        text += ", nothing known to be missing"
    else:
        text += f", missing position{'s' if _many(queue.missing) else ''} {ranges(queue.missing)}"
        if queue.readable_next_position < queue.next_position:
            text += f"; the next position goes back from {queue.next_position} to {queue.readable_next_position}"
    if queue.name_lost:
        text += f"; its name is lost, its id is {queue.id}"
    if queue.maybe_gone:
        text += "; may have been deleted"
    return text


def _many(missing: list[tuple[int, int]]) -> bool:
    return len(missing) > 1 or missing[0][0] != missing[0][1]
