"""Counters that the log keeps, and the table of what is reported of a log. This module depends on no exporter.

The counters are updated once per batch, never once per append, so that appends pay nothing for them. Prometheus
and `/v1/stats` read the same rows: a number that is not in the table is not reported.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from mrecordlog_async.model import LastEnd


def _doubling(first: float, steps: int) -> tuple[float, ...]:
    return tuple(first * 2**step for step in range(steps))


SECONDS_BOUNDS = _doubling(50e-6, 21)
"""Upper bounds for durations: 50 µs, doubling to 52 s. A disk that takes 3 s must not look like one that takes 30 s."""
COUNT_BOUNDS = _doubling(1, 18)
BYTES_BOUNDS = _doubling(256, 20)
VISIBLE_BOUNDS = _doubling(0.1, 21)
"""Upper bounds for the time until a consumer has a record: 0.1 s, as exact as times are kept, to 29 hours."""

CONSUMERS_COUNTED = 100
"""As many consumers have their own histograms; the others share one."""


@dataclass(slots=True)
class Histogram:
    """Numbers of values in buckets, and the sum of all values.

    Attributes:
        bounds: Upper bound of each bucket, ascending.
        counts: Number of values in each bucket; one more bucket holds the values above the last bound.
        sum: Sum of all values.
    """

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    sum: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        """Count *value* this many *times*."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def copy(self) -> Histogram:
        """Return a copy that no longer changes."""
        return Histogram(self.bounds, self.counts.copy(), self.sum)

    def since(self, before: Histogram) -> Histogram:
        """Return what was counted since the copy *before* was made."""
        counts = [now - then for now, then in zip(self.counts, before.counts, strict=True)]
        return Histogram(self.bounds, counts, self.sum - before.sum)

    @property
    def count(self) -> int:
        """Number of observed values."""
        return sum(self.counts)

    def quantile(self, fraction: float) -> float:
        """Return an upper estimate of a quantile.

        Args:
            fraction: Which quantile, from 0 to 1: 0.99 for the value that 99 % do not exceed.

        Returns:
            The upper bound of its bucket, infinity if it is above the last bound, or 0 if nothing was observed.
        """
        wanted = fraction * self.count
        if not wanted:
            return 0.0
        seen = 0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            seen += count
            if seen >= wanted:
                return bound
        return inf


def _seconds() -> Histogram:
    return Histogram(SECONDS_BOUNDS)


RECENT_SECONDS = 60.0
RECENT_STEP_SECONDS = 5.0
"""The last minute is up to this much longer."""
RECENT = ("append_seconds", "commit_seconds", "sync_seconds")
"""Histograms of `Counters` that are also kept for the last minute."""


class SegmentPin(NamedTuple):
    """The queue that keeps the oldest segment on the disk.

    Attributes:
        queue: Its name.
        segments: Number of segments from that one up to, but not including, the one being written.
        alone: How many of these no other queue needs. Truncating or deleting the queue frees them.
    """

    queue: str
    segments: int
    alone: int


REFUSED = (
    "memory",
    "disk",
    "queue",
    "space",
    "disk_error",
    "pending",
    "positions",
    "past",
    "too_large",
    "no_queue",
    "queues",
    "consumers",
    "sealed",
    "failed",
    "closed",
    "other",
)
"""Reasons of refusals: a limit of the log (`memory`, `disk`) or of the queue, a full file system (`space`), another
error of the disk before anything was written, too much that waits (`append_soon` only), no positions left, a position
that is taken, a record that can never fit, no such queue, one that cannot be created for the append because of the
limit on `queues` or `consumers`, a sealed one, and a log that failed or was closed."""


DAMAGED = ("segment", "gathered")
"""Files that may be found damaged when records that left memory are read."""


@dataclass(slots=True)
class WorkerCounts:
    """Numbers of the workers that an application runs with its log.

    Attributes:
        running: They run.
        restarting: They raised an error, and are about to be started again.
        failed: They raised errors too often, and are not started again.
        ended: They returned.
        restarts: How often one was started again. The others say how many there are now, by state; this is a counter.
    """

    running: int = 0
    restarting: int = 0
    failed: int = 0
    ended: int = 0
    restarts: int = 0

    def by_state(self) -> dict[str, int]:
        """Return how many are in each state."""
        return {"running": self.running, "restarting": self.restarting, "failed": self.failed, "ended": self.ended}


