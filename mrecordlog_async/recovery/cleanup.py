"""What opening changes once it has judged: the torn tail becomes zeros, leftovers go. Only with the lock."""

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
    """Zero, in place and durably, what lies behind the last whole batch."""
    if recovered.torn_range is None:
        return
    at, stop = recovered.torn_range
    while at < stop:
        piece = ZEROS[: min(len(ZEROS), stop - at)]
        write_all(files, handle, [piece], at)
        at += len(piece)
    files.sync(handle)
    logger.warning(
        "cut %d bytes of a batch that was never acknowledged from %s at offset %d",
        recovered.torn_range[1] - recovered.end,
        segment_name(recovered.segment),
        recovered.end,
    )


def remove_leftovers(
    files: FileSystem, directory: str, names: list[str], recovered: RecoveredLog
) -> list[tuple[int, int]]:
    """Remove temporary files and segments that nothing needs; return the segments that would not go."""
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
            # Somebody put it there. On the list of segments it would keep all later ones from being removed.
            logger.warning("a directory has the name %s of a segment; it is left alone", segment_name(number))
        except OSError:
            kept.append((number, 0))
    return kept
