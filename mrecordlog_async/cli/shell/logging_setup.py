"""The service's own log on standard error: a line for people, or a JSON object for machines.

Both have the time, the level and the facts of the message as fields. The facts are in the record's `facts`, which any
application that configures `logging` itself can use too; `event` names the kind of message.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Iterator, Mapping

PLAIN = (str, int, float)

_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}
"""Replacements of characters that a terminal may obey."""


def timestamp(record: logging.LogRecord) -> str:
    """Return when *record* was made, in UTC with milliseconds."""
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03}Z"


class JsonFormatter(logging.Formatter):
    """One object per line: time, level, logger, message, and the facts of the message."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, object] = {
            "time": timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update(getattr(record, "facts", {}))
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """Time, level and message, then the facts that the message does not contain, as name=value."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; a traceback follows on its own lines."""
        message = " ".join(record.getMessage().splitlines()).translate(_CONTROLS)
        fields = " ".join(_fields(getattr(record, "facts", {}), message))
        line = f"{timestamp(record)} {record.levelname.lower()} {message}" + (f" [{fields}]" if fields else "")
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _fields(facts: Mapping[str, object], message: str) -> Iterator[str]:
    for name, value in facts.items():
        if isinstance(value, PLAIN) and not isinstance(value, bool) and value != "" and not _says(message, name, value):
            yield f"{name}={value if isinstance(value, int | float) else json.dumps(value)}"


def _says(message: str, name: str, value: str | float) -> bool:
    """Return whether *message* contains *value*; a number only next to a word of its name, or to its unit.

    The same number may stand there for something else.
    """
    if isinstance(value, str):
        return value in message
    names = {*name.split("_"), "s"} if name.endswith("seconds") else {*name.split("_")}
    words = [word.rstrip(".)") for word in re.split(r"[\s,;:(]+", message)]
    around = zip(["", *words], words, [*words[1:], ""], strict=False)
    return any(word == str(value) and (before in names or after in names) for before, word, after in around)


def configure(log_format: str, level: str) -> None:
    """Write this package's log to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logger = logging.getLogger("mrecordlog_async")
    logger.handlers = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
