"""`top`: watch the queues of one log or several.

1. A `Source` takes a sample of one log, and keeps the newest with the rates since the one before.
2. `picture` draws them for a terminal, `lines` writes them as text, and `Source.facts` are those of JSON.
3. `_Screen` lends itself the terminal from the shell: for the picture, and for keys that sort and quit.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from mrecordlog_async.cli.errors import FINE, UsageError
from mrecordlog_async.cli.logs import RETRY_SECONDS, connect_to, urls
from mrecordlog_async.cli.params import (
    FILE,
    LOG,
    LOG_HELP,
    TIME,
    argument,
    command,
    is_service,
)
from mrecordlog_async.cli.streams import TerminalClosedError
from mrecordlog_async.cli.text import columns, plural, printable, size
from mrecordlog_async.quantities import age

if TYPE_CHECKING:
    from rich.console import RenderableType

    from mrecordlog_async.client.client import RecordLogClient
    from mrecordlog_async.model import QueueSummary
    from mrecordlog_async.protocol.schemas import StatsResponse

QUEUES_MAX = 1_000
"""If a service has more queues, only the largest are requested: listing 100,000 takes a quarter of a second."""
BARS = ("memory", "disk", "pending")
BAR_WIDTH = 24
CONSUMER_WIDTH = 16

Row = dict[str, Any]
"""A queue as JSON has it."""


class Sample(NamedTuple):
    """The queues of a log; the queue, the name and the lag of each consumer; and what only a service reports."""

    queues: Sequence[QueueSummary]
    behind: Iterable[tuple[str, str, int]]
    stats: StatsResponse | None


class Order(NamedTuple):
    """An order of the queues: the column that shows it, and what is compared; the largest queue is next."""

    column: str
    key: Callable[[Row], Any]


def _most(name: str) -> Callable[[Row], Any]:
    return lambda row: (-(row[name] if row[name] is not None else -1), -row["bytes"], row["queue"])


ORDERS = {
    "i": Order("in/s", _most("in_per_second")),
    "o": Order("out/s", _most("out_per_second")),
    "b": Order("bytes", _most("bytes")),
    "r": Order("records", _most("records")),
    "a": Order("oldest", _most("oldest_seconds")),
    "s": Order("keeps from", lambda row: (row["first_segment"] is None, row["first_segment"], row["queue"])),
    "c": Order("consumer behind", _most("waiting_records")),
    "n": Order("queue", lambda row: row["queue"]),
}
"""By the key that sorts so."""
SORTS = {order.column.partition(" ")[0]: key for key, order in ORDERS.items()}
KEYS = "q quit  sort: " + "  ".join(f"{key} {order.column}" for key, order in ORDERS.items())

COLUMNS: dict[str, tuple[int, Callable[[Row], str]]] = {
    "queue": (0, lambda row: printable(row["queue"])),
    "first": (100, lambda row: str(row["first_position"])),
    "next": (85, lambda row: str(row["next_position"])),
    "records": (0, lambda row: str(row["records"])),
    "bytes": (0, lambda row: size(row["bytes"])),
    "in/s": (0, lambda row: f"{row['in_per_second']:,.0f}"),
    "out/s": (0, lambda row: f"{row['out_per_second']:,.0f}"),
    "oldest": (70, lambda row: age(row["oldest_seconds"])),
    "consumer behind": (110, lambda row: _behind(row)),
    "keeps from": (95, lambda row: "-" if row["first_segment"] is None else str(row["first_segment"])),
}
"""By title: the width of a terminal from which on it is shown, and its text."""


def _behind(row: Row) -> str:
    if row["slowest_consumer"] is None:
        return "-"
    name = printable(row["slowest_consumer"])
    return f"{name if len(name) <= CONSUMER_WIDTH else name[: CONSUMER_WIDTH - 1] + '…'} {row['waiting_records']:,}"


@command()
@argument(
    "logs",
    nargs=-1,
    required=True,
    metavar="LOG...",
    type=LOG,
    shell_complete=urls,
    help=f"{LOG_HELP} Several are shown together; NAME=URL gives one a name.",
)
@click.option(
    "--token-file",
    multiple=True,
    type=FILE,
    metavar="[NAME=]FILE",
    help="Token of the services (default: MRECORDLOG_TOKEN_FILE); with NAME=, that of NAME=URL; may be repeated.",
)
@click.option("--interval", type=TIME, default="1s", help="Time between samples (default: 1s).")
@click.option("--sort", type=click.Choice(list(SORTS)), default="in/s", help="Order of the table (default: in/s).")
@click.option("--once", is_flag=True, help="Print one sample, after one interval, and stop.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per sample.")
def top(
    logs: tuple[str, ...], token_file: tuple[str, ...], interval: float, sort: str, once: bool, as_json: bool
) -> int:
    """Watch the queues of one log or several: records in and out, sizes, ages, retained segments.

    On a terminal it redraws a table that fits it until you press q (needs rich); other keys sort. If the output is not
    a terminal, or with --json, it prints a sample every interval. For a directory it shows queues and positions, even
    while another process writes to it; for a service it also shows memory, disk and commit times. A service that cannot
    be reached stays on the screen, with the time since when.

      mrecordlog top http://127.0.0.1:8080
      mrecordlog top http://wal-0:8080 http://wal-1:8080
      mrecordlog top a=http://wal-0:8080 b=http://wal-1:8080 --token-file a=./token-a --token-file b=./token-b
      mrecordlog top ./wal --interval 5
      mrecordlog top ./wal --once --json | jq .queues
    """
    if interval <= 0:
        raise UsageError("--interval must be above 0: a sample needs some time to show rates")
    return asyncio.run(_watch(logs, token_file, interval, ORDERS[SORTS[sort]], once, as_json))


async def _watch(
    logs: Sequence[str], token_files: Sequence[str], interval: float, order: Order, once: bool, as_json: bool
) -> int:
    async with AsyncExitStack() as stack:
        sources = await _open(logs, token_files, stack)
        await _sample(sources, first=True)
        screen = None if as_json or once else _screen(sources, order, stack)
        while True:
            if screen is None:
                await asyncio.sleep(interval)
            elif await screen.stopped_within(interval):
                return FINE
            await _sample(sources)
            if screen is not None:
                screen.draw()
            elif as_json:
                sys.stdout.writelines(json.dumps(source.facts()) + "\n" for source in sources)
            else:
                sys.stdout.writelines(lines(sources, order))
            sys.stdout.flush()
            if once:
                return FINE


async def _open(logs: Sequence[str], token_files: Sequence[str], stack: AsyncExitStack) -> list[Source]:
    """Return the logs of the command line, each service with the token that is given for it."""
    found = {log: re.match(r"([^=:/]+)=(?=[a-z])", log) if is_service(log) else None for log in logs}
    names = {log: match[1] if match else "" for log, match in found.items()}
    tokens = _read_tokens(token_files, {*names.values()})
    sources = []
    for log, name in names.items():
        if not is_service(log):
            sources.append(Source(log, partial(asyncio.to_thread, _read, log)))
            continue
        url = log.removeprefix(f"{name}=")
        client = connect_to(url, tokens.get(name, tokens.get("")), RETRY_SECONDS)
        connected = await stack.enter_async_context(client)
        sources.append(Source(name or url, partial(_ask, connected)))
    return sources


def _read_tokens(given: Sequence[str], names: Collection[str]) -> dict[str, str]:
    """Return the tokens by the name of the service, "" for that of all others. Raises TokenFileError."""
    from mrecordlog_async.tokens import read_named_tokens, read_token

    found = read_named_tokens(given, names, lambda name: f"no LOG is {name}=http://host:port", "all services")
    if "" not in found and (default := os.environ.get("MRECORDLOG_TOKEN_FILE")):
        found[""] = read_token(default)
    return found


async def _sample(sources: Sequence[Source], *, first: bool = False) -> None:
    """Take a sample of every log at once; one that cannot be reached keeps nobody waiting past its retry.

    Raises the error of the first samples if no log can be reached: most likely the address is wrong.
    """
    from mrecordlog_async.errors import RecordLogError

    results = await asyncio.gather(*(source.take() for source in sources), return_exceptions=True)
    for source, result in zip(sources, results, strict=True):
        if isinstance(result, Sample):
            source.add(time.monotonic(), result)
        elif isinstance(result, RecordLogError | OSError):
            source.fail(str(getattr(result, "reason", result)), time.strftime("%H:%M:%S"))
        else:
            raise result
    if first and isinstance(results[0], BaseException) and all(source.lost_since for source in sources):
        raise results[0]


async def _ask(client: RecordLogClient) -> Sample:
    """Take a sample of one service; of very many queues, the largest."""
    stats = await client.stats()
    if stats.usage.queues > QUEUES_MAX:
        return Sample([*(await client.summary(order="bytes", limit=QUEUES_MAX)).values()], (), stats)
    behind = [(one.queue, one.consumer, one.records) for one in await client.all_consumers()]
    return Sample([*(await client.summary()).values()], behind, stats)


def _read(directory: str) -> Sample:
    from mrecordlog_async.readonly import ReadOnlyLog

    with ReadOnlyLog.open(directory, keep_records=False) as log:
        queues = log.summary()
        behind = [
            (name, consumer, queue.next_position - state.position)
            for name, queue in queues.items()
            for consumer, state in log.state_of(name).consumer_states()
        ]
    return Sample([*queues.values()], behind, None)


class Source:
    """One log: its newest sample, and each queue's rates. Queues are identified by id, not by name."""

    def __init__(self, name: str, take: Callable[[], Awaitable[Sample]]) -> None:
        self.name = name
        self.take = take
        self.rows: dict[int, Row] = {}
        self.stats: StatsResponse | None = None
        self.lost_since: str | None = None
        """Local time of the first sample that failed since the last one that did not."""
        self.error = ""
        self._at: float | None = None

    def add(self, at: float, sample: Sample) -> None:
        """Add the next sample, of a moment of a monotonic clock."""
        seconds = at - self._at if self._at is not None else 0.0
        slowest: dict[str, tuple[int, str]] = {}
        for queue, consumer, records in sample.behind:
            slowest[queue] = max(slowest.get(queue, (-1, "")), (records, consumer))
        self.rows = {
            queue.id: _row(queue, slowest.get(queue.queue, (None, None)), self.rows.get(queue.id), seconds)
            for queue in sample.queues
        }
        self._at, self.stats = at, sample.stats
        self.lost_since, self.error = None, ""

    def fail(self, error: str, now: str) -> None:
        """Note that a sample could not be taken at *now*; the last one stays, without rates."""
        self.lost_since, self.error = self.lost_since or now, error
        for row in self.rows.values():
            row["in_per_second"] = row["out_per_second"] = 0.0

    def facts(self) -> Row:
        """Return the newest sample for JSON."""
        facts: Row = {"source": self.name}
        if self.lost_since is not None:
            return facts | {"state": "unreachable", "since": self.lost_since, "error": self.error, "queues": []}
        if self.stats is not None:
            usage, commits = self.stats.usage, self.stats.last_minute.commit_seconds
            facts |= {"state": self.stats.state, "segments": usage.segments}
            facts |= {"commit_seconds": {"p50": commits.p50, "p99": commits.p99}}
            facts |= {name: dict(zip(("bytes", "limit_bytes"), self.used(name), strict=True)) for name in BARS}
            facts["disk_only_bytes"] = usage.disk_only_bytes
        return facts | {"queues": sorted(self.rows.values(), key=ORDERS["i"].key)}

    def used(self, name: str) -> tuple[int, int]:
        """Return what is in use of memory, the disk or the waiting records, and the limit."""
        assert self.stats is not None, "only a service has it"
        return getattr(self.stats.usage, f"{name}_bytes"), getattr(self.stats.usage, f"{name}_limit_bytes")

    def head(self) -> str:
        """Return the state of the log in a line; its parts are two spaces apart."""
        if self.lost_since is not None:
            return f"{self.name}  unreachable since {self.lost_since}: {self.error}"
        if (stats := self.stats) is None:
            return f"{self.name}  directory"
        commits = stats.last_minute.commit_seconds
        times = f"commit p50 {_time(commits.p50)}, p99 {_time(commits.p99)}"
        more = [f"policy {stats.policy}"] if stats.policy else []
        more += [f"up {age(stats.uptime_seconds)}"] if stats.uptime_seconds else []
        return "  ".join([self.name, stats.state, plural(stats.usage.segments, "segment"), times, *more, *_note(stats)])


