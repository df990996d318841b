"""Every error the log raises, in one tree under `RecordLogError`.

Facts are attributes and the message is made from them, so that a handler can decide without parsing text. All errors
can be pickled, for Spark tasks and process pools.

The class says what is wrong: the call (`QueueNotFoundError` … `RecordTooLargeError`), the space (`LogFullError`), the
log's state (`LogClosedError`, `LogFailedError`, `LogLockedError`) or the disk's content (`CorruptionError`). A plain
`OSError` stays what it is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import islice
from typing import Any

from mrecordlog_async.quantities import age, span


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
        advice: What to do.
    """

    def __init__(self, queue: str, advice: str = "create it with create_queue, or append with create=True") -> None:
        super().__init__(queue, advice)
        self.queue = queue
        self.advice = advice

    def message(self) -> str:
        return f"queue {self.queue!r} does not exist; {self.advice}"


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
    """Invalid queue name: not a str, empty, too long, not encodable as UTF-8, or a new one with control characters.

    A new one must not be `.` or `..` either. Patterns of rules have the same rule.

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
    """The position is already taken by a different record, or was skipped: it is below the next one.

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
        taken = "is already taken" if self.outcome_unknown else "is already taken or was skipped"
        place = f"queue {self.queue!r}: position {self.position} {taken}, the next one is {self.next_position}"
        if not self.outcome_unknown:
            return place
        return (
            f"{place}; the records that had these positions were truncated, so whether this call was stored before is "
            "unknown"
        )


class RecordsOnDiskError(RecordLogError):
    """Records that were asked for without waiting are on the disk: they have left memory.

    Attributes:
        queue: The queue.
        position: The first position that was asked for.
        memory_first: The first position of the queue that is in memory; later ones are too.
    """

    def __init__(self, queue: str, position: int, memory_first: int) -> None:
        super().__init__(queue, position, memory_first)
        self.queue = queue
        self.position = position
        self.memory_first = memory_first

    def message(self) -> str:
        return (
            f"queue {self.queue!r}: position {self.position} is not in memory, whose first position is "
            f"{self.memory_first}; read it with `async for record in log.read(queue, start, stop)` or "
            "`await log.fetch(queue, start)`, or begin at log.memory_first(queue)"
        )


class PositionAheadError(RecordLogError, ValueError):
    """A consumer cannot be at this position, because the queue has not assigned it yet.

    Attributes:
        queue: The queue.
        position: The position that was passed.
        next_position: The next position of the queue.
    """

    def __init__(self, queue: str, position: int, next_position: int) -> None:
        super().__init__(queue, position, next_position)
        self.queue = queue
        self.position = position
        self.next_position = next_position

    def message(self) -> str:
        return (
            f"queue {self.queue!r}: position {self.position} has not been assigned yet; the next position is "
            f"{self.next_position}: acknowledge records that the consumer has received, or seek to "
            f"{self.next_position} at most"
        )


class PositionTruncatedError(RecordLogError, ValueError):
    """A consumer cannot go back to this position, because the records there were truncated.

    Attributes:
        queue: The queue.
        position: The position that was passed.
        first_position: The lowest position that is not truncated.
    """

    def __init__(self, queue: str, position: int, first_position: int) -> None:
        super().__init__(queue, position, first_position)
        self.queue = queue
        self.position = position
        self.first_position = first_position

    def message(self) -> str:
        return (
            f"queue {self.queue!r}: position {self.position} was truncated; seek to {self.first_position}, the first "
            "one, or later"
        )


class RecordTruncatedError(RecordLogError):
    """The record left its queue, or was passed, without an acknowledgement of the consumer that was to have it.

    A truncate of another program, `max_age`, `when_full="drop_oldest"` or a seek moved the consumer past it.

    Attributes:
        queue: The queue.
        position: Position of the record.
        consumer: The consumer.
    """

    def __init__(self, queue: str, position: int, consumer: str) -> None:
        super().__init__(queue, position, consumer)
        self.queue = queue
        self.position = position
        self.consumer = consumer

    def message(self) -> str:
        return (
            f"queue {self.queue!r}: consumer {self.consumer!r} passed position {self.position} without acknowledging "
            "it: a truncate or a seek moved it, so it is unknown whether it has the record; look in its own store"
        )