@dataclass(slots=True)
class Counters:
    """All counters since the log was opened. Times are in seconds, sizes in bytes.

    The marks of an idle log count as syncs only: not as batches, and not in `written_bytes`.

    Attributes:
        appended_records: Records stored.
        appended_bytes: Payload bytes of these.
        truncated_records: Records removed by truncates and deletes.
        dropped_records: The part of these that made room in full queues with `when_full="drop_oldest"`.
        expired_records: The part of these that were older than the `max_age` of their queue.
        duplicates: Appends that repeated stored records and wrote nothing.
        refused: Appends refused, by reason; see `REFUSED`.
        written_bytes: Bytes of all batches, as written to segments.
        commits: Batches stored.
        syncs: Syncs of the log.
        rolls: New segments.
        segments_removed: Segments removed.
        io_errors: Errors of the disk: those after which the log continued, and the one that it failed with.
        damaged: What was found to be damaged when records that had left memory were read: a "segment", so that a reader
            got CorruptionError, or a "gathered" file, which was made again.
        commit_seconds: Time to store a batch, its sync included.
        sync_seconds: Time of a sync. Under `PersistPolicy.always()` a write past the page cache is also the sync: then
            the time of both.
        roll_seconds: Time to store a batch that began a new segment.
        append_seconds: How long appends took: each is counted with the time from the first waiting call of its batch
            to the batch's acknowledgement, so no call took longer. Repeats and appends in the past count, too; appends
            that were refused before they waited do not.
        commit_records: Records per batch; log records for a batch without appends.
        commit_bytes: Bytes per batch, as written.
        consumer_visible_seconds: By consumer, how long records had been stored when it acknowledged them: with a drain,
            how long they took into the table. Each record counts, with a time that is right to 0.1 s. The first
            `CONSUMERS_COUNTED` consumers that acknowledge have their own histograms, and all others share that of "".
        last_minute: The histograms `append_seconds`, `commit_seconds` and `sync_seconds` of the last minute alone, in
            what `stats` of a log returns.
    """

    appended_records: int = 0
    appended_bytes: int = 0
    truncated_records: int = 0
    dropped_records: int = 0
    expired_records: int = 0
    duplicates: int = 0
    refused: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REFUSED, 0))
    written_bytes: int = 0
    commits: int = 0
    syncs: int = 0
    rolls: int = 0
    segments_removed: int = 0
    io_errors: int = 0
    damaged: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DAMAGED, 0))
    commit_seconds: Histogram = field(default_factory=_seconds)
    sync_seconds: Histogram = field(default_factory=_seconds)
    roll_seconds: Histogram = field(default_factory=_seconds)
    append_seconds: Histogram = field(default_factory=_seconds)
    commit_records: Histogram = field(default_factory=lambda: Histogram(COUNT_BOUNDS))
    commit_bytes: Histogram = field(default_factory=lambda: Histogram(BYTES_BOUNDS))
    consumer_visible_seconds: dict[str, Histogram] = field(default_factory=dict)
    last_minute: dict[str, Histogram] = field(default_factory=dict)

    def visible_to(self, consumer: str) -> Histogram:
        """Return the histogram of `consumer_visible_seconds` that counts for *consumer*."""
        counted = self.consumer_visible_seconds
        if (found := counted.get(consumer)) is not None:
            return found
        return counted.setdefault(consumer if len(counted) < CONSUMERS_COUNTED else "", Histogram(VISIBLE_BOUNDS))

    def snapshot(self) -> Counters:
        """Return a copy that no longer changes."""
        return deepcopy(self)


# The table of what is reported.