def _row(queue: QueueSummary, slowest: tuple[int | None, str | None], before: Row | None, seconds: float) -> Row:
    first, following = queue.first_position, queue.next_position
    rates = (0.0, 0.0)
    if before is not None and seconds > 0:
        came, went = following - before["next_position"], first - before["first_position"]
        rates = max(came, 0) / seconds, max(went, 0) / seconds
    return {
        "queue": queue.queue,
        "id": queue.id,
        "first_position": first,
        "next_position": following,
        "records": queue.records,
        "bytes": queue.bytes,
        "first_segment": queue.first_segment,
        "oldest_seconds": queue.age_seconds,
        "slowest_consumer": slowest[1],
        "waiting_records": slowest[0],
        "in_per_second": rates[0],
        "out_per_second": rates[1],
    }


def _note(stats: StatsResponse) -> list[str]:
    """Return the most important problem, as the page shows it at its top."""
    damaged = stats.damaged.get("segment")
    if stats.failure is not None:
        return [stats.failure]
    if stats.under_way_seconds > 1:
        return [f"the disk has not finished a commit for {stats.under_way_seconds:.1f} s"]
    return [f"reads that met damaged records on the disk: {damaged}"] if damaged else []


def _time(seconds: float | None) -> str:
    if seconds is None:
        from mrecordlog_async.metrics import SECONDS_BOUNDS

        return f"> {SECONDS_BOUNDS[-1]:.0f} s"
    if not seconds:
        return "-"  # nothing was committed
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 0.001 else f"{seconds * 1e6:.0f} µs"


