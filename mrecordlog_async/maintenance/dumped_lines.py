"""The lines of a dump: queues with what is set for them, records and rules.

Members that are not known here are ignored when lines of a dump are read. A line that somebody wrote by hand has only
known ones: a misspelt payload would store nothing. The line of a queue has only the settings that are set.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from typing import Any, NamedTuple

from mrecordlog_async.maintenance.queue_settings import QueueSettings
from mrecordlog_async.memory.settings import owner_bytes
from mrecordlog_async.model import POSITION_MAX, Record
from mrecordlog_async.options import QueueOptions
from mrecordlog_async.patterns import is_pattern

EMPTY_LOG = {"remaining": 0}
"""The only line of a log without queues and rules."""


class InvalidLineError(ValueError):
    """A line is not one of a dump."""


class QueueLine(NamedTuple):
    """A queue as its line has it. remaining: lines of queues and rules that follow; 0 in a dump of an older version."""

    queue: str
    first_position: int = 0
    next_position: int = 0
    remaining: int = 0
    settings: QueueSettings | None = None


class RecordLine(NamedTuple):
    """A record; one without a position is appended."""

    queue: str
    position: int | None
    payload: bytes


class RuleLine(NamedTuple):
    """A rule that gives new queues a consumer. remaining: as in `QueueLine`."""

    pattern: str
    consumer: str
    remaining: int = 0


class EmptyLogLine(NamedTuple):
    """A log without queues and rules. It has a line because a dump without any is that of a command that failed."""


def parse_line(number: int, line: str) -> QueueLine | RecordLine | RuleLine | EmptyLogLine:
    """Return what the line with this number says. Raises InvalidLineError with the number if it is none."""
    try:
        facts = json.loads(line)
        if type(facts) is not dict:
            raise ValueError(f"it must be an object, not {facts!r}")
        if facts == EMPTY_LOG:
            return EmptyLogLine()
        if "pattern" in facts:
            return _rule(facts)
        queue, payload = _name(facts["queue"]), _payload(facts)
        return _queue(queue, facts) if payload is None else RecordLine(queue, _position(facts), payload)
    except (ValueError, KeyError, TypeError, RecursionError, binascii.Error) as error:
        raise InvalidLineError(f"line {number} is not a valid dump line: {_reason_of(error)}") from None


def _reason_of(error: Exception) -> str:
    match error:
        case json.JSONDecodeError():
            return f"{error.msg} at column {error.colno}"
        case KeyError():
            return f"it has no {error.args[0]!r}"
        case _:
            return str(error)


def _name(queue: object) -> str:
    if type(queue) is not str or not queue:
        raise ValueError(f"the name of a queue must be text and not empty, not {queue!r}")
    queue.encode()  # raises for bytes that are not UTF-8
    return queue


def _position(facts: dict[str, Any]) -> int | None:
    return None if facts.get("position") is None else _count(facts, "position")


def _queue(queue: str, facts: dict[str, Any]) -> QueueLine:
    if "next_position" not in facts and not facts.keys() <= _OF_A_QUEUE:
        raise ValueError(f"a record needs a payload or a text, and a queue has no {min(facts.keys() - _OF_A_QUEUE)!r}")
    first = _count(facts, "first_position")
    following = _count(facts, "next_position", first)
    if following < first:
        raise ValueError(f"next_position {following} is below first_position {first}")
    return QueueLine(queue, first, following, _count(facts, "remaining"), settings_of(facts))


def _rule(facts: dict[str, Any]) -> RuleLine:
    pattern, consumer = facts["pattern"], facts["consumer"]
    if type(pattern) is not str or type(consumer) is not str or not is_pattern(pattern):
        raise ValueError(f"a rule needs a pattern with * and a consumer, not {facts!r}")
    return RuleLine(pattern, consumer, _count(facts, "remaining"))


def _payload(facts: dict[str, Any]) -> bytes | None:
    """Return the payload of a record's line, None for a queue's line."""
    if "text" in facts:
        text = facts["text"]
        if type(text) is not str:
            raise ValueError(f"text must be a string, not {text!r}")
        return text.encode()
    if "payload" in facts:
        return base64.b64decode(facts["payload"], validate=True)
    return None


def _count(facts: dict[str, Any], name: str, default: int = 0) -> int:
    value = facts.get(name, default)
    if type(value) is not int or not 0 <= value <= POSITION_MAX + 1:
        raise ValueError(f"{name} must be a whole number up to {POSITION_MAX + 1}, not {value!r}")
    return value


_DEFAULTS = asdict(QueueOptions())

_SIMPLE = {one.name: one.default for one in fields(QueueSettings) if one.name not in ("options", "consumers", "owners")}
"""The settings that a line holds as they are, each with its value in a queue that has not set it."""

_OF_A_QUEUE = {"queue", "first_position", "next_position", "remaining", "options", "consumers", *_SIMPLE}
"""Members of a queue's line."""

