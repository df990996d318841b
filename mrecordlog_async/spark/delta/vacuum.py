"""Deletes the files that no version of a table needs any more: those that writers of the table made, and no others.

A table's directory may hold anything else: files of people, another table, a checkpoint, a log. A file goes if

1. a version of the table removed it, longer ago than the period, or
2. no version names it, it is older than the period, and it has the name and the place that this package and delta-rs
   give to data files: `part-<uuid>….parquet`, in the table's directory or below `column=value` for each partition
   column, and no directory on the way belongs to something else as well.

A table that is not understood is refused: with features that delta-rs does not write, with deletion vectors, or with an
entry that names a file in another way than delta-rs, which would take that file for one that nothing names.
"""

from __future__ import annotations

import logging
import math
import re
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from mrecordlog_async.spark.checkpoints.lake import OWN
from mrecordlog_async.spark.delta.changes import refuse_deletion_vectors
from mrecordlog_async.spark.delta.content import TableError
from mrecordlog_async.spark.delta.place import LOG, TablePlace
from mrecordlog_async.spark.delta.reasons import reason_of
from mrecordlog_async.spark.delta.table import NO_HOOKS, refuse_unsupported
from mrecordlog_async.spark.delta.upkeep import open_table
from mrecordlog_async.storage.lock_file import LOCK_NAME

logger = logging.getLogger("mrecordlog_async.spark")

SECONDS_MIN = 3_600
"""A running drain has files that no entry names yet, for at most half of this (`table.FILE_SECONDS_MAX`)."""

SECONDS = 7 * 24 * 3_600.0
"""The period of a table that states none."""

RETENTION = "delta.deletedFileRetentionDuration"
"""The property of a table that states how long files stay after a version removed them."""

UNITS = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400, "week": 7 * 86_400}

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
DATA_FILE = re.compile(rf"part-(?:\d{{5,}}-)?{_UUID}(?:-c\d{{3,}})?(?:\.[a-z0-9]+)?\.parquet")
"""Names of data files: of this package, and of delta-rs, which adds a number before and a number after the uuid."""

OTHERS = {LOG, OWN, LOCK_NAME, "_spark_metadata", "_SUCCESS", "_metadata", "_common_metadata"}
"""Names in a directory of something else: a table, an output of a drain or of Spark, a log, a set of Parquet files."""

CHANGES = "_change_data"

CHECKPOINT = {"offsets", "commits"}
SEGMENT = re.compile(r"wal-\d{20}")


def vacuum(place: TablePlace, seconds: float | None = None, *, apply: bool = True) -> list[str]:
    """Delete the files that no version of the last *seconds* needs; return their names.

    Args:
        place: the table.
        seconds: by default, the period that the table states, or 7 days.
        apply: delete them; otherwise only return their names.

    Raises:
        TableError: there is no table, it is not understood, or *seconds* is less than an hour.
    """
    table = understood(place, seconds)
    place.sync()  # what was rewritten is durable before what it replaces is deleted
    kept = _stated_seconds(table, place.address) if seconds is None else seconds
    unnamed = _unnamed(table, kept, orphans=True)
    is_own = _own_files(place, table.metadata().partition_columns)
    others = [name for name in unnamed if not is_own(name)]
    if others:
        removed = set(_unnamed(table, kept, orphans=False))
        others = [name for name in others if name not in removed]
        unnamed = sorted(set(unnamed) - set(others))
    if others:
        logger.warning(
            "%s: %d old files that the table does not name stay, such as %r: they are not where its writers put files, "
            "or do not have the names of such files",
            place.address,
            len(others),
            min(others),
        )
    if apply:
        place.remove(unnamed)
    return unnamed


def understood(place: TablePlace, seconds: float | None = None) -> DeltaTable:
    """Return the table at *place* if a vacuum with *seconds* may delete files of it. Raises TableError."""
    if seconds is not None:
        _refuse_short(seconds)
    table = open_table(place)
    refuse_deletion_vectors(table, place.address)  # it would delete the files that hold them
    _refuse_unwritable(table, place.address)
    _refuse_misnamed(table, place.address)
    return table


