"""Every error the log raises, in one tree under `RecordLogError`.

Facts are attributes and the message is made from them, so that a handler can decide without parsing text. All errors
can be pickled, for Spark tasks and process pools.

The class says what is wrong: the call (`QueueNotFoundError` … `RecordTooLargeError`), the space (`LogFullError`), the
log's state (`LogClosedError`, `LogFailedError`, `LogLockedError`) or the disk's content (`CorruptionError`). A plain
`OSError` stays what it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any


class RecordLogError(Exception):
    """The base class of all errors of this package.

    Attributes:
        facts: The arguments that the error was made from.
    """

    def __init__(self, *facts: Any) -> None:
        super().__init__(*facts)
        self.facts = facts

    def __str__(self) -> str:
        return self.message()

    def message(self) -> str:
        """Return what happened and what to do next."""
        return " ".join(str(fact) for fact in self.facts)

    def copy(self) -> RecordLogError:
        """Return a fresh instance with the same facts: one per waiter, as each collects its own traceback."""
        fresh = type(self)(*self.args)
        fresh.__cause__ = self.__cause__
        return fresh


class QueueNotFoundError(RecordLogError):
    """No queue has this name, or the queue of this name is another incarnation.

    Attributes:
        queue: The name.
    """

    def __init__(self, queue: str) -> None:
        super().__init__(queue)
        self.queue = queue

    def message(self) -> str:
        return f"queue {self.queue!r} does not exist"


class QueueExistsError(RecordLogError):
    """A queue of this name already exists.

    Attributes:
        queue: The name.
    """

    def __init__(self, queue: str) -> None:
        super().__init__(queue)
        self.queue = queue

    def message(self) -> str:
        return f"queue {self.queue!r} already exists"


class QueueNameError(RecordLogError, ValueError):
    """Invalid queue name: not a str, empty, too long, or not encodable as UTF-8.

    Attributes:
        queue: What was passed as the name.
        reason: What is wrong with it.
    """

    def __init__(self, queue: object, reason: str) -> None:
        super().__init__(queue, reason)
        self.queue = queue
        self.reason = reason

    def message(self) -> str:
        shown = repr(self.queue)
        return f"queue name {shown if len(shown) <= 80 else shown[:77] + '...'} {self.reason}"


class PositionInPastError(RecordLogError):
    """The position is already taken by a different record.

    Attributes:
        queue: The queue.
        position: The position of the call's first record.
        next_position: The next position of the queue.
        outcome_unknown: The records at these positions were truncated, so nothing is left to compare with, and it is
            unknown whether this call was stored before.
    """

    def __init__(self, queue: str, position: int, next_position: int, outcome_unknown: bool = False) -> None:
        super().__init__(queue, position, next_position, outcome_unknown)
        self.queue = queue
        self.position = position
        self.next_position = next_position
        self.outcome_unknown = outcome_unknown

    def message(self) -> str:
        taken = f"queue {self.queue!r}: position {self.position} is already taken, the next one is {self.next_position}"
        if not self.outcome_unknown:
            return taken
        return (
            f"{taken}; the records that had these positions were truncated, so whether this call was stored before is "
            "unknown"
        )


class RecordTooLargeError(RecordLogError):
    """The record, or the records of one call, can never fit.

    Attributes:
        size_bytes: Its size; with bookkeeping unless the limit is "record_bytes".
        limit_bytes: The largest size that fits.
        limit: Which limit that is: "record_bytes", "pending_bytes", "memory_bytes", "disk_bytes" or "the file system".
    """

    def __init__(self, size_bytes: int, limit_bytes: int, limit: str = "record_bytes") -> None:
        super().__init__(size_bytes, limit_bytes, limit)
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes
        self.limit = limit

    def message(self) -> str:
        advice = "raise the limit or split the record" if self.limit == "record_bytes" else "send less in one call"
        return f"{self.size_bytes} bytes exceed {self.limit} ({self.limit_bytes}); {advice}"


class LogFullError(RecordLogError):
    """A limit is reached or the disk is full. Nothing was written. Truncate and delete still work, and make space.

    Attributes:
        resource: "memory" or "disk" (a limit), "pending" (`append_soon` only), "queues", "positions", or "space" (the
            operating system has no space; the OSError is `__cause__`).
        used: Bytes or queues in use, or the position that was asked for; 0 if unknown.
        limit: Bytes or queues allowed, or the number of positions that a queue has; 0 if unknown.
    """

    def __init__(self, resource: str, used: int = 0, limit: int = 0) -> None:
        super().__init__(resource, used, limit)
        self.resource = resource
        self.used = used
        self.limit = limit

    def message(self) -> str:
        if self.resource == "space":
            return "the disk is full: truncate or delete queues, or free disk space"
        if self.resource == "positions":
            return f"no positions are left from {self.used} on: the last one of a queue is {self.limit - 1}"
        if self.resource == "pending":
            return f"{self.used} of {self.limit} bytes wait to be stored; await earlier appends, then try again"
        unit = "" if self.resource == "queues" else " bytes"
        return (
            f"the {self.resource} limit is reached: {self.used} of {self.limit}{unit} in use; truncate or delete queues"
        )


class LogClosedError(RecordLogError):
    """The log is closed or closing, or belongs to another process or event loop.

    Attributes:
        reason: Which of these.
    """

    def __init__(self, reason: str = "the log is closed") -> None:
        super().__init__(reason)
        self.reason = reason


class LogFailedError(RecordLogError):
    """A write or sync failed, so this instance stores nothing more. Reads still work. Open the log again to recover.

    The first failure is `__cause__`, unless it happened in another process.

    Attributes:
        cause: What failed.
        written: Whether the call that raised this was stored: "unknown" if its batch met the failure (after reopening
            it is there as a whole, or not at all), "no" if it came later, "acknowledged" where `close` reports calls
            that had returned.
        in_doubt: For each queue with acknowledged changes that were never synced, the first position they concern. A
            crash of the machine may take them. Always empty under `PersistPolicy.always()`.
    """

    def __init__(self, cause: str, written: str = "no", in_doubt: Mapping[str, int] | None = None) -> None:
        self.in_doubt: Mapping[str, int] = in_doubt or {}
        super().__init__(cause, written, self.in_doubt)
        self.cause = cause
        self.written = written

    def message(self) -> str:
        if self.written == "acknowledged":
            call = "changes that were acknowledged before may be lost"
        else:
            call = (
                "whether this call was stored is unknown" if self.written == "unknown" else "this call was not stored"
            )
        parts = [f"the log failed ({self.cause})", call]
        if self.in_doubt:
            parts.append(f"acknowledged but not synced: {_first_few(self.in_doubt)}")
        return "; ".join([*parts, "close the log and open it again to recover"])


def _first_few(in_doubt: Mapping[str, int], shown: int = 5) -> str:
    """Name some queues with the first position in doubt of each, and count the others."""
    named = [f"queue {queue!r} from position {position}" for queue, position in islice(in_doubt.items(), shown)]
    more = [f"and {len(in_doubt) - shown} more queues"] if len(in_doubt) > shown else []
    return ", ".join(named + more)


class LogLockedError(RecordLogError):
    """Another open log, in this or another process, owns the directory.

    Attributes:
        directory: The directory.
        owner_pid: The process that owns it; None if unknown.
        is_linked: Its `LOCK` is a hard link shared with another directory, so the owner may use that one.
    """

    def __init__(self, directory: str, owner_pid: int | None, is_linked: bool = False) -> None:
        super().__init__(directory, owner_pid, is_linked)
        self.directory = directory
        self.owner_pid = owner_pid
        self.is_linked = is_linked

    def message(self) -> str:
        owner = f"process {self.owner_pid}" if self.owner_pid else "another process"
        if self.is_linked:
            return (
                f"log directory {self.directory!r} cannot be locked: {owner} holds its LOCK, a hard link shared with "
                "another directory (cp -al makes one); close the log that uses the original, or remove LOCK from the "
                "copy, never from the original"
            )
        return (
            f"log directory {self.directory!r} is in use by {owner}: one directory has one writer. Use one worker, "
            "give each worker its own directory, or run `mrecordlog serve` and let the workers be its clients"
        )


class CorruptionError(RecordLogError):
    """Data that was acknowledged is damaged or missing. Nothing was changed.

    Attributes:
        segment: Name of the damaged file.
        offset: Byte in it at which the damage shows; None if it concerns the whole file.
        reason: What is wrong.
    """

    def __init__(self, segment: str, offset: int | None, reason: str) -> None:
        super().__init__(segment, offset, reason)
        self.segment = segment
        self.offset = offset
        self.reason = reason

    def message(self) -> str:
        place = self.segment if self.offset is None else f"{self.segment} at offset {self.offset}"
        return f"{place}: {self.reason}"