class QueueSealedError(RecordLogError):
    """The queue is sealed: it accepts no more records.

    Attributes:
        queue: The queue.
        next_position: The position after its last record.
    """

    def __init__(self, queue: str, next_position: int) -> None:
        super().__init__(queue, next_position)
        self.queue = queue
        self.next_position = next_position

    def message(self) -> str:
        return (
            f"queue {self.queue!r} is sealed and ends before position {self.next_position}; append to another queue, "
            "or delete this one and create it again"
        )


class QueueOptionsError(RecordLogError, ValueError):
    """The queue cannot have these options.

    Attributes:
        queue: The queue.
        reason: What contradicts them.
    """

    def __init__(self, queue: str, reason: str) -> None:
        super().__init__(queue, reason)
        self.queue = queue
        self.reason = reason

    def message(self) -> str:
        return f"queue {self.queue!r}: {self.reason}"


class ConsumerNameError(RecordLogError, ValueError):
    """Invalid name of a consumer: not a str, empty, too long, not UTF-8, or a new one with control characters.

    A new one must not be `.` or `..` either.

    Attributes:
        consumer: What was passed as the name.
        reason: What is wrong with it.
    """

    def __init__(self, consumer: object, reason: str) -> None:
        super().__init__(consumer, reason)
        self.consumer = consumer
        self.reason = reason

    def message(self) -> str:
        shown = repr(self.consumer)
        return f"consumer name {shown if len(shown) <= 80 else shown[:77] + '...'} {self.reason}"


class ConsumerNotFoundError(RecordLogError):
    """The queue has no consumer of this name.

    Attributes:
        queue: The queue, or the pattern of a rule.
        consumer: The name.
    """

    def __init__(self, queue: str, consumer: str) -> None:
        super().__init__(queue, consumer)
        self.queue = queue
        self.consumer = consumer

    def message(self) -> str:
        return f"queue {self.queue!r} has no consumer {self.consumer!r}; create it with create_consumer, or create=True"


class ConsumerExistsError(RecordLogError):
    """The queue already has a consumer of this name.

    Attributes:
        queue: The queue, or the pattern of a rule.
        consumer: The name.
    """

    def __init__(self, queue: str, consumer: str) -> None:
        super().__init__(queue, consumer)
        self.queue = queue
        self.consumer = consumer

    def message(self) -> str:
        return f"queue {self.queue!r} already has a consumer {self.consumer!r}; pass exist_ok=True to use it"


class ConsumerFencedError(RecordLogError):
    """Another holder has attached, or the log was reopened; this holder can no longer move the position.

    Attributes:
        queue: The queue.
        consumer: The consumer.
        epoch: The epoch of the call.
        current_epoch: The epoch that is valid.
    """

    def __init__(self, queue: str, consumer: str, epoch: int, current_epoch: int) -> None:
        super().__init__(queue, consumer, epoch, current_epoch)
        self.queue = queue
        self.consumer = consumer
        self.epoch = epoch
        self.current_epoch = current_epoch

    def message(self) -> str:
        current = self.current_epoch
        why = (
            "the log was opened again and may have lost acknowledgements"
            if self.epoch == current
            else f"another one attached since, or the log was opened again after a crash: the epoch is {current} now"
        )
        return (
            f"queue {self.queue!r}: the holder of consumer {self.consumer!r} with epoch {self.epoch} is fenced off, "
            f"because {why}; attach again"
        )


class ConsumerOwnedError(RecordLogError):
    """The consumer belongs to another owner.

    Attributes:
        queue: The queue.
        consumer: The consumer.
        owner: Its owner, a UUID.
    """

    def __init__(self, queue: str, consumer: str, owner: str) -> None:
        super().__init__(queue, consumer, owner)
        self.queue = queue
        self.consumer = consumer
        self.owner = owner

    def message(self) -> str:
        return (
            f"queue {self.queue!r}: consumer {self.consumer!r} belongs to {self.owner}; pass this owner, another "
            "consumer's name, or take_over=True if the owner is gone for good"
        )