class Recent:
    """The histograms of the last minute, from copies that are made while the log works.

    Each *now* is of one monotonic clock, in seconds.
    """

    def __init__(self, counters: Counters, now: float) -> None:
        self._counters = counters
        self._kept: deque[tuple[float, dict[str, Histogram]]] = deque([(now, self._copies())])

    def keep(self, now: float) -> bool:
        """Keep a copy if the last is old enough. Returns whether anything was counted since the last one."""
        at, last = self._kept[-1]
        if all(getattr(self._counters, name).counts == last[name].counts for name in RECENT):
            return False
        if now - at >= RECENT_STEP_SECONDS:
            self._kept.append((now, self._copies()))
            while self._kept[1][0] <= now - RECENT_SECONDS:
                self._kept.popleft()
        return True

    def histograms(self, now: float) -> dict[str, Histogram]:
        """Return what was counted in the last minute."""
        base = self._kept[0][1]
        for at, copies in self._kept:
            if at <= now - RECENT_SECONDS:
                base = copies
        return {name: getattr(self._counters, name).since(base[name]) for name in RECENT}

    def _copies(self) -> dict[str, Histogram]:
        return {name: getattr(self._counters, name).copy() for name in RECENT}


class Series(NamedTuple):
    """One number, or one for each value of a label.

    Attributes:
        name: In Prometheus, after `mrecordlog_`; "" for a number that is not there.
        kind: What it is. Rates are made of counters.
        help: Its meaning, for people.
        get: Returns it, from the object that its table is about: a number or a `Histogram`, or a dictionary from the
            values of the label to numbers.
        label: Name of the label, if there is one.
        key: In `/v1/stats`.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    get: Callable[[Any], Any]
    label: str = ""
    key: str = ""

    @property
    def sample(self) -> str:
        """Name of its samples in Prometheus, where counters end in `_total`; not that of a histogram."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


def counted(key: str, name: str, help: str, label: str = "") -> Series:
    """Return the series of a counter. key: the attribute that holds it."""
    return Series(name, "counter", help, attrgetter(key), label, key)


def gauged(key: str, name: str, help: str) -> Series:
    """Return the series of a number that rises and falls. key: the attribute that holds it."""
    return Series(name, "gauge", help, attrgetter(key), "", key)


def timed(key: str, help: str, label: str = "") -> Series:
    """Return the series of a histogram. key: the attribute that holds it."""
    return Series(key, "histogram", help, attrgetter(key), label, key)


COUNTERS = (
    counted("appended_records", "appended_records", "Records stored"),
    counted("appended_bytes", "appended_bytes", "Payload bytes stored"),
    counted("truncated_records", "truncated_records", "Records dropped by truncates and deletes"),
    counted("dropped_records", "", "Records dropped to make room in full queues"),
    counted("expired_records", "expired_records", "Records dropped because they were older than max_age"),
    counted("duplicates", "duplicates", "Appends of records that were already stored"),
    counted("written_bytes", "written_bytes", "Bytes written to segments"),
    counted("commits", "commits", "Batches written"),
    counted("syncs", "syncs", "Syncs of a segment"),
    counted("rolls", "segments_created", "Segments begun after a full one"),
    counted("segments_removed", "segments_removed", "Segments removed"),
    counted("io_errors", "io_errors", "Disk errors"),
    counted("damaged", "damaged_reads", "Reads of records that left memory that found a file damaged", "file"),
    counted("refused", "append_rejected", "Appends refused, each once", "reason"),
    timed("append_seconds", "From the call of an append to its return"),
    timed("commit_seconds", "Time to write and sync a batch"),
    timed("sync_seconds", "Time of a sync; where one call writes and syncs, of both"),
    timed("roll_seconds", "Time of a batch that began a new segment"),
    timed("commit_records", "Records in a batch"),
    timed("commit_bytes", "Bytes in a batch"),
    timed("consumer_visible_seconds", "From the storing of a record to its acknowledgement", "consumer"),
)
"""Of `Counters`."""

