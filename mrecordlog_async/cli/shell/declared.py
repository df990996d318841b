"""Settings that declare queues and their consumers: tables of the TOML file, or the same as JSON.

[queues.audit]
keep = "until_acknowledged"
max_bytes = "10GiB"

[consumers]
audit = ["search", "archive"]
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from mrecordlog_async.cli.shell.parser import suggest
from mrecordlog_async.names import check_consumers, check_name
from mrecordlog_async.options import QUEUE_OPTIONS, QueueOptions
from mrecordlog_async.quantities import parse_seconds, parse_size

_QUANTITIES: Mapping[str, Callable[[str], float]] = {"bytes": parse_size, "seconds": parse_seconds}
"""Parser of a limit that is written with its unit, as text."""


def queues(text: str) -> dict[str, QueueOptions | None]:
    """Return the options of queues, from JSON: a list of names, or an object of options by name. Raises ValueError."""
    found = _from_json(text)
    if isinstance(found, list):
        found = {_name(name): None for name in found}
    if not isinstance(found, dict):
        raise ValueError(f"{text} must be a list of queues, or a table of their options")
    for name in found:
        check_name(name)
    return {name: None if options is None else _options(name, options) for name, options in found.items()}


def consumers(text: str) -> dict[str, tuple[str, ...]]:
    """Return names of consumers by queue or pattern, from JSON: an object of lists. Raises ValueError."""
    try:
        return check_consumers(_from_json(text))
    except TypeError as error:
        raise ValueError(str(error)) from None


def _from_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not JSON: {error}") from None


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise ValueError(f"a queue is named by a string, not {name!r}")
    return name


def _options(queue: str, options: object) -> QueueOptions:
    if not isinstance(options, dict):
        raise ValueError(f"queue {queue!r}: its options are a table such as {{max_age = '7d'}}, not {options!r}")
    for name in options.keys() - QUEUE_OPTIONS.keys():
        raise ValueError(f"queue {queue!r}: {name!r} is not an option{suggest(name, QUEUE_OPTIONS)}")
    try:
        return QueueOptions(**{name: _value(name, value) for name, value in options.items()})
    except ValueError as error:
        raise ValueError(f"queue {queue!r}: {error}") from None


def _value(option: str, value: object) -> Any:
    """Return *value*; of a limit that is written as text, its size or its seconds."""
    read = _QUANTITIES.get(QUEUE_OPTIONS[option].unit)
    return read(value) if read is not None and isinstance(value, str) else value
