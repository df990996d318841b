"""The segments before the current one: removed, oldest first, once nothing in them is live, and their space freed.

One may become the next segment instead (`Spare.recycle`). If the directory was renamed, none is removed: its path may
name another log, with segments of the same numbers.

Everything here blocks and belongs to the log's thread; the loop may read `segments`, `bytes` and `unfreed_bytes`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from mrecordlog_async.options import MIB
from mrecordlog_async.storage.locked_directory import LockedDirectory

SHRINK_BYTES = 16 * MIB
"""A removed segment's space is freed in steps of this size: freeing 1 GiB at once blocked ext4, and with it every
commit, for 186 to 248 ms; a step takes 7 to 9 ms at worst.

Only if the file has no name left and no other process has it open: a hard link or a reader still needs the bytes, and
the system frees them after the last of these.
"""


class OlderSegments:
    """segments: (number, bytes), oldest first. bytes: of all of them.

    error: why the last attempt to remove some did not remove all of them, or None.
    """

    def __init__(self, directory: LockedDirectory, segments: list[tuple[int, int]]) -> None:
        self.segments = segments
        self.bytes = sum(size for _, size in segments)
        self.error: OSError | None = None
        self._directory = directory
        self._files = directory.files
        self._unfreed: list[tuple[int, int]] = []  # (handle, bytes) of removed segments that still take space

    @property
    def unfreed_bytes(self) -> int:
        """Space of removed segments that is still to be freed."""
        return sum(size for _, size in self._unfreed)

    def has_unfreed(self) -> bool:
        """Return whether space of removed segments is still to be freed."""
        return bool(self._unfreed)

    def add(self, number: int, size: int) -> None:
        """Add the segment that was the current one until now."""
        self.segments.append((number, size))
        self.bytes += size

    def reclaim(self, oldest: int, reuse: Callable[[str], bool] = lambda path: False) -> int:
        """Remove the segments below *oldest*, oldest first; return how many were removed.

        *reuse* is offered the path of each: if it takes the file away, it returns True.

        One that cannot be removed stays on the list and is tried again next time. So do all after it: a reader takes a
        missing segment as a sign that all older ones are removed too.
        """
        removed = 0
        self.error = None
        try:
            self._directory.check_place()
        except OSError as error:
            self.error = error.with_traceback(None)
            return 0
        for number, size in self.segments:
            if number >= oldest:
                break
            path = self._directory.path_of(number)
            try:
                if not reuse(path):
                    self._remove(path, size)
            except OSError as error:
                self.error = error.with_traceback(None)
                break
            self.bytes -= size
            removed += 1
        del self.segments[:removed]  # all at once: each single deletion would move the thousands that follow
        return removed

    def shrink(self, everything: bool) -> None:
        """Free a step of a removed segment's space, or with *everything* the space of all of them."""
        steps = len(self._unfreed) if everything else 1
        for handle, size in self._unfreed[:steps]:
            left = 0 if everything else size - SHRINK_BYTES
            if left > 0:
                with contextlib.suppress(OSError):
                    self._files.set_size(handle, left)
                self._unfreed[0] = handle, left
            else:
                self._files.close(handle)
                del self._unfreed[0]

    def handles(self) -> Iterator[int]:
        """Yield the handles that keep removed segments."""
        for handle, _ in self._unfreed:
            yield handle

    def _remove(self, path: str, size: int) -> None:
        """Unlink a segment; a large one stays open, so that its space can be freed in steps.

        Whether another process uses the bytes is checked after the unlink: from then on no other one can open them.
        """
        handle = None
        if size > SHRINK_BYTES:
            with contextlib.suppress(OSError):
                handle = self._files.open(path)
        try:
            self._files.unlink(path)
        except FileNotFoundError:
            pass
        except OSError:
            if handle is not None:
                self._files.close(handle)
            raise
        if handle is not None and self._is_ours_alone(handle):
            self._unfreed.append((handle, size))
        elif handle is not None:
            self._files.close(handle)

    def _is_ours_alone(self, handle: int) -> bool:
        try:
            return self._files.links(handle) == 0 and self._files.is_alone(handle)
        except OSError:
            return False