USAGE = (
    gauged("memory_bytes", "memory_used_bytes", "Memory of retained records"),
    gauged("memory_limit_bytes", "memory_limit_bytes", "Limit of memory_used_bytes"),
    gauged("disk_bytes", "disk_used_bytes", "Disk space of all files of the log"),
    gauged("disk_written_bytes", "disk_written_bytes", "Disk space that holds data"),
    gauged("disk_limit_bytes", "disk_limit_bytes", "Limit of disk_used_bytes"),
    gauged("pending_bytes", "pending_bytes", "Bytes of calls that wait for the writer"),
    gauged("queues", "queues", "Queues"),
    gauged("segments", "segments", "Segments"),
    gauged("disk_only_bytes", "disk_only_bytes", "Payload bytes of records that left memory"),
    gauged("places_bytes", "places_bytes", "Memory that says where these are on the disk"),
    gauged("gathered_bytes", "gathered_bytes", "Disk space of the files from which these are read"),
)
"""Of `ResourceUsage`."""

UNDER_WAY = Series(
    "under_way_seconds",
    "gauge",
    "Seconds that the commit under way, or other work on the disk, has taken so far",
    attrgetter("inspection.under_way_seconds"),
    key="under_way",
)

STATE = (
    UNDER_WAY,
    gauged("inspection.waiting_seconds", "waiting_seconds", "Seconds that the oldest unfinished call has waited"),
    Series(
        "failed",
        "gauge",
        "1 if a write or sync failed: nothing is stored until the log is opened again",
        lambda log: log.inspection.failure is not None,
    ),
    gauged("inspection.pending_records", "pending_records", "Records that wait for the writer"),
    Series(
        "last_end",
        "gauge",
        "1 for how the opening before this one ended",
        lambda log: {end.value: log.recovery_report.last_end is end for end in LastEnd},
        "end",
    ),
    Series("workers", "gauge", "Workers of the application, by state", lambda log: log.workers.by_state(), "state"),
    counted("workers.restarts", "worker_restarts", "Workers of the application that failed and were started again"),
    Series(
        "beyond_memory",
        "gauge",
        "1 for what happens when memory is full: refuse appends, or have the oldest records leave memory (disk)",
        lambda log: {each: int(log.limits.beyond_memory == each) for each in ("refuse", "disk")},
        "what",
    ),
    counted("recovery_report.unclosed_ends", "unclosed_ends", "Openings of this log that had not been closed"),
    gauged("recovery_report.seconds", "recovery_seconds", "Seconds that opening took"),
    counted("recovery_report.records", "recovered_records", "Records read at opening"),
    counted("recovery_report.bytes", "recovered_bytes", "Payload bytes read at opening"),
    counted("recovery_report.dropped_bytes", "dropped_bytes", "Bytes of a torn tail, discarded at opening"),
)
"""Of the log itself."""

OF_A_QUEUE = (
    gauged("records", "queue_records", "Records retained"),
    gauged("bytes", "queue_bytes", "Payload bytes retained"),
    gauged("first_position", "queue_start_position", "Lowest position not truncated"),
    gauged("next_position", "queue_next_position", "Position of the next record"),
    gauged("age_seconds", "queue_oldest_record_age_seconds", "Age of the oldest record; 0 for an empty queue"),
)
"""Of `QueueSummary`. Only if they are asked for: a log may have a million queues.

A number that it does not have yet becomes a field of it and of `QueueResponse`: `summarize` and `fingerprint` in
`memory/reads` must know it. Refused appends are counted in `engine/intake/refusals`.
"""

OF_A_CONSUMER = (
    gauged("records", "consumer_waiting_records", "Records that a consumer has not acknowledged"),
    gauged("bytes", "consumer_waiting_bytes", "Payload bytes that a consumer has not acknowledged"),
    Series(
        "consumer_waiting_seconds",
        "gauge",
        "Age of the oldest record that a consumer has not acknowledged",
        lambda one: one.oldest_seconds or 0,
        key="oldest_seconds",
    ),
    gauged(
        "skipped", "consumer_skipped_records", "Records truncated before a consumer acknowledged them, since the open"
    ),
    gauged(
        "idle_seconds",
        "consumer_idle_seconds",
        "Seconds since a consumer's holder was seen, 0 while it waits for records; absent if nobody has held it",
    ),
)
"""Of `ConsumerSummary`. A number that is None has no sample."""
