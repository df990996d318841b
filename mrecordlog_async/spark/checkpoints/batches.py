"""Spark's own files about the batches of a query, in its checkpoint.

    offsets/N   where batch N ends; written before it runs
    commits/N   batch N is done

A power failure may leave any of them empty or truncated: a file that cannot be parsed counts as not written.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from mrecordlog_async.spark.checkpoints.lake import Lake
from mrecordlog_async.spark.settings.offset import Offset, Positions

OFFSETS = "offsets"
COMMITS = "commits"


def numbers(lake: Lake, directory: str) -> list[int]:
    """Return the batches that have a file in *directory*, readable or not, in order."""
    return sorted(int(name) for name in lake.names(directory) if name.isdecimal())


def newest(lake: Lake, directory: str) -> int:
    """Return the newest batch that has a file in *directory*, or -1 if there is none."""
    return max(numbers(lake, directory), default=-1)


@dataclass(frozen=True, slots=True)
class SparkBatches:
    """The batches of the query that *checkpoint* belongs to."""

    checkpoint: Lake

    def end(self, batch: int) -> Positions | None:
        """Return where *batch* ends, by server; {} before the first; None if the file is missing or damaged."""
        found = self.offset_at(batch)
        return None if found is None else found.by_server()

    def offset_at(self, batch: int) -> Offset | None:
        """Return the offset at which *batch* ends; None as for `end`."""
        if batch < 0:
            return Offset()
        lines = _lines(self.checkpoint.read(f"{OFFSETS}/{batch}"))
        if lines is None or len(lines) < 2:
            return None
        if lines[1] == "-":  # what Spark writes for a source that has returned no offset yet
            return Offset()
        found = _json(lines[1])
        return Offset.decode(found) if isinstance(found, dict) else None

    def ends(self, batch: int) -> list[Any]:
        """Return the JSON of the offsets at which *batch* ends, one for each source of the query; [] if unreadable."""
        lines = _lines(self.checkpoint.read(f"{OFFSETS}/{batch}"))
        return [_json(line) for line in (lines or [])[1:]]

    def is_committed(self, batch: int) -> bool:
        """Return whether a readable commit file says that *batch* is done."""
        lines = _lines(self.checkpoint.read(f"{COMMITS}/{batch}"))
        return lines is not None and len(lines) >= 1 and _json(lines[0]) is not None


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
