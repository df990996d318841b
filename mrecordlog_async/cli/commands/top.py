"""Watch the queues of one log or several: records in and out, sizes, ages, retained segments.

On a terminal it redraws a table that fits it until you press q (needs rich); other keys sort and scroll. If the output
is not a terminal, or with --json, it prints a sample every interval. For a directory it shows queues and positions,
even while another process writes to it; for a service it also shows memory, disk and commit times. A service that
cannot be reached stays on the screen, with the time since when.

  mrecordlog top http://127.0.0.1:8080
  mrecordlog top http://wal-0:8080 http://wal-1:8080
  mrecordlog top a=http://wal-0:8080 b=http://wal-1:8080 --token-file a=./token-a --token-file b=./token-b
  mrecordlog top ./wal --interval 5
  mrecordlog top ./wal --once --json | jq .queues
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from typing import TYPE_CHECKING, Any

from mrecordlog_async.cli.output.keyboard import GONE, keys
from mrecordlog_async.cli.output.standard_output import TerminalClosedError
from mrecordlog_async.cli.output.top_samples import ORDERS, History, Sample, ServiceFacts, SlowestConsumer
from mrecordlog_async.cli.output.top_view import View, plain, render
from mrecordlog_async.cli.shell.exit_codes import FINE, NotReadyError, UsageError
from mrecordlog_async.cli.shell.parser import TIME, Parser
from mrecordlog_async.cli.shell.target import (
    LOG_HELP,
    RETRY_SECONDS,
    add_signpost,
    connect_to,
    is_service,
    log_argument,
    run_async,
)
from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.readonly import ReadOnlyLog
from mrecordlog_async.servers.names import shown_url
from mrecordlog_async.tokens import read_named_tokens, read_token

if TYPE_CHECKING:
    from mrecordlog_async.client.client import RecordLogClient
    from mrecordlog_async.protocol.schemas import StatsResponse

QUEUES_MAX = 1_000
"""If a service has more queues, only the largest are requested: listing 100,000 takes a quarter of a second."""

PAGE_ROWS = 20

Take = Callable[[], Awaitable[Sample]]


def add_parser(command_line: Parser) -> Parser:
    """Describe the command."""
    parser = command_line.add_command("top", "Watch queues: rates, sizes, retained segments", __doc__)
    parser.add_argument("log", metavar="LOG", type=log_argument, help=f"{LOG_HELP}; NAME=URL gives it a name")
    parser.add_argument("more", nargs="*", type=log_argument, metavar="LOG", help="further logs, shown together")
    parser.add_argument(
        "--token-file",
        action="append",
        metavar="[NAME=]FILE",
        help="token of the services (default: MRECORDLOG_TOKEN_FILE); with NAME=, that of NAME=URL; may be repeated",
    )
    add_signpost(parser)
    parser.add_argument("--interval", type=TIME, default=1.0, metavar="TIME", help="time between samples (default: 1s)")
    parser.add_argument("--sort", choices=list(_SORTS), default="in/s", help="order of the table (default: in/s)")
    parser.add_argument("--once", action="store_true", help="print one sample, after one interval, and stop")
    parser.add_argument("--json", action="store_true", help="print one JSON object per sample")
    return parser


_SORTS = {order.column.partition(" ")[0]: key for key, order in ORDERS.items()}


def run(arguments: argparse.Namespace) -> int:
    """Watch until q or Ctrl-C."""
    if arguments.interval <= 0:
        raise UsageError("--interval must be above 0: a sample needs some time to show rates")
    return run_async(_run(arguments))


async def _run(arguments: argparse.Namespace) -> int:
    async with AsyncExitStack() as stack:
        sources = await _open(arguments, stack)
        histories = sources.histories
        await sources.sample(first=True)
        screen = _screen(arguments, histories, stack)
        while True:
            if await _pause(screen, arguments.interval):
                return FINE
            await sources.sample()
            if screen is not None:
                screen.draw()
            elif arguments.json:
                for history in histories:
                    print(json.dumps(history.facts()), flush=True)
            else:
                sys.stdout.writelines(plain(histories, _SORTS[arguments.sort]))
                sys.stdout.flush()
            if arguments.once:
                return FINE


class _Sources:
    """The logs that are watched."""

    def __init__(self) -> None:
        self.histories: list[History] = []
        self._takes: list[Take] = []

    def add_directory(self, directory: str) -> None:
        """Watch the log in a directory."""
        self._add(directory, lambda: asyncio.to_thread(_read, directory))

    def add_service(self, name: str, client: RecordLogClient) -> None:
        """Watch the log of a service."""
        self._add(name, lambda: _ask(client))

    def _add(self, name: str, take: Take) -> None:
        self.histories.append(History(name))
        self._takes.append(take)

    async def sample(self, *, first: bool = False) -> None:
        """Take a sample of every log at once; one that cannot be reached keeps nobody waiting past its retry.

        Raises the error of the first samples if no log can be reached: most likely the address is wrong.
        """
        results = await asyncio.gather(*(take() for take in self._takes), return_exceptions=True)
        now = time.strftime("%H:%M:%S")
        for history, result in zip(self.histories, results, strict=True):
            if isinstance(result, Sample):
                history.add(result)
            elif isinstance(result, RecordLogError | OSError | NotReadyError):
                history.fail(str(getattr(result, "reason", result)), now)
            else:
                raise result
        if first and all(isinstance(result, BaseException) for result in results):
            found = results[0]
            assert isinstance(found, BaseException)
            raise found


async def _open(arguments: argparse.Namespace, stack: AsyncExitStack) -> _Sources:
    """Return the logs of the command line, each service with the token that is given for it."""
    named = [(*_split(log), log) for log in (arguments.log, *arguments.more)]
    tokens = _read_tokens(arguments.token_file or (), {name for name, _, _ in named})
    sources = _Sources()
    for name, url, log in named:
        if is_service(log):
            client = connect_to(url, tokens.get(name, tokens.get("")), RETRY_SECONDS)
            sources.add_service(name or shown_url(url), await stack.enter_async_context(client))
        else:
            sources.add_directory(log)
    return sources


def _split(log: str) -> tuple[str, str]:
    """Return the name, "" for none, and the URL of NAME=URL."""
    match = re.match(r"([^=:/]+)=(?=[a-z])", log)
    return (match[1], log[match.end() :]) if match and is_service(log) else ("", log)


def _read_tokens(given: Sequence[str], names: Collection[str]) -> dict[str, str]:
    """Return the tokens by the name of the service, "" for that of all others. Raises TokenFileError."""
    found = read_named_tokens(given, names, lambda name: f"no LOG is {name}=http://host:port", "all services")
    if "" not in found and (default := os.environ.get("MRECORDLOG_TOKEN_FILE")):
        found[""] = read_token(default)
    return found


async def _pause(screen: _Screen | None, seconds: float) -> bool:
    """Wait for the next sample; return whether the person wants to stop."""
    if screen is None:
        await asyncio.sleep(seconds)
        return False
    try:
        async with asyncio.timeout(seconds):
            await screen.stopped.wait()
    except TimeoutError:
        return False
    return True


class _Screen:
    """The terminal: draws the table, and follows the keys."""

    def __init__(self, live: Any, histories: Sequence[History], order: str) -> None:
        self.stopped = asyncio.Event()
        self._live = live
        self._histories = histories
        self._view = View(order)
        self._terminal = ExitStack()

    def take_terminal(self) -> None:
        """Draw on the whole terminal, and read keys, until `return_terminal`."""
        self._terminal.enter_context(keys(self.press))  # first: it discards what was typed before
        self._terminal.enter_context(self._live)
        self.draw()

    def return_terminal(self) -> None:
        """Leave the terminal as it was."""
        self._terminal.close()

    def suspend(self) -> None:
        """Stop the process for Ctrl-Z. A shell gives no terminal back as it was: without this, fg would get no keys."""
        self.return_terminal()
        os.kill(os.getpid(), signal.SIGSTOP)
        self.take_terminal()

    def draw(self) -> None:
        """Draw the newest samples. `top` ends if the terminal was closed: rich would only stop drawing."""
        with suppress(TerminalClosedError):
            if sys.stdout.isatty():
                size = self._live.console.size
                self._live.update(render(self._histories, self._view, size.width, size.height), refresh=True)
                return
        self.stopped.set()

    def press(self, key: str) -> None:
        """Do what *key* means; other keys do nothing."""
        moves = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -PAGE_ROWS, "page down": PAGE_ROWS, " ": PAGE_ROWS}
        if key in ("q", GONE):
            self.stopped.set()
            return
        if key in ORDERS:
            self._view = View(key)
        elif key in moves:
            self._view.scrolled = max(self._view.scrolled + moves[key], 0)
        elif key == "home":
            self._view.scrolled = 0
        else:
            return
        self.draw()


def _screen(arguments: argparse.Namespace, histories: Sequence[History], stack: AsyncExitStack) -> _Screen | None:
    """Return rich's full-screen display, None where lines are to be printed."""
    if arguments.json or arguments.once or not sys.stdout.isatty():
        return None
    try:
        from rich.live import Live
    except ModuleNotFoundError:
        return None
    live = Live(screen=True, auto_refresh=False)
    if live.console.is_dumb_terminal:  # rich shows nothing there
        return None
    screen = _Screen(live, histories, _SORTS[arguments.sort])
    # Otherwise SIGTERM would leave the terminal as `top` needs it: without a cursor, and without an echo.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, screen.stopped.set)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTSTP, screen.suspend)
    stack.callback(screen.return_terminal)
    screen.take_terminal()
    return screen


