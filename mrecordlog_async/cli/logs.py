"""LOG, the first argument of most commands: opened, connected to, and asked for names that complete a line.

Nothing is offered for what cannot be found out within a second, because the user who presses Tab waits.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click
from click.shell_completion import CompletionItem

from mrecordlog_async.cli.errors import UsageError
from mrecordlog_async.cli.params import EXAMPLE_URL, FILE, LOG, LOG_HELP, argument, is_service, suggest
from mrecordlog_async.cli.text import ProgressBar
from mrecordlog_async.names import has_control_characters

if TYPE_CHECKING:
    from mrecordlog_async.client.client import RecordLogClient
    from mrecordlog_async.maintenance.changing import Changing
    from mrecordlog_async.protocol.calls import ServiceCall
    from mrecordlog_async.readonly import ReadOnlyLog

T = TypeVar("T")
Run = Callable[..., int]
"""The function of a command, which returns the exit code."""

RETRY_SECONDS = 2.0
"""Short, because a person is waiting to know whether the service is running."""
WRITE_RETRY_SECONDS = 30.0
"""Long enough to outlast a restart of the service."""
SECONDS = 1.0
NAMES_MAX = 1_000


class Log(NamedTuple):
    """LOG: the directory of a log, or the URL of a service with the file of its token."""

    place: str
    token_file: str | None = None

    @property
    def is_service(self) -> bool:
        """Return whether it is the URL of a service."""
        return is_service(self.place)

    def connect(self, retry_seconds: float = RETRY_SECONDS) -> RecordLogClient:
        """Return a client of the service. Raises TokenFileError and UsageError."""
        from mrecordlog_async.tokens import read_token

        path = self.token_file or os.environ.get("MRECORDLOG_TOKEN_FILE")
        return connect_to(self.place, read_token(path) if path else None, retry_seconds)

    def read(self) -> ReadOnlyLog:
        """Read the positions of the log in the directory, with progress."""
        from mrecordlog_async.readonly import ReadOnlyLog

        with ProgressBar("reading") as progress:
            return ReadOnlyLog.open(self.place, keep_records=False, on_progress=progress)

    @asynccontextmanager
    async def open(self, *, create: bool = False) -> AsyncIterator[Any]:
        """Open the log with its lock, or connect a client. Both have the same methods for changes."""
        if self.is_service:
            async with self.connect(WRITE_RETRY_SECONDS) as client:
                yield client
            return
        from mrecordlog_async.log import MultiRecordLog
        from mrecordlog_async.maintenance.changing import COMMAND_LIMITS

        async with MultiRecordLog.open(self.place, limits=COMMAND_LIMITS, create=create, retention=False) as log:
            log.inspection.keep_unclosed()
            yield log

    @asynccontextmanager
    async def open_to_change(self, *, create: bool = False, limits_of: str | None = None) -> AsyncIterator[Any]:
        """Open the log with its lock but without its records, or connect a client: for changes that read no record.

        limits_of: the queue whose limits are going to be compared with what it holds.
        """
        if self.is_service:
            async with self.connect(WRITE_RETRY_SECONDS) as client:
                yield client
            return
        opened = await self.changing(create=create)
        async with opened.log as log:
            if limits_of is not None:
                await opened.count(limits_of)
            yield log

    async def changing(self, *, create: bool = False) -> Changing:
        """Open the log in the directory with its lock but without its records, with progress."""
        from mrecordlog_async.maintenance.changing import open_to_change

        with ProgressBar("reading") as progress:
            return await open_to_change(self.place, create=create, on_progress=progress)


def connect_to(url: str, token: str | None, retry_seconds: float) -> RecordLogClient:
    """Return a client of the service at *url*. Raises UsageError for what a client refuses before it sends anything."""
    from mrecordlog_async.client.client import RecordLogClient

    if url.startswith("dns+") or ("," in url and not url.startswith("unix:")):
        raise UsageError(f"{url} names several services: name one of them")
    try:
        return RecordLogClient(url, token=token, retry_seconds=retry_seconds)
    except ValueError as error:
        raise UsageError(str(error)) from None


def takes_log(run: Run) -> Run:
    """Give a command LOG, its first argument, and --token-file."""

    @argument("log", metavar="LOG", type=LOG, shell_complete=urls, help=LOG_HELP)
    @click.option("--token-file", type=FILE, help="Token of the service (default: MRECORDLOG_TOKEN_FILE).")
    @wraps(run)
    def with_log(log: str, token_file: str | None, **values: Any) -> int:
        return run(Log(log, token_file), **values)

    return with_log


def takes_queue(help: str) -> Callable[[Run], Run]:
    """Give a command QUEUE, which completes to the queues of LOG."""
    return argument("queue", metavar="QUEUE", shell_complete=queues, help=help)


def urls(_: click.Context, __: click.Parameter, word: str) -> list[CompletionItem]:
    """Offer the URL of a service on this machine; without a word, directories."""
    port = os.environ.get("MRECORDLOG_PORT", "")  # Kubernetes may have set it, to tcp://…
    url = re.sub(r"\d+$", port, EXAMPLE_URL) if port.isdecimal() else EXAMPLE_URL
    found = [CompletionItem(each) for each in (url, "unix:") if word and each.startswith(word)]
    return found or [CompletionItem(word, type="dir")]


def queues(ctx: click.Context, _: click.Parameter, word: str) -> list[CompletionItem]:
    """Offer the queues of LOG."""
    return _items(word, lambda: queues_of(_log(_before(ctx)), word))


def consumers(ctx: click.Context, _: click.Parameter, word: str) -> list[CompletionItem]:
    """Offer the consumers of QUEUE."""
    return _items(word, lambda: consumers_of(_log(_before(ctx)), _before(ctx)["queue"]))


def _before(ctx: click.Context) -> dict[str, Any]:
    """Return the values before the cursor. click knows no argument where the line ends with an option."""
    words = ctx.obj["words"][1:]
    while words and words[-1].startswith("-"):
        words = words[:-1]
    return ctx.command.make_context(ctx.info_name, words, resilient_parsing=True, obj=ctx.obj).params


def _items(word: str, find: Callable[[], list[str]]) -> list[CompletionItem]:
    try:
        found = find()
    except Exception:
        return []  # neither a message nor a traceback gets into the line that is being typed
    return [CompletionItem(name) for name in found if name.startswith(word) and not has_control_characters(name)]


def _log(values: dict[str, Any]) -> Log:
    return Log(values["log"], values.get("token_file"))


def queues_of(log: Log, prefix: str = "") -> list[str]:
    """Return the first names of queues that begin with *prefix*. Raises TimeoutError, and what the log raises."""
    if log.is_service:
        from mrecordlog_async.protocol import calls

        queues = _ask(log, calls.summary(prefix=prefix, limit=NAMES_MAX))
        return list(queues)
    from mrecordlog_async.readonly import ReadOnlyLog

    with ReadOnlyLog.open(log.place, keep_records=False, on_progress=_within(SECONDS)) as stored:
        return [name for name in stored.list_queues() if name.startswith(prefix)][:NAMES_MAX]


def consumers_of(log: Log, queue: str) -> list[str]:
    """Return the names of the consumers of *queue*. Raises as `queues_of` does."""
    if log.is_service:
        from mrecordlog_async.protocol import calls

        consumers = _ask(log, calls.consumers(queue))
        return list(consumers)
    from mrecordlog_async.readonly import ReadOnlyLog

    with ReadOnlyLog.open(log.place, keep_records=False, on_progress=_within(SECONDS)) as stored:
        return sorted(stored.state_of(queue).consumers)


def nearest_queue(queue: str, given: dict[str, Any]) -> str:
    """Return "; did you mean 'NAME'?" for the queue of LOG nearest to *queue*; "" if none is, or after errors."""
    try:
        return suggest(repr(queue), [repr(name) for name in queues_of(_log(given))])
    except Exception:
        return ""  # the error that is about to be printed counts


def _within(seconds: float) -> Callable[[object], None]:
    """Return what ends reading by TimeoutError after *seconds*."""
    end = time.monotonic() + seconds

    def check(_: object) -> None:
        if time.monotonic() > end:
            raise TimeoutError

    return check


def _ask(log: Log, call: ServiceCall[T]) -> T:
    """Return the response of a service. Raises what its client raises, and TimeoutError."""
    import asyncio

    async def ask() -> T:
        async with log.connect(retry_seconds=0.0) as client:
            # The client lists all queues or the largest, and here those with a prefix are needed.
            return await client.sender.send(call)

    return asyncio.run(asyncio.wait_for(ask(), SECONDS))
