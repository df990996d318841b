"""What opening changes once it has judged the log: zero the torn tail, remove leftovers. Only with the lock held."""

from __future__ import annotations

import contextlib
import logging

from mrecordlog_async.options import MIB
from mrecordlog_async.recovery.recovered import RecoveredLog
from mrecordlog_async.storage.directory import Listing, LogDirectory
from mrecordlog_async.storage.segment import SegmentFile, segment_name

logger = logging.getLogger("mrecordlog_async")

ZEROS = bytes(MIB)


def zero_torn_tail(file: SegmentFile, recovered: RecoveredLog) -> None:
    """Zero the bytes after the last whole batch, in place and durably."""
    if recovered.torn_range is None:
        return
    at, stop = recovered.torn_range
    while at < stop:
        piece = ZEROS[: min(len(ZEROS), stop - at)]
        file.write([piece], at)
        at += len(piece)
    # Before any batch is written here: what is left of the tail must not be taken for what follows it.
    file.sync()
    logger.warning(
        "zeroed %d bytes of an unfinished, unacknowledged batch in %s at offset %d",
        recovered.torn_range[1] - recovered.end.offset,
        segment_name(recovered.end.segment),
        recovered.end.offset,
        extra={
            "facts": {
                "event": "torn_tail",
                "bytes": recovered.torn_range[1] - recovered.end.offset,
            }
        },
    )


def remove_leftovers(directory: LogDirectory, listing: Listing, recovered: RecoveredLog) -> None:
    """Remove temporary files and the segments that nothing needs; `leftovers` keeps those that cannot be removed."""
    for name in listing.temporary:
        with contextlib.suppress(OSError):
            directory.files.unlink(f"{directory.path}/{name}")
    recovered.leftovers = [number for number in recovered.leftovers if not _is_removed(directory, number)]


def _is_removed(directory: LogDirectory, number: int) -> bool:
    """Remove segment *number*; return whether nothing of it is left to be removed later."""
    try:
        directory.files.unlink(directory.path_of(number))
    except FileNotFoundError:
        return True
    except IsADirectoryError:
        # Not ours. Listed as a segment it would block the removal of all later ones.
        logger.warning("a directory has the name %s of a segment; it is left alone", segment_name(number))
    except OSError:
        return False
    return True
