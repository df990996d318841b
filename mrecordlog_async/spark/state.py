"""Positions that an output has of each log, as they are stored next to its rows. Pure.

    {"batch": 17, "logs": {"4f…": {"server": "a", "at": ["9f…", 31], "queues": {"orders": [7351, 1500]}}}, …}

Rows and positions change in one commit, so a table has neither more nor less than its positions say. The keys of `logs`
are the public ids of logs: names and addresses of servers may change.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import msgspec

from mrecordlog_async.errors import RecordLogError


class StateError(RecordLogError):
    """Positions were not written by this package, or by a newer version of it."""


class LogAt(NamedTuple):
    """A state of a log: its newest opening, and the last batch that changed something."""

    opening: str
    batch: int


class QueueAt(NamedTuple):
    """How far a queue is stored: its incarnation, and the next position to read."""

    id: int
    next: int


class LogState(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is stored of one log. A log whose history lacks the state `at` went back, however far it has grown since.

    Attributes:
        server: The name under which it was read last.
        at: The log's state when it was listed; None if nothing was ever stored in it.
        queues: How far each queue is stored, by name.
        origin: What the options call the DNS name by which the server was found; "" if it was named itself.
    """

    server: str = ""
    at: LogAt | None = None
    queues: dict[str, QueueAt] = {}
    origin: str = ""


class DrainState(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an output has of all logs of one drain.

    Attributes:
        batch: Number of the last batch.
        logs: What is stored of each log, by its public id.
        onto: Version of the table that the last batch was committed onto; -1 for none.
        witness: Name of a file of the last batch that has rows. While the table has it, the table was not restored to
            a version without that batch.
        rows_at: Version of the table that added this file; -1 for none. Up to version `onto` it is known that no
            RESTORE took it back.
        owner: Whose consumers the drain continues, of an earlier version; "" for its own.
        version: Of this form; a newer one is refused.
    """

    batch: int = 0
    logs: dict[str, LogState] = {}
    onto: int = -1
    witness: str = ""
    rows_at: int = -1
    owner: str = ""
    version: int = 1

    def encode(self) -> bytes:
        """Return the state as JSON, with a checksum in its last line: a file that was cut is refused."""
        content = msgspec.json.encode(self)
        return content + b"\n" + hashlib.sha256(content).hexdigest().encode()

    @classmethod
    def decode(cls, content: bytes) -> DrainState:
        """Read what `encode` returned. Raises StateError."""
        body, _, checksum = content.partition(b"\n")
        if hashlib.sha256(body).hexdigest().encode() != checksum:
            raise StateError("the file of positions is damaged")
        try:
            found = msgspec.json.decode(body, type=cls)
        except msgspec.ValidationError as error:
            raise StateError(f"the file of positions cannot be read: {error}") from None
        if found.version > cls().version:
            raise StateError(f"the positions are of version {found.version}: use a newer version of this package")
        return found


class ReadRange(NamedTuple):
    """A range of one queue, with as many records as the service has counted in it."""

    queue: str
    id: int
    start: int
    stop: int
    records: int
    bytes: int
