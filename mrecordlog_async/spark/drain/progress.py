"""Reports of a drain: one line per batch, and a summary at the end."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class Line(str):
    """A line for people, with the same facts for programs."""

    facts: Mapping[str, Any]

    @classmethod
    def of(cls, text: str, facts: Mapping[str, Any]) -> Line:
        """Return *text* with *facts*."""
        line = cls(text)
        line.facts = facts
        return line


@dataclass(slots=True)
class DrainProgress:
    """Progress of a query so far, from Spark's progress reports.

    held: sentences about logs that are held back. down: servers that are skipped until they respond → the reason.
    last_commit: when a batch with records was last reported, in seconds since 1970; None if there was none.
    request_retries: of the data source's process that plans batches; tasks do not report theirs.
    """

    batches: int = 0
    records: int = 0
    rate: float = 0.0
    lag: dict[str, int] = field(default_factory=dict)
    held: list[str] = field(default_factory=list)
    down: dict[str, str] = field(default_factory=dict)
    newest: int = -1  # the last batch that counts; Spark repeats its reports, in the order of the batches
    bytes: int = 0
    request_retries: int = 0
    task_retries: int = 0
    last_commit: float | None = None
    last_job: int = -1  # of Spark, whose failed tasks are counted
    ended: bool = False  # the data source has read what there was when a run began that ends
    _planned_bytes: int = 0
    _outages: set[str] = field(default_factory=set)
    _counted: int = 0  # the retries that the process had reported at the last report

    def add(self, report: Mapping[str, Any]) -> bool:
        """Add one of Spark's progress reports; return whether it is a new batch with records."""
        facts = reported(report["sources"][0].get("latestOffset"))
        if "logs" not in facts or "waiting" in facts:  # an offset alone says nothing about that: see `note`
            self._update(facts)
        batch, records = report["batchId"], report["numInputRows"]
        if batch <= self.newest or not records:
            return False
        self.newest = batch
        self.batches += 1
        self.records += records
        self.bytes += facts.get("bytes", 0)
        self.last_commit = time.time()
        self.rate = report.get("processedRowsPerSecond") or 0.0
        return True

    def note(self, said: str | None) -> None:
        """Add what the data source *said* with the latest report, whether that has records or not."""
        facts = reported(said)
        self._update(facts)
        self.ended = facts.get("ended", False)
        planned = facts.get("planned_bytes", 0)  # of one process, which ends with the query
        self.bytes += max(0, planned - self._planned_bytes)
        self._planned_bytes = max(planned, self._planned_bytes)
        count = facts.get("retries", 0)
        # A count of the data source's process: it begins at 0 again with every process.
        self.request_retries += count - self._counted if count >= self._counted else count
        self._counted = count

    def _update(self, facts: Mapping[str, Any]) -> None:
        """Bring lag and servers up to date with what the data source said."""
        self.lag = dict(facts.get("waiting", {}))
        self.held, self.down = list(facts.get("held", ())), dict(facts.get("down", {}))

    def outages(self) -> list[Line]:
        """Return a line for each server that went down or responds again since the last call."""
        gone, back = self.down.keys() - self._outages, self._outages - self.down.keys()
        self._outages = set(self.down)
        lines = [(name, f"is down, the others continue: {self.down[name]}") for name in sorted(gone)]
        lines += [(name, "responds again") for name in sorted(back)]
        return [Line.of(f"server {name!r} {what}", {"server": name, "message": what}) for name, what in lines]

    def line(self) -> Line:
        """Return one line for the user."""
        lag = ", ".join(f"{server} {count:,}" for server, count in self.lag.items())
        text = f"batch {self.batches}: {self.records:,} records, {self.rate:,.0f} records/s, lag: {lag or 'none'}"
        facts = {"batch": self.batches, "records": self.records, "rate": round(self.rate), "lag": self.lag}
        if self.down:
            text, facts = f"{text}; DOWN: {', '.join(self.down)}", facts | {"down": self.down}
        if self.held:
            text, facts = f"{text}; HELD BACK: {'; '.join(self.held)}", facts | {"held": self.held}
        return Line.of(text, facts)


@dataclass(frozen=True, slots=True)
class Summary:
    """End of a drain."""

    batches: int  # batches with records
    records: int  # rows that were stored
    seconds: float  # duration of the run
    left: dict[str, int]  # records still in the subscribed queues, by server
    down: dict[str, str]  # servers that were not drained because they were down, with the reason
    # The rows are known to be durable in the output: each batch is a transaction of its table
    verified: bool = False
    held: dict[str, str] = field(default_factory=dict)  # servers whose log is held back, with the reason

    def line(self) -> str:
        """Return one line for the user."""
        rate = self.records / self.seconds if self.seconds else 0.0
        left = ", ".join(f"{server} {count:,}" for server, count in self.left.items())
        text = f"drained {self.records:,} records in {self.seconds:.1f} s ({rate:,.0f} records/s)"
        text += ", durable in the output" if self.verified else ""
        text += f"; left in the log: {left}" if self.left else ""
        text += "".join(f"; NOT drained: server {server!r} was down" for server in self.down)
        return text + "".join(f"; NOT drained: server {server!r}: {why}" for server, why in self.held.items())


def reported(latest: str | dict[str, Any] | None) -> dict[str, Any]:
    """Return what the data source reported about itself (`LogStreamReader.reportLatestOffset`), as text or as JSON."""
    found = json.loads(latest) if isinstance(latest, str) and latest else latest
    return found if isinstance(found, dict) else {}
