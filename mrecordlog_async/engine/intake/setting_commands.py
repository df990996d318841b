"""The commands about consumers and options of queues. `commands` has the others and what all of them share.

On a full disk, what truncates may use the reserve to its end, attaching and sealing its upper half; the others are
refused like appends. Whether a `MoveConsumer` or a `ConfigureQueue` truncates is known when it is planned.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from mrecordlog_async.engine.intake.commands import Command
from mrecordlog_async.format.stored_options import StoredOptions


class Attached(NamedTuple):
    """The result of `attach_consumer`: what every later call of the holder carries, and where the consumer stands."""

    queue_id: int
    epoch: int
    position: int


class CreateConsumer(Command):
    """Create a consumer at *start*, clamped to what the queue retains; None is the first retained record."""

    __slots__ = ("consumer", "exist_ok", "queue", "queue_id", "start")

    def __init__(
        self,
        future: asyncio.Future[object],
        queue: str,
        consumer: str,
        start: int | None,
        exist_ok: bool,
        queue_id: int | None = None,
    ) -> None:
        super().__init__(future)
        self.queue = queue
        self.consumer = consumer
        self.start = start
        self.exist_ok = exist_ok
        self.queue_id = queue_id


class DeleteConsumer(Command):
    """Delete a consumer."""

    __slots__ = ("consumer", "queue", "queue_id")
    frees_space = True

    def __init__(self, future: asyncio.Future[object], queue: str, consumer: str, queue_id: int | None = None) -> None:
        super().__init__(future)
        self.queue = queue
        self.consumer = consumer
        self.queue_id = queue_id


class AttachConsumer(Command):
    """Give a consumer a new holder, with a new epoch; create it first if *create* allows it."""

    __slots__ = ("consumer", "create", "owner", "queue", "start", "take_over")
    frees_space = True

    def __init__(
        self,
        future: asyncio.Future[object],
        queue: str,
        consumer: str,
        create: bool,
        start: int | None,
        owner: bytes,
        take_over: bool,
    ) -> None:
        super().__init__(future)
        self.queue = queue
        self.consumer = consumer
        self.create = create
        self.start = start
        self.owner = owner
        self.take_over = take_over


class FenceHolders(Command):
    """End all holders from before the log was opened, durably: their consumers get an epoch that nobody holds."""

    __slots__ = ()
    frees_space = True


class MoveConsumer(Command):
    """Acknowledge what is before *position*, or with *seeks* go there, also back.

    queue_id, epoch: of the holder, which is refused if another one has attached since. Without an epoch, the move is an
    operator's, and takes a new one.
    """

    __slots__ = ("consumer", "epoch", "frees_space", "position", "queue", "queue_id", "seeks")

    def __init__(
        self,
        future: asyncio.Future[object],
        queue: str,
        consumer: str,
        position: int,
        seeks: bool,
        queue_id: int | None,
        epoch: int | None,
    ) -> None:
        super().__init__(future)
        self.queue = queue
        self.consumer = consumer
        self.position = position
        self.seeks = seeks
        self.queue_id = queue_id
        self.epoch = epoch
        self.frees_space = False  # until a plan finds that it truncates


class ChangeRule(Command):
    """Add or remove the rule that gives queues created from now on a consumer if their names match *pattern*.

    Removing one shrinks the table, and the consumers that it has made are deleted with it.
    """

    __slots__ = ("consumer", "exist_ok", "frees_space", "pattern", "removes")

    def __init__(
        self, future: asyncio.Future[object], pattern: str, consumer: str, removes: bool, exist_ok: bool
    ) -> None:
        super().__init__(future)
        self.pattern = pattern
        self.consumer = consumer
        self.removes = self.frees_space = removes
        self.exist_ok = exist_ok


class ConfigureQueue(Command):
    """Replace the options of a queue; it stays sealed if it is."""

    __slots__ = ("frees_space", "options", "queue")

    def __init__(self, future: asyncio.Future[object], queue: str, options: StoredOptions) -> None:
        super().__init__(future)
        self.queue = queue
        self.options = options
        self.frees_space = False  # until a plan finds that it truncates


class SealQueue(Command):
    """Seal a queue; only the incarnation *queue_id* unless that is None."""

    __slots__ = ("queue", "queue_id")
    frees_space = True

    def __init__(self, future: asyncio.Future[object], queue: str, queue_id: int | None = None) -> None:
        super().__init__(future)
        self.queue = queue
        self.queue_id = queue_id
