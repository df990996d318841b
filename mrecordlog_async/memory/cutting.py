"""Take the first records of a queue: as many as limits allow, without visiting the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mrecordlog_async.memory.gapped import HeldRun
from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.model import Run

PIECES_AT_FIRST, PIECES_AT_ONCE = 4, 64
"""Pieces looked up at first, twice as many each time, and at most: a limit usually ends the read early."""

UNLIMITED = 2**63


def check_limit(limit: int) -> int:
    """Return a number of records; raise TypeError or ValueError for anything else."""
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise TypeError(f"limit must be an int, not {type(limit).__name__}")
    if limit < 0:
        raise ValueError(f"limit must be at least 0 records, got {limit}")
    return limit


def pieces_of(queue: Queue, start: int | None, stop: int | None = None) -> Iterator[HeldRun]:
    """Yield what `Queue.held` returns, looked up a few pieces at a time. The queue must not change meanwhile."""
    pieces = PIECES_AT_FIRST
    while held := queue.held(start, stop, pieces):
        yield from held
        start = held[-1].next_position
        pieces = min(2 * pieces, PIECES_AT_ONCE)


def first_records(queue: Queue, start: int | None, stop: int | None, limit: int) -> list[HeldRun]:
    """Return the first *limit* records with positions *start* … *stop* - 1, in the form they are kept."""
    taken: list[HeldRun] = []
    for piece in pieces_of(queue, start, stop) if limit else ():
        taken.append(piece if piece.record_count <= limit else piece.cut_records(limit))
        limit -= taken[-1].record_count
        if not limit:
            break
    return taken


def first_runs(queue: Queue, start: int, records_max: int, bytes_max: int) -> list[Run]:
    """Return the first runs from *start* on: within both limits, but at least one record if there is any."""
    return take_head(runs_of(pieces_of(queue, start)), records_max, bytes_max)


def runs_of(held: Iterable[HeldRun]) -> Iterator[Run]:
    """Yield *held* as runs; one with gaps in its positions is split at the gaps, run by run."""
    for one in held:
        if isinstance(one, Run):
            yield one
        else:
            yield from one.runs()


def take_head(runs: Iterable[Run], records_max: int, bytes_max: int) -> list[Run]:
    """Return the first of *runs*: at most *records_max* records and *bytes_max* bytes, but at least one record."""
    taken: list[Run] = []
    for run in runs:
        if records_max <= 0 or (taken and bytes_max <= 0):
            break
        part = run if run.record_count <= records_max else run.cut_records(records_max)
        if len(part.payload) > bytes_max:
            part = part.cut_bytes(bytes_max)
            if taken and len(part.payload) > bytes_max:
                break
        taken.append(part)
        if part.record_count < run.record_count:
            break
        records_max -= part.record_count
        bytes_max -= len(part.payload)
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
