"""Carry options, seals and consumers to the queues of another log, once all their records are there.

The order of the steps decides what they may refuse or remove:

1. Records. A queue's limits would refuse some of them, its seal all of them.
2. Options, before the consumers: to keep records until they are acknowledged removes none while there is no consumer.
3. Consumers, each at its position, moved into what the queue retains. The slowest comes first: to move one, such as a
   rule has made, removes what all those that exist by then have acknowledged. Position and owner are stored in one
   record, so no crash leaves a consumer of a new queue without its owner. Its epoch is new: nobody holds it.
4. The seal.
5. Rules, when every queue has its consumers: a rule gives one only to queues that lack it. So a queue that matches has
   the consumer afterwards, from its first record on, also where it was deleted for this queue alone.

Times of records and the last appends of producers begin again in the other log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from operator import itemgetter
from typing import NamedTuple

from mrecordlog_async.errors import ConsumerOwnedError, PositionAheadError, PositionTruncatedError, QueueSealedError
from mrecordlog_async.maintenance.queue_settings import QueueSettings
from mrecordlog_async.options import QueueOptions
from mrecordlog_async.patterns import is_pattern
from mrecordlog_async.record_log import RecordLog

QUEUES_AT_ONCE = 100
"""The settings of this many queues are made durable together."""


class Carried(NamedTuple):
    """A queue and what to set for it. created: see `carry_settings`."""

    queue: str
    settings: QueueSettings
    created: bool = True


async def carry_settings(log: RecordLog, queue: str, settings: QueueSettings, created: bool = True) -> None:
    """Set the options, the consumers and the seal of *queue*, which has its records.

    Args:
        log: The log that gets them, or its client.
        queue: The queue.
        settings: What to set. Default options replace none.
        created: The queue is new. Consumers that it has already, by rules of *log*, are moved. In an older queue they
            stay where they are: what they have acknowledged there is newer.

    Raises:
        QueueOptionsError: A limit is below what the queue holds.
        LogFullError: The limit on consumers is reached, or there is no space.
    """
    if settings.options != QueueOptions():
        await log.configure_queue(queue, settings.options)
    for consumer, position in sorted(settings.consumers.items(), key=itemgetter(1)):
        await _carry_consumer(log, queue, consumer, position, settings.owners.get(consumer), created)
    if settings.sealed:
        with suppress(QueueSealedError):  # by an earlier attempt
            await log.seal_queue(queue)


async def _carry_consumer(
    log: RecordLog, queue: str, consumer: str, position: int, owner: str | None, created: bool
) -> None:
    # A queue whose name contains `*` is a pattern to `create_consumer`, and a queue to attach to.
    attaches = is_pattern(queue) or (created and owner is not None)
    is_new = not attaches and await log.create_consumer(queue, consumer, start=position, exist_ok=True)
    stands = None
    if attaches or (is_new and owner is not None):
        with suppress(ConsumerOwnedError):  # it exists in an older queue
            async with log.consumer(queue, consumer, start=position, owner=owner) as holder:
                stands = holder.position  # it has its owner now
    if created and not is_new and stands != position:
        # It may be one that a rule made. One that cannot be moved stays behind, and reads records again.
        with suppress(PositionAheadError, PositionTruncatedError):
            await log.seek_consumer(queue, consumer, position)


async def carry_all(log: RecordLog, carried: Iterable[Carried], rules: Iterable[tuple[str, str]] = ()) -> None:
    """Set what was *carried*, then create *rules*, as (pattern, consumer). See `carry_settings`."""
    rest = iter(carried)
    while group := list(islice(rest, QUEUES_AT_ONCE)):
        await asyncio.gather(*(carry_settings(log, *each) for each in group))
    for pattern, consumer in rules:
        await log.create_consumer(pattern, consumer, exist_ok=True)


def with_room(options: QueueOptions, records: int, size: int) -> QueueOptions:
    """Return *options* with limits that a queue of *records* records and *size* payload bytes does not exceed.

    A damaged log may have lost truncates, so more records may be back than the limits allow. Limits of a queue that
    drops its oldest records stay: it drops them with its next append.
    """
    if options.when_full == "drop_oldest":
        return options
    return replace(
        options,
        max_records=options.max_records and max(options.max_records, records),
        max_bytes=options.max_bytes and max(options.max_bytes, size),
    )