_CALLED = {bool: "true or false", str: "text"}


def settings_facts(settings: QueueSettings) -> dict[str, Any]:
    """Return what *settings* set, for JSON."""
    facts: dict[str, Any] = {
        "options": {name: value for name, value in asdict(settings.options).items() if value != _DEFAULTS[name]},
        **{name: getattr(settings, name) for name in _SIMPLE},
        "consumers": [_consumer_facts(settings, name) for name in sorted(settings.consumers)],
    }
    return {name: value for name, value in facts.items() if value}


def _consumer_facts(settings: QueueSettings, name: str) -> dict[str, Any]:
    facts: dict[str, Any] = {"consumer": name, "position": settings.consumers[name]}
    if name in settings.owners:
        facts["owner"] = settings.owners[name]
    return facts


def settings_of(facts: dict[str, Any]) -> QueueSettings:
    """Return what a queue's line sets; the lines of older dumps set nothing.

    Raises:
        ValueError: A value is outside its range. The same goes for KeyError and TypeError.
    """
    settings = QueueSettings(QueueOptions(**facts.get("options", {})), **_simple_settings(facts))
    for consumer in facts.get("consumers", ()):
        name, position, owner = consumer["consumer"], consumer["position"], consumer.get("owner")
        if type(name) is not str or type(position) is not int or not 0 <= position <= POSITION_MAX + 1:
            raise ValueError(f"a consumer needs a name and a position, not {consumer!r}")
        settings.consumers[name] = position
        if owner is not None:
            owner_bytes(owner)  # raises for one that is none
            settings.owners[name] = owner
    return settings


def _simple_settings(facts: dict[str, Any]) -> dict[str, Any]:
    found = {name: facts.get(name, default) for name, default in _SIMPLE.items()}
    for name, default in _SIMPLE.items():
        if type(found[name]) is not type(default):
            raise ValueError(f"{name} must be {_CALLED[type(default)]}, not {found[name]!r}")
    return found


def queue_line(queue: str, first_position: int, next_position: int, remaining: int, settings: QueueSettings) -> str:
    """Return the line of a queue: its name and positions, how many queues and rules follow, and what is set for it."""
    facts = {"queue": queue, "first_position": first_position, "next_position": next_position, "remaining": remaining}
    return json.dumps({**facts, **settings_facts(settings)}, ensure_ascii=False) + "\n"


def end_line(queue: str, end: int, next_position: int, remaining: int, settings: QueueSettings) -> str:
    """Return the line after the records of a queue, which end before *end*; "" if those were all.

    Otherwise its last records were removed while it was read, and so was every one before them: the queue is empty.
    """
    return queue_line(queue, next_position, next_position, remaining, settings) if end < next_position else ""


def empty_line(remaining: int) -> str:
    """Return the line of a log without queues and rules; "" for one that has *remaining* of them."""
    return "" if remaining else json.dumps(EMPTY_LOG) + "\n"


def rule_lines(rules: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield a line for each rule."""
    for remaining, (pattern, consumer) in zip(reversed(range(len(rules))), rules, strict=True):
        yield json.dumps({"pattern": pattern, "consumer": consumer, "remaining": remaining}, ensure_ascii=False) + "\n"


def record_lines(queue: str, records: Iterator[Record], *, text: bool) -> Iterator[str]:
    """Yield a line for each record."""
    head = json.dumps({"queue": queue}, ensure_ascii=False)[:-1]
    for position, payload in records:
        yield f'{head}, "position": {position}, {_payload_text(payload, text)}}}\n'


def _payload_text(payload: bytes, text: bool) -> str:
    if text:
        try:
            return f'"text": {json.dumps(payload.decode(), ensure_ascii=False)}'
        except UnicodeDecodeError:
            pass
    return f'"payload": "{base64.b64encode(payload).decode()}"'
