r"""Maintain the Delta table of a drain, even while the drain runs.

show prints what the table holds; with --bad, the rows whose payload did not parse. optimize rewrites small files into
larger ones. vacuum deletes files of the table's writers that no recent version of the table names; with
--drop-older-than, it first drops rows by age, whole files at a time. resume makes a new checkpoint if the old one is
lost: reading continues after what the table holds.

  mrecordlog lake show ./lake/events
  mrecordlog lake optimize ./lake/events --target-file-bytes 256m
  mrecordlog lake vacuum ./lake/events --older-than 7d
  mrecordlog lake resume ./lake/events --checkpoint ./lake/new-checkpoint
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

from mrecordlog_async.cli.output.text import plural, size
from mrecordlog_async.cli.shell.exit_codes import FINE, UsageError
from mrecordlog_async.cli.shell.parser import Parser
from mrecordlog_async.spark.settings.arguments import pair_of, seconds_of, size_of
from mrecordlog_async.spark.settings.options import TARGET_FILE_BYTES

if TYPE_CHECKING:
    from mrecordlog_async.spark.delta.place import TablePlace
    from mrecordlog_async.spark.delta.show import Shown

ACTIONS = ("show", "optimize", "vacuum", "resume")

OPTIONS = {
    "bad": "show",
    "target_file_bytes": "optimize",
    "rewrite": "optimize",
    "older_than": "vacuum",
    "drop_older_than": "vacuum",
    "dry_run": "vacuum",
    "checkpoint": "resume",
}
"""Options that only one action has: no other one ignores them, an optimize with --dry-run least of all."""


def add_parser(command_line: Parser) -> Parser:
    """Describe the command."""
    parser = command_line.add_command("lake", "Show, optimize or resume the table of a drain", __doc__)
    parser.add_argument("action", choices=ACTIONS, metavar="ACTION", help="show, optimize, vacuum or resume")
    parser.add_argument("path", metavar="PATH", help="the table: a directory, or s3://…, gs://…, az://…")
    parser.add_argument(
        "--storage-option",
        type=pair_of,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="option of the table's object store; may be repeated",
    )
    parser.add_argument("--bad", action="store_true", help="show: print the rows whose payload did not parse")
    parser.add_argument(
        "--target-file-bytes", type=size_of, metavar="SIZE", help="optimize: size of a file (default: 128m)"
    )
    parser.add_argument(
        "--rewrite",
        action="store_true",
        help="optimize: also rewrite large files of 0.2.0 in which some readers miss rows",
    )
    parser.add_argument(
        "--older-than",
        type=seconds_of,
        metavar="TIME",
        help="vacuum: delete files that no version of this period names "
        "(default: what the table states, or 7d; at least 1h)",
    )
    parser.add_argument(
        "--drop-older-than",
        type=seconds_of,
        metavar="TIME",
        help="vacuum: drop rows that were stored longer ago than this, such as 90d",
    )
    parser.add_argument("--dry-run", action="store_true", help="vacuum: print what would be dropped and deleted")
    parser.add_argument("--checkpoint", metavar="DIR", help="resume: the new checkpoint")
    parser.add_argument("--json", action="store_true", help="print one JSON object (--bad: one per row)")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Do what was asked."""
    from mrecordlog_async.spark.delta.place import TablePlace, local_path

    for name, owner in OPTIONS.items():
        if getattr(arguments, name) not in (None, False) and arguments.action != owner:
            option = name.replace("_", "-")
            raise UsageError(f"--{option} is an option of `lake {owner}`, not of `lake {arguments.action}`")
    place = TablePlace(local_path(arguments.path) or arguments.path, dict(arguments.storage_option))
    action = {"show": _show, "optimize": _optimize, "vacuum": _vacuum, "resume": _resume}[arguments.action]
    with _explained(place):
        action(place, arguments)
    return FINE


