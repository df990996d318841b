"""Names that a log has, for completion and for errors: looked up within a second, because somebody waits at a shell.

What cannot be found out in that time raises an error, as does everything else that goes wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from mrecordlog_async.cli.shell.parser import suggest
from mrecordlog_async.cli.shell.target import connect, is_service
from mrecordlog_async.model import RecoveryProgress
from mrecordlog_async.readonly import ReadOnlyLog

if TYPE_CHECKING:
    from mrecordlog_async.protocol.calls import ServiceCall

T = TypeVar("T")

SECONDS = 1.0
NAMES_MAX = 1_000


def queues_of(log: str, prefix: str = "", token_file: str | None = None) -> list[str]:
    """Return the first names of queues that begin with *prefix*."""
    if is_service(log):
        from mrecordlog_async.protocol import calls

        queues = _ask(log, token_file, calls.summary(prefix=prefix, limit=NAMES_MAX))
        return list(queues)
    with ReadOnlyLog.open(log, keep_records=False, on_progress=_within(SECONDS)) as stored:
        return [name for name in stored.list_queues() if name.startswith(prefix)][:NAMES_MAX]


def consumers_of(log: str, queue: str, token_file: str | None = None) -> list[str]:
    """Return the names of the consumers of *queue*."""
    if is_service(log):
        from mrecordlog_async.protocol import calls

        consumers = _ask(log, token_file, calls.consumers(queue))
        return list(consumers)
    with ReadOnlyLog.open(log, keep_records=False, on_progress=_within(SECONDS)) as stored:
        return sorted(stored.state_of(queue).consumers)


def nearest_queue(queue: str, log: str, token_file: str | None = None) -> str:
    """Return "; did you mean 'NAME'?" for the queue of *log* nearest to *queue*; "" if none is, or after errors."""
    try:
        return suggest(repr(queue), map(repr, queues_of(log, token_file=token_file)))
    except Exception:
        return ""  # the error that is about to be printed counts


def _within(seconds: float) -> Callable[[RecoveryProgress], None]:
    """Return what ends reading by TimeoutError after *seconds*."""
    end = time.monotonic() + seconds

    def check(_: RecoveryProgress) -> None:
        if time.monotonic() > end:
            raise TimeoutError

    return check


def _ask(url: str, token_file: str | None, call: ServiceCall[T]) -> T:
    """Return the response of a service. Raises what its client raises, and TimeoutError."""

    async def ask() -> T:
        arguments = argparse.Namespace(log=url, token_file=token_file)
        async with connect(arguments, retry_seconds=0.0) as client:
            # The client lists all queues or the largest, and here those with a prefix are needed.
            return await client.sender.send(call)

    return asyncio.run(asyncio.wait_for(ask(), SECONDS))
