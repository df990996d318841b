"""Declares queues and their consumers when a program opens a log. All exist before the program has the log.

1. Queues are created with their consumers, and consumers of queues that exist, about a thousand in a batch.
2. A consumer of a pattern is created for every queue that matches, before the rule that gives it to later queues.
3. Consumers that were declared, and are not any more, are kept and named. Once somebody has deleted one of these, the
   log forgets that it was declared.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from mrecordlog_async.engine.intake.controls import ChangeRule, Declare, DeclaredConsumer, Recreated
from mrecordlog_async.engine.running import Engine
from mrecordlog_async.errors import QueueNotFoundError
from mrecordlog_async.format.controls import TableRule
from mrecordlog_async.format.stored_options import StoredOptions
from mrecordlog_async.memory.settings import options_of, values_of
from mrecordlog_async.names import check_new_consumer_name
from mrecordlog_async.options import QueueOptions
from mrecordlog_async.patterns import is_pattern, matches

AT_ONCE = 1_000
"""About this many queues, consumers and rules are declared in a batch, which takes the event loop 5 ms."""

SHOWN = 3
"""A warning that concerns many queues names this many."""

logger = logging.getLogger("mrecordlog_async")


class Declaration(NamedTuple):
    """Queues with their options, or None for the default ones, and names of consumers by queue or pattern."""

    queues: Mapping[str, QueueOptions | None]
    consumers: Mapping[str, Sequence[str]]


async def declare(engine: Engine, declared: Declaration) -> None:
    """Create what is *declared* and does not exist. Nothing is moved or deleted. Errors: see `MultiRecordLog.open`."""
    _check(engine, declared)
    for part in _parts(declared):
        await _submit(engine, part)
    for pattern in filter(is_pattern, declared.consumers):
        for consumer in declared.consumers[pattern]:
            for part in _parts_of_pattern(engine, TableRule(pattern, consumer)):
                await _submit(engine, part)
    _warn_of_other_options(engine, declared.queues)
    for queue in _names(declared):
        await _name_others(engine, queue, declared.consumers)


def _check(engine: Engine, declared: Declaration) -> None:
    """Raise for a name that nothing new may have, and for consumers of a queue that does not exist."""
    for queue in declared.queues:
        if engine.lookup.get(queue) is None:
            engine.lookup.check_name(queue)
    for queue, consumers in declared.consumers.items():
        found = engine.lookup.get(queue)
        if is_pattern(queue):
            engine.lookup.check_name(queue)
        elif found is None and queue not in declared.queues:
            raise QueueNotFoundError(queue, "add it to queues=, which creates it, or correct its name in consumers=")
        for consumer in consumers:
            if found is None or consumer not in found.consumers:
                check_new_consumer_name(consumer, engine.options.limits.name_bytes)


def _names(declared: Declaration) -> list[str]:
    """Return the names of the queues that are declared, or whose consumers are."""
    return list(dict.fromkeys([*declared.queues, *(name for name in declared.consumers if not is_pattern(name))]))


class _Part(NamedTuple):
    """Part of a declaration: the arguments of a `Declare`."""

    queues: dict[str, StoredOptions | None]
    consumers: list[DeclaredConsumer]
    rules: list[TableRule]


def _parts(declared: Declaration) -> Iterator[_Part]:
    """Yield queues, and consumers of one queue, in parts. All of a queue are in the same part."""
    part = _Part({}, [], [])
    for queue in _names(declared):
        if queue in declared.queues:
            options = declared.queues[queue]
            part.queues[queue] = None if options is None else values_of(options)
        own = () if is_pattern(queue) else declared.consumers.get(queue, ())
        part.consumers.extend(DeclaredConsumer(queue, consumer, queue) for consumer in own)
        part.rules.extend(TableRule(queue, consumer) for consumer in own)
        if sum(map(len, part)) >= AT_ONCE:
            yield part
            part = _Part({}, [], [])
    if any(part):
        yield part


def _parts_of_pattern(engine: Engine, rule: TableRule) -> Iterator[_Part]:
    """Yield a consumer of a pattern in parts. The last one, often the only one, has the rule."""
    lacking = [
        DeclaredConsumer(queue.name, rule.name, rule.pattern)
        for queue in engine.queues
        if matches(rule.pattern, queue.name) and rule.name not in queue.consumers
    ]
    for at in range(0, len(lacking), AT_ONCE):
        yield _Part({}, lacking[at : at + AT_ONCE], [])
    yield _Part({}, [], [rule])


async def _submit(engine: Engine, part: _Part) -> None:
    recreated = await engine.admission.submit(Declare, *part)
    assert isinstance(recreated, list)
    for one in recreated:
        _log_recreated(one)


def _log_recreated(one: Recreated) -> None:
    logger.warning(
        "queue %r: the declared consumer %r had been deleted; it is created again at position %d, the end of the queue",
        *one,
        extra={"facts": {"event": "consumer_recreated", **one._asdict()}},
    )


def _warn_of_other_options(engine: Engine, queues: Mapping[str, QueueOptions | None]) -> None:
    kept = [name for name, options in queues.items() if options is not None and _differs(engine, name, options)]
    if kept:
        shown = ", ".join(map(repr, kept[:SHOWN])) + (f" and {len(kept) - SHOWN} more" if len(kept) > SHOWN else "")
        logger.warning("existing queues keep options other than those of queues=; see configure_queue: %s", shown)


def _differs(engine: Engine, queue: str, options: QueueOptions) -> bool:
    """Return whether *queue* has other options. Both are compared as they are stored: a time is rounded there."""
    return options_of(engine.lookup.find(queue).options) != options_of(values_of(options))


async def _name_others(engine: Engine, queue: str, consumers: Mapping[str, Sequence[str]]) -> None:
    """Name the consumers of *queue* that were declared and are not any more; forget those that do not exist."""
    found = engine.lookup.find(queue)
    for consumer in engine.queues.rules.declared(queue):
        if any(consumer in consumers[key] for key in consumers if matches(key, queue)):
            continue
        if consumer in found.consumers:
            _log_kept(engine.directory, queue, consumer)
        else:
            await engine.admission.submit(ChangeRule, queue, consumer, True, False)


def _log_kept(directory: str, queue: str, consumer: str) -> None:
    command = shlex.join(["mrecordlog", "consumers", directory, queue, "--delete", consumer])
    logger.warning(
        "queue %r: the consumer %r was declared and no longer is; it stays, and so do the records that it has not "
        "acknowledged; delete it with `await log.delete_consumer(%r, %r)`, or with `%s` while the log is closed",
        *(queue, consumer, queue, consumer, command),
        extra={"facts": {"event": "consumer_kept", "queue": queue, "consumer": consumer}},
    )
