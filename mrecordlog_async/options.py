"""Options of a log and of its queues: when a record counts as stored, and how much may be held."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Literal, NamedTuple, get_args, get_origin, get_type_hints

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


def check_type(name: str, value: object, expected: type) -> None:
    """Raise TypeError unless *value*, which the caller passed as *name*, is an *expected*: a dict, say, is not."""
    if not isinstance(value, expected):
        raise TypeError(f"{name} must be {expected.__name__}, not {type(value).__name__}")


class PersistAction(StrEnum):
    """Meaning of persisting a batch. With either, every batch is written to the operating system at once."""

    FLUSH = "flush"
    """Survives the end of the process (kill -9), not a crash of the machine."""
    FSYNC = "fsync"
    """Survives a crash of the machine and a power failure."""


@dataclass(frozen=True, slots=True)
class PersistPolicy:
    """Time of the acknowledgement of a change, relative to its sync.

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
        """True if a batch is synced before it is acknowledged."""
        return self.kind == "always" and self.action is PersistAction.FSYNC

    @property
    def sync_interval_seconds(self) -> float | None:
        """Seconds between timed syncs, or None without a timer."""
        return self.interval_seconds if self.kind == "interval" and self.action is PersistAction.FSYNC else None


DISK_BYTES = 16 * GIB
"""Default of `Limits.disk_bytes`."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a log. They apply to appends and creates; they never prevent open, truncate or delete.

    Attributes:
        memory_bytes: Retained payloads and their bookkeeping. The default, None, is computed when the log is opened. It
            is half of what remains of the memory of the machine or container after 64 MiB for the process and the
            budgets of a service (280 MiB, or less in proportion below 1 GiB); at most 4 GiB, at least 8 MiB. A log that
            holds more and has beyond_memory="refuse" keeps 4 GiB, with a warning. `log.limits` have the number.
        disk_bytes: Space reserved for segments; one segment takes at most an eighth of it, unless a single call needs
            more. Truncates, deletes and the spare segment kept ready for them may exceed it: by less than a segment,
            unless truncates and deletes alone fill one.
        pending_bytes: Appends that are not stored yet. Above it callers wait, in order.
        record_bytes: One payload; below 2 GiB, and at most pending_bytes.
        name_bytes: The name of a new queue or consumer, or the pattern of a new rule, in UTF-8; at most 65,535.
        queues: The number of queues.
        consumers: The number of consumers of all queues, and of rules that create them.
        beyond_memory: What happens to an append when `memory_bytes` is reached: it is refused ("refuse"), or the oldest
            records leave memory ("disk"). They stay in the log, and are read from the disk: by tails and consumers, and
            with `read` and `fetch`, but not with `range`. Then a segment takes at most a quarter of memory_bytes, and
            records that left memory take twice their size on the disk. The default of memory_bytes is then at most
            disk_bytes.
        on_full: When memory or disk is full, "raise" `LogFullError` or "wait" for space.

    Raises:
        ValueError: A value is outside its range, or memory_bytes is above disk_bytes where records leave memory.
    """

    memory_bytes: int | None = None
    disk_bytes: int = DISK_BYTES
    pending_bytes: int = 128 * MIB
    record_bytes: int = 64 * MIB
    name_bytes: int = 255
    queues: int = 1_000_000
    consumers: int = 1_000_000
    on_full: Literal["raise", "wait"] = "raise"
    beyond_memory: Literal["refuse", "disk"] = "refuse"

    def __post_init__(self) -> None:
        for name in [each.name for each in fields(self) if each.type.startswith("int")]:
            value = getattr(self, name)
            if value is None and name == "memory_bytes":
                continue
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
        if self.beyond_memory not in ("refuse", "disk"):
            raise ValueError(f"beyond_memory must be 'refuse' or 'disk', not {self.beyond_memory!r}")
        # A memory_bytes that was set is not refused for a disk_bytes that was not.
        is_above = self.memory_bytes is not None and self.memory_bytes > self.disk_bytes != DISK_BYTES
        if self.beyond_memory == "disk" and is_above:
            raise ValueError(
                f"memory_bytes ({self.memory_bytes}) is above disk_bytes ({self.disk_bytes}): records could never "
                "leave memory; lower memory_bytes, raise disk_bytes, or use beyond_memory='refuse'"
            )


def memory_limit(limits: Limits) -> int:
    """Return `memory_bytes` of *limits*, which are those of an open log."""
    assert limits.memory_bytes is not None, "the default is computed when the log is opened"
    return limits.memory_bytes


QUEUE_LIMIT_MAX = 2**63 - 1
"""The largest limit of a queue: what is larger means the same as none."""

SECOND_NS = 1_000_000_000


class OptionFacts(NamedTuple):
    """Facts about an option of a queue, besides its name and its type, for every program that shows or reads it.

    help: what it does, for the command line. shown: how a value that is not the default reads; of a limit, `{}` stands
    for its size. unit: of a limit; "" for a choice of two words. unset: what a limit's None is called.
    """

    help: str
    shown: str
    unit: Literal["", "bytes", "records", "seconds"] = ""
    unset: str = "none"


