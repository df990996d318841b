"""Tails: the records of a queue as server-sent events, and the service's statistics every second.

An event's id is POSITION-QUEUE_ID, so a client that lost the connection continues after the last one that it saw
(`Last-Event-ID`); if the queue was recreated meanwhile, with its first record. A tail ends with an event `end`, whose
data is the reason: the queue is `deleted`, or `sealed` and all is sent; its next record is `damaged` on the disk; the
log has `failed`, or the service is `closing`. Events are created only as fast as the client reads; one that stops
reading is dropped, without such an event.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import chain

from mrecordlog_async.engine.spilling.disk_reads import LoadedRuns
from mrecordlog_async.errors import CorruptionError, LogFailedError, QueueNotFoundError
from mrecordlog_async.memory.cutting import take_head
from mrecordlog_async.memory.runs import runs_of
from mrecordlog_async.model import Run, Times, text_of_tick
from mrecordlog_async.protocol import wire
from mrecordlog_async.protocol.problems import bad_request
from mrecordlog_async.protocol.schemas import RecordResponse, StatsResponse, TextRecordResponse
from mrecordlog_async.service.formats import PIECE_BYTES, PIECE_RECORDS, cut_up, record_lines
from mrecordlog_async.service.http import HttpRequest, HttpResponse, encoded
from mrecordlog_async.service.reading.parameters import SINCE_PARAMETER, as_text, check_query, queue_of, start_of
from mrecordlog_async.service.reading.queue_checks import check_assigned
from mrecordlog_async.service.routes.route import Route, encode_json
from mrecordlog_async.service.sending import Outgoing
from mrecordlog_async.service.service import Service, WakeReason
from mrecordlog_async.service.watching.stats import stats_of

EVENTS = "text/event-stream"
STATS_SECONDS = 1.0
ROOM_SECONDS = 0.25
"""Pause before a tail tries to send again, if the budget of responses was full."""
RUNS_AT_ONCE = 100
LAST_EVENT_ID = re.compile(r"([0-9]{1,19})(?:-([0-9]{1,19}))?")

TAIL_PARAMETERS = (
    ("start", "first position to send, or `next` for new records only (default: the first retained one)"),
    SINCE_PARAMETER,
    ("as", "text: payloads as UTF-8 text instead of base64"),
)


async def tail(service: Service, request: HttpRequest) -> Events:
    """Send records as they arrive. The last event is `end`: deleted, sealed, damaged, failed or closing."""
    check_query(request, ("start", "since", "as"))
    queue = queue_of(request)
    queue_id = service.log.queue_summary(queue).id
    position = await _start(service, request, queue, queue_id)
    text = as_text(request)

    async def follow(events: Events) -> None:
        reason = await _follow(service, events, queue, queue_id, position, text)
        if reason is not None:
            await events.send([b"event: end\ndata: %s\n\n" % reason.encode()])

    return Events(service, request, follow)


async def stats_stream(service: Service, request: HttpRequest) -> Events:
    """Send the numbers of `/v1/stats` every second."""
    check_query(request, ())

    async def follow(events: Events) -> None:
        reason = WakeReason.TIMEOUT
        while reason is WakeReason.TIMEOUT and await events.send(
            [b"data: %s\n\n" % encode_json(await stats_of(service))]
        ):
            reason = await service.wait_for(request, asyncio.Event().wait, STATS_SECONDS)

    return Events(service, request, follow)


class Events(HttpResponse):
    """A response made of events, charged only while it sends some. *follow* sends them, and returns at the end."""

    __slots__ = ("_follow", "_service", "request")

    def __init__(self, service: Service, request: HttpRequest, follow: Callable[[Events], Awaitable[None]]) -> None:
        # no-transform and the header keep proxies from holding events back.
        held = {"cache-control": "no-store, no-transform", "x-accel-buffering": "no", "connection": "close"}
        super().__init__(b"", 200, EVENTS, held)
        self.request, self._service, self._follow = request, service, follow

    async def respond(self, request: HttpRequest) -> None:
        """Send the head at once, then the events."""
        with self._service.waiting_client():
            await request.start(200, encoded(self.headers))
            await request.send({"type": "http.response.body", "body": b"", "more_body": True})
            await self._follow(self)
            await request.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def room(self) -> Outgoing | None:
        """Wait for room in the budget of responses, and charge this one; None if the service shuts down meanwhile."""
        while (out := self._service.sending.try_enter()) is None:
            if self._service.shutting_down:
                return None
            await self._service.wait_for_shutdown(ROOM_SECONDS)
        return out

    async def send(self, pieces: Iterable[bytes], out: Outgoing | None = None) -> bool:
        """Send *pieces*; return False if there is no room for them before the service ends.

        out: the charge of this response, if it has room already.
        """
        if out is None and (out := await self.room()) is None:
            return False
        with out:
            for piece in pieces:
                await out.send(self.request.send, piece)
        return True


async def _follow(service: Service, events: Events, queue: str, queue_id: int, position: int, text: bool) -> str | None:
    """Send events until there is a reason to end, and return it; None if the client has disconnected."""
    log = service.log
    while True:
        if not log.inspection.is_there(queue, queue_id):  # deleted while the tail was sending
            return "deleted"
        # The wait is for a position that has not been assigned yet, and ends at once where the records were truncated.
        position = max(position, log.first_position(queue))
        try:
            reach = partial(log.wait_for, queue, position)
            woken = await service.wait_for(events.request, reach, service.options.heartbeat_seconds)
        except LogFailedError:
            return "failed"
        except QueueNotFoundError:  # deleted in the turn before the wait began
            return "deleted"
        if woken is WakeReason.LEFT:
            return None
        if service.shutting_down:
            return "closing"
        if not log.inspection.is_there(queue, queue_id):
            return "deleted"
        if woken is WakeReason.ENDED:  # not sealed: an application drains its log before it closes it
            return "sealed" if log.queue_summary(queue).sealed else "closing"
        if woken is WakeReason.TIMEOUT:
            if not await events.send([b": still here\n\n"]):
                return None
            continue
        # Charged before the records are read: those from the disk are copies that nobody else holds. 40 tails whose
        # clients read nothing held 40 MiB next to a budget of 12 MiB, while they waited for room with these copies.
        if (out := await events.room()) is None:
            return "closing"
        with out:
            try:
                loaded = await _load(service, out, queue, position)
            except QueueNotFoundError:
                return "deleted"
            except CorruptionError:
                return "damaged"
            runs = take_head(runs_of(loaded.held), PIECE_RECORDS, PIECE_BYTES)
            if runs:
                position = runs[-1].next_position
                found = chain.from_iterable(_events(queue_id, run, text, loaded.times) for run in runs)
                await events.send(wire.gather(found, PIECE_BYTES), out)
            del loaded, runs
        await asyncio.sleep(0)  # a tail with much to send lets other tasks run


async def _load(service: Service, out: Outgoing, queue: str, position: int) -> LoadedRuns:
    """Return the next records to send; charge *out* for those that are more than a piece, and are copies."""
    log = service.log
    is_on_disk = position < log.memory_first(queue)
    async with service.reads if is_on_disk else nullcontext():
        loaded = await log.inspection.load(
            queue, position, runs_max=RUNS_AT_ONCE, records_max=PIECE_RECORDS, bytes_max=PIECE_BYTES
        )
        if loaded.is_copy and loaded.bytes > PIECE_BYTES:  # before another one reads from the disk
            out.add(loaded.bytes)
    return loaded


def _events(queue_id: int, run: Run, text: bool, times: Times) -> Iterator[bytes]:
    for part in cut_up(run):
        if len(part.payload) > PIECE_BYTES:
            yield b"id: %d-%d\ndata: " % (part.first_position, queue_id)
            yield from record_lines(part, text, times)
            yield b"\n"
        else:
            yield b"".join(_small_events(queue_id, part, text, times))


def _small_events(queue_id: int, run: Run, text: bool, times: Times) -> Iterator[bytes]:
    for start, stop, tick in times.spans(run.first_position, run.next_position):
        time = text_of_tick(tick)
        for position, payload in run.cut(start, stop).records():
            yield b"id: %d-%d\ndata: %s\n\n" % (position, queue_id, _record(position, time, payload, text))


def _record(position: int, time: str, payload: bytes, text: bool) -> bytes:
    if text:
        return encode_json(TextRecordResponse(position, time, payload.decode(errors="replace")))
    return encode_json(RecordResponse(position, time, payload))


async def _start(service: Service, request: HttpRequest, queue: str, queue_id: int) -> int:
    """Return the first position to send; a resumed tail continues after the last event that the client saw.

    One that a restored log does not have is refused: new records would take the positions that the client has seen.
    """
    last_seen = request.header(b"last-event-id")
    if last_seen:
        found = LAST_EVENT_ID.fullmatch(last_seen)
        if found is None:
            raise bad_request("Last-Event-ID must be the id of the last event seen, or its position", "parameter")
        if found[2] is not None and int(found[2]) != queue_id:
            return service.log.queue_summary(queue).first_position  # the client has seen nothing of this queue
        check_assigned(service.log.queue_summary(queue), int(found[1]))
        return int(found[1]) + 1
    return await start_of(service.log, request, queue, or_next=True)


ROUTES = (
    Route(
        "GET",
        "/v1/queues/{queue}/tail",
        tail,
        "Follow a queue (server-sent events)",
        formats=(EVENTS,),
        parameters=TAIL_PARAMETERS,
        problems=(404, 409, 429),
    ),
    Route(
        "GET",
        "/v1/stats/stream",
        stats_stream,
        "Follow the statistics (server-sent events)",
        returns=StatsResponse,
        formats=(EVENTS,),
        problems=(429,),
    ),
)
