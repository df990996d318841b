"""Plans for bulk readers: from start positions and limits to ranges, counts and cut points. Pure; memory only.

1. Look at each queue: is it there, is it the incarnation that was meant, are the records from its start still there?
2. Share the limits: a queue that has little gives what it has, the rest is split in proportion to what is left.
3. Cut each range to its share and into pieces, at any record; no payload is touched.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from crc32c import crc32c

from mrecordlog_async.errors import QueueNotFoundError
from mrecordlog_async.http.messages import (
    FetchRange,
    Piece,
    PlanAnswer,
    PlanRequest,
    PlanStart,
    QueuePlan,
    QueueStatus,
)
from mrecordlog_async.http.problems import ProblemError
from mrecordlog_async.http.wire import QueueRuns
from mrecordlog_async.memory.gapped import totals
from mrecordlog_async.memory.reads import ReadsQueues
from mrecordlog_async.model import QueueSummary, Run


@dataclass(frozen=True, slots=True)
class Offer:
    """What one queue of a plan has to give."""

    asked: PlanStart
    status: QueueStatus
    summary: QueueSummary | None
    start: int
    runs: Sequence[Run]
    records: int
    bytes: int
    ended: int | None = None


def plan(log: ReadsQueues, request: PlanRequest) -> PlanAnswer:
    """Answer `/v1/plan`."""
    asked = request.queues
    if asked is None:
        asked = [PlanStart(queue) for queue in log.list_queues()]
    offers = [_offer(log, one) for one in asked]
    record_shares = share([offer.records for offer in offers], request.max_records)
    byte_shares = share([offer.bytes for offer in offers], request.max_bytes)
    plans = [
        _plan_queue(offer, records, size, request)
        for offer, records, size in zip(offers, record_shares, byte_shares, strict=True)
    ]
    return PlanAnswer(plans, sum(one.records for one in plans), sum(one.bytes for one in plans))


def share(wanted: Sequence[int], limit: int | None) -> list[int]:
    """Split *limit* over what each wants, in proportion; each that wants anything gets at least one."""
    total = sum(wanted)
    if limit is None or total <= limit:
        return list(wanted)
    return [min(want, max(1, limit * want // total)) for want in wanted]


def take(runs: Iterable[Run], records_max: int, bytes_max: int) -> list[Run]:
    """Return the head of *runs* with at most so many records and payload bytes, but at least one record."""
    taken: list[Run] = []
    for run in runs:
        if records_max <= 0 or (taken and bytes_max <= 0):
            break
        part = run if run.records <= records_max else run.cut(run.first_position, run.first_position + records_max)
        if len(part.payload) > bytes_max:
            part = part.cut_bytes(bytes_max)
            if taken and len(part.payload) > bytes_max:
                break
        taken.append(part)
        if part.records < run.records:
            break
        records_max -= part.records
        bytes_max -= len(part.payload)
    return taken


def fetch(log: ReadsQueues, ranges: Sequence[FetchRange]) -> list[QueueRuns]:
    """Return the runs of all ranges, fixed now; the problem of the first range that cannot be had whole."""
    return [_fetch_one(log, one) for one in ranges]


def status_of(summary: QueueSummary | None, queue_id: int | None) -> QueueStatus:
    """Tell whether the queue that was meant is there."""
    if summary is None:
        return QueueStatus.MISSING
    return QueueStatus.OK if queue_id in (None, summary.id) else QueueStatus.RECREATED


def summary_of(log: ReadsQueues, queue: str) -> QueueSummary | None:
    """Return the summary of *queue*, None where there is no such queue."""
    return log.queue_summary(queue) if log.queue_exists(queue) else None


def _offer(log: ReadsQueues, asked: PlanStart) -> Offer:
    summary = summary_of(log, asked.queue)
    status = status_of(summary, asked.id)
    ended = log.deleted_end(asked.id) if status is not QueueStatus.OK and asked.id is not None else None
    if summary is None:
        return Offer(asked, status, None, 0, (), 0, 0, ended)
    start = summary.first_position if asked.start is None else asked.start
    if status is QueueStatus.RECREATED or misses(summary, start):
        status = status if status is QueueStatus.RECREATED else QueueStatus.TRUNCATED
        start = summary.first_position
    elif start > summary.next_position:
        status, start = QueueStatus.AHEAD, summary.next_position
    runs = log.runs(asked.queue, start, asked.stop)
    return Offer(asked, status, summary, start, runs, *totals(runs), ended)


def _plan_queue(offer: Offer, records_max: int, bytes_max: int, request: PlanRequest) -> QueuePlan:
    summary = offer.summary
    if summary is None:
        return QueuePlan(offer.asked.queue, offer.status, ended=offer.ended)
    whole = offer.records <= records_max and offer.bytes <= bytes_max
    runs = offer.runs if whole else take(offer.runs, records_max, bytes_max)
    return QueuePlan(
        offer.asked.queue,
        offer.status,
        summary.id,
        summary.first_position,
        summary.next_position,
        offer.start,
        _stop(offer, summary, runs, whole),
        *totals(runs),
        _pieces(offer.start, _stop(offer, summary, runs, whole), runs, request),
        _tail(runs) if request.tails else None,
        offer.ended,
    )


def _stop(offer: Offer, summary: QueueSummary, runs: Sequence[Run], whole: bool) -> int:
    """Return where the plan ends: behind its last record, or, if that was all there is, where it was asked to end."""
    if not whole:
        return runs[-1].next_position
    stop = summary.next_position if offer.asked.stop is None else min(offer.asked.stop, summary.next_position)
    return max(stop, offer.start)


def _tail(runs: Sequence[Run]) -> int | None:
    """Digest the last record, with its position: the same position may be given away twice, by a log that went back."""
    if not runs:
        return None
    last = runs[-1].cut(runs[-1].next_position - 1, runs[-1].next_position)
    return crc32c(last.payload, crc32c(last.first_position.to_bytes(8, "little")))


def _pieces(start: int, stop: int, runs: Sequence[Run], request: PlanRequest) -> list[Piece]:
    """Cut a range into pieces of about the size asked for; together they are the whole range."""
    records_max, bytes_max = request.piece_records or 2**63, request.piece_bytes or 2**63
    if records_max == bytes_max or start == stop:
        return []
    pieces: list[Piece] = []
    records = size = 0
    for first_position, span_records, span_bytes in _spans(runs, records_max, bytes_max):
        if records and (records + span_records > records_max or size + span_bytes > bytes_max):
            pieces.append(Piece(start, first_position, records, size))
            start, records, size = first_position, 0, 0
        records += span_records
        size += span_bytes
    return [*pieces, Piece(start, stop, records, size)]


def _spans(runs: Iterable[Run], records_max: int, bytes_max: int) -> Iterator[tuple[int, int, int]]:
    """Yield first position, records and bytes of each run, in parts where it is larger than a piece. Copies nothing."""
    for run in runs:
        ends, records = memoryview(run.offsets).cast("i"), run.records
        at = 0
        while at < records:
            fitting = bisect_right(ends, ends[at] + bytes_max, at + 1) - 1
            stop = min(records, at + records_max, max(fitting, at + 1))
            yield run.first_position + at, stop - at, ends[stop] - ends[at]
            at = stop


def _fetch_one(log: ReadsQueues, asked: FetchRange) -> QueueRuns:
    summary = summary_of(log, asked.queue)
    status = status_of(summary, asked.id)
    if summary is None:
        raise QueueNotFoundError(asked.queue)
    if status is QueueStatus.RECREATED:
        detail = f"queue {asked.queue!r} was deleted and created again: its id is {summary.id}, not {asked.id}"
        raise ProblemError(404, "queue_recreated", detail, queue=asked.queue, id=summary.id)
    check_start(summary, asked.start)
    if asked.stop > summary.next_position:
        detail = f"queue {asked.queue!r} ends before {asked.stop}: its next position is {summary.next_position}"
        raise ProblemError(409, "ahead", detail, queue=asked.queue, next_position=summary.next_position)
    return QueueRuns(asked.queue, summary.id, log.runs(asked.queue, asked.start, asked.stop))


def misses(summary: QueueSummary, start: int) -> bool:
    """Tell whether records from *start* on were truncated; not where the first one ever came at a later position."""
    return max(start, summary.began) < summary.first_position


def check_start(summary: QueueSummary, start: int) -> None:
    """Raise the problem of reading from a position whose records are truncated."""
    if misses(summary, start):
        detail = f"queue {summary.queue!r}: records before {summary.first_position} are truncated"
        first = summary.first_position
        raise ProblemError(410, "truncated", detail, queue=summary.queue, first_position=first)