def lines(sources: Iterable[Source], order: Order) -> Iterator[str]:
    """Yield the newest samples as lines of text, the queues of each log in this order."""
    for source in sources:
        yield source.head() + "\n"
        if source.lost_since is None:
            rows = [[text(row) for _, text in COLUMNS.values()] for row in sorted(source.rows.values(), key=order.key)]
            yield from columns([list(COLUMNS), *rows])


def picture(sources: Sequence[Source], order: Order, width: int, height: int) -> RenderableType:
    """Draw the newest samples for a terminal of *width* columns; rows that do not fit into *height* are left out."""
    from rich.console import Group
    from rich.text import Text

    heads = [Text(source.head(), style="bold red" if source.lost_since else "bold") for source in sources]
    rows = sorted(
        ((source.name, row) for source in sources for row in source.rows.values()), key=lambda r: order.key(r[1])
    )
    came, went = (sum(row[name] for _, row in rows) for name in ("in_per_second", "out_per_second"))
    known = max(sum(source.stats.usage.queues for source in sources if source.stats is not None), len(rows))
    totals = f"{known:,} queues  {size(sum(row['bytes'] for _, row in rows))}  in {came:,.0f}/s  out {went:,.0f}/s"
    bars = _bars(sources[0]) if len(sources) == 1 and sources[0].stats is not None else []
    keys = Text(KEYS, style="dim")
    parts: list[RenderableType] = [*heads, *bars, Text(totals), keys]
    return Group(*parts, _table(rows[:height], order, width, several=len(sources) > 1))


