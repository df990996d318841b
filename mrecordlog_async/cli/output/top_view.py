"""Screen of `top`: a table for a terminal of any size, or lines of text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from mrecordlog_async.cli.output.text import columns, plural, printable, size
from mrecordlog_async.cli.output.top_samples import ORDERS, History, QueueRates, ServiceFacts, SlowestConsumer
from mrecordlog_async.metrics import SECONDS_BOUNDS
from mrecordlog_async.quantities import age

if TYPE_CHECKING:
    from rich.console import RenderableType

SPARKS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 30
BAR_WIDTH = 24
KEYS = "q quit  sort: " + "  ".join(f"{key} {order.column}" for key, order in ORDERS.items()) + "  ↑↓ scroll"
NAME_WIDTH_MIN = 16
CONSUMER_WIDTH = 16
SOURCE_WIDTH = 24


class Column(NamedTuple):
    """A column of the table. It is left out on terminals that are narrower than min_width."""

    name: str
    text: Callable[[QueueRates], str]
    min_width: int = 0


COLUMNS = (
    Column("queue", lambda line: printable(line.summary.queue)),
    Column("first", lambda line: str(line.summary.first_position), 100),
    Column("next", lambda line: str(line.summary.next_position), 85),
    Column("records", lambda line: str(line.summary.records)),
    Column("bytes", lambda line: size(line.summary.bytes)),
    Column("in/s", lambda line: f"{line.in_rate:,.0f}"),
    Column("out/s", lambda line: f"{line.out_rate:,.0f}"),
    Column("oldest", lambda line: age(line.summary.age_seconds), 70),
    Column("consumer behind", lambda line: _behind(line.behind), 110),
    Column(
        "keeps from", lambda line: "-" if line.summary.first_segment is None else str(line.summary.first_segment), 95
    ),
)
SPARK_MIN_WIDTH = 140


@dataclass(slots=True)
class View:
    """Choices of the person at the terminal: an order, and the number of rows that are scrolled away."""

    order: str = "i"
    scrolled: int = 0


def plain(histories: Sequence[History], order: str = "i") -> Iterator[str]:
    """Yield the newest samples as lines of text, the queues of each log in this order."""
    for history in histories:
        yield _head(history) + "\n"
        if history.lost_since is None:
            rows = [
                tuple(column.text(line) for column in COLUMNS)
                for line in sorted(history.lines(), key=ORDERS[order].key)
            ]
            yield from columns([tuple(column.name for column in COLUMNS), *rows])


def render(histories: Sequence[History], view: View, width: int, height: int) -> RenderableType:
    """Draw the newest samples for a terminal of *width* columns and *height* lines."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = []
    for history in histories:
        lost = history.lost_since is not None
        parts += [_cut(text, width, "bold red" if lost else "bold") for text in _folded(_head(history), width)]
        if len(histories) == 1 and not lost and history.sample is not None and history.sample.service is not None:
            parts += _bars(history.sample.service, width)
    lines = sorted((line for history in histories for line in history.lines()), key=ORDERS[view.order].key)
    parts += [_cut(_totals(histories, lines), width, ""), Text()]
    keys = _folded(KEYS, width)
    rows = max(height - len(parts) - len(keys) - 2, 1)  # the header, and what is below
    view.scrolled = max(min(view.scrolled, len(lines) - rows), 0)
    shown = lines[view.scrolled : view.scrolled + rows]
    parts.append(_table(shown, view, width, several=len(histories) > 1))
    below = len(lines) - view.scrolled - len(shown)
    parts.append(_cut(f"… {below:,} more below" if below else "", width, "dim"))
    parts += [_cut(text, width, "dim") for text in keys]
    return Group(*parts)


