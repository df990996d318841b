"""Options and consumers of queues as callers see them: values on the disk to the public types, and back. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable
from typing import Any

from mrecordlog_async.batches import owner_uuid
from mrecordlog_async.format.controls import NO_OWNER, ConsumerState
from mrecordlog_async.format.stored_options import DROP_OLDEST, KEEP_UNTIL_ACKNOWLEDGED, StoredOptions
from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.memory.stored_times import oldest_tick, tick_at, tick_near
from mrecordlog_async.model import ConsumerSummary, age_of
from mrecordlog_async.options import QUEUE_CHOICES, QUEUE_OPTIONS, SECOND_NS, QueueOptions, check_type

_FLAGS = {"keep": KEEP_UNTIL_ACKNOWLEDGED, "when_full": DROP_OLDEST}
"""The flag that stands for the second word of an option that is a choice."""

_LIMITS = {
    name: f"{name}_ns" if facts.unit == "seconds" else name for name, facts in QUEUE_OPTIONS.items() if facts.unit
}
"""Each limit, and the field of `StoredOptions` that holds it."""


def values_of(options: QueueOptions) -> StoredOptions:
    """Return *options* as they are stored; raise TypeError for anything else."""
    check_type("options", options, QueueOptions)
    flags = 0
    for name, flag in _FLAGS.items():
        flags |= flag * (getattr(options, name) == QUEUE_CHOICES[name][1])
    limits = {stored: _stored_limit(getattr(options, name), stored) for name, stored in _LIMITS.items()}
    return StoredOptions(flags, **limits)


def options_of(values: StoredOptions) -> QueueOptions:
    """Return the options of a queue as callers see them."""
    found: dict[str, Any] = {name: QUEUE_CHOICES[name][bool(values.flags & flag)] for name, flag in _FLAGS.items()}
    found |= {name: _limit(getattr(values, stored), stored) for name, stored in _LIMITS.items()}
    return QueueOptions(**found)


def _stored_limit(value: float | None, field: str) -> int:
    if value is None:
        return 0
    # At least 1 ns: 0 means no limit.
    return max(round(value * SECOND_NS), 1) if field.endswith("_ns") else int(value)


def _limit(stored: int, field: str) -> float | None:
    if not stored:
        return None
    return stored / SECOND_NS if field.endswith("_ns") else stored


def consumer_summaries(
    queue: Queue, names: Iterable[str], idle_seconds: Callable[[str], float | None] = lambda name: None
) -> list[ConsumerSummary]:
    """Return where the consumers of *queue* called *names* are, in this order; those that do not exist are left out.

    *idle_seconds* returns for how long the holder of one was not seen, if that is known.
    """
    found = [(name, state) for name in names if (state := queue.consumer(name)) is not None]
    waiting = waiting_from(queue, {state.position for _, state in found})
    return [_summary(queue, name, state, waiting[state.position], idle_seconds(name)) for name, state in found]


def _summary(
    queue: Queue, name: str, state: ConsumerState, waiting: tuple[int, int], idle: float | None
) -> ConsumerSummary:
    records, size = waiting
    return ConsumerSummary(
        queue=queue.name,
        consumer=name,
        position=state.position,
        records=records,
        bytes=size,
        epoch=state.epoch,
        owner=owner_text(state.owner),
        skipped=queue.consumers.skipped(name),
        oldest_seconds=age_of(_oldest_tick(queue, state.position)) if records else None,
        idle_seconds=idle,
    )


def _oldest_tick(queue: Queue, position: int) -> int:
    """Return when the first record from *position* on was stored; there must be one."""
    if position <= queue.first_position:
        return oldest_tick(queue)
    if position < queue.memory_first:
        return tick_near(queue, position)
    (piece, *_) = queue.held(position, None, 1) or queue.held(position, None)
    return tick_at(queue, piece.first_position)


def waiting_from(queue: Queue, positions: Collection[int]) -> dict[int, tuple[int, int]]:
    """Return the number of records that *queue* retains from each position on, and their payload bytes.

    What the queue holds is visited once, however many positions there are. Of a place on the disk with gaps, in which a
    position is, all records count: never more than the queue retains.
    """
    found: dict[int, tuple[int, int]] = {}
    records, size, stop = 0, 0, queue.next_position
    records_max, size_max = queue.records, queue.live_bytes()
    for position in sorted(positions, reverse=True):
        if position <= queue.first_position:
            found[position] = records_max, size_max
            continue
        more = queue.amount(position, stop)
        records, size = min(records + more[0], records_max), min(size + more[1], size_max)
        found[position], stop = (records, size), position
    return found


def owner_bytes(owner: uuid.UUID | str | None) -> bytes:
    """Return an owner as it is stored; raise ValueError unless it is a UUID, or the text of one."""
    return NO_OWNER if owner is None else owner_uuid(owner).bytes


def owner_text(owner: bytes) -> str | None:
    """Return a stored owner as text, or None if there is none."""
    return str(uuid.UUID(bytes=owner)) if owner != NO_OWNER else None
