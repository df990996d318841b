"""The controls: every command but the appends, which `commands` has with what all of them share.

Admission exempts them from every limit. On a full disk, those that truncate may use the reserve to its end, attaching
and sealing its upper half; the others are refused like appends. Whether a `MoveConsumer` or a `ConfigureQueue`
truncates is known when it is planned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mrecordlog_async.engine.intake.commands import Command, Reserve
from mrecordlog_async.format.controls import TableRule
from mrecordlog_async.format.stored_options import StoredOptions


@dataclass(slots=True, eq=False)
class CreateQueue(Command):
    """Create a queue, with options if they are not None."""

    queue: str
    exist_ok: bool
    options: StoredOptions | None = None


@dataclass(slots=True, eq=False)
class CreateQueues(Command):
    """Create queues, all or none, with options if they are not None. queues: distinct names."""

    queues: Sequence[str]
    exist_ok: bool
    options: StoredOptions | None = None


@dataclass(slots=True, eq=False)
class DeleteQueue(Command):
    """Delete a queue; only the incarnation *queue_id* unless that is None, and past consumers only if allowed."""

    queue: str
    queue_id: int | None = None
    past_consumers: bool = False
    reserve: Reserve = field(default=Reserve.ALL, init=False)


@dataclass(slots=True, eq=False)
class TruncateQueue(Command):
    """Drop positions up to and including *position*; otherwise like `DeleteQueue`."""

    queue: str
    position: int
    queue_id: int | None
    past_consumers: bool = False
    reserve: Reserve = field(default=Reserve.ALL, init=False)


@dataclass(slots=True, eq=False)
class Sync(Command):
    """Wait until everything before it is on the medium."""

    reserve: Reserve = field(default=Reserve.ALL, init=False)


@dataclass(slots=True, eq=False)
class ConfigureQueue(Command):
    """Replace the options of a queue; it stays sealed if it is. A plan lets it use the reserve if it truncates."""

    queue: str
    options: StoredOptions


@dataclass(slots=True, eq=False)
class SealQueue(Command):
    """Seal a queue; only the incarnation *queue_id* unless that is None."""

    queue: str
    queue_id: int | None = None
    reserve: Reserve = field(default=Reserve.HALF, init=False)


class Attached(NamedTuple):
    """The result of `attach_consumer`: what every later call of the holder carries, and where the consumer stands."""

    queue_id: int
    epoch: int
    position: int


@dataclass(slots=True, eq=False)
class CreateConsumer(Command):
    """Create a consumer at *start*, clamped to what the queue retains; None is the first retained record."""

    queue: str
    consumer: str
    start: int | None
    exist_ok: bool
    queue_id: int | None = None


@dataclass(slots=True, eq=False)
class DeleteConsumer(Command):
    """Delete a consumer."""

    queue: str
    consumer: str
    queue_id: int | None = None
    reserve: Reserve = field(default=Reserve.ALL, init=False)


@dataclass(slots=True, eq=False)
class AttachConsumer(Command):
    """Give a consumer a new holder, with a new epoch; create it first if *create* allows it."""

    queue: str
    consumer: str
    create: bool
    start: int | None
    owner: bytes
    take_over: bool
    reserve: Reserve = field(default=Reserve.HALF, init=False)


@dataclass(slots=True, eq=False)
class FenceHolders(Command):
    """End all holders from before the log was opened, durably: their consumers get an epoch that nobody holds."""

    reserve: Reserve = field(default=Reserve.HALF, init=False)


@dataclass(slots=True, eq=False)
class MoveConsumer(Command):
    """Acknowledge what is before *position*, or with *seeks* go there, also back.

    queue_id, epoch: of the holder, which is refused if another one has attached since. Without an epoch, the move is an
    operator's, and takes a new one. A plan lets it use the reserve if it truncates, or is an operator's.
    """

    queue: str
    consumer: str
    position: int
    seeks: bool
    queue_id: int | None
    epoch: int | None


class DeclaredConsumer(NamedTuple):
    """A consumer of *queue* that a program declares, for the queue itself or for a pattern that it matches."""

    queue: str
    consumer: str
    pattern: str


class Recreated(NamedTuple):
    """A declared consumer that had been deleted, and where it begins now."""

    queue: str
    consumer: str
    position: int


@dataclass(slots=True, eq=False)
class Declare(Command):
    """Create what a program declares and what does not exist, all or nothing: queues, then consumers, then rules.

    queues: by name their options, or None for the default ones.
    """

    queues: Mapping[str, StoredOptions | None]
    consumers: Sequence[DeclaredConsumer]
    rules: Sequence[TableRule]


@dataclass(slots=True, eq=False)
class ChangeRule(Command):
    """Add or remove the rule that gives queues created from now on a consumer if their names match *pattern*.

    Removing one shrinks the table, and the consumers that it has made are deleted with it.
    """

    pattern: str
    consumer: str
    removes: bool
    exist_ok: bool

    def __post_init__(self) -> None:
        """Let a removal use the reserve."""
        self.reserve = Reserve.ALL if self.removes else Reserve.NOTHING
