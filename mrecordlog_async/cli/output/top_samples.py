"""Data of `top`: samples of one log, the rates between them, and since when the log cannot be reached."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from mrecordlog_async.model import QueueSummary

if TYPE_CHECKING:
    from mrecordlog_async.protocol.schemas import StatsResponse

SPARK_SAMPLES = 60


@dataclass(frozen=True, slots=True)
class ServiceFacts:
    """Facts that only a service reports. Pairs are (in use, limit) in bytes; times are seconds."""

    state: str
    memory: tuple[int, int]
    disk: tuple[int, int]
    pending: tuple[int, int]
    segments: int
    commit_p50: float | None  # None: above the last bound of the histogram
    commit_p99: float | None
    uptime: float = 0.0
    policy: str = ""
    note: str = ""
    """A sentence if the log failed, the disk hangs, or reads met damaged records."""
    queues: int = 0
    """Number of queues; a sample of a service with very many has only the largest."""
    disk_only: int = 0
    """Payload bytes of records that left memory."""
    spills: bool = False
    """True if records leave memory where it is full, so that it is full by design."""

    @classmethod
    def of(cls, stats: StatsResponse) -> ServiceFacts:
        """Return the facts in *stats*."""
        usage, commits = stats.usage, stats.last_minute.commit_seconds
        return cls(
            state=stats.state,
            memory=(usage.memory_bytes, usage.memory_limit_bytes),
            disk=(usage.disk_bytes, usage.disk_limit_bytes),
            pending=(usage.pending_bytes, usage.pending_limit_bytes),
            segments=usage.segments,
            commit_p50=commits.p50,
            commit_p99=commits.p99,
            uptime=stats.uptime_seconds,
            policy=stats.policy,
            note=_note(stats),
            queues=usage.queues,
            disk_only=usage.disk_only_bytes,
            spills=stats.beyond_memory == "disk",
        )


def _note(stats: StatsResponse) -> str:
    """Return the most important problem, as the page shows it at its top; "" without any."""
    if stats.failure is not None:
        return stats.failure
    if stats.under_way_seconds > 1:
        return f"the disk has not finished a commit for {stats.under_way_seconds:.1f} s"
    damaged = stats.damaged.get("segment")
    return f"reads that met damaged records on the disk: {damaged}" if damaged else ""


@dataclass(frozen=True, slots=True)
class Sample:
    """The queues at one moment of a monotonic clock."""

    at: float
    queues: list[QueueSummary]
    service: ServiceFacts | None
    slowest: dict[str, SlowestConsumer] = field(default_factory=dict)
    """The consumer of each queue that is furthest behind, if the queue has one."""


class SlowestConsumer(NamedTuple):
    """A consumer, and how far it is behind: records at a service, positions in a directory."""

    consumer: str
    records: int


@dataclass(slots=True)
class QueueRates:
    """A queue with its rates; `past` are the records per second of the last samples."""

    source: str
    summary: QueueSummary
    in_rate: float = 0.0
    out_rate: float = 0.0
    behind: SlowestConsumer | None = None
    past: deque[float] = field(default_factory=lambda: deque(maxlen=SPARK_SAMPLES))


class History:
    """The newest sample of one log, and each queue's rates. Queues are identified by id, not by name."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.sample: Sample | None = None
        self.lost_since: str | None = None
        """Local time of the first sample that failed since the last one that did not."""
        self.error = ""
        self._lines: dict[int, QueueRates] = {}

    def add(self, sample: Sample) -> None:
        """Add the next sample."""
        seconds = sample.at - self.sample.at if self.sample is not None else 0.0
        lines = {}
        for summary in sample.queues:
            line = self._lines.get(summary.id) or QueueRates(self.source, summary)
            if seconds > 0:
                before = line.summary
                line.in_rate = max(summary.next_position - before.next_position, 0) / seconds
                line.out_rate = max(summary.first_position - before.first_position, 0) / seconds
                line.past.append(line.in_rate)
            line.summary = summary
            line.behind = sample.slowest.get(summary.queue)
            lines[summary.id] = line
        self._lines = lines
        self.sample = sample
        self.lost_since, self.error = None, ""

    def fail(self, error: str, now: str) -> None:
        """Note that a sample could not be taken at *now*; the last one stays, without rates."""
        self.lost_since, self.error = self.lost_since or now, error
        for line in self._lines.values():
            line.in_rate = line.out_rate = 0.0

    def lines(self) -> list[QueueRates]:
        """Return all queues, the busiest first, then the largest."""
        return sorted(self._lines.values(), key=ORDERS["i"].key)

    def facts(self) -> dict[str, Any]:
        """Return the newest sample for JSON."""
        facts: dict[str, Any] = {"source": self.source}
        if self.lost_since is not None:
            return facts | {"state": "unreachable", "since": self.lost_since, "error": self.error, "queues": []}
        assert self.sample is not None
        service = self.sample.service
        if service is not None:
            facts["state"] = service.state
            facts["segments"] = service.segments
            facts["commit_seconds"] = {"p50": service.commit_p50, "p99": service.commit_p99}
            for name in ("memory", "disk", "pending"):
                used, limit = getattr(service, name)
                facts[name] = {"bytes": used, "limit_bytes": limit}
            facts["disk_only_bytes"] = service.disk_only
        return facts | {"queues": [_facts(line) for line in self.lines()]}


class Order(NamedTuple):
    """An order of the queues, its key on the keyboard aside: the column that shows it, and what is compared."""

    column: str
    key: Callable[[QueueRates], Any]


def _by(value: Callable[[QueueRates], float]) -> Callable[[QueueRates], Any]:
    """Return a sort key: the largest value first, then the largest queue, then by name."""
    return lambda line: (-value(line), -line.summary.bytes, line.summary.queue)


ORDERS = {
    "i": Order("in/s", _by(lambda line: line.in_rate)),
    "o": Order("out/s", _by(lambda line: line.out_rate)),
    "b": Order("bytes", _by(lambda line: line.summary.bytes)),
    "r": Order("records", _by(lambda line: line.summary.records)),
    "a": Order("oldest", _by(lambda line: line.summary.age_seconds or -1.0)),
    "s": Order("keeps from", _by(lambda line: -_segment(line.summary))),
    "c": Order("consumer behind", _by(lambda line: -1 if line.behind is None else line.behind.records)),
    "n": Order("queue", lambda line: (line.summary.queue, line.source)),
}


def _segment(summary: QueueSummary) -> float:
    return float("inf") if summary.first_segment is None else summary.first_segment


def _facts(line: QueueRates) -> dict[str, Any]:
    summary = line.summary
    return {
        "queue": summary.queue,
        "id": summary.id,
        "first_position": summary.first_position,
        "next_position": summary.next_position,
        "records": summary.records,
        "bytes": summary.bytes,
        "first_segment": summary.first_segment,
        "oldest_seconds": summary.age_seconds,
        "slowest_consumer": line.behind.consumer if line.behind is not None else None,
        "waiting_records": line.behind.records if line.behind is not None else None,
        "in_per_second": line.in_rate,
        "out_per_second": line.out_rate,
    }
