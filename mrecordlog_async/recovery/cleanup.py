"""Cleans up once opening has judged the log: zeros what follows its end, removes leftovers. Only with the lock."""

from __future__ import annotations

import contextlib
import logging

from mrecordlog_async.options import MIB
from mrecordlog_async.recovery.recovered import RecoveredLog
from mrecordlog_async.storage.directory import Listing, LogDirectory
from mrecordlog_async.storage.filesystem import read_exact
from mrecordlog_async.storage.gathered_files import gathered_bytes, gathered_number, gathered_path
from mrecordlog_async.storage.segment import SegmentFile, segment_name

logger = logging.getLogger("mrecordlog_async")

ZEROS = bytes(MIB)


def zero_tail(file: SegmentFile, recovered: RecoveredLog) -> None:
    """Zero the bytes after the last whole batch, in place and durably; what is zero is left as it is.

    Everything, not only what is certain to be a torn batch: what is left of one must not continue a later batch.
    """
    tail, end = recovered.tail, recovered.end
    if tail.not_zero is None:
        return
    at, stop = tail.not_zero
    while at < stop:
        size = min(len(ZEROS), stop - at)
        if read_exact(file.files, file.handle, size, at).strip(b"\0"):
            file.write([ZEROS[:size]], at)
        at += size
    # Before any batch is written here.
    file.sync()
    if tail.torn_bytes:
        logger.warning(
            "zeroed %d bytes of an unfinished batch in %s at offset %d",
            tail.torn_bytes,
            segment_name(end.segment),
            end.offset,
            extra={"facts": {"event": "torn_tail", "bytes": tail.torn_bytes}},
        )


def remove_leftovers(directory: LogDirectory, listing: Listing, recovered: RecoveredLog) -> None:
    """Remove temporary files and the segments that nothing needs; `leftovers` keeps those that cannot be removed.

    They are never used again as spares: what they hold is not known.
    """
    for name in listing.temporary:
        with contextlib.suppress(OSError):
            directory.files.unlink(f"{directory.path}/{name}")
    live, gathered = dict(recovered.older), recovered.gathered
    for number in {number for name in listing.others if (number := gathered_number(name)) is not None} | set(gathered):
        with contextlib.suppress(OSError):
            if number not in live:  # some that fitted were read before it was known that their segment is dead
                gathered.pop(number, None)
                directory.files.unlink(gathered_path(directory.path, number))
            elif number not in gathered:
                gathered[number] = gathered_bytes(directory, number)
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