def _bars(source: Source) -> list[RenderableType]:
    from rich.columns import Columns
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    assert source.stats is not None, "only a service has limits"
    bars: list[RenderableType] = []
    for name in BARS:
        used, limit = source.used(name)
        share = used / limit if limit else 0.0
        # Where records leave memory, it is full by design.
        is_fine = share <= 0.7 or (name == "memory" and source.stats.beyond_memory == "disk")
        colour = "green" if is_fine else "red" if share > 0.9 else "yellow"
        only = source.stats.usage.disk_only_bytes if name == "memory" else 0
        more = f", and {size(only)} on the disk only" if only else ""
        bar = ProgressBar(max(limit, 1), used, BAR_WIDTH, complete_style=colour, finished_style=colour)
        bars.append(Columns([f"{name:<8}", bar, Text(f"{size(used)} of {size(limit)}{more}")]))
    return bars


def _table(rows: Sequence[tuple[str, Row]], order: Order, width: int, *, several: bool) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    used = {title: text for title, (least, text) in COLUMNS.items() if width >= least or title == order.column}
    table = Table(expand=True, box=None, header_style="dim", padding=(0, 1, 0, 0))
    if several:
        table.add_column("server", no_wrap=True)
    for title, text in used.items():
        # A number that is cut would be read as another one.
        widest = max([len(title), *(len(text(row)) for _, row in rows)]) if title != "queue" else 16
        mark = Text(f"{title} ▼", style="bold") if title == order.column else Text(title)
        is_name = title == "queue"
        table.add_column(
            mark, justify="left" if is_name else "right", no_wrap=True, min_width=widest, ratio=2 if is_name else None
        )
    for name, row in rows:
        # Cells are Text, not markup: a name such as "[bold]" is shown unchanged.
        table.add_row(*([Text(name)] if several else []), *(Text(text(row)) for text in used.values()))
    return table


