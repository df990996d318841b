"""The seal and the limits of queues that have options: what they refuse, and the truncates that make room. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from mrecordlog_async.engine.intake.commands import AppendGroup
from mrecordlog_async.engine.planning.draft import REFUSED, CommandOutcome, Draft, QueueView
from mrecordlog_async.errors import (
    LogFullError,
    QueueOptionsError,
    QueueSealedError,
    RecordLogError,
    RecordTooLargeError,
)
from mrecordlog_async.format.stored_options import DROP_OLDEST, SEALED, StoredOptions
from mrecordlog_async.model import POSITION_MAX

LEFT_WHEN_DROPPING = 0.9
"""A full queue that drops its oldest records keeps this much of its limit, so that it does not drop at every append."""


def plan_limited(draft: Draft, group: AppendGroup, queue: str, view: QueueView) -> None:
    """Plan single records of one queue with options, in runs between the records that are refused."""
    positions: list[int] = []
    run: list[bytes] = []
    for payload in group.payloads:
        removals = draft.plan.removals
        # Each by itself: a record that is refused must not take with it those that have room.
        refusal: RecordLogError | None = LogFullError("positions", view.next_position, POSITION_MAX + 1)
        if view.next_position <= POSITION_MAX:
            refusal = refusal_of(draft, view, queue, [payload])
        if refusal is not None:
            draft.refuse(group.one(len(positions)), refusal, queue)
            positions.append(REFUSED)
            continue
        if removals != draft.plan.removals or not run:  # a truncate comes before this record
            run = []
            draft.store(view, view.next_position, run)
        positions.append(view.next_position)
        run.append(payload)
        view.next_position += 1
        view.count((payload,))
    draft.plan.outcomes.append(CommandOutcome(group, positions))


def refusal_of(draft: Draft, view: QueueView, queue: str, payloads: Sequence[bytes]) -> RecordLogError | None:
    """Return why a queue with options does not take records, or None; plan the truncate that makes room for them."""
    options = view.options
    if options.flags & SEALED:
        return QueueSealedError(queue, view.next_position)
    if not options.max_records and not options.max_bytes:
        return None
    return _make_room(draft, view, queue, len(payloads), sum(map(len, payloads)))


def _make_room(draft: Draft, view: QueueView, queue: str, records: int, size: int) -> RecordLogError | None:
    """Return why a queue with limits has no room for this many records and bytes, or None; drop its oldest ones."""
    flags, max_bytes, max_records = view.options[:3]
    # First what no truncate makes room for: it must not cost the queue its records.
    if max_records and records > max_records:
        return RecordTooLargeError(records, max_records, "max_records")
    if max_bytes and size > max_bytes:
        return RecordTooLargeError(size, max_bytes, "max_bytes")
    held_records, held_bytes = view.held()
    too_many = bool(max_records) and held_records + records > max_records
    if not too_many and not (max_bytes and held_bytes + size > max_bytes):
        return None
    drop_records = _to_drop(held_records, records, max_records) if max_records else 0
    drop_bytes = _to_drop(held_bytes, size, max_bytes) if max_bytes else 0
    position = view.position_to_drop(drop_records, drop_bytes) if flags & DROP_OLDEST else None
    if position is not None:
        draft.plan.makes_room.append(draft.truncate(view, position))
        return None
    slowest = view.slowest()
    consumer = slowest[1] if slowest is not None else ""
    if too_many:
        return LogFullError("queue", held_records, max_records, queue, "records", consumer)
    return LogFullError("queue", held_bytes, max_bytes, queue, consumer=consumer)


def _to_drop(held: int, more: int, limit: int) -> int:
    """Return how much of *held* must go so that with *more* at most 90 % of *limit* is left, or nothing of it."""
    return min(held + more - int(limit * LEFT_WHEN_DROPPING), held)


def too_low(queue: str, view: QueueView, wanted: StoredOptions) -> QueueOptionsError | None:
    """Return which limit is below what the queue holds, or None. A queue that drops records drops them when it must."""
    if wanted.flags & DROP_OLDEST:
        return None
    records, size = view.held() if wanted.max_records or wanted.max_bytes else (0, 0)
    for name, limit, held in (("max_records", wanted.max_records, records), ("max_bytes", wanted.max_bytes, size)):
        if limit and held > limit:
            return QueueOptionsError(
                queue, f"{name}={limit} is below the {held} that it holds; truncate it first, or choose a higher limit"
            )
    return None
