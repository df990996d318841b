"""Take the first records of a queue: as many as limits allow, without visiting the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

from mrecordlog_async.memory.gapped import HeldRun
from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.memory.stored_times import held_times
from mrecordlog_async.model import OFFSET_BYTES, Batch, Run, Times

PIECES_AT_FIRST, PIECES_AT_ONCE = 4, 64
"""Pieces looked up at first, twice as many each time, and at most: a limit usually ends the read early."""

UNLIMITED = 2**63


class Head(NamedTuple):
    """The first records of a queue, as many as limits allow.

    runs: the first and the last one may hold more than start … stop - 1. is_full: a limit is reached, or the next
    record is too large. times: when they were stored, if some were read from the disk; None: the queue knows.
    """

    runs: list[Run]
    start: int
    stop: int
    is_full: bool
    times: Times | None = None

    def batch(self, queue: Queue) -> Batch:
        """Return the records, which are of *queue*, as they are handed out."""
        times = self.times or partial(held_times, queue)
        return Batch(queue.name, queue.id, self.runs, self.start, self.stop, times)


def pieces_of(queue: Queue, start: int | None, stop: int | None, records_max: int) -> Iterator[HeldRun]:
    """Yield what `Queue.held` returns, looked up a few pieces at a time. The queue must not change meanwhile."""
    pieces = PIECES_AT_FIRST
    while held := queue.held(start, stop, pieces, records_max):
        yield from held
        start = held[-1].next_position
        pieces = min(2 * pieces, PIECES_AT_ONCE)


def first_records(queue: Queue, start: int | None, stop: int | None, limit: int) -> list[HeldRun]:
    """Return the first *limit* records with positions *start* … *stop* - 1, in the form they are kept."""
    taken: list[HeldRun] = []
    for piece in pieces_of(queue, start, stop, limit) if limit else ():
        taken.append(piece if piece.record_count <= limit else piece.cut_records(limit))
        limit -= taken[-1].record_count
        if not limit:
            break
    return taken


def head_of(queue: Queue, start: int, records_max: int, bytes_max: int) -> Head:
    """Return the first records from *start* on: within both limits, but at least one if there is any."""
    start = max(start, queue.first_position)
    if start < queue.memory_first:
        raise queue.on_disk(start)
    runs = queue.store.runs_from(start, records_max, bytes_max)
    return head_of_runs(runs, start, records_max, bytes_max, queue.next_position)


def head_of_runs(runs: Iterable[Run], start: int, records_max: int, bytes_max: int, end: int) -> Head:
    """Return the first records of *runs* from *start* on, as `head_of` does. *end*: the queue's next position."""
    taken: list[Run] = []
    stop = start
    for run in runs:
        first, offsets, payload = run
        records, size, skipped = len(offsets) // OFFSET_BYTES - 1, len(payload), 0
        if first < start:
            skipped = start - first
            records -= skipped
            size -= run.bytes_before(skipped)
        elif not taken:
            start = first
        if records > records_max or size > bytes_max:
            part = run.count_within(skipped, records_max, bytes_max)
            if part or not taken:
                taken.append(run)
                stop = max(first, start) + (part or 1)
            return Head(taken, start, stop, True)
        taken.append(run)
        stop = first + skipped + records
        records_max -= records
        bytes_max -= size
        if records_max <= 0 or bytes_max <= 0:
            return Head(taken, start, stop, True)
    return Head(taken, start, stop, bool(taken) and stop < end)


def take_head(runs: Iterable[Run], records_max: int, bytes_max: int) -> list[Run]:
    """Return the first of *runs*: at most *records_max* records and *bytes_max* bytes, but at least one record."""
    taken: list[Run] = []
    for run in runs if records_max > 0 else ():
        if run.record_count > records_max or len(run.payload) > bytes_max:
            part = run.count_within(0, records_max, bytes_max)
            if part or not taken:
                taken.append(run.cut_records(part or 1))
            break
        taken.append(run)
        records_max -= run.record_count
        bytes_max -= len(run.payload)
        if records_max <= 0 or bytes_max <= 0:
            break
    return taken


def cut_stream(runs: Iterable[Run], limit: int) -> Iterator[Run]:
    """Yield the first *limit* records of *runs*; take no run that is not needed."""
    if not limit:
        return
    for run in runs:
        yield run if run.record_count <= limit else run.cut_records(limit)
        limit -= run.record_count
        if limit <= 0:
            return
