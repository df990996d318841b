"""Show what the segments of a log contain, and with --pins which queues keep them on the disk.

The log deletes a segment when neither this segment nor an older one contains a live record. So one record of a quiet
queue can keep gigabytes. --pins names that queue, and its slowest consumer if it keeps records until they are
acknowledged. Each character of a segment's line is a part of its bytes: a letter for live records of a queue, a dot for
dead bytes, a blank for space that is reserved but not written yet. A segment whose records have left memory, or soon
will, has a gathered file next to it, from which they are read; it is deleted with its segment.

The command only reads. The log may be in use, and it may be damaged (`verify` reports damage).

  mrecordlog inspect ./wal --pins
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from string import ascii_letters

from mrecordlog_async.cli.output.settings_text import consumers_text, settings_text
from mrecordlog_async.cli.output.text import ProgressBar, columns, plural, printable, size, wants_colour
from mrecordlog_async.cli.shell.exit_codes import FINE
from mrecordlog_async.cli.shell.parser import Parser
from mrecordlog_async.cli.shell.target import directory_argument
from mrecordlog_async.maintenance import LogUsage, Pin, SegmentUsage, usage

HEADER = (
    "segment",
    "written",
    "gathered",
    "batches",
    "records",
    "live",
    "live bytes",
    "dead bytes",
    "last commit",
    "note",
)
STRIP_WIDTH = 40
COLOURS = (36, 33, 35, 32, 34, 31)
"""Of the terminal: cyan, yellow, magenta, green, blue, red."""
OTHERS = "*"
"""The sign of every queue once the letters are used up."""


def add_parser(command_line: Parser) -> Parser:
    """Describe the command."""
    parser = command_line.add_command("inspect", "Show segments, and which queue keeps each on disk", __doc__)
    parser.add_argument(
        "directory", metavar="DIR", type=directory_argument, help="directory of the log; only read, may be in use"
    )
    parser.add_argument("--pins", action="store_true", help="show which queue keeps which segment")
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Inspect."""
    with ProgressBar("reading") as progress:
        found = usage(arguments.directory, on_progress=progress)
    if arguments.json:
        print(json.dumps({**asdict(found), "pins": [asdict(pin) for pin in found.pins()]}))
        return FINE
    sys.stdout.writelines(_overview(found))
    sys.stdout.writelines(_pins(found, colour=wants_colour()) if arguments.pins else _table(found))
    sys.stdout.writelines(_settings(found))
    return FINE


def _overview(found: LogUsage) -> Iterator[str]:
    segments = found.segments
    live = sum(segment.live_bytes for segment in segments)
    dead = sum(segment.bytes for segment in segments) - live
    on_disk = sum(segment.file_bytes for segment in segments)
    gathered = sum(segment.gathered_bytes for segment in segments)
    more = f" and {size(gathered)} in gathered files" if gathered else ""
    state = "closed" if found.closed else "in use, or not closed"
    yield f"log {found.log_id} ({state})\n"
    yield (
        f"{plural(len(segments), 'segment')}, {size(on_disk)} on disk{more}; {plural(len(found.queues), 'queue')}; "
        f"payloads: {size(live)} live, {size(dead)} dead\n"
    )


def _table(found: LogUsage) -> Iterator[str]:
    yield "\n"
    gathered = any(segment.gathered_bytes for segment in found.segments)
    rows = [HEADER, *map(_row, found.segments)]
    yield from columns(rows if gathered else [row[:2] + row[3:] for row in rows])


def _row(segment: SegmentUsage) -> tuple[str, ...]:
    return (
        str(segment.number),
        size(segment.written_bytes),
        size(segment.gathered_bytes) if segment.gathered_bytes else "-",
        str(segment.batches),
        str(segment.records),
        str(segment.live_records),
        size(segment.live_bytes),
        size(segment.bytes - segment.live_bytes),
        _time(segment.last_time_ns),
        _note(segment),
    )


def _time(time_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_ns / 1e9)) if time_ns else "-"


def _note(segment: SegmentUsage) -> str:
    if segment.damaged_bytes:
        return f"DAMAGED ({size(segment.damaged_bytes)})"
    return f"torn tail ({size(segment.tail_bytes)})" if segment.tail_bytes else ""


