"""Options, seal and consumers of a queue in a line of text."""

from __future__ import annotations

from collections.abc import Iterator

from mrecordlog_async.cli.output.text import plural, printable, size
from mrecordlog_async.maintenance.queue_settings import QueueSettings


def settings_text(settings: QueueSettings) -> str:
    """Return what is set, separated by commas; "" if nothing is."""
    return ", ".join([*_options(settings), *consumers_text(settings)])


def consumers_text(settings: QueueSettings) -> Iterator[str]:
    """Yield where each consumer stands."""
    for name, position in sorted(settings.consumers.items()):
        yield f"consumer {printable(name)} at {position}"


def _options(settings: QueueSettings) -> Iterator[str]:
    options = settings.options
    if settings.sealed:
        yield "sealed"
    if options.keep == "until_acknowledged":
        yield "keeps until acknowledged"
    if options.max_bytes is not None:
        yield f"at most {size(options.max_bytes)}"
    if options.max_records is not None:
        yield f"at most {plural(options.max_records, 'record')}"
    if options.max_age is not None:
        yield f"at most {options.max_age:g} s old"
    if options.when_full == "drop_oldest":
        yield "drops the oldest"
