"""Check every byte of a log as opening it would, but without taking the lock and without writing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from mrecordlog_async.errors import CorruptionError
from mrecordlog_async.maintenance.damage import Damage
from mrecordlog_async.maintenance.salvage import Salvage, salvage_from
from mrecordlog_async.model import RecoveryProgress, RecoveryReport
from mrecordlog_async.readonly import ReadOnlyLog
from mrecordlog_async.storage.directory import LogDirectory
from mrecordlog_async.storage.filesystem import FileSystem


@dataclass(frozen=True, slots=True)
class Verification:
    """Result of a check of every byte.

    Attributes:
        report: what opening the log would report; None if it is damaged.
        error: the error that opening the log would raise; None if the log is intact.
        salvage: every damaged place that could be found, and what is left of each queue; None if the log is intact, or
            nothing of it can be read. The records in it have positions and no payloads.
        file_bytes: the sizes of the files that *damage* names and that exist.
    """

    report: RecoveryReport | None
    error: CorruptionError | None = None
    salvage: Salvage | None = None
    file_bytes: dict[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Return True if no acknowledged data is damaged."""
        return self.error is None

    @property
    def damage(self) -> list[Damage]:
        """Return every damaged place that could be found, in the order of the log."""
        return [] if self.salvage is None else self.salvage.damage


def verify(
    directory: str | os.PathLike[str],
    *,
    on_progress: Callable[[RecoveryProgress], None] | None = None,
    filesystem: FileSystem | None = None,
) -> Verification:
    """Check every checksum and position of the log in *directory*, and every segment against the one before it.

    Blocks, but takes no lock, so a service may use the log. A torn tail is not damage: it is a batch that was
    not finished before a crash, and the next open removes it.

    Args:
        directory: the log's directory; it is only read.
        on_progress: called with the bytes read so far.
        filesystem: the disk to read from; the operating system's by default.

    Returns:
        The report of an intact log, or every damaged place of a damaged one. Damage is returned, not raised.

    Raises:
        FileNotFoundError: there is no log in *directory*.
        OSError: the disk could not be read.
    """
    log = LogDirectory.at(directory, filesystem)
    try:
        with ReadOnlyLog.open(log.path, keep_records=False, on_progress=on_progress, filesystem=log.files) as reader:
            return Verification(reader.recovery_report)
    except CorruptionError as error:
        found = _salvaged(log)
        damaged = {place.segment for place in found.damage if place.bytes} if found is not None else ()
        return Verification(None, error, found, _file_bytes(log, damaged))


def _salvaged(log: LogDirectory) -> Salvage | None:
    """Return all damage, not only the first damaged place, and what is lost; None if nothing can be read."""
    try:
        return salvage_from(log, keeps_payloads=False)
    except CorruptionError:
        return None


def _file_bytes(log: LogDirectory, names: Iterable[str]) -> dict[str, int]:
    found = {}
    for name in sorted(names):
        try:
            handle = log.files.open(f"{log.path}/{name}", write=False)
        except FileNotFoundError:
            continue
        found[name] = log.files.size(handle)
        log.files.close(handle)
    return found
