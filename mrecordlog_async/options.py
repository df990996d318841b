"""Options of a log and of its queues: when a record counts as stored, and how much may be held."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


def check_type(name: str, value: object, expected: type) -> None:
    """Raise TypeError unless *value*, which the caller passed as *name*, is an *expected*: a dict, say, is not."""
    if not isinstance(value, expected):
        raise TypeError(f"{name} must be {expected.__name__}, not {type(value).__name__}")


class PersistAction(StrEnum):
    """What persisting a batch means. With either, every batch is written to the operating system at once."""

    FLUSH = "flush"
    """Survives the end of the process (kill -9), not a crash of the machine."""
    FSYNC = "fsync"
    """Survives a crash of the machine and a power failure."""


@dataclass(frozen=True, slots=True)
class PersistPolicy:
    """When a change is acknowledged, relative to its sync.

    | policy | acknowledged after | lost on power failure |
    |---|---|---|
    | `always()` | write and sync | nothing that was acknowledged |
    | `interval(seconds)` | write | at most the batches of the last *seconds*, newest first |
    | `never()` | write | what the operating system had not written yet, newest first |

    `kill -9` loses nothing under any policy. With `action=FLUSH` no policy syncs each batch, or on a timer. The first
    batch of an open log, creating and deleting queues and consumers, attaching to a consumer, options, seals, rolling
    to a new segment, the batch that names dead ones, `sync()` and `close()` always sync the whole log.

    Attributes:
        kind: The policy's name.
        action: What persisting a batch means.
        interval_seconds: Time between two syncs under `interval`; otherwise unused.

    Raises:
        ValueError: The kind or the action is unknown, or `interval` has no time above 0.
    """

    kind: Literal["always", "interval", "never"] = "always"
    action: PersistAction = PersistAction.FSYNC
    interval_seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in ("always", "interval", "never"):
            raise ValueError(f"unknown persist policy {self.kind!r}: always, interval or never")
        if self.kind == "interval" and not self.interval_seconds > 0:
            raise ValueError(f"interval_seconds must be above 0, not {self.interval_seconds}")
        # Callers pass "fsync" as well. It equals the member without being it, and the properties below compare by `is`.
        object.__setattr__(self, "action", PersistAction(self.action))

    @classmethod
    def always(cls, *, action: PersistAction = PersistAction.FSYNC) -> PersistPolicy:
        """Persist every batch before acknowledging it (the default)."""
        return cls("always", action)

    @classmethod
    def interval(cls, seconds: float, *, action: PersistAction = PersistAction.FSYNC) -> PersistPolicy:
        """Acknowledge after the write and persist on a timer.

        Args:
            seconds: Time between two syncs, above 0. Nothing is synced while nothing was written.
            action: What persisting means; with `FLUSH` the timer does not run.
        """
        return cls("interval", action, float(seconds))

    @classmethod
    def never(cls, *, action: PersistAction = PersistAction.FSYNC) -> PersistPolicy:
        """Acknowledge after the write and leave persisting to the operating system."""
        return cls("never", action)

    @property
    def syncs_each_batch(self) -> bool:
        """Whether a batch is synced before it is acknowledged."""
        return self.kind == "always" and self.action is PersistAction.FSYNC

    @property
    def sync_interval_seconds(self) -> float | None:
        """Seconds between timed syncs, or None without a timer."""
        return self.interval_seconds if self.kind == "interval" and self.action is PersistAction.FSYNC else None


_COUNTED_LIMITS = (
    "memory_bytes",
    "disk_bytes",
    "pending_bytes",
    "record_bytes",
    "name_bytes",
    "queues",
    "consumers",
)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much the log may hold. Limits apply to appends and creates; they never prevent open, truncate or delete.

    Attributes:
        memory_bytes: Retained payloads and their bookkeeping.
        disk_bytes: Space reserved for segments; one segment takes at most an eighth of it, unless a single call needs
            more. Truncates, deletes and the spare segment kept ready for them may exceed it: by less than a segment,
            unless truncates and deletes alone fill one.
        pending_bytes: Appends that are not stored yet. Above it callers wait, in order.
        record_bytes: One payload; below 2 GiB, and at most pending_bytes.
        name_bytes: The name of a new queue or consumer, or the pattern of a new rule, in UTF-8; at most 65,535.
        queues: The number of queues.
        consumers: The number of consumers of all queues, and of rules that create them.
        on_full: When memory or disk is full, "raise" `LogFullError` or "wait" for space.

    Raises:
        ValueError: A value is outside its range.
    """

    memory_bytes: int = 4 * GIB
    disk_bytes: int = 16 * GIB
    pending_bytes: int = 128 * MIB
    record_bytes: int = 64 * MIB
    name_bytes: int = 255
    queues: int = 1_000_000
    consumers: int = 1_000_000
    on_full: Literal["raise", "wait"] = "raise"

    def __post_init__(self) -> None:
        for name in _COUNTED_LIMITS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be an integer above 0, not {value!r}")
        if self.record_bytes >= 2 * GIB:
            raise ValueError("record_bytes must be below 2 GiB: offsets inside a run are 32 bits wide")
        if self.pending_bytes < self.record_bytes:
            raise ValueError("pending_bytes must be at least record_bytes, or the largest record could never wait")
        if self.name_bytes > 65_535:
            raise ValueError("name_bytes must be at most 65535: a name's length is 16 bits wide on disk")
        if self.on_full not in ("raise", "wait"):
            raise ValueError(f"on_full must be 'raise' or 'wait', not {self.on_full!r}")


