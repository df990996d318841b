"""The lines of a dump, checked: queues, records and rules. Members that are not known here are ignored."""

from __future__ import annotations

import base64
import binascii
import io
import json
from typing import Any, NamedTuple, TextIO

from mrecordlog_async.cli.dumped_settings import settings_of
from mrecordlog_async.cli.shell.exit_codes import UsageError
from mrecordlog_async.maintenance.queue_settings import QueueSettings
from mrecordlog_async.model import POSITION_MAX
from mrecordlog_async.patterns import is_pattern

EMPTY_LOG = {"remaining": 0}
"""The only line of a log without queues and rules."""


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
    """Return what the line with this number says. Raises UsageError with the number if it is invalid."""
    try:
        facts = json.loads(line)
        if facts == EMPTY_LOG:
            return EmptyLogLine()
        if "pattern" in facts:
            return _rule(facts)
        queue, payload = _name(facts["queue"]), _payload(facts)
        return _queue(queue, facts) if payload is None else RecordLine(queue, _position(facts), payload)
    except (ValueError, KeyError, TypeError, RecursionError, binascii.Error) as error:
        raise UsageError(f"line {number} is not a valid dump line: {error!r}") from None


def as_utf_8(stream: TextIO) -> None:
    """Let *stream* carry UTF-8, as dumps are, whatever the locale says; other bytes make their line invalid."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(encoding="utf-8", errors="surrogateescape")


def _name(queue: object) -> str:
    if type(queue) is not str or not queue:
        raise ValueError(f"the name of a queue must be text and not empty, not {queue!r}")
    queue.encode()  # raises for bytes that are not UTF-8
    return queue


def _position(facts: dict[str, Any]) -> int | None:
    return None if facts.get("position") is None else _count(facts, "position")


def _queue(queue: str, facts: dict[str, Any]) -> QueueLine:
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
