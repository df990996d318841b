"""Spark's own files about the batches of a query: offsets and commits in the checkpoint, the manifest in the output.

    <checkpoint>/offsets/N       where batch N ends; written before it runs
    <output>/_spark_metadata/N   the files of batch N; every tenth is N.compact with the files of all batches up to N
    <checkpoint>/commits/N       batch N is done; written after the manifest

A power failure may leave any of them empty or truncated: a file that cannot be parsed counts as not written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from mrecordlog_async.spark.checkpoint import Checkpoint, Offset
from mrecordlog_async.spark.lake import Contents, Lake, UnreadableError
from mrecordlog_async.spark.offsets import advanced

OFFSETS = "offsets"
COMMITS = "commits"
MANIFEST = "_spark_metadata"
COMPACT = ".compact"


class File(NamedTuple):
    """A file of the output, as the manifest names it."""

    uri: str
    size: int


def numbers(lake: Lake, directory: str) -> list[int]:
    """Return the batches that have a file in *directory*, readable or not, in order."""
    found = (name.removesuffix(COMPACT) for name in lake.names(directory))
    return sorted({int(name) for name in found if name.isdecimal()})


def newest(lake: Lake, directory: str) -> int:
    """Return the newest batch that has a file in *directory*, or -1 if there is none."""
    return max(numbers(lake, directory), default=-1)


@dataclass(frozen=True, slots=True)
class Batches:
    """The batches of one query: its checkpoint and the manifest of its output."""

    checkpoint: Lake
    output: Lake

    def end(self, batch: int) -> Offset | None:
        """Return where *batch* ends, by server; {} before the first; None if the file is missing or damaged."""
        found = self.checkpoint_at(batch)
        return None if found is None else found.by_server()

    def checkpoint_at(self, batch: int) -> Checkpoint | None:
        """Return the offset at which *batch* ends; None as for `end`."""
        if batch < 0:
            return Checkpoint()
        lines = _lines(self.checkpoint.read(f"{OFFSETS}/{batch}"))
        if lines is None or len(lines) < 2:
            return None
        if lines[1] == "-":  # what Spark writes for a source that has returned no offset yet
            return Checkpoint()
        found = _json(lines[1])
        return Checkpoint.decode(found) if isinstance(found, dict) else None

    def ranges(self, batch: int) -> Iterator[tuple[str, str, int, int, int]]:
        """Return what *batch* read: (server, queue, id, start, stop). Raises UnreadableError."""
        start, end = self.checkpoint_at(batch - 1), self.checkpoint_at(batch)
        if start is None or end is None:
            raise UnreadableError(f"its offsets in {self.checkpoint.path} are missing or damaged")
        moved = advanced(start.positions, end.positions)
        named = [(end.servers[log], queue, queue_id, first, stop) for log, queue, queue_id, first, stop in moved]
        return iter(sorted(named))

    def contents(self, batch: int, *, whole: bool) -> Contents:
        """Return what the files of *batch* hold. Raises UnreadableError, also if that does not match its offsets.

        whole: read every column from the medium, past the page cache.
        """
        files = self.files(batch)
        if files is None:
            raise UnreadableError(f"its entry in {MANIFEST} is missing or damaged")
        ranges = {(server, queue): (start, stop) for server, queue, _, start, stop in self.ranges(batch)}
        found = self.output.contents(files, whole=whole)
        for (server, queue), held in found.items():
            start, stop = ranges.get((server, queue), (0, 0))
            if not start <= held.first <= held.last < stop or held.rows > stop - start:
                raise UnreadableError(
                    f"it read positions {start} to {stop - 1} of queue {queue!r} of server {server!r}, but its files "
                    f"hold {held.rows} rows at {held.first} to {held.last}"
                )
        return found

    def is_committed(self, batch: int) -> bool:
        """Return whether a readable commit file says that *batch* is done."""
        lines = _lines(self.checkpoint.read(f"{COMMITS}/{batch}"))
        return lines is not None and len(lines) >= 1 and _json(lines[0]) is not None

    def files(self, batch: int) -> list[File] | None:
        """Return the files of *batch* alone; None if its manifest entry is missing or damaged."""
        alone = self._entries(str(batch))
        if alone is not None:
            return alone
        everything = self._entries(f"{batch}{COMPACT}")
        if everything is None:
            return None
        before = self.files_up_to(batch - 1)
        return None if before is None else list(dict.fromkeys(each for each in everything if each not in before))

    def files_up_to(self, batch: int) -> set[File] | None:
        """Return the files of all batches up to *batch*; None if the manifest has a gap."""
        found: set[File] = set()
        for number in range(batch, -1, -1):
            everything = self._entries(f"{number}{COMPACT}")
            if everything is not None:
                return found.union(everything)
            alone = self._entries(str(number))
            if alone is None:
                return None
            found.update(alone)
        return found

    def newest_files(self) -> list[File]:
        """Return the files of the newest manifest entry that names any; a compacted one names those of all batches."""
        for batch in reversed(numbers(self.output, MANIFEST)):
            found = self._entries(str(batch)) or self._entries(f"{batch}{COMPACT}")
            if found:
                return found
        return []

    def forget_cached(self, batch: int) -> None:
        """Make the next read of the files of *batch* and later ones come from the medium, not from the page cache."""
        for lake, directory in ((self.checkpoint, OFFSETS), (self.checkpoint, COMMITS), (self.output, MANIFEST)):
            for number in numbers(lake, directory):
                if number >= batch:
                    lake.forget_cached(f"{directory}/{number}")
                    lake.forget_cached(f"{directory}/{number}{COMPACT}")

    def drop(self, batch: int, *, keep_offset: bool) -> None:
        """Remove Spark's files about *batch* and all later ones, so that it runs them again.

        The order matters, because a kill may happen in between, and the next start must notice it: the manifest must
        never be ahead of the offsets, and in each directory the newest file is removed first.

        Args:
            batch: the first batch to run again.
            keep_offset: keep the offset of *batch*, so that it ends where it ended before.
        """
        _drop_from(self.output, MANIFEST, batch)
        _drop_from(self.checkpoint, COMMITS, batch)
        _drop_from(self.checkpoint, OFFSETS, batch + keep_offset)

    def _entries(self, name: str) -> list[File] | None:
        lines = _lines(self.output.read(f"{MANIFEST}/{name}"))
        if lines is None:
            return None
        entries = [_json(line) for line in lines if line]
        if not all(isinstance(each, dict) and {"path", "size"} <= each.keys() for each in entries):
            return None
        return [File(each["path"], each["size"]) for each in entries if each.get("action", "add") == "add"]


def _drop_from(lake: Lake, directory: str, batch: int) -> None:
    gone = [number for number in numbers(lake, directory) if number >= batch]
    present = set(lake.names(directory))
    names = [f"{number}{suffix}" for number in reversed(gone) for suffix in ("", COMPACT)]
    lake.remove(directory, [name for name in names if name in present])


def _lines(content: bytes | None) -> list[str] | None:
    """Return the lines after the version; None if the file is missing, empty or not text."""
    try:
        text = content.decode() if content is not None else ""
    except UnicodeDecodeError:
        return None
    version, *lines = text.split("\n")
    return lines if version.startswith("v") else None


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