def _pins(found: LogUsage, *, colour: bool) -> Iterator[str]:
    signs = _signs(found)
    yield "\n"
    width = len(str(found.segments[-1].number))
    for segment in found.segments:
        keepers = " ".join(printable(queue) for queue in segment.live)
        yield f"{segment.number:>{width}} |{_strip(segment, signs, colour)}| {keepers}".rstrip() + "\n"
    yield "\n"
    for queue, sign in signs.items():
        yield f"  {_paint(sign, 1, colour)} {printable(queue)}\n"
    yield f"  . dead bytes   (each character: 1/{STRIP_WIDTH} of the segment's file)\n\n"
    for pin in found.pins():
        yield _pin_sentence(pin, found) + "\n"
    if found.leftover:
        span = _span(found.leftover[0], found.leftover[-1])
        yield f"{span}: no live records; deleted at the next commit\n"


def _signs(found: LogUsage) -> dict[str, str]:
    """Give the queues with live records letters, those that keep the oldest segments first."""
    kept = [queue for queue in found.queues if queue.first_segment is not None]
    kept.sort(key=lambda queue: (queue.first_segment, queue.name))
    names = [queue.name for queue in kept]
    signs = dict(zip(names, ascii_letters.swapcase(), strict=False))
    if len(names) > len(signs):
        signs["(further queues)"] = OTHERS
    return signs


def _strip(segment: SegmentUsage, signs: dict[str, str], colour: bool) -> str:
    """Draw a segment: each queue's live bytes, then dead ones, then space that is not written.

    A queue with live bytes gets at least one character.
    """
    cells = []
    room = STRIP_WIDTH
    for queue, share in segment.live.items():
        count = min(max(_cells(share.bytes, segment), 1), room)
        cells.append(_paint(signs.get(queue, OTHERS), count, colour))
        room -= count
    dead = min(max(_cells(segment.written_bytes, segment) - (STRIP_WIDTH - room), 0), room)
    return "".join(cells) + "." * dead + " " * (room - dead)


def _cells(count: int, segment: SegmentUsage) -> int:
    return round(count / max(segment.file_bytes, 1) * STRIP_WIDTH)


def _paint(sign: str, count: int, colour: bool) -> str:
    return f"\x1b[{COLOURS[ord(sign) % len(COLOURS)]}m{sign * count}\x1b[0m" if colour else sign * count


def _pin_sentence(pin: Pin, found: LogUsage) -> str:
    held = [segment for segment in found.segments if pin.first <= segment.number <= pin.last]
    verb = "is" if pin.first == pin.last else "are"
    kept = size(sum(segment.file_bytes for segment in held))
    them = "it" if pin.first == pin.last else "them"
    return (
        f"{_span(pin.first, pin.last)} {verb} kept only by {printable(pin.queue)}{_reason(pin)}: {kept}; "
        f"{_advice(pin)} to free {them}"
    )


def _reason(pin: Pin) -> str:
    """Say why a queue keeps its records: its slowest consumer, or that nobody truncated it."""
    slowest = pin.settings.keeping_consumer()
    if slowest is not None:
        return f", whose consumer {printable(slowest[0])} is at {slowest[1]}"
    if pin.settings.options.keep == "until_acknowledged":
        return ", which keeps records until they are acknowledged and has no consumer"
    where = "".join(f", {each}" for each in consumers_text(pin.settings))
    return f" (first position {pin.first_position}{where})"


def _advice(pin: Pin) -> str:
    if pin.settings.options.keep != "until_acknowledged":
        return "truncate or delete it"
    return "have it acknowledge, or delete it or the queue," if pin.settings.consumers else "truncate or delete it"


def _settings(found: LogUsage) -> Iterator[str]:
    """List the queues for which anything is set."""
    texts = [(queue.name, settings_text(queue.settings)) for queue in found.queues]
    lines = [f"{printable(name)}: {text}\n" for name, text in texts if text]
    yield from ["\n", *lines] if lines else []


def _span(first: int, last: int) -> str:
    return f"segment {first}" if first == last else f"segments {first}-{last}"
