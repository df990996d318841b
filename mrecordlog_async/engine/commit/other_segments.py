"""The segments around the current one: the spare, which becomes the next one, and the older ones, which are removed.

**The spare** is kept ready under a temporary name with its space reserved, so that rolling works on a full disk. It is
either a fresh, small file, or a dead segment's file of nearly full size. The second kind saves time, because writing
blocks that exist is faster than writing new ones (1.2 to 1.5 times, `docs/operations.md`), and nothing depends on it:
before a batch is refused for lack of space, it is cut to the size of a fresh one.

**Older segments** are removed, oldest first, once nothing in them is live, and their space is freed. If the directory
was renamed, none is removed: its path may name another log, with segments of the same numbers.

How a dead segment becomes the spare:
1. Its death is durable: the caller has synced a COMMIT that names a later segment as the oldest live one.
2. It is renamed to the spare's temporary name. Readers take a file that lost its name as removed, and no snapshot
   links a temporary name.
3. If it then has more than one link, it is removed: its bytes belong to others too.
4. It is cut. Whatever fails after the rename removes the file; a fresh spare is made instead.
5. `publish` writes header and table, syncs, renames and syncs the directory, as for a fresh file. A power cut before
   that may leave the file under its old name, with any part of this: it is dead there, and counts as absent.

Everything here blocks and belongs to the log's thread; the loop may read `reserved_bytes`, `segments`, `bytes` and
`unfreed_bytes`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence

from mrecordlog_async.engine.commit.batch import LogIOError, sync_directory, sync_file
from mrecordlog_async.format.frame import Buffer
from mrecordlog_async.format.header import SegmentHeader
from mrecordlog_async.options import MIB
from mrecordlog_async.storage.direct import UNSUPPORTED, Staging
from mrecordlog_async.storage.filesystem import DIRECT_BLOCK_BYTES
from mrecordlog_async.storage.gathered_files import gathered_path
from mrecordlog_async.storage.locked_directory import LockedDirectory, write_preamble
from mrecordlog_async.storage.segment import TEMPORARY_SUFFIX, SegmentFile

logger = logging.getLogger("mrecordlog_async")

SHRINK_BYTES = 16 * MIB
"""A removed segment's space is freed in steps of this size: freeing 1 GiB at once blocked ext4, and with it every
commit, for 186 to 248 ms; a step takes 7 to 9 ms at worst.