def spark(values: list[float]) -> str:
    """Return *values* as a row of bars, the newest at the right. If there are many, several samples share a bar."""
    step = -(-len(values) // SPARK_WIDTH) or 1
    grouped = [max(values[max(end - step, 0) : end]) for end in range(len(values), 0, -step)][::-1]
    top = max([*grouped, 1.0])
    return "".join(SPARKS[min(int(value / top * len(SPARKS)), len(SPARKS) - 1)] for value in grouped)


def _table(lines: list[QueueRates], view: View, width: int, *, several: bool) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    chosen = ORDERS[view.order].column
    used = [column for column in COLUMNS if width >= column.min_width or column.name == chosen]
    table = Table(expand=True, box=None, header_style="dim", padding=(0, 1, 0, 0))
    if several:
        table.add_column(
            "server", no_wrap=True, min_width=max(len(_short(line.source)) for line in lines) if lines else 0
        )
    for column in used:
        title = Text(f"{column.name} ▼", style="bold") if column.name == chosen else Text(column.name)
        if column.name == "queue":
            table.add_column(title, no_wrap=True, overflow="ellipsis", ratio=2, min_width=NAME_WIDTH_MIN)
        else:
            # A number that is cut would be read as another one.
            table.add_column(title, justify="right", no_wrap=True, min_width=_widest(column, lines))
    sparks = width >= SPARK_MIN_WIDTH
    if sparks:
        table.add_column("last minute", justify="right", no_wrap=True)
    for line in lines:
        # Cells are Text, not markup: a name such as "[bold]" is shown unchanged.
        cells = [Text(_short(line.source))] if several else []
        cells += [Text(column.text(line)) for column in used]
        table.add_row(*cells, *([Text(spark(list(line.past)), style="cyan")] if sparks else []))
    return table


def _widest(column: Column, lines: list[QueueRates]) -> int:
    return max([len(column.name), *(len(column.text(line)) for line in lines)])


def _bars(service: ServiceFacts, width: int) -> list[RenderableType]:
    from rich.text import Text

    bars: list[RenderableType] = []
    cells = min(BAR_WIDTH, width // 4)
    for name, (used, limit) in (("memory", service.memory), ("disk", service.disk), ("waiting", service.pending)):
        share = min(used / limit, 1.0) if limit else 0.0
        filled = round(share * cells)
        colour = "red" if share > 0.9 else "yellow" if share > 0.7 else "green"
        more = ""
        if name == "memory" and service.spills:
            colour, more = "green", f", and {size(service.disk_only)} on the disk only" if service.disk_only else ""
        bar = Text("█" * filled, style=colour) + Text("░" * (cells - filled), style="dim")
        line = Text(f"{name:<8}") + bar + Text(f" {size(used)} of {size(limit)}{more}")
        line.truncate(width, overflow="ellipsis")
        bars.append(line)
    return bars


def _cut(text: str, width: int, style: str) -> RenderableType:
    from rich.text import Text

    return Text(text if len(text) <= width else text[: max(width - 1, 0)] + "…", style=style, no_wrap=True)


def _folded(text: str, width: int) -> list[str]:
    """Return *text* in as many lines as it needs, broken only between its parts, which two spaces separate."""
    lines: list[str] = []
    for part in text.split("  "):
        if lines and len(lines[-1]) + 2 + len(part) <= width:
            lines[-1] += "  " + part
        else:
            lines.append(part)
    return lines


def _short(source: str) -> str:
    """Return the end of *source*, in which addresses and directories differ."""
    name = source.removeprefix("http://").removeprefix("https://")
    return name if len(name) <= SOURCE_WIDTH else "…" + name[1 - SOURCE_WIDTH :]


def _head(history: History) -> str:
    if history.lost_since is not None:
        return f"{history.source}  unreachable since {history.lost_since}: {history.error}"
    service = history.sample.service if history.sample is not None else None
    if service is None:
        return f"{history.source}  directory"
    times = f"commit p50 {_time(service.commit_p50)}, p99 {_time(service.commit_p99)}"  # of the last minute
    more = [f"policy {service.policy}"] if service.policy else []
    more += [f"up {age(service.uptime)}"] if service.uptime else []
    more += [service.note] if service.note else []
    return "  ".join([history.source, service.state, plural(service.segments, "segment"), times, *more])


def _totals(histories: Sequence[History], lines: list[QueueRates]) -> str:
    came, went = sum(line.in_rate for line in lines), sum(line.out_rate for line in lines)
    services = [one.sample.service for one in histories if one.sample is not None and one.sample.service is not None]
    known = max(sum(one.queues for one in services), len(lines))
    left_out = f" (the {len(lines):,} largest are shown)" if known > len(lines) else ""
    held = sum(line.summary.bytes for line in lines)
    return f"{known:,} queues{left_out}  {size(held)}  in {came:,.0f}/s  out {went:,.0f}/s"


def _behind(behind: SlowestConsumer | None) -> str:
    if behind is None:
        return "-"
    name = printable(behind.consumer)
    return f"{name if len(name) <= CONSUMER_WIDTH else name[: CONSUMER_WIDTH - 1] + '…'} {behind.records:,}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return f"> {SECONDS_BOUNDS[-1]:.0f} s"
    if not seconds:
        return "-"  # nothing was committed
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 0.001 else f"{seconds * 1e6:.0f} µs"