async def _ask(client: RecordLogClient) -> Sample:
    """Take a sample of one service."""
    stats = await client.stats()
    queues = await _queues(client, stats)
    found = await client.all_consumers() if stats.usage.queues <= QUEUES_MAX else []
    behind = [(one.queue, SlowestConsumer(one.consumer, one.records)) for one in found]
    return Sample(time.monotonic(), queues, ServiceFacts.of(stats), _slowest(behind))


async def _queues(client: RecordLogClient, stats: StatsResponse) -> list[Any]:
    """Return the queues, or of very many the largest."""
    if stats.usage.queues <= QUEUES_MAX:
        return list((await client.summary()).values())
    return list((await client.summary(order="bytes", limit=QUEUES_MAX)).values())


def _read(directory: str) -> Sample:
    with ReadOnlyLog.open(directory, keep_records=False) as log:
        summaries = log.summary()
        behind = [
            (name, SlowestConsumer(consumer, summary.next_position - state.position))
            for name, summary in summaries.items()
            for consumer, state in log.state_of(name).consumer_states()
        ]
        return Sample(time.monotonic(), list(summaries.values()), None, _slowest(behind))


def _slowest(behind: Iterable[tuple[str, SlowestConsumer]]) -> dict[str, SlowestConsumer]:
    """Return the consumer of each queue that is furthest behind."""
    slowest: dict[str, SlowestConsumer] = {}
    for queue, one in behind:
        slowest[queue] = max(slowest.get(queue, one), one, key=lambda each: each.records)
    return slowest
