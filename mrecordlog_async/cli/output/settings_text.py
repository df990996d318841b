"""Options, seal and consumers of a queue in a line of text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from mrecordlog_async.cli.output.text import plural, printable, size
from mrecordlog_async.maintenance.queue_settings import QueueSettings
from mrecordlog_async.options import QUEUE_OPTIONS, QueueOptions
from mrecordlog_async.quantities import span


def settings_text(settings: QueueSettings) -> str:
    """Return what is set, separated by commas; "" if nothing is."""
    return ", ".join([*_options(settings), *consumers_text(settings)])


def consumers_text(settings: QueueSettings) -> Iterator[str]:
    """Yield where each consumer stands."""
    for name, position in sorted(settings.consumers.items()):
        yield f"consumer {printable(name)} at {position}"


def _options(settings: QueueSettings) -> Iterator[str]:
    if settings.sealed:
        yield "sealed"
    for name, facts in QUEUE_OPTIONS.items():
        value = getattr(settings.options, name)
        if value != getattr(_DEFAULTS, name):
            yield facts.shown.format(_SIZES[facts.unit](value))


_DEFAULTS = QueueOptions()
_SIZES: dict[str, Callable[[Any], str]] = {
    "": str,
    "bytes": size,
    "records": lambda records: plural(records, "record"),
    "seconds": span,
}
