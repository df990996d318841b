"""What opening changes once it has judged the log: zero the torn tail, remove leftovers. Only with the lock held."""

from __future__ import annotations

import contextlib
import logging

from mrecordlog_async.options import MIB
from mrecordlog_async.recovery.recovered import RecoveredLog
from mrecordlog_async.storage.filesystem import FileSystem, write_all
from mrecordlog_async.storage.segment import CLOSED_NAME, TEMPORARY_SUFFIX, segment_name

logger = logging.getLogger("mrecordlog_async")

ZEROS = bytes(MIB)


def zero_torn_tail(files: FileSystem, handle: int, recovered: RecoveredLog) -> None:
    """Zero the bytes after the last whole batch, in place and durably."""
    if recovered.torn_range is None:
        return
    at, stop = recovered.torn_range
    while at < stop:
        piece = ZEROS[: min(len(ZEROS), stop - at)]
        write_all(files, handle, [piece], at)
        at += len(piece)
    files.sync(handle)
    logger.warning(
        "zeroed %d bytes of an unfinished, unacknowledged batch in %s at offset %d",
        recovered.torn_range[1] - recovered.end,
        segment_name(recovered.segment),
        recovered.end,
    )


def remove_leftovers(
    files: FileSystem, directory: str, names: list[str], recovered: RecoveredLog
) -> list[tuple[int, int]]:
    """Remove temporary files and segments that nothing needs; return the segments that could not be removed."""
    for name in names:
        if name.endswith(TEMPORARY_SUFFIX) and name.startswith(("wal-", CLOSED_NAME)):
            with contextlib.suppress(OSError):
                files.unlink(f"{directory}/{name}")
    kept = []
    for number in recovered.leftovers:
        try:
            files.unlink(f"{directory}/{segment_name(number)}")
        except FileNotFoundError:
            pass
        except IsADirectoryError:
            # Not ours. Listed as a segment it would block the removal of all later ones.
            logger.warning("a directory has the name %s of a segment; it is left alone", segment_name(number))
        except OSError:
            kept.append((number, 0))
    return kept