Only if the file has no name left and no other process has it open: a hard link or a reader still needs the bytes, and
the system frees them after the last of these.
"""


class Spare:
    """At most one file that no batch has entered. `file` is None while there is none."""

    def __init__(self, directory: LockedDirectory, staging: Staging | None = None) -> None:
        """With *staging*, the segments that this becomes are written past the page cache, if their files can be."""
        self.file: SegmentFile | None = None
        self._was_segment = False
        self._directory = directory
        self._staging = staging

    @property
    def reserved_bytes(self) -> int:
        """Space that the spare takes on the disk."""
        return self.file.reserved_bytes if self.file is not None else 0

    @property
    def is_recycled(self) -> bool:
        """Return whether the spare was a segment before."""
        return self.file is not None and self._was_segment

    def recycle(self, path: str, number: int, least: int, most: int) -> bool:
        """Make the dead segment at *path* the spare for segment *number*, instead of the present one.

        Args:
            path: The segment, whose death is durable.
            number: The segment that it becomes.
            least: Bytes that it must have, or it is left alone.
            most: Bytes, in whole blocks, that it is cut to; if that frees much, it is left alone.

        Returns:
            True if nothing has the name *path* any more, even if the file could not be used. False if the file is as it
            was.
        """
        files = self._directory.files
        try:
            file = SegmentFile(files, path, files.open(path), 0)
        except OSError:
            return False
        if not _is_suitable(file, least, most):
            file.close()
            return False
        self.discard()  # before the rename: both would have the same name
        file.path = self._directory.path_of(number) + TEMPORARY_SUFFIX
        try:
            files.rename(path, file.path)
            if not file.may_be_shared():  # only now: from here on, nobody can link it by its old name
                _cut(file, most)
                self.file, self._was_segment = file, True
        except OSError:
            pass
        if self.file is None:
            self._remove(file)
            return not self._exists(path)
        return True

    def cut(self, size: int) -> bool:
        """Give back the space of the spare after *size* bytes; return whether there was any."""
        spare = self.file
        if spare is None or spare.reserved_bytes <= size:
            return False
        try:
            if not spare.may_be_shared():
                self._directory.files.set_size(spare.handle, size)
                spare.reserved_bytes = size
                return True
        except OSError:
            pass
        self.discard()  # it belongs to others too, or its size is not known
        return True

    def prepare(self, number: int, wanted: int) -> None:
        """Make the spare for segment *number* if there is none, reserve *wanted* bytes and sync it.

        A spare that cannot grow is kept: it still serves a smaller table.

        Raises:
            OSError: The disk has no room.
            LogIOError: The sync failed.
        """
        spare = self.file
        if spare is None:
            files, path = self._directory.files, self._directory.path_of(number)
            spare = SegmentFile(files, *self._directory.create_temporary(path), 0)
            self._was_segment = False
        try:
            spare.reserve(wanted, wanted + wanted // 4)
        except OSError:
            if self.file is None:
                self._remove(spare)
            raise
        self.file = spare
        sync_file(spare)

    def publish(self, header: SegmentHeader, table: Sequence[Buffer]) -> tuple[SegmentFile, int]:
        """Make the spare the segment of *header* and *table*, durable with its name; there is no spare after that.

        Returns:
            The segment, and the offset where its first batch begins.

        Raises:
            OSError: It failed before the segment had its name; the file is removed.
            LogIOError: Whether the segment exists is not known, or not for certain on the medium.
        """
        self._directory.check_place()
        spare, self.file = self.file, None
        assert spare is not None, "prepared just before"
        path = self._directory.path_of(header.segment)
        try:
            table_end = self._write_preamble(spare, header, table)
            # Durable before it has its name: a segment without an intact header and table is damage.
            sync_file(spare)
            self._rename(spare, path)
            sync_directory(self._directory)
        except OSError:
            self._remove(spare)
            raise
        except LogIOError:
            spare.close()
            raise
        spare.path = path
        return spare, table_end

    def discard(self) -> None:
        """Close and remove the spare, if there is one."""
        if self.file is not None:
            self._remove(self.file)
            self.file = None

    def _write_preamble(self, spare: SegmentFile, header: SegmentHeader, table: Sequence[Buffer]) -> int:
        """Write the segment's head directly if the file can be written so, which is found out here."""
        if self._staging is not None:
            spare.begin_direct(self._staging, 0)
        try:
            return write_preamble(spare, header, table)
        except OSError as error:
            if not spare.is_direct or error.errno not in UNSUPPORTED:
                raise
            spare.end_direct()
            return write_preamble(spare, header, table)

    def _rename(self, spare: SegmentFile, path: str) -> None:
        try:
            self._directory.files.rename(spare.path, path)
        except OSError as error:
            # Some errors leave open whether the rename happened. If the segment exists while batches are still written
            # to the previous one, the next open reports damage.
            if self._exists(path):
                raise LogIOError(f"rename failed half-way: {error}") from error
            raise

    def _exists(self, path: str) -> bool:
        """Return whether the directory lists *path*; True if it cannot be listed."""
        try:
            return path.rpartition("/")[2] in self._directory.files.list_names(self._directory.path)
        except OSError:
            return True

    def _remove(self, spare: SegmentFile) -> None:
        spare.close()
        with contextlib.suppress(OSError):
            self._directory.check_place()
            self._directory.files.unlink(spare.path)


def _is_suitable(file: SegmentFile, least: int, most: int) -> bool:
    """Return whether a dead segment may become a spare of *least* to *most* bytes at little cost."""
    try:
        return not file.is_shared() and least <= file.files.size(file.handle) <= most + SHRINK_BYTES
    except OSError:
        return False


def _cut(file: SegmentFile, most: int) -> None:
    """Cut a file to *most* bytes, or to whole blocks, and reserve its space: a file that was copied may have holes."""
    size = file.files.size(file.handle)
    kept = min(size - size % DIRECT_BLOCK_BYTES, most)
    if kept < size:
        file.files.set_size(file.handle, kept)
    file.reserve(kept, kept)


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
        self.gathered: dict[int, int] = {}  # sizes of the gathered files next to them; the event loop adds to it
        self._unfreed: list[tuple[int, int]] = []  # (handle, bytes) of removed segments that still take space

    @property
    def gathered_bytes(self) -> int:
        """Space of the gathered files."""
        return sum(list(self.gathered.values()))

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
            self.bytes -= size  # what is not freed yet counts as `unfreed_bytes`
            removed += 1
            if (gathered := self.gathered.pop(number, None)) is not None:
                with contextlib.suppress(OSError):  # the next opening removes it
                    self._remove(gathered_path(self._directory.path, number), gathered)
        del self.segments[:removed]  # all at once: each single deletion would move the thousands that follow
        return removed

    def give_up_gathered(self) -> bool:
        """Remove the newest gathered file; return whether there was one.

        Readers go from old to new: the one that is furthest behind keeps its files for longest, and it is the one whose
        progress frees space.
        """
        if not self.gathered:
            return False
        number, size = max(list(self.gathered.items()))
        try:
            self._directory.check_place()
            with contextlib.suppress(FileNotFoundError):
                self._files.unlink(gathered_path(self._directory.path, number))
        except OSError:
            return False
        self.gathered.pop(number, None)
        logger.warning(
            "%s: the disk is full: the gathered file of segment %d is removed (%d bytes); its records are read slower",
            *(self._directory.path, number, size),
        )
        return True

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
        """Unlink a file; a large one stays open, so that its space can be freed in steps.

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
