"""Dead segments, in which nothing is live: each is removed, or is the next spare.

They are removed oldest first, and their space is freed. If the directory was renamed, none is removed: its path may
name another log, with segments of the same numbers.

A spare that was a segment has nearly full size. That saves time, because writing blocks that exist is faster than
writing new ones (1.2 to 1.5 times, `docs/operations.md`), and nothing depends on it: before a batch is refused for lack
of space, it is cut to the size of a fresh one.

How a dead segment becomes the spare:
1. Its death is durable: the caller has synced a COMMIT that names a later segment as the oldest live one.
2. It is renamed to the spare's temporary name. Readers take a file that lost its name as removed, and no snapshot
   links a temporary name.
3. If it then has more than one link, it is removed: its bytes belong to others too.
4. It is cut. Whatever fails after the rename removes the file; a fresh spare is made instead.
5. `Spare.publish` writes header and table, syncs, renames and syncs the directory, as for a fresh file. A power cut
   before that may leave the file under its old name, with any part of this: it is dead there, and counts as absent.

Everything here blocks and belongs to the log's thread.
"""

from __future__ import annotations

import contextlib

from mrecordlog_async.engine.commit.disk_space import DiskSpace
from mrecordlog_async.options import MIB
from mrecordlog_async.storage.filesystem import DIRECT_BLOCK_BYTES
from mrecordlog_async.storage.gathered_files import gathered_path
from mrecordlog_async.storage.locked_directory import LockedDirectory
from mrecordlog_async.storage.segment import TEMPORARY_SUFFIX, SegmentFile

SHRINK_BYTES = 16 * MIB
"""A removed segment's space is freed in steps of this size: freeing 1 GiB at once blocked ext4, and with it every
commit, for 186 to 248 ms; a step takes 7 to 9 ms at worst.

Only if the file has no name left and no other process has it open: a hard link or a reader still needs the bytes, and
the system frees them after the last of these.
"""


class DeadSegments:
    """Removes or recycles the dead segments of one log. The journal owns it; `DiskSpace` counts what they take."""

    def __init__(self, directory: LockedDirectory, space: DiskSpace) -> None:
        self._directory = directory
        self._files = directory.files
        self._space = space

    def reclaim(self, oldest: int, recycle: bool = True) -> int:
        """Remove the segments below *oldest*, oldest first; return how many were removed.

        oldest: the oldest live one, for certain on the medium. recycle: one of those before it may become the spare;
        False if its space is needed, or nothing is live.

        One that cannot be removed stays on the list and is tried again next time. So do all after it: a reader takes a
        missing segment as a sign that all older ones are removed too.
        """
        space, removed = self._space, 0
        space.unremoved = None
        try:
            self._directory.check_place()
        except OSError as error:
            space.unremoved = error.with_traceback(None)
            return 0
        for number, size in space.complete:
            if number >= oldest:
                break
            path = self._directory.path_of(number)
            try:
                if not (recycle and self._reuse(path)):
                    self._remove(path, size)
            except OSError as error:
                space.unremoved = error.with_traceback(None)
                break
            space.complete_bytes -= size  # what is not freed yet is in `unfreed`
            removed += 1
            if (gathered := space.gathered.pop(number, None)) is not None:
                with contextlib.suppress(OSError):  # the next opening removes it
                    self._remove(gathered_path(self._directory.path, number), gathered)
        del space.complete[:removed]  # all at once: each single deletion would move the thousands that follow
        return removed

    def shrink(self, everything: bool) -> None:
        """Free a step of a removed segment's space, or with *everything* the space of all of them."""
        unfreed = self._space.unfreed
        steps = len(unfreed) if everything else 1
        for handle, size in unfreed[:steps]:
            left = 0 if everything else size - SHRINK_BYTES
            if left > 0:
                with contextlib.suppress(OSError):
                    self._files.set_size(handle, left)
                unfreed[0] = handle, left
            else:
                del unfreed[0]  # first: a child that is forked closes what stands there
                self._files.close(handle)

    def recycle(self, path: str, number: int, least: int, most: int) -> bool:
        """Make the dead segment at *path* the spare for segment *number*, instead of the one that there is.

        Args:
            path: The segment, whose death is durable.
            number: The segment that it becomes.
            least: Bytes that it must have, or it is left alone.
            most: Bytes, in whole blocks, that it is cut to; if that frees much, it is left alone.

        Returns:
            True if nothing has the name *path* any more, even if the file could not be used. False if the file is as it
            was.
        """
        files, spare = self._directory.files, self._space.spare
        try:
            file = SegmentFile(files, path, files.open(path), 0)
        except OSError:
            return False
        if not _is_suitable(file, least, most):
            file.close()
            return False
        spare.discard()  # before the rename: both would have the same name
        file.path = self._directory.path_of(number) + TEMPORARY_SUFFIX
        try:
            files.rename(path, file.path)
            if not file.may_be_shared():  # only now: from here on, nobody can link it by its old name
                _cut(file, most)
                spare.file, spare.is_recycled = file, True
        except OSError:
            pass
        if spare.file is None:
            spare.remove(file)
            return not self._directory.lists(path)
        return True

    def _reuse(self, path: str) -> bool:
        """Make a dead segment the spare if that is of use; return whether the file was taken away."""
        wanted = self._space.wanted_of_dead()
        return wanted is not None and self.recycle(path, *wanted)

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
            self._space.unfreed.append((handle, size))
        elif handle is not None:
            self._files.close(handle)

    def _is_ours_alone(self, handle: int) -> bool:
        try:
            return self._files.links(handle) == 0 and self._files.is_alone(handle)
        except OSError:
            return False


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
