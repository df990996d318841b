"""The model of consumers, options, seals and rules: dictionaries again, which share no code with the log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from mrecordlog_async import QueueOptions
from mrecordlog_async.errors import (
    ConsumerBehindError,
    ConsumerExistsError,
    ConsumerFencedError,
    ConsumerNotFoundError,
    ConsumerOwnedError,
    LogFullError,
    PositionAheadError,
    PositionTruncatedError,
    QueueNotFoundError,
    QueueOptionsError,
    QueueSealedError,
    RecordTooLargeError,
)
from mrecordlog_async.format.controls import NO_OWNER
from mrecordlog_async.options import QUEUE_OPTIONS

if TYPE_CHECKING:
    from .judge import Call, Fold, Queue


class Settings(NamedTuple):
    """What is set for a queue as a whole."""

    options: QueueOptions
    sealed: bool = False


NOTHING_SET = Settings(QueueOptions())

REFUSALS = (
    ConsumerBehindError,
    ConsumerExistsError,
    ConsumerFencedError,
    ConsumerNotFoundError,
    ConsumerOwnedError,
    PositionAheadError,
    PositionTruncatedError,
    QueueOptionsError,
    QueueSealedError,
)
"""Errors that follow from what the queues hold."""

DURABLE = ("attach", "consume", "release", "configure", "seal", "rule", "unrule", "move", "fence")
"""Calls that are durable under every policy."""

MAY_CHANGE_NOTHING = ("acknowledge", "seek", "configure")
"""Calls whose result does not say whether anything was written."""


def is_refusal(error: BaseException) -> bool:
    """Return whether *error* follows from what the queues hold."""
    if isinstance(error, LogFullError):
        return error.resource in ("queue", "consumers")
    if isinstance(error, RecordTooLargeError):
        return error.limit in QUEUE_OPTIONS
    return isinstance(error, REFUSALS)


def apply_setting(fold: Fold, call: Call) -> object:
    """Do a call that is not about records; return the expected result, or the class of the error."""
    if call.kind == "fence":
        fence(fold)
        return None
    if call.kind in ("rule", "unrule"):
        return _change_rule(fold, call)
    queue = fold.queues.get(call.queue)
    if queue is None or (call.holder is not None and call.holder[0] != queue.id):
        return QueueNotFoundError
    if call.kind == "configure":
        return _configure(queue, call)
    if call.kind == "seal":
        if queue.settings.sealed:
            return QueueSealedError
        queue.settings = queue.settings._replace(sealed=True)
        return queue.next
    return _consumer(fold, queue, call)


def _change_rule(fold: Fold, call: Call) -> object:
    rule = (call.queue, call.consumer)
    if call.kind == "unrule":
        if rule not in fold.rules:
            return ConsumerNotFoundError
        fold.rules.remove(rule)
        return True
    if rule in fold.rules:
        return False if call.exist_ok else ConsumerExistsError
    fold.rules.add(rule)
    return True


def matching(rules: Iterable[tuple[str, str]], queue: str) -> list[str]:
    """Return the consumers that a new queue gets. The patterns of histories end with their only asterisk."""
    return list(dict.fromkeys(name for pattern, name in sorted(rules) if queue.startswith(pattern[:-1])))


def fence(fold: Fold) -> None:
    """Give every consumer with a holder from before the open one new epoch."""
    ended = [
        (queue, name)
        for queue in fold.queues.values()
        for name, (_, epoch, _) in queue.consumers.items()
        if epoch < fold.epochs_from
    ]
    if ended:
        epoch = fold.draw()
        for queue, name in ended:
            position, _, owner = queue.consumers[name]
            queue.consumers[name] = (position, epoch, owner)


def _configure(queue: Queue, call: Call) -> object:
    wanted, held = call.options, sum(map(len, queue.records.values()))
    too_low = bool(wanted.max_records and len(queue.records) > wanted.max_records)
    too_low = too_low or bool(wanted.max_bytes and held > wanted.max_bytes)
    if wanted == queue.settings.options:
        return None
    if too_low and wanted.when_full == "refuse":
        return QueueOptionsError
    queue.settings = queue.settings._replace(options=wanted)
    truncate_to_slowest(queue)
    return None


def _consumer(fold: Fold, queue: Queue, call: Call) -> object:
    known = queue.consumers.get(call.consumer)
    if call.kind == "consume":
        if known is not None:
            return ConsumerExistsError
        queue.consumers[call.consumer] = (_clamped(queue, call.position), fold.draw(), NO_OWNER)
        return True
    if call.kind == "attach":
        position, _, owner = known if known is not None else (_clamped(queue, call.position), 0, NO_OWNER)
        if owner not in (NO_OWNER, call.owner) and not call.forced:
            return ConsumerOwnedError
        queue.consumers[call.consumer] = (position, fold.draw(), call.owner)
        return (queue.id, queue.consumers[call.consumer][1], position)
    if known is None:
        return ConsumerNotFoundError
    if call.kind == "release":
        del queue.consumers[call.consumer]
        truncate_to_slowest(queue)
        return None
    return _move(fold, queue, call, known)


def _move(fold: Fold, queue: Queue, call: Call, known: tuple[int, int, bytes]) -> object:
    assert call.position is not None
    position, epoch, owner = known
    if call.holder is not None and (call.holder[1] != epoch or epoch < fold.epochs_from):
        return ConsumerFencedError
    goal = call.position + (call.kind == "acknowledge")
    if goal > queue.next:
        return PositionAheadError
    if call.kind == "acknowledge" and goal <= position:
        return position
    if call.kind != "acknowledge" and goal < queue.start:
        return PositionTruncatedError
    queue.consumers[call.consumer] = (goal, fold.draw() if call.kind == "move" else epoch, owner)
    truncate_to_slowest(queue)
    return goal


def _clamped(queue: Queue, position: int | None) -> int:
    return queue.start if position is None else min(max(position, queue.start), queue.next)


def truncate_to_slowest(queue: Queue) -> None:
    """Truncate a queue that keeps its records until they are acknowledged."""
    options = queue.settings.options
    if options.keep == "until_acknowledged" and not options.keep_at_least and queue.consumers:
        queue.truncate(min(position for position, _, _ in queue.consumers.values()) - 1)


def limits_appends(settings: Settings) -> bool:
    """Return whether an append may be refused, or may have to make room."""
    limits = [name for name, facts in QUEUE_OPTIONS.items() if facts.unit in ("bytes", "records")]
    return settings.sealed or any(getattr(settings.options, name) for name in limits)


def refused_append(queue: Queue, call: Call) -> object:
    """Return why an append that is not a repeat is refused, or None; drop what must go for it."""
    options = queue.settings.options
    more, size = len(call.payloads), sum(map(len, call.payloads))
    if queue.settings.sealed:
        return QueueSealedError
    if (options.max_records and more > options.max_records) or (options.max_bytes and size > options.max_bytes):
        return RecordTooLargeError
    if not _is_over(queue, more, size, 1.0):
        return None
    if options.when_full == "refuse":
        return LogFullError
    while queue.records and _is_over(queue, more, size, 0.9):
        queue.truncate(min(queue.records))
    return None


def _is_over(queue: Queue, more: int, size: int, share: float) -> bool:
    max_bytes, max_records = queue.settings.options.max_bytes, queue.settings.options.max_records
    held = sum(map(len, queue.records.values()))
    too_many = max_records is not None and len(queue.records) + more > int(max_records * share)
    return too_many or (max_bytes is not None and held > 0 and held + size > int(max_bytes * share))


def behind(queue: Queue, position: int, forced: bool) -> bool:
    """Return whether a consumer forbids removing the records up to *position*."""
    slowest = min((at for at, _, _ in queue.consumers.values()), default=queue.next)
    return not forced and slowest <= min(position, queue.next - 1)


def moved_up(queue: Queue) -> None:
    """Move the consumers that a truncate has passed."""
    for name, (position, epoch, owner) in queue.consumers.items():
        queue.consumers[name] = (max(position, queue.start), epoch, owner)
