"""Options and consumers of queues as callers see them: values on the disk to the public types, and back. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable

from mrecordlog_async.batches import owner_uuid
from mrecordlog_async.format.record import (
    DEFAULT_OPTIONS,
    DROP_OLDEST,
    KEEP_UNTIL_ACKNOWLEDGED,
    NO_OWNER,
    SEALED,
    ConsumerState,
    OptionValues,
)
from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.memory.times import age_of
from mrecordlog_async.model import ConsumerSummary
from mrecordlog_async.options import QueueOptions, check_type

SECOND_NS = 1_000_000_000


def values_of(options: QueueOptions, *, sealed: bool = False) -> OptionValues:
    """Return *options* as they are stored, and the seal; raise TypeError for anything else."""
    check_type("options", options, QueueOptions)
    flags = (
        KEEP_UNTIL_ACKNOWLEDGED * (options.keep == "until_acknowledged")
        | DROP_OLDEST * (options.when_full == "drop_oldest")
        | SEALED * sealed
    )
    # At least 1 ns: 0 means no limit.
    age = max(round(options.max_age * SECOND_NS), 1) if options.max_age is not None else 0
    return OptionValues(flags, options.max_bytes or 0, options.max_records or 0, age)


def options_of(values: OptionValues | None) -> QueueOptions:
    """Return the options of a queue; None stands for the default ones."""
    flags, max_bytes, max_records, max_age_ns = values or DEFAULT_OPTIONS
    return QueueOptions(
        keep="until_acknowledged" if flags & KEEP_UNTIL_ACKNOWLEDGED else "until_truncated",
        max_bytes=max_bytes or None,
        max_records=max_records or None,
        max_age=max_age_ns / SECOND_NS if max_age_ns else None,
        when_full="drop_oldest" if flags & DROP_OLDEST else "refuse",
    )


def consumer_summaries(queue: Queue, names: Iterable[str]) -> list[ConsumerSummary]:
    """Return where the consumers of *queue* called *names* are, in this order; those that do not exist are left out."""
    found = [(name, state) for name in names if (state := queue.consumer(name)) is not None]
    waiting = waiting_from(queue, {state.position for _, state in found})
    return [_summary(queue, name, state, *waiting[state.position]) for name, state in found]


def _summary(queue: Queue, name: str, state: ConsumerState, records: int, size: int) -> ConsumerSummary:
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
    )


def _oldest_tick(queue: Queue, position: int) -> int:
    """Return when the first record from *position* on was stored; there must be one."""
    if position <= queue.first_position:
        return queue.oldest_tick()
    (piece, *_) = queue.held(position, None, 1) or queue.held(position, None)
    return queue.tick_at(piece.first_position)


def waiting_from(queue: Queue, positions: Collection[int]) -> dict[int, tuple[int, int]]:
    """Return the number of records that *queue* retains from each position on, and their payload bytes.

    What the queue holds is visited once, however many positions there are.
    """
    found: dict[int, tuple[int, int]] = {}
    records, size, stop = 0, 0, None
    for position in sorted(positions, reverse=True):
        if position <= queue.first_position:
            found[position] = queue.records, queue.live_bytes()
            continue
        held = queue.held(position, stop)
        records += sum(run.record_count for run in held)
        size += sum(len(run.payload) for run in held)
        found[position], stop = (records, size), position
    return found


def owner_bytes(owner: uuid.UUID | str | None) -> bytes:
    """Return an owner as it is stored; raise ValueError unless it is a UUID, or the text of one."""
    return NO_OWNER if owner is None else owner_uuid(owner).bytes


def owner_text(owner: bytes) -> str | None:
    """Return a stored owner as text, or None if there is none."""
    return str(uuid.UUID(bytes=owner)) if owner != NO_OWNER else None
