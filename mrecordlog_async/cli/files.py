"""The commands about the files of a log: verify, repair and snapshot."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from mrecordlog_async.cli.errors import DAMAGE, FINE
from mrecordlog_async.cli.params import DIRECTORY, TARGET, argument, command
from mrecordlog_async.cli.text import ProgressBar, plural, printable, ranges, size, speed, wants_colour

if TYPE_CHECKING:
    from mrecordlog_async.maintenance.damage import Damage
    from mrecordlog_async.maintenance.lenient_replay import SalvagedQueue
    from mrecordlog_async.maintenance.salvage import Salvage
    from mrecordlog_async.maintenance.verify import Verification
    from mrecordlog_async.model import RecoveryReport

STRIP_WIDTH = 60
RED = "\x1b[31m"
PLAIN = "\x1b[0m"
MAYBE_GONE = """\
may have been deleted: no intact data after the last damage mentions the queue, so lost batches may have deleted it, or
deleted it and created another queue with the same name
"""


@command()
@argument("directory", metavar="DIR", type=DIRECTORY, help="Directory of the log; only read, may be in use.")
def verify(directory: str) -> int:
    """Verify every byte of a log: every checksum, every position, every segment against the one before it.

    It reads the log as opening does, but takes no lock and writes nothing, so it can run while a service uses the log.
    A torn tail is not damage: it is a batch that was not finished before a crash, and the next open removes it. If
    there is damage, the command lists all of it, and what is lost of each queue, and exits with 3.

      mrecordlog verify ./wal
    """
    from mrecordlog_async.maintenance.verify import verify

    with ProgressBar("verifying") as progress:
        found = verify(directory, on_progress=progress)
    if found.report is not None:
        sys.stdout.writelines(_intact(found.report, progress))
        return FINE
    sys.stdout.writelines(_damaged(found, directory))
    return DAMAGE


def _intact(report: RecoveryReport, progress: ProgressBar) -> Iterator[str]:
    counted = f"{plural(report.segments, 'segment')}, {plural(report.batches, 'batch')}"
    yield f"OK: {counted}, {plural(report.records, 'record')} of {size(report.bytes)}\n"
    yield f"read {size(progress.bytes)} in {report.seconds:.3f} s ({speed(progress.bytes, report.seconds)})\n"
    if not report.clean:
        yield f"torn tail: {size(report.dropped_bytes)} of an unfinished batch in {report.segment}"
        yield f" at offset {report.offset}; the next open removes it\n"


def _damaged(found: Verification, directory: str) -> Iterator[str]:
    from mrecordlog_async.storage.lock_file import LOCK_NAME

    error = found.error
    assert error is not None, "a log without a report is damaged"
    yield f"damaged: {error}\n"
    if found.salvage is not None:
        yield from _lost(found.salvage)
    if error.segment == LOCK_NAME:  # it says what to do; nothing is left to repair
        return
    yield from _pictures(found, colour=wants_colour())
    yield "open refuses this log and changes nothing. To write what can still be read as a new log:\n"
    yield f"  mrecordlog repair {directory} --apply\n"


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


@command()
@argument("directory", metavar="DIR", type=DIRECTORY, help="Directory of the damaged log; only read, not in use.")
@click.option("--apply", "write", is_flag=True, help="Write the new log next to the damaged one.")
@click.option("--to", metavar="TARGET", type=TARGET, help="Write the new log here (default: DIR.repaired).")
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
def repair(directory: str, write: bool, to: str | None, as_json: bool) -> int:
    """Read around the damage in a log and, with --apply or --to, write what is left as a new log.

    Every record that can still be read keeps its position. The report names what is lost, queue by queue, as that of
    `mrecordlog verify` does. Without --apply and --to nothing is written. With --apply the new log is created next to
    the damaged one (DIR.repaired), with --to as TARGET, whole or not at all. The damaged directory is never changed;
    move it away yourself when you no longer need it in place.

    Lost batches may have contained truncates and deletes. So records that were truncated may reappear, and a queue that
    no intact data after the last damage mentions may have been deleted; the report says which. Records of a queue whose
    name is lost go to lost-and-found-ID, never to another queue. Options, seals and consumers come with the queues; a
    consumer stands where the last data that can be read shows it, so it may read records again. The queues of the new
    log have new ids, so readers that keep positions, such as a Spark checkpoint, must start over.

    The exit code is 0 if there was nothing to repair or the new log was written, and 3 if there is damage to repair.

      mrecordlog repair ./wal
      mrecordlog repair ./wal --apply
      mv ./wal ./wal.damaged && mv ./wal.repaired ./wal
    """
    from mrecordlog_async.errors import CorruptionError
    from mrecordlog_async.maintenance.repair import REPAIRED_SUFFIX, repair

    directory = directory.rstrip("/") or directory
    target = to or _named(directory) + REPAIRED_SUFFIX
    try:
        with ProgressBar("reading") as reading, ProgressBar("writing") as writing:
            outcome = repair(directory, target, write=write or to is not None, on_progress=reading, on_write=writing)
    except CorruptionError as error:
        print(f"mrecordlog: {directory}: nothing of it can be read: {error}; restore a snapshot", file=sys.stderr)
        return DAMAGE
    code = DAMAGE if outcome.salvage.damage and not outcome.written else FINE
    if as_json:
        facts = _facts(outcome.salvage, target if outcome.written else None)
        print(json.dumps(facts | {"raised": outcome.raised}))
        return code
    advised = None if outcome.written else shlex.join(["mrecordlog", "repair", directory, "--apply"])
    sys.stdout.writelines(_report(outcome.salvage, directory, target, advised, outcome.raised))
    return code


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


def _report(found: Salvage, directory: str, target: str, advised: str | None, raised: Sequence[str]) -> Iterator[str]:
    """Yield the report. advised: the command that writes the new log; None if it was written."""
    yield from _lost(found)
    if not found.damage:
        yield f"nothing to repair in {plural(found.segments, 'segment')}\n"
        return
    for name in raised:
        yield f"queue {printable(name)}: removed records are back; its limits were raised to what it holds\n"
    if advised is None:
        yield f"written to {target}; {directory} is unchanged\n"
    else:
        yield f"nothing was written; `{advised}` writes this to {target}\n"


def _lost(found: Salvage) -> Iterator[str]:
    """Yield each damaged place and, if there is any, what is left and what is lost of each queue."""
    for damage in found.damage:
        yield describe(damage) + "\n"
    if found.torn_bytes:
        yield f"torn tail: {size(found.torn_bytes)} of an unfinished batch; the next open removes it\n"
    for queue in found.queues if found.damage else ():
        yield _queue_line(queue) + "\n"
    if found.damage and any(queue.maybe_gone for queue in found.queues):
        yield MAYBE_GONE


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


@command()
@argument("directory", metavar="DIR", type=DIRECTORY, help="Directory of the log; only read.")
@argument("target", metavar="TARGET", type=TARGET, help="Directory to create for the copy.")
@click.option("--copy", is_flag=True, help="Copy finished segments instead of linking them.")
@click.option("--verify", "check", is_flag=True, help="Check every byte; refuse a snapshot of a damaged log.")
def snapshot(directory: str, target: str, copy: bool, check: bool) -> int:
    """Copy a log while it is in use: a backup that holds one consistent prefix.

    The snapshot contains every call that was acknowledged before it began. A later call is in it whole or not at all.
    Finished segments never change, so they become hard links, which cost neither time nor space. Only the last segment
    is copied, up to its last whole batch. A service that uses the log does not wait.

    A log never writes to a file that has a second name, and never shortens one. So you can write to the log or to its
    snapshot without changing the other. Only damage on the disk itself affects both. With --copy, or if the target is
    on another file system, all segments are copied.

    The snapshot is a log: you can open, verify or dump it. It has the identity of the original, so keep it as a backup
    and do not write to both.

    Linking reads only the last segment, so damage in an older one gets into the snapshot unnoticed. With --verify,
    every byte of the snapshot is checked before it gets its name, and a snapshot of a damaged log is refused: the exit
    code is 3, and nothing is left of it. Use it in scripts that remove older backups.

      mrecordlog snapshot ./wal ./backups/2026-01-31 --verify
      mrecordlog snapshot ./wal /mnt/backup/2026-01-31 --copy
    """
    from mrecordlog_async.maintenance.snapshot import snapshot

    with ProgressBar("verifying") as progress:
        made = snapshot(directory, target, link=not copy, check=check, on_progress=progress)
    print(
        f"snapshot of {plural(made.segments, 'segment')} in {target}: {size(made.linked_bytes)} linked, "
        f"{size(made.copied_bytes)} copied{', every byte verified' if check else ''}"
    )
    return FINE