def _screen(sources: Sequence[Source], order: Order, stack: AsyncExitStack) -> _Screen | None:
    """Return rich's full-screen display, None where lines are to be printed."""
    if not sys.stdout.isatty():
        return None
    try:
        from rich.live import Live
    except ModuleNotFoundError:
        return None
    live = Live(screen=True, auto_refresh=False)
    if live.console.is_dumb_terminal:  # rich shows nothing there
        return None
    screen = _Screen(live, sources, order)
    # Otherwise SIGTERM would leave the terminal as `top` needs it: without a cursor, and without an echo.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, screen.stopped.set)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTSTP, screen.suspend)
    stack.callback(screen.return_terminal)
    screen.take_terminal()
    return screen


class _Screen:
    """The terminal: shows the picture, and follows the keys."""

    def __init__(self, live: Any, sources: Sequence[Source], order: Order) -> None:
        self.stopped = asyncio.Event()
        self._live, self._sources, self._order = live, sources, order
        self._terminal = ExitStack()

    async def stopped_within(self, seconds: float) -> bool:
        """Wait for the next sample; return whether the person wants to stop."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.stopped.wait()
        return self.stopped.is_set()

    def take_terminal(self) -> None:
        """Draw on the whole terminal, and read keys, until `return_terminal`."""
        self._terminal.enter_context(_keys(self.press))  # first: it discards what was typed before
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
                width, height = self._live.console.size
                self._live.update(picture(self._sources, self._order, width, height), refresh=True)
                return
        self.stopped.set()

    def press(self, key: str) -> None:
        """Do what *key* means, "" for a terminal that was closed; other keys do nothing."""
        if key in ("q", ""):
            self.stopped.set()
        elif key in ORDERS:
            self._order = ORDERS[key]
            self.draw()


@contextmanager
def _keys(press: Callable[[str], None]) -> Iterator[None]:
    """Call *press* with each character that is typed, without waiting for Enter; afterwards the terminal is as before.

    Nothing is read if standard input is not a terminal.
    """
    if sys.stdin is None or not sys.stdin.isatty():  # None: it was closed when the process began
        yield
        return
    import termios
    import tty

    descriptor, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)  # Ctrl-C still interrupts

    def read() -> None:
        typed = b""
        with suppress(OSError):  # hung up, which the terminal of another session reports so
            typed = os.read(descriptor, 64)
        if not typed:
            loop.remove_reader(descriptor)  # a closed terminal is always ready to be read
            press("")
        for key in typed.decode(errors="replace") if not typed.startswith(b"\x1b") else ():  # an arrow is no key here
            press(key)

    loop.add_reader(descriptor, read)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        with suppress(termios.error):  # it was closed
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