def _refuse_short(seconds: float) -> None:
    if seconds < SECONDS_MIN:
        raise TableError(
            f"a vacuum keeps files for at least an hour, not {seconds:.0f} s: a running drain has files that no "
            "version of the table names yet"
        )


def _refuse_unwritable(table: DeltaTable, address: str) -> None:
    """Raise TableError if *table* has features that delta-rs does not write: they may say which files it needs.

    delta-rs looks at them before it drops a constraint, even one that does not exist, and then commits nothing.
    """
    try:
        table.alter.drop_constraint(
            f"no_{uuid.uuid4().hex}", raise_if_not_exists=False, post_commithook_properties=NO_HOOKS
        )
    except CommitFailedError as error:
        refuse_unsupported(error, address)
        raise


def _refuse_misnamed(table: DeltaTable, address: str) -> None:
    """Raise TableError if a file of *table* is not where delta-rs looks for it: it may be there by another spelling."""
    try:
        missing = table.repair(dry_run=True)["files_removed"]
    except DeltaError as error:  # an absolute URI
        raise TableError(f"{address} names files in a way that delta-rs does not read: {reason_of(error)}") from error
    if missing:
        raise TableError(
            f"{address} names {missing[0]!r}, and delta-rs finds no such file ({len(missing)} in all); nothing was "
            "deleted. Let the engine that wrote the entry vacuum the table, or restore the file"
        )


def _stated_seconds(table: DeltaTable, address: str) -> float:
    """Return how long *table* keeps files. Raises TableError if it states that in a way that is not understood."""
    text = table.metadata().configuration.get(RETENTION)
    if text is None:
        return SECONDS
    parts = re.findall(r"(\d+)\s+([a-z]+?)s?\b", text.lower())
    if not re.fullmatch(r"(interval)?(\s*\d+\s+[a-z]+)+\s*", text.lower()) or {unit for _, unit in parts} - {*UNITS}:
        raise TableError(f"{address} has {RETENTION} = {text!r}, which is not understood; set --older-than")
    return max(SECONDS_MIN, sum(int(count) * UNITS[unit] for count, unit in parts))


def _unnamed(table: DeltaTable, seconds: float, *, orphans: bool) -> list[str]:
    """Return the names of the files that a version removed before the period; with *orphans*, those of others too."""
    return table.vacuum(
        retention_hours=math.ceil(min(seconds, time.time()) / 3_600),  # whole hours: no file may go too early
        # Otherwise, it would add two entries to the table's log without a sync, and delete what others made.
        dry_run=True,
        enforce_retention_duration=False,
        full=orphans,
    )


def _own_files(place: TablePlace, columns: Sequence[str]) -> Callable[[str], bool]:
    """Return a function that decides by the name of a file whether a writer of the table made it."""

    @cache
    def is_own(directory: str) -> bool:
        if other_than_table(place.names(directory), below=directory != ""):
            return False
        return directory == "" or (not place.is_link(directory) and is_own(directory.rpartition("/")[0]))

    def check(name: str) -> bool:
        *directories, file = name.split("/")
        return (
            DATA_FILE.fullmatch(file) is not None
            and are_partition(directories, columns)
            and not place.is_link(name)
            and is_own("/".join(directories))
        )

    return check


def are_partition(directories: Sequence[str], columns: Sequence[str]) -> bool:
    """Return whether files of a table lie in such *directories*: none, or `column=value` for each partition column.

    Below `_change_data`, which Delta has for files of its change data feed, too.
    """
    directories = directories[1:] if directories[:1] == [CHANGES] else directories
    if not directories:
        return True
    named = [name.partition("=")[0] if "=" in name else None for name in directories]
    return len(named) == len(columns) and all(
        name is not None and column in (name, unquote(name)) for name, column in zip(named, columns, strict=True)
    )


def other_than_table(names: Iterable[str], *, below: bool) -> bool:
    """Return whether a directory with these *names* belongs to something else than the table. below: its root."""
    found = set(names)
    others = OTHERS if below else OTHERS - {LOG}
    return bool(found & others) or found >= CHECKPOINT or any(SEGMENT.fullmatch(name) for name in found)