class ConsumerHeldError(RecordLogError):
    """The holder of the consumer was seen more recently than the caller of `attach` allows. Nothing was changed.

    Attributes:
        queue: The queue.
        consumer: The consumer.
        idle_seconds: Seconds since the holder was last seen.
        if_idle_for: Seconds that it has to be idle for the caller.
    """

    def __init__(self, queue: str, consumer: str, idle_seconds: float, if_idle_for: float) -> None:
        super().__init__(queue, consumer, idle_seconds, if_idle_for)
        self.queue = queue
        self.consumer = consumer
        self.idle_seconds = idle_seconds
        self.if_idle_for = if_idle_for

    def message(self) -> str:
        return (
            f"queue {self.queue!r}: consumer {self.consumer!r} has a holder, which was seen {age(self.idle_seconds)} "
            f"ago; try again once that is {span(self.if_idle_for)}, or take another consumer"
        )


class ConsumerBehindError(RecordLogError):
    """The call would remove records that a consumer has not acknowledged. Nothing was changed.

    Attributes:
        queue: The queue.
        consumer: The slowest consumer.
        consumer_position: The first position that it has not acknowledged.
        position: The last position that the call would remove.
    """

    def __init__(self, queue: str, consumer: str, consumer_position: int, position: int) -> None:
        super().__init__(queue, consumer, consumer_position, position)
        self.queue = queue
        self.consumer = consumer
        self.consumer_position = consumer_position
        self.position = position

    def message(self) -> str:
        return (
            f"queue {self.queue!r}: consumer {self.consumer!r} is at {self.consumer_position} and has not "
            f"acknowledged all records up to {self.position}; wait for it, delete the consumer, or pass "
            "past_consumers=True"
        )


class RecordTooLargeError(RecordLogError):
    """The record, or the records of one call, can never fit.

    Attributes:
        size_bytes: Its size; with bookkeeping unless the limit is "record_bytes". The number of records if the limit is
            "max_records".
        limit_bytes: The largest size, or number, that fits.
        limit: Which limit that is: "record_bytes", "pending_bytes", "memory_bytes", "disk_bytes" or "the file system";
            or the option of the queue, such as "max_bytes".
    """

    def __init__(self, size_bytes: int, limit_bytes: int, limit: str = "record_bytes") -> None:
        super().__init__(size_bytes, limit_bytes, limit)
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes
        self.limit = limit

    def message(self) -> str:
        one_record = self.limit.endswith("record_bytes")
        advice = "raise the limit or split the record" if one_record else "send fewer or smaller records in one call"
        unit = "records" if self.limit == "max_records" else "bytes"
        return f"{self.size_bytes} {unit} exceed {self.limit} ({self.limit_bytes}); {advice}"


class LogFullError(RecordLogError):
    """A limit is reached or the disk is full. Nothing was written. Truncate and delete still work, and make space.

    Attributes:
        resource: "memory" or "disk" (a limit), "pending" (`append_soon` only), "queues", "consumers" (of *queue*, or of
            all), "rules", "starred_rules" (those whose patterns begin with `*`), "positions", "queue" (the options of
            one queue), or "space" (the operating system has no space; the OSError is `__cause__`). If segments without
            retained records cannot be removed, which a limit of the disk counts, the OSError is `__cause__` as well.
        used: Bytes, records, queues, consumers or rules in use, or the position that was asked for; 0 if unknown.
        limit: What is allowed, or the number of positions that a queue has; 0 if unknown.
        queue: The queue whose own limit is reached, of records or of consumers, or the one that holds most of the
            memory or the disk; "" otherwise.
        unit: "bytes", "records" for a queue's limit on records, or "inodes" if the disk has space and no inode.
        consumer: The consumer of *queue* that is furthest behind; "" if it has none.
    """

    def __init__(
        self, resource: str, used: int = 0, limit: int = 0, queue: str = "", unit: str = "bytes", consumer: str = ""
    ) -> None:
        super().__init__(resource, used, limit, queue, unit, consumer)
        self.resource = resource
        self.used = used
        self.limit = limit
        self.queue = queue
        self.unit = unit
        self.consumer = consumer

    def message(self) -> str:
        if self.resource == "space" and self.unit == "inodes":
            return (
                "the file system has no inodes left for a new file, whatever space is free (`df -i` shows them)"
                f"{self._holder()}: remove files, or truncate or delete queues"
            )
        if self.resource == "space":
            return f"the disk is full{self._holder()}: truncate or delete queues, or free disk space"
        if self.resource == "positions":
            highest = self.limit - 1
            return (
                f"the queue has run out of positions: from {self.used} on too few are left (the highest is {highest})"
            )
        if self.resource == "pending":
            return f"{self.used} of {self.limit} bytes wait to be stored; await earlier appends, then try again"
        if self.resource == "queue":
            slowest = f" (its slowest consumer is {self.consumer!r})" if self.consumer else ""
            return (
                f"queue {self.queue!r} is full: it holds {self.used} of {self.limit} {self.unit}{slowest}; truncate "
                "it, let its consumers acknowledge records, or raise its limits with configure_queue"
            )
        if self.resource in ("consumers", "rules", "starred_rules"):
            return self._too_many_consumers()
        if self.resource == "disk" and isinstance(self.__cause__, OSError):
            return (
                f"the disk limit is reached: {self.used} of {self.limit} bytes in use, including segments that "
                "are no longer needed but could not be deleted; see the process log for the reason"
            )
        unit = "" if self.resource == "queues" else " bytes"
        return (
            f"the {self.resource} limit is reached: {self.used} of {self.limit}{unit} in use{self._holder()}; truncate "
            "or delete queues"
        )

    def _too_many_consumers(self) -> str:
        if self.resource == "starred_rules":
            return (
                f"{self.used} rules have a pattern that begins with *, of at most {self.limit}; begin the pattern with "
                "plain text, or delete rules that nobody uses"
            )
        if self.queue:
            return (
                f"queue {self.queue!r} has {self.used} of at most {self.limit} consumers; delete some that nobody uses"
            )
        return f"the limit on {self.resource} is reached: {self.used} of {self.limit}; delete some that nobody uses"

    def _holder(self) -> str:
        if not self.queue:
            return ""
        slowest = f"; its slowest consumer is {self.consumer!r}" if self.consumer else ""
        return f" (queue {self.queue!r} holds the most{slowest})"


