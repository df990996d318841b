"""Plans batches with the services of a fleet: how far the next batch reaches, and what its tasks read.

Each function takes the fleet that has the connections, and the listings that `Fleet.standing` returned. Requests carry
the log and its opening: a log that was reopened or has moved since is noticed, and listed again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from mrecordlog_async.protocol.bulk_calls import parts
from mrecordlog_async.protocol.bulk_schemas import PlanRequest, PlanStart
from mrecordlog_async.protocol.calls import QUEUES_AT_ONCE
from mrecordlog_async.spark.positions.offsets import BY_WHOM, HeldBackError, Listing, backlog, shares
from mrecordlog_async.spark.positions.partitions import Partition, Range, pack, partition_size
from mrecordlog_async.spark.positions.proof import Listed, gone
from mrecordlog_async.spark.services.connection import ServerDownError, ServiceRefusedError
from mrecordlog_async.spark.services.fleet import NO_ORIGINS, Fleet, same_opening
from mrecordlog_async.spark.services.responses import PlannedQueue
from mrecordlog_async.spark.settings.offset import Offset, Positions
from mrecordlog_async.spark.source.listed_plans import PIECE_BYTES, PIECE_RECORDS, ReadBefore, TriggerLimits


def ends_of_gone(fleet: Fleet, offset: Offset, logs: dict[str, Listed]) -> dict[str, dict[str, int | None]]:
    """Request where queues of *offset* ended that are no longer listed; usually there is none.

    Returns log → queue → where its incarnation ended; None if the service does not know. A log whose server goes down
    during the call is removed from *logs*.
    """
    found: dict[str, dict[str, int | None]] = {}
    for log, listed in list(logs.items()):
        absent = gone(offset, log, listed, fleet.options.subscription.includes)
        starts = [PlanStart(queue, 0, queue_id, 0) for queue, queue_id in absent.items()]
        try:
            found[log] = {plan.queue: plan.ended for plan in _plan(fleet, log, starts, listed)}
        except ServerDownError as error:
            fleet.outages.report(error)
            del logs[log]
    return found


def _plan(fleet: Fleet, log: str, starts: list[PlanStart], listed: Listed) -> list[PlannedQueue]:
    client = fleet.client(log)
    return same_opening(lambda: client.plan(starts, PlanRequest(opening=listed.opening or None), log=listed.log))


def advance(
    fleet: Fleet,
    positions: Positions,
    logs: Mapping[str, Listed],
    stops: Positions | None,
    limits: TriggerLimits,
    read_before: ReadBefore,
) -> list[tuple[str, PlannedQueue]]:
    """Return how far the limits reach from *positions*: (log, plan) of each queue that advances.

    No queue advances past the end that was listed: so the listed state of its log covers what is read.

    positions: where the last batch ended. stops: read no further than this, and no queue that it does not name; None
    for no such limit. read_before: the queues that need no request (see `listed_plans`).
    """
    starts = {log: _starts(positions.get(log, {}), listed.queues, stops, log) for log, listed in logs.items()}
    found, starts, limits = read_before.planned(starts, logs, limits)
    asked: dict[tuple[str, int], list[PlanStart]] = {}
    weights: dict[tuple[str, int], int] = {}
    for log, some in starts.items():
        known, listing = positions.get(log, {}), logs[log].queues
        for index, part in enumerate(parts(some, QUEUES_AT_ONCE)):
            asked[log, index] = list(part)
            weights[log, index] = backlog({start.queue: known[start.queue] for start in part}, listing)
    records = shares(limits.records, weights) if limits.records is not None else {}
    size = shares(limits.bytes, weights) if limits.bytes is not None else {}
    for key, part in asked.items():
        log = key[0]
        if fleet.name_of(log) not in fleet.down:
            plans = _advance_one(fleet, log, logs[log], part, records.get(key), size.get(key))
            found += [(log, plan) for plan in plans]
    # A batch that had some queues of a server that has just gone down would wait for it, and all others with it.
    # A queue that was truncated or recreated between listing and plan does not advance: the next check reports it.
    down = fleet.down
    return [(log, plan) for log, plan in found if plan.status == "ok" and fleet.name_of(log) not in down]


def _advance_one(
    fleet: Fleet, log: str, listed: Listed, starts: list[PlanStart], records: int | None, size: int | None
) -> list[PlannedQueue]:
    client = fleet.client(log)
    try:
        return same_opening(
            lambda: client.plan(
                starts,
                PlanRequest(None, records, size, PIECE_RECORDS, PIECE_BYTES, opening=listed.opening or None),
                log=listed.log,
            )
        )
    except ServerDownError as error:
        fleet.outages.report(error)
        return []


def _starts(positions: Mapping[str, list[int]], listing: Listing, stops: Positions | None, log: str) -> list[PlanStart]:
    """Return the starts of those queues of one log that have something to read."""
    found = []
    for queue, (queue_id, position) in positions.items():
        summary = listing.get(queue)
        if summary is None or summary.next_position <= position or summary.id != queue_id:
            continue
        stop = summary.next_position
        if stops is not None:
            target = stops.get(log, {}).get(queue)
            if target is None or target[0] != queue_id:
                continue
            stop = min(stop, target[1])
        if position < stop:
            found.append(PlanStart(queue, position, queue_id, stop))
    return found


def partitions(
    fleet: Fleet,
    wanted: Iterable[tuple[str, str, int, int, int]],
    names: Mapping[str, str] | None = None,
    planned: Mapping[tuple[str, str], PlannedQueue] = MappingProxyType({}),
    origins: Mapping[str, str] = NO_ORIGINS,
) -> list[Partition]:
    """Divide what is *wanted*, (log or server, queue, id, start, stop), into partitions.

    Args:
        wanted: what is read; a log may be anywhere, as long as a server has it.
        names: log → the server's name that its rows carry; servers keep their own.
        planned: (log, queue) → a plan; it is used instead of a request if it is that of the range.
        origins: log → the DNS name by which its server was found.

    Raises:
        DataLossError: a range is no longer complete. With `failOnDataLoss=false` the rest of it is read.
        HeldBackError: the same, because a log went back.
        LogMissingError: no server has a log of the batch.
    """
    names = names or {}
    starts: dict[str, list[PlanStart]] = {}
    ranges: dict[str, list[Range]] = {}
    for key, queue, queue_id, start, stop in wanted:
        ready = planned.get((key, queue))
        if ready is not None and (ready.status, ready.id, ready.start, ready.stop) == ("ok", queue_id, start, stop):
            ranges.setdefault(key, []).extend(ready.pieces)
        else:
            starts.setdefault(key, []).append(PlanStart(queue, start, queue_id, stop))
    fleet.locate(starts.keys() & names.keys(), names, origins)
    for key, asked in starts.items():
        plans = _plan_pieces(fleet, key, asked, names, origins)
        shown = names.get(key, key)
        ranges.setdefault(key, []).extend(
            piece for begun, plan in zip(asked, plans, strict=True) for piece in _pieces(fleet, shown, begun, plan)
        )
    options = fleet.options
    if not options.payload:  # then payloads are not transferred, and cost a task nothing
        ranges = {key: [piece._replace(bytes=0) for piece in pieces] for key, pieces in ranges.items()}
    every = [piece for pieces in ranges.values() for piece in pieces]
    cores = options.parallelism or _cores()
    size = partition_size(every, options.partitions_min, options.records_per_partition, cores)
    return [
        partition
        for key, pieces in sorted(ranges.items(), key=lambda each: names.get(each[0], each[0]))
        for partition in pack(
            names.get(key, key),
            sorted(pieces, key=_id_and_start),
            size,
            log=fleet.log_of(key),
            address=fleet.name_of(key),
            endpoint=fleet.found_at(key),
        )
    ]


def _plan_pieces(
    fleet: Fleet, key: str, starts: list[PlanStart], names: Mapping[str, str], origins: Mapping[str, str]
) -> list[PlannedQueue]:
    """Request the pieces of *starts*; if the log has moved since it was listed, at its new address.

    A batch that was begun waits for a server that is down, even if the options say to skip it.
    """
    moved, asked = False, PlanRequest(piece_records=PIECE_RECORDS, piece_bytes=PIECE_BYTES)
    while True:
        try:
            return fleet.client(key).plan(starts, asked, log=fleet.log_of(key))
        except ServiceRefusedError as error:
            if moved or error.code != "other_log" or key not in names:
                raise
            moved = True
        except ServerDownError as error:
            if key not in names:  # a table: nothing was begun
                raise
            fleet.lose(key)  # even if this is called again: it may be elsewhere by then
            fleet.outages.report(error)
        fleet.lose(key)
        fleet.locate({key}, names, origins)


def _pieces(fleet: Fleet, server: str, start: PlanStart, plan: PlannedQueue) -> list[Range]:
    """Return what is left of the requested range."""
    if plan.status == "ok" and (plan.start, plan.stop) == (start.start, start.stop):
        return plan.pieces
    planned = f"positions {start.start} to {(start.stop or 0) - 1} are no longer as planned"
    lost = f"server {server!r}, queue {start.queue!r}: {planned}: {_change(plan)}"
    if plan.status in ("ok", "ahead") and fleet.options.fail_on_data_loss:
        # Nothing is lost yet: unlike a loss, it must not refuse a start once the newest state is served again.
        raise HeldBackError(f"{lost}, or let --allow-data-loss (failOnDataLoss=false) store what it still has")
    fleet.report_losses([lost])
    return plan.pieces if plan.status in ("ok", "truncated") else []


def _change(plan: PlannedQueue) -> str:
    """Return what has happened to a queue since a batch was planned that has records of it."""
    match plan.status:
        case "missing":
            return "the queue was deleted"
        case "recreated":
            return "the queue was deleted and recreated"
        case "truncated":
            return f"records before {plan.start} were truncated, {BY_WHOM}"
    return f"the log ends at {plan.stop}, so it went back; serve its newest state again"


def _id_and_start(piece: Range) -> tuple[int, int]:
    """Return the order in which gathered files have records: neighbours are one read of the service's disk."""
    return piece.id, piece.start


def _cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
