"""Offsets in Spark's checkpoint, as JSON and as values. Pure.

    {"version": 3, "logs": {"4f…": {"server": "a", "at": ["9f…", 17], "queues": {"orders": [id, next]}}}}

The keys of `logs` are the public ids of logs. A server's name and its address are only ways to a log: they may change,
and `server` is the name under which the log was last read, which its rows carry. id, next: the queue's incarnation and
the next position to read. at: the log's state that the positions belong to, its newest opening and the last batch that
changed something. A log whose history lacks that state went back, however far it has grown since (see `history`).
If the server was found by a DNS name, `origin` is what the options call that name.

`first` has the queues that began with this batch, where the version is 4: a batch that begins at an offset without them
reads them from that position on. Usually a new queue enters the checkpoint in a batch without its records, and the
version is 3.

Entries of logs and queues that are not configured or subscribed any more stay, so that reading continues there.

A server without a log id, as in a checkpoint that was made from a table, has the key `server:a` until it is listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mrecordlog_async.errors import RecordLogError

VERSION = 3
WITH_FIRST = 4
"""The version of an offset that has `first`: a package that does not know it would skip the records of a new queue."""

Positions = dict[str, dict[str, list[int]]]
"""log → queue → [queue id, next position to read]."""

_NAMED = "server:"


class CheckpointError(RecordLogError):
    """An offset in the checkpoint was not written by this data source, or has an unknown version."""


class At(NamedTuple):
    """A state of a log: its newest opening, and the last batch that changed something."""

    opening: str
    batch: int


def named(server: str) -> str:
    """Return the key of the log behind *server*, which is not identified yet."""
    return _NAMED + server


def name_in(key: str) -> str | None:
    """Return the server that *key*, of `named`, names; None for the id of a log."""
    return key.removeprefix(_NAMED) if key.startswith(_NAMED) else None


@dataclass(slots=True)
class Offset:
    """Positions, with what proves that a log still has what they say was read."""

    positions: Positions = field(default_factory=dict)  # log → queue → [queue id, next position to read]
    servers: dict[str, str] = field(default_factory=dict)  # log → the server's name under which it was last read
    at: dict[str, At] = field(default_factory=dict)  # log → the state that its positions belong to
    # Log → what the options call the DNS name by which its server was found; only for such logs
    origins: dict[str, str] = field(default_factory=dict)
    # Log → queue → where its reading began, for queues that the offset before does not have
    first: dict[str, dict[str, int]] = field(default_factory=dict)

    @classmethod
    def decode(cls, offset: Mapping[str, Any]) -> Offset:
        """Parse what `encode` returned, or {} for the start. Raises CheckpointError."""
        found = cls()
        if not offset:
            return found
        version = offset.get("version", 1)
        if version not in (VERSION, WITH_FIRST):
            raise CheckpointError(
                f"the checkpoint holds offsets of version {version!r}, this package reads versions "
                f"{VERSION} and {WITH_FIRST}: continue with the package that wrote it, or start with a new checkpoint "
                "and a new output"
            )
        try:
            for log, entry in offset["logs"].items():
                _read_entry(found, log, entry)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(
                f"an offset in the checkpoint is damaged ({error!r}): restore the checkpoint, or start with a new "
                "checkpoint and a new output"
            ) from None
        return found

    def next_positions(self) -> dict[str, dict[str, int]]:
        """Return server → queue → next position to read."""
        return {server: {queue: at[1] for queue, at in queues.items()} for server, queues in self.by_server().items()}

    def by_server(self) -> dict[str, dict[str, list[int]]]:
        """Return server → queue → [queue id, next position to read]."""
        found: dict[str, dict[str, list[int]]] = {}
        for log, queues in self.positions.items():
            found.setdefault(self.servers.get(log, log), {}).update(queues)
        return dict(sorted(found.items()))

    def without(self, logs: frozenset[str]) -> Offset:
        """Return everything but *logs*."""
        kept = [log for log in self.positions if log not in logs]
        return Offset(
            {log: self.positions[log] for log in kept},
            {log: self.servers[log] for log in kept if log in self.servers},
            {log: self.at[log] for log in kept if log in self.at},
            {log: self.origins[log] for log in kept if log in self.origins},
            {log: self.first[log] for log in kept if log in self.first},
        )

    def encode(self) -> dict[str, Any]:
        """Return the offset as Spark stores it, with sorted keys: Spark compares offsets as text."""
        version = WITH_FIRST if self.first else VERSION
        return {"version": version, "logs": {log: self._encoded(log) for log in sorted(self.positions)}}

    def _encoded(self, log: str) -> dict[str, Any]:
        at, queues = self.at.get(log), dict(sorted(self.positions[log].items()))
        entry: dict[str, Any] = {"server": self.servers.get(log, ""), "at": at and list(at), "queues": queues}
        if log in self.first:
            entry["first"] = dict(sorted(self.first[log].items()))
        return entry | ({"origin": self.origins[log]} if log in self.origins else {})


def _read_entry(offset: Offset, log: str, entry: Mapping[str, Any]) -> None:
    """Add to *offset* what the JSON has of one log. Raises CheckpointError."""
    for queue in (queue for queues in entry.get("openings", {}).values() for queue in queues):
        raise CheckpointError(
            f"the checkpoint has a position of server {entry['server']!r}, queue {queue!r}, from before 0.2.0, "
            "which this version cannot compare with the log: run it once with 0.2.0, subscribed to this queue and "
            "with this server up"
        )
    offset.servers[log] = entry["server"]
    if entry["at"] is not None:
        offset.at[log] = At(*entry["at"])
    if "origin" in entry:
        offset.origins[log] = entry["origin"]
    if "first" in entry:
        offset.first[log] = dict(entry["first"])
    offset.positions[log] = {queue: [queue_id, at] for queue, (queue_id, at) in entry["queues"].items()}
