"""What an offset in Spark's checkpoint holds, as JSON and as values. Pure.

    {"version": 2, "servers": {"a": {"log": "…", "openings": {"9f…": {"orders": [id, next, tail]}}}}}

log: identifies the log that the server's name referred to. openings: the openings of that log under which positions
were last checked, usually one. id, next: the queue's incarnation and the next position to read. tail: a digest of the
last record before `next` that was read, if any. Log, opening and tail serve to detect a log that went back, however far
it has grown since (see `proof`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mrecordlog_async.errors import RecordLogError

VERSION = 2

Offset = dict[str, dict[str, list[int]]]
"""server → queue → [queue id, next position to read]."""


class CheckpointError(RecordLogError):
    """An offset in the checkpoint was not written by this data source, or has an unknown version."""


class Mark(NamedTuple):
    """What was last seen at a position.

    Attributes:
        opening: the log's opening at that time.
        tail: digest of the record before the position; None if that record was not read.
    """

    opening: str
    tail: int | None = None


@dataclass(slots=True)
class Checkpoint:
    """Positions, each with the mark that proves it. logs: server → what identifies its log."""

    positions: Offset = field(default_factory=dict)
    marks: dict[str, dict[str, Mark]] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)

    @classmethod
    def decode(cls, offset: Mapping[str, Any]) -> Checkpoint:
        """Parse what `encode` returned, or {} for the start. Raises CheckpointError."""
        found = cls()
        if not offset:
            return found
        if offset.get("version") != VERSION:
            raise CheckpointError(
                f"the checkpoint holds offsets of version {offset.get('version', 1)!r}, this package reads version "
                f"{VERSION}: continue with the package that wrote it, or start with a new checkpoint and a new output"
            )
        try:
            for server, known in offset["servers"].items():
                found._add(server, known)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(
                f"an offset in the checkpoint is damaged ({error!r}): restore the checkpoint, or start with a new "
                "checkpoint and a new output"
            ) from None
        return found

    def next_positions(self) -> dict[str, dict[str, int]]:
        """Return server → queue → next position to read."""
        return {server: {queue: at[1] for queue, at in queues.items()} for server, queues in self.positions.items()}

    def _add(self, server: str, known: Mapping[str, Any]) -> None:
        self.logs[server] = known["log"]
        positions, marks = self.positions.setdefault(server, {}), self.marks.setdefault(server, {})
        for opening, queues in known["openings"].items():
            for queue, (queue_id, position, *tail) in queues.items():
                positions[queue] = [queue_id, position]
                if opening:  # none: the position was not read from a log, but from a table (`delta.resume`)
                    marks[queue] = Mark(opening, *tail)

    def encode(self) -> dict[str, Any]:
        """Return the offset as Spark stores it, with sorted keys: Spark compares offsets as text."""
        return {
            "version": VERSION,
            "servers": {server: self._encoded(server) for server in sorted(self.positions)},
        }

    def _encoded(self, server: str) -> dict[str, Any]:
        openings: dict[str, dict[str, list[int]]] = {}
        marks = self.marks.get(server, {})
        for queue, position in sorted(self.positions[server].items()):
            opening, tail = marks.get(queue, _UNMARKED)
            entry = list(position) if tail is None else [*position, tail]
            openings.setdefault(opening, {})[queue] = entry
        return {"log": self.logs.get(server, ""), "openings": dict(sorted(openings.items()))}


_UNMARKED = Mark("")
