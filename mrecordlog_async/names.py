"""The rule for names of queues and consumers and for patterns: what a log can hold, and what it accepts for a new one.

A log may hold names that could not be created today: older versions took control characters from Quickwit's crate,
`Limits.name_bytes` may have been higher, and patterns had no limit. Such queues and consumers work as all others do,
everywhere, and `repair` keeps them. Only creating is refused, so every new name can be typed in a shell, read in a line
of text and sent in a URL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mrecordlog_async.errors import ConsumerNameError, QueueNameError

STORED_BYTES_MAX = 65_535
"""The length of a name is 16 bits wide on disk."""

FOLDED = (".", "..")
"""Not for new names: HTTP clients and proxies take them out of a path, and the request reaches another one."""

NEW_NAME = "1 to 255 bytes of UTF-8 without control characters, and is not . or .."
"""Bytes that a service accepts for a new name: the default of `Limits.name_bytes`."""


def check_name(queue: object) -> None:
    """Raise QueueNameError unless *queue* can be the name of a queue."""
    if (reason := _wrong_with(queue, STORED_BYTES_MAX)) is not None:
        raise QueueNameError(queue, reason)


def check_new_name(queue: object, bytes_max: int) -> None:
    """Raise QueueNameError unless a queue of this name, or a rule with this pattern, may be created.

    bytes_max: in UTF-8.
    """
    if (reason := _wrong_with(queue, bytes_max) or _wrong_with_new(queue)) is not None:
        raise QueueNameError(queue, reason)


def check_consumer_name(consumer: object) -> None:
    """Raise ConsumerNameError unless *consumer* can be the name of a consumer."""
    if (reason := _wrong_with(consumer, STORED_BYTES_MAX)) is not None:
        raise ConsumerNameError(consumer, reason)


def check_new_consumer_name(consumer: object, bytes_max: int) -> None:
    """Raise ConsumerNameError unless a consumer of this name may be created. bytes_max: in UTF-8."""
    if (reason := _wrong_with(consumer, bytes_max) or _wrong_with_new(consumer)) is not None:
        raise ConsumerNameError(consumer, reason)


def check_consumers(consumers: object) -> dict[str, tuple[str, ...]]:
    """Return the names of consumers that a program declares, by queue or pattern; raise for anything else.

    Raises TypeError unless it maps queues to lists, QueueNameError or ConsumerNameError for an invalid name.
    """
    if not isinstance(consumers, Mapping):
        wanted = "consumers must map queues to names of consumers, as in {'audit': ['search']}"
        raise TypeError(f"{wanted}, not {type(consumers).__name__}")
    declared = {}
    for queue, listed in consumers.items():
        check_name(queue)
        if isinstance(listed, str | bytes | Mapping) or not isinstance(listed, Iterable):
            advice = f"; pass [{listed!r}]" if isinstance(listed, str) else ""
            raise TypeError(f"consumers[{queue!r}] must be a list of names, not {listed!r}{advice}")
        declared[queue] = tuple(dict.fromkeys(listed))
        for consumer in declared[queue]:
            check_consumer_name(consumer)
    return declared


def has_control_characters(text: str) -> bool:
    """Return whether *text* contains one of the 65 control characters of Unicode: C0, DEL and C1."""
    return not text.isprintable() and any(char < " " or "\x7f" <= char <= "\x9f" for char in text)


def _wrong_with(name: object, bytes_max: int) -> str | None:
    if not isinstance(name, str):
        return f"must be a str, not {type(name).__name__}"
    if type(name) is not str and not (hash(name) == hash(plain := str.__str__(name)) and plain == name == plain):
        # Two of one text would be stored, and no log that has them can be opened.
        return f"is a {type(name).__name__} that does not equal its own text; convert it to a plain str"
    if not name:
        return "is empty"
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "cannot be encoded as UTF-8"
    return f"is {size} bytes long in UTF-8; the limit is {bytes_max}" if size > bytes_max else None


def _wrong_with_new(name: object) -> str | None:
    assert isinstance(name, str), "checked before"
    if name in FOLDED:
        return "is reserved: HTTP clients remove it from paths; choose another one"
    return "contains control characters; remove them" if has_control_characters(name) else None