QUEUE_LIMIT_MAX = 2**63 - 1
"""The largest limit of a queue: what is larger means the same as none."""

_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """How long one queue keeps its records, and how many.

    Attributes:
        keep: "until_truncated", or "until_acknowledged": records are removed once every consumer of the queue has
            acknowledged them. Nothing is removed while the queue has no consumer.
        max_bytes: Payload bytes that the queue may hold; None for no limit.
        max_records: Records that the queue may hold; None for no limit.
        max_age: Age in seconds at which records are removed; None for no limit.
        when_full: An append beyond max_bytes or max_records is refused with `LogFullError` ("refuse"), or the oldest
            records are removed to make room, until 90 % of the limit is left ("drop_oldest").

    Raises:
        ValueError: A value is outside its range, or two of them contradict each other.
    """

    keep: Literal["until_truncated", "until_acknowledged"] = "until_truncated"
    max_bytes: int | None = None
    max_records: int | None = None
    max_age: float | None = None
    when_full: Literal["refuse", "drop_oldest"] = "refuse"

    def __post_init__(self) -> None:
        if self.keep not in ("until_truncated", "until_acknowledged"):
            raise ValueError(f"keep must be 'until_truncated' or 'until_acknowledged', not {self.keep!r}")
        if self.when_full not in ("refuse", "drop_oldest"):
            raise ValueError(f"when_full must be 'refuse' or 'drop_oldest', not {self.when_full!r}")
        for name in ("max_bytes", "max_records"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or not 1 <= value <= QUEUE_LIMIT_MAX):
                raise ValueError(f"{name} must be None or an integer in 1 … {QUEUE_LIMIT_MAX}, not {value!r}")
        self._check_age()
        self._check_together()

    def _check_age(self) -> None:
        age = self.max_age
        if age is None:
            return
        if isinstance(age, bool) or not isinstance(age, int | float) or not 0 < age <= QUEUE_LIMIT_MAX / _SECOND_NS:
            longest = QUEUE_LIMIT_MAX // _SECOND_NS
            raise ValueError(f"max_age must be None or seconds above 0 and at most {longest}, not {age!r}")

    def _check_together(self) -> None:
        drops = self.when_full == "drop_oldest"
        if self.keep == "until_acknowledged" and (drops or self.max_age is not None):
            other = "when_full='drop_oldest'" if drops else "max_age"
            raise ValueError(f"keep='until_acknowledged' and {other} contradict each other: choose one of them")
        if drops and self.max_bytes is None and self.max_records is None:
            raise ValueError("when_full='drop_oldest' needs max_bytes or max_records")