@contextmanager
def _explained(place: TablePlace) -> Iterator[None]:
    """Replace an error of delta-rs, which is a call stack of many lines, by one sentence."""
    from deltalake.exceptions import DeltaError

    from mrecordlog_async.spark.delta.content import TableError
    from mrecordlog_async.spark.delta.reasons import reason_of

    try:
        yield
    except (DeltaError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of this machine: standard output, or a file; those of delta-rs have no number
        raise TableError(f"the table at {place.address} cannot be used: {reason_of(error)}") from error


def _show(place: TablePlace, arguments: argparse.Namespace) -> None:
    from mrecordlog_async.spark.delta.changes import BROKEN_VERSION
    from mrecordlog_async.spark.delta.show import bad_rows, show

    if arguments.bad:
        for row in bad_rows(place):
            sys.stdout.write(json.dumps(row, default=_text) + "\n")
        return
    found = show(place)
    if arguments.json:
        print(json.dumps(asdict(found)))
        return
    print(f"version {found.version}: {plural(found.rows, 'row')} in {plural(found.files, 'file')}, {size(found.bytes)}")
    if found.partition_by:
        print(f"{plural(found.partitions, 'partition')} by {', '.join(found.partition_by)}")
    print(_drained(found))
    if found.broken is not None:
        print(BROKEN_VERSION.format(found.broken, found.broken - 1))
    for name, kind in found.columns.items():
        print(f"  {name:<20}{kind}")


def _drained(found: Shown) -> str:
    """Return who writes the table."""
    from mrecordlog_async.spark.delta.changes import RESUMING

    if not found.query:
        return "not written by a drain"
    if found.query.startswith(RESUMING):
        return "not drained now: a `mrecordlog lake resume` of it has not finished; run it again"
    upto = f"up to batch {found.batch}" if found.batch is not None else "which has stored no batch yet"
    return f"drained by query {found.query}, {upto}"


def _optimize(place: TablePlace, arguments: argparse.Namespace) -> None:
    from mrecordlog_async.spark.delta.upkeep import optimize

    done = optimize(place, arguments.target_file_bytes or TARGET_FILE_BYTES, rewrite=arguments.rewrite)
    _say(arguments, asdict(done), f"{plural(done.removed, 'file')} rewritten into {done.added}")


def _vacuum(place: TablePlace, arguments: argparse.Namespace) -> None:
    from mrecordlog_async.spark.delta.upkeep import drop_older
    from mrecordlog_async.spark.delta.vacuum import understood, vacuum

    apply, would = not arguments.dry_run, "would be " if arguments.dry_run else ""
    dropped, said = 0, ""
    if arguments.drop_older_than is not None:
        understood(place, arguments.older_than)  # a vacuum that is refused drops no rows
        dropped = drop_older(place, arguments.drop_older_than, apply=apply).removed
        said = f"{plural(dropped, 'file')} of old rows {would}dropped, "
    names = vacuum(place, arguments.older_than, apply=apply)
    _say(arguments, {"dropped": dropped, "files": names}, f"{said}{plural(len(names), 'file')} {would}deleted")


def _resume(place: TablePlace, arguments: argparse.Namespace) -> None:
    from mrecordlog_async.spark.checkpoints.identity import RefusedError
    from mrecordlog_async.spark.delta.place import local_path
    from mrecordlog_async.spark.delta.start import refuse_inside

    if arguments.checkpoint is None:
        raise UsageError("resume makes a new checkpoint: name its directory with --checkpoint")
    path = local_path(arguments.checkpoint)
    if path is None:
        raise UsageError(f"resume makes the checkpoint on a disk of this machine, not at {arguments.checkpoint}")
    try:
        refuse_inside(place, path)
        found = _resumed(place, path)
    except RefusedError as error:
        raise UsageError(str(error)) from None
    queues = sum(len(each) for each in found.values())
    said = f"{plural(queues, 'queue')} of {plural(len(found), 'server')} continue after what the table holds"
    _say(arguments, {"positions": found}, f"{said}; start the drain with --checkpoint {arguments.checkpoint}")


def _resumed(place: TablePlace, path: str) -> dict[str, dict[str, int]]:
    from mrecordlog_async.spark.checkpoints.local_lake import LocalLake
    from mrecordlog_async.spark.delta.resume import resume

    with closing(LocalLake(path)) as checkpoint:
        checkpoint.lock()
        return resume(place, checkpoint)


def _say(arguments: argparse.Namespace, facts: dict[str, object], line: str) -> None:
    print(json.dumps(facts) if arguments.json else line)


def _text(value: object) -> str:
    """Return what JSON cannot hold as text: payloads, times and decimals."""
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