def _about(
    help: str, shown: str, unit: Literal["", "bytes", "records", "seconds"] = "", unset: str = "none"
) -> Mapping[str, OptionFacts]:
    return {"facts": OptionFacts(help, shown, unit, unset)}


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """Options of a queue: how long it keeps its records, and how many.

    Attributes:
        keep: "until_truncated", or "until_acknowledged": records are removed once every consumer of the queue has
            acknowledged them. Nothing is removed while the queue has no consumer.
        max_bytes: Payload bytes that the queue may hold; None for no limit.
        max_records: Records that the queue may hold; None for no limit.
        max_age: Age in seconds at which records are removed; None for no limit.
        when_full: An append beyond max_bytes or max_records is refused with `LogFullError` ("refuse"), or the oldest
            records are removed to make room, until 90 % of the limit is left ("drop_oldest").
        keep_at_least: With "until_acknowledged", the age in seconds up to which records stay although every consumer
            has acknowledged them, to be replayed; None for no longer.

    Raises:
        ValueError: A value is outside its range, or two of them cannot be combined.
    """

    # The fields are the only list of options: the HTTP bodies, `mrecordlog configure`, its output, dumps and the page
    # follow them, and tests/test_options.py tries each of them everywhere. A limit is None by default: a new one is a
    # field here, one in `format/stored_options` (of the same name, or with `_ns` for seconds) and a line of the
    # specification in `format`. A choice has two words, and its flag in `memory/settings`. What limits appends is
    # checked in `engine/planning/limits`, ages in `engine/readers/expiry`.
    keep: Literal["until_truncated", "until_acknowledged"] = field(
        default="until_truncated", metadata=_about("what removes records", "keeps until acknowledged")
    )
    max_bytes: int | None = field(default=None, metadata=_about("limit of its payload bytes", "at most {}", "bytes"))
    max_records: int | None = field(default=None, metadata=_about("limit of its records", "at most {}", "records"))
    max_age: float | None = field(
        default=None, metadata=_about("remove records of this age", "at most {} old", "seconds", "never")
    )
    when_full: Literal["refuse", "drop_oldest"] = field(
        default="refuse", metadata=_about("what happens to an append beyond a limit", "drops the oldest")
    )
    keep_at_least: float | None = field(
        default=None,
        metadata=_about("keep acknowledged records up to this age", "and for {}", "seconds"),
    )

    def __post_init__(self) -> None:
        for name, facts in QUEUE_OPTIONS.items():
            _CHECKS[facts.unit](name, getattr(self, name))
        drops = self.when_full == "drop_oldest"
        if self.keep == "until_acknowledged" and (drops or self.max_age is not None):
            other = "when_full='drop_oldest'" if drops else "max_age"
            raise ValueError(f"keep='until_acknowledged' cannot be combined with {other}: choose one of them")
        if self.keep_at_least is not None and self.keep != "until_acknowledged":
            raise ValueError("keep_at_least needs keep='until_acknowledged': otherwise records stay until a truncate")
        if drops and self.max_bytes is None and self.max_records is None:
            raise ValueError("when_full='drop_oldest' needs max_bytes or max_records")


QUEUE_OPTIONS: Mapping[str, OptionFacts] = {one.name: one.metadata["facts"] for one in fields(QueueOptions)}
"""The options of a queue by name, in order."""

QUEUE_CHOICES: Mapping[str, tuple[str, str]] = {
    name: get_args(kind) for name, kind in get_type_hints(QueueOptions).items() if get_origin(kind) is Literal
}
"""The two words of each option that is a choice; the first is the default."""


def _check_choice(name: str, value: object) -> None:
    words = QUEUE_CHOICES[name]
    if value not in words:
        raise ValueError(f"{name} must be {words[0]!r} or {words[1]!r}, not {value!r}")


def _check_limit(name: str, value: object) -> None:
    if value is not None and (type(value) is not int or not 1 <= value <= QUEUE_LIMIT_MAX):
        raise ValueError(f"{name} must be None or an integer in 1 … {QUEUE_LIMIT_MAX}, not {value!r}")


def _check_seconds(name: str, value: object) -> None:
    if value is None:
        return
    longest = QUEUE_LIMIT_MAX // SECOND_NS
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= QUEUE_LIMIT_MAX / SECOND_NS:
        raise ValueError(f"{name} must be None or seconds above 0 and at most {longest}, not {value!r}")


_CHECKS = {"": _check_choice, "bytes": _check_limit, "records": _check_limit, "seconds": _check_seconds}


SEGMENT_BYTES_MIN = 32_768
"""A segment holds at least one block."""


def check_segment_bytes(segment_bytes: object) -> None:
    """Raise ValueError for a size that no segment can have."""
    if not isinstance(segment_bytes, int) or segment_bytes < SEGMENT_BYTES_MIN:
        raise ValueError(f"segment_bytes must be at least {SEGMENT_BYTES_MIN}, not {segment_bytes!r}")


def check_names(queues: Iterable[str]) -> tuple[str, ...]:
    """Return distinct names of queues; raise TypeError for a single name: each letter would become a queue."""
    if isinstance(queues, str | bytes):
        raise TypeError(f"queues takes an iterable of names, not a single one; pass [{queues!r}]")
    return tuple(dict.fromkeys(queues))


def check_queues(queues: Iterable[str] | Mapping[str, QueueOptions]) -> dict[str, QueueOptions | None]:
    """Return the names with their options; raise TypeError for a single name, or for other options."""
    declared = dict(queues) if isinstance(queues, Mapping) else dict.fromkeys(check_names(queues))
    for queue, options in declared.items():
        if options is not None:
            check_type(f"queues[{queue!r}]", options, QueueOptions)
    return declared
