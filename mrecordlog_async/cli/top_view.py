"""What `top` shows: samples with their history, as a table for a terminal, as lines of text, and as facts for JSON."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mrecordlog_async.cli.output import columns, printable, size
from mrecordlog_async.model import QueueSummary

if TYPE_CHECKING:
    from rich.console import RenderableType

SPARKS = "▁▂▃▄▅▆▇█"
SPARK_SAMPLES = 60
SPARK_WIDTH = 30
HEADER = ("queue", "first", "next", "records", "bytes", "in/s", "out/s", "keeps from")
BAR_WIDTH = 24


@dataclass(frozen=True, slots=True)
class Service:
    """What only a service reports. Pairs are (in use, limit) in bytes; times are seconds."""

    state: str
    memory: tuple[int, int]
    disk: tuple[int, int]
    pending: tuple[int, int]
    segments: int
    commit_p50: float
    commit_p99: float


@dataclass(frozen=True, slots=True)
class Sample:
    """All queues at one moment of a monotonic clock."""

    source: str
    at: float
    queues: list[QueueSummary]
    service: Service | None


@dataclass(slots=True)
class Line:
    """A queue with its rates; `past` are the records per second of the last samples."""

    summary: QueueSummary
    in_rate: float = 0.0
    out_rate: float = 0.0
    past: deque[float] = field(default_factory=lambda: deque(maxlen=SPARK_SAMPLES))


class History:
    """The newest sample, and each queue's rates since the sample before. Queues are identified by id, not by name."""

    def __init__(self) -> None:
        self.sample: Sample | None = None
        self._lines: dict[int, Line] = {}

    def add(self, sample: Sample) -> None:
        """Add the next sample."""
        seconds = sample.at - self.sample.at if self.sample is not None else 0.0
        lines = {}
        for summary in sample.queues:
            line = self._lines.get(summary.id) or Line(summary)
            if seconds > 0:
                before = line.summary
                line.in_rate = max(summary.next_position - before.next_position, 0) / seconds
                line.out_rate = max(summary.first_position - before.first_position, 0) / seconds
                line.past.append(line.in_rate)
            line.summary = summary
            lines[summary.id] = line
        self._lines = lines
        self.sample = sample

    def lines(self) -> list[Line]:
        """Return all queues, the busiest first, then the largest."""
        return sorted(self._lines.values(), key=lambda line: (-line.in_rate, -line.summary.bytes, line.summary.queue))

    def facts(self) -> dict[str, Any]:
        """Return the newest sample for JSON."""
        assert self.sample is not None
        service = self.sample.service
        facts: dict[str, Any] = {"source": self.sample.source}
        if service is not None:
            facts["state"] = service.state
            facts["segments"] = service.segments
            facts["commit_seconds"] = {"p50": service.commit_p50, "p99": service.commit_p99}
            for name in ("memory", "disk", "pending"):
                used, limit = getattr(service, name)
                facts[name] = {"bytes": used, "limit_bytes": limit}
        facts["queues"] = [
            {
                "queue": line.summary.queue,
                "id": line.summary.id,
                "first_position": line.summary.first_position,
                "next_position": line.summary.next_position,
                "records": line.summary.records,
                "bytes": line.summary.bytes,
                "first_segment": line.summary.first_segment,
                "in_per_second": line.in_rate,
                "out_per_second": line.out_rate,
            }
            for line in self.lines()
        ]
        return facts


def plain(history: History) -> Iterator[str]:
    """Yield the newest sample as lines of text."""
    assert history.sample is not None
    yield _head(history.sample) + "\n"
    yield from columns([HEADER, *map(_cells, history.lines())])


def render(history: History) -> RenderableType:
    """Draw the newest sample for a terminal."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    sample = history.sample
    assert sample is not None
    table = Table(expand=True, box=None, header_style="dim")
    for index, name in enumerate(HEADER):
        # Cells are Text, not markup: a name such as "[bold]" is shown unchanged.
        table.add_column(name, justify="left" if index == 0 else "right", no_wrap=True)
    table.add_column("last minute", justify="right", no_wrap=True)
    for line in history.lines():
        cells = [Text(cell) for cell in _cells(line)]
        table.add_row(*cells, Text(spark(list(line.past)), style="cyan"))
    parts: list[RenderableType] = [Text(_head(sample), style="bold")]
    if sample.service is not None:
        parts.append(_bars(sample.service))
    return Group(*parts, Text(), table)


def spark(values: list[float]) -> str:
    """Return *values* as a row of bars, the newest at the right. If there are many, several samples share a bar."""
    step = -(-len(values) // SPARK_WIDTH) or 1
    grouped = [max(values[max(end - step, 0) : end]) for end in range(len(values), 0, -step)][::-1]
    top = max([*grouped, 1.0])
    return "".join(SPARKS[min(int(value / top * len(SPARKS)), len(SPARKS) - 1)] for value in grouped)


def _bars(service: Service) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 1))
    for name, (used, limit) in (("memory", service.memory), ("disk", service.disk), ("waiting", service.pending)):
        share = min(used / limit, 1.0) if limit else 0.0
        filled = round(share * BAR_WIDTH)
        colour = "red" if share > 0.9 else "yellow" if share > 0.7 else "green"
        bar = Text("█" * filled, style=colour) + Text("░" * (BAR_WIDTH - filled), style="dim")
        grid.add_row(Text(name), bar, Text(f"{size(used)} of {size(limit)}"))
    return grid


def _head(sample: Sample) -> str:
    service = sample.service
    if service is None:
        return sample.source
    times = f"commit p50 {_time(service.commit_p50)}, p99 {_time(service.commit_p99)}"
    return f"{sample.source}  {service.state}  {service.segments} segments  {times}"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds >= 0.001 else f"{seconds * 1e6:.0f} µs"


def _cells(line: Line) -> tuple[str, ...]:
    summary = line.summary
    segment = "-" if summary.first_segment is None else str(summary.first_segment)
    return (
        printable(summary.queue),
        str(summary.first_position),
        str(summary.next_position),
        str(summary.records),
        size(summary.bytes),
        f"{line.in_rate:,.0f}",
        f"{line.out_rate:,.0f}",
        segment,
    )
