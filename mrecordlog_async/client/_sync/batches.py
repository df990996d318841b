# Written by `python -m tests.client.unasync` from batches.py: change that file, and run this.

"""Iterators over batches, for threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from mrecordlog_async.batches import BatchLimits
from mrecordlog_async.model import Batch

Given = TypeVar("Given", bound=Batch)


class BlockingBatches(Iterator[Given]):
    """Batches until there are no more. An object, because an exception would end a generator."""

    def __init__(self, batch: Callable[..., Given | None], limits: BatchLimits) -> None:
        self._batch = batch
        self._limits = limits

    def __next__(self) -> Given:
        records, size, seconds, _ = self._limits
        batch = self._batch(max_records=records, max_bytes=size, max_wait=seconds)
        if batch is None:
            raise StopIteration
        return batch


class BlockingAvailableBatches(Iterator[Given]):
    """The batches of what is there when the first one is asked for. It ends, however fast records are appended."""

    def __init__(self, batch: Callable[..., Given | None], limits: BatchLimits, find_end: Callable[[], int]) -> None:
        """*find_end* returns the position after the last record that is there."""
        self._batch = batch
        self._limits = limits
        self._find_end = find_end
        self._end: int | None = None

    def __next__(self) -> Given:
        if self._end is None:
            self._end = self._find_end()
        records, size, _, _ = self._limits
        batch = self._batch(max_records=records, max_bytes=size, max_wait=0, timeout=0) if self._end else None
        if not batch:  # there are no more, or the queue has ended
            self._end = 0
            raise StopIteration
        if batch.next_position >= self._end:
            self._end = 0
        return batch
