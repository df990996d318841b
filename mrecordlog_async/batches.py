"""The parts that tails and consumers of logs and clients share: owners, limits, iteration."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple, TypeVar
from uuid import UUID

from mrecordlog_async.model import Batch, Record
from mrecordlog_async.options import MIB

Given = TypeVar("Given", bound=Batch)

BATCH_RECORDS = 1_000
BATCH_BYTES = 1 * MIB
BATCH_SECONDS = 0.2


class BatchLimits(NamedTuple):
    """Limits of a batch: its size, and the seconds from its first record to its return (None: only if full).

    timeout: the seconds from the call to its return, with or without a record; None: only with one.
    """

    records: int
    bytes: int
    seconds: float | None
    timeout: float | None = None

    @classmethod
    def checked(
        cls, max_records: int, max_bytes: int, max_wait: float | None, timeout: float | None = None
    ) -> BatchLimits:
        """Return the limits; raise TypeError or ValueError for one that no batch can meet."""
        for name, value in (("max_records", max_records), ("max_bytes", max_bytes)):
            if type(value) is not int or value < 1:
                _check_size(name, value)
        check_seconds("max_wait", max_wait, "a full batch")
        check_seconds("timeout", timeout, "a record")
        return cls(max_records, max_bytes, max_wait, timeout)


def _check_size(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")


def check_seconds(name: str, value: object, without: str = "") -> None:
    """Raise TypeError or ValueError unless *value* is a time to wait, or None to wait for what *without* says."""
    if value is None and without:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        or_none = " or None" if without else ""
        raise TypeError(f"{name} must be a number of seconds{or_none}, not {type(value).__name__}")
    if not value >= 0:  # also refuses NaN
        or_none = f", or None to wait for {without}" if without else ""
        raise ValueError(f"{name} must be at least 0 seconds{or_none}, got {value}")


def not_acknowledged(queue: str, position: int, consumer: str) -> TimeoutError:
    """Return the error of a wait for an acknowledgement whose time is over."""
    return TimeoutError(f"consumer {consumer!r} has not acknowledged position {position} of queue {queue!r}")


def check_limit(limit: int) -> int:
    """Return a number of records; raise TypeError or ValueError for anything else."""
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise TypeError(f"limit must be an int, not {type(limit).__name__}")
    if limit < 0:
        raise ValueError(f"limit must be at least 0 records, got {limit}")
    return limit


def check_bounds(start: object, stop: object) -> None:
    """Raise TypeError unless both are ints or None."""
    for position in (start, stop):
        if position is not None and not isinstance(position, int):
            raise TypeError(f"positions are ints or None, not {type(position).__name__} ({position!r})")


def owner_uuid(owner: UUID | str) -> UUID:
    """Return the owner of a consumer; raise ValueError unless it is a UUID, or the text of one."""
    try:
        found = owner if isinstance(owner, UUID) else UUID(owner)
    except (ValueError, AttributeError, TypeError):
        raise ValueError(f"owner must be a UUID or the text of one, not {owner!r}") from None
    if not found.int:
        raise ValueError("owner must not be the UUID of zeros, which stands for no owner")
    return found


class Batches(AsyncIterator[Given]):
    """Batches until there are no more. An object, because a cancelled `__anext__` would end an async generator."""

    def __init__(self, batch: Callable[..., Awaitable[Given | None]], limits: BatchLimits) -> None:
        self._batch = batch
        self._limits = limits

    async def __anext__(self) -> Given:
        records, size, seconds, _ = self._limits
        batch = await self._batch(max_records=records, max_bytes=size, max_wait=seconds)
        if batch is None:
            raise StopAsyncIteration
        return batch


class AvailableBatches(AsyncIterator[Given]):
    """The batches of what is there when the first one is asked for. It ends, however fast records are appended."""

    def __init__(
        self, batch: Callable[..., Awaitable[Given | None]], limits: BatchLimits, find_end: Callable[[], Awaitable[int]]
    ) -> None:
        """*find_end* returns the position after the last record that is there."""
        self._batch = batch
        self._limits = limits
        self._find_end = find_end
        self._end: int | None = None

    async def __anext__(self) -> Given:
        if self._end is None:
            self._end = await self._find_end()
        records, size, _, _ = self._limits
        batch = await self._batch(max_records=records, max_bytes=size, max_wait=0, timeout=0) if self._end else None
        if not batch:  # there are no more, or the queue has ended
            self._end = 0
            raise StopAsyncIteration
        if batch.next_position >= self._end:
            self._end = 0
        return batch


def last_position(done: Batch | Record | int, queue_id: int) -> int:
    """Return the last position of what a consumer of the queue with *queue_id* has done; -1 of an empty batch.

    Raises:
        ValueError: It is a batch of another queue.
    """
    if isinstance(done, Batch):
        if done.queue_id != queue_id:
            raise ValueError(f"the batch is of queue {done.queue!r} with id {done.queue_id}, not of this consumer")
        return done.last_position if done else -1
    return done.position if isinstance(done, Record) else done