class LogClosedError(RecordLogError):
    """The log is closed or closing, or belongs to another process or event loop.

    Attributes:
        reason: Which of these.
    """

    def __init__(self, reason: str = "the log is closed; open it again to use it") -> None:
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
        in_doubt: For each queue with acknowledged changes that were never synced, the lowest position that one of them
            concerns. A crash of the machine may take them. Always empty under `PersistPolicy.always()`.
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
                "whether this call was stored is unknown" if self.written == "unknown" else "this call stored nothing"
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
        is_own: The log that owns it is one of this process.
        command: The command line of that process; "" if it cannot be read.
        is_sibling: That process and this one are workers that one server has started together.
    """

    def __init__(
        self,
        directory: str,
        owner_pid: int | None,
        is_linked: bool = False,
        is_own: bool = False,
        command: str = "",
        is_sibling: bool = False,
    ) -> None:
        super().__init__(directory, owner_pid, is_linked, is_own, command, is_sibling)
        self.directory = directory
        self.owner_pid = owner_pid
        self.is_linked = is_linked
        self.is_own = is_own
        self.command = command
        self.is_sibling = is_sibling

    @property
    def owner(self) -> str:
        """The process that owns it, in words."""
        if self.owner_pid is None:
            return "another process"
        # In containers, other processes may have the same number.
        elsewhere = " of another container" if self.owner_pid == os.getpid() and not self.is_own else ""
        return f"process {self.owner_pid}{elsewhere}"

    @property
    def owner_and_command(self) -> str:
        """The process that owns it, and what it runs, in words."""
        return f"{self.owner} ({self.command})" if self.command else self.owner

    def message(self) -> str:
        if self.is_linked:
            return (
                f"log directory {self.directory!r} cannot be locked: {self.owner} holds its LOCK, a hard link "
                "shared with another directory (cp -al makes one); close the log that uses the original, or remove "
                "LOCK from the copy, never from the original"
            )
        if self.is_own:
            return (
                f"log directory {self.directory!r} is open in this process already: one directory has one open log. "
                "Pass that log on, or close it first"
            )
        return (
            f"log directory {self.directory!r} is in use by {self.owner_and_command}: one directory has one "
            "writer. Use one worker, give each worker its own directory, or run `mrecordlog serve` and let the workers "
            "be its clients"
        )


class CorruptionError(RecordLogError):
    """Data that was acknowledged is damaged or missing. Nothing was changed.

    Raised when a log is opened. If the damaged records are only on the disk, a read of them raises it, and the log
    continues.

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
