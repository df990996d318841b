"""Options, seal and consumers of a queue, as commands that read a directory show them and carry them to another log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import assert_never

from mrecordlog_async.format.controls import (
    ConsumerDelete,
    ConsumerState,
    QueueSetting,
    SetConsumer,
    Truncate,
)
from mrecordlog_async.format.stored_options import SEALED, SetOptions, StoredOptions
from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.memory.settings import options_of, owner_text
from mrecordlog_async.options import QueueOptions


@dataclass(slots=True)
class QueueSettings:
    """Settings of a queue.

    Attributes:
        options: how long it keeps its records, and how many.
        sealed: it accepts no more records.
        consumers: by name, the first position that each has not acknowledged.
        owners: by name of the consumer, the UUID that alone may attach to it; only of those that have an owner.
    """

    options: QueueOptions = field(default_factory=QueueOptions)
    sealed: bool = False
    consumers: dict[str, int] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, queue: Queue) -> QueueSettings:
        """Return what is set on a queue that was read."""
        return cls.stored(queue.options, queue.consumer_states())

    @classmethod
    def stored(cls, stored: StoredOptions, consumers: Iterable[tuple[str, ConsumerState]]) -> QueueSettings:
        """Return the settings that a state of queues or a table has."""
        settings = cls(options_of(stored), bool(stored.flags & SEALED))
        for name, state in sorted(consumers):
            settings.set_consumer(name, state)
        return settings

    def __bool__(self) -> bool:
        """Return whether anything is set that a new queue does not have."""
        return self != QueueSettings()

    def apply(self, record: QueueSetting | Truncate) -> None:
        """Apply a log record that names the queue."""
        match record:
            case SetConsumer(_, name, state):
                self.set_consumer(name, state)
            case ConsumerDelete(_, name):
                self.consumers.pop(name, None)
                self.owners.pop(name, None)
            case SetOptions(_, options):
                self.options, self.sealed = options_of(options), bool(options.flags & SEALED)
            case Truncate(_, position):
                self.consumers = {name: max(at, position + 1) for name, at in self.consumers.items()}
            case _:
                assert_never(record)

    def set_consumer(self, name: str, state: ConsumerState) -> None:
        """Create a consumer, or move it."""
        self.consumers[name] = state.position
        owner = owner_text(state.owner)
        if owner is None:
            self.owners.pop(name, None)
        else:
            self.owners[name] = owner
