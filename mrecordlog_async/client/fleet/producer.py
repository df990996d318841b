"""`FleetProducer`: the one writer of a queue on every server of a fleet."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Self

from mrecordlog_async.client.fleet.decisions import AttemptOutcome, outcome_of
from mrecordlog_async.client.fleet.lane import Lane
from mrecordlog_async.client.fleet.membership import Membership
from mrecordlog_async.client.fleet.placement import Key, Placement, Stored
from mrecordlog_async.client.fleet.server import Server
from mrecordlog_async.errors import LogClosedError, RecordLogError
from mrecordlog_async.model import copy_payload, copy_payloads
from mrecordlog_async.options import QueueOptions, check_type
from mrecordlog_async.record_log import Payload
from mrecordlog_async.support.coroutine_mark import coroutine_function


class FleetProducer:
    """Append to one queue of a fleet as its only writer. Created by `RecordLogFleet.producer`; use it as `async with`.

    Each server has its own producer, whose repeats it recognizes: a lost response is settled by sending the same
    records again with the same positions, for `retry_seconds` of the fleet. A record whose outcome stays unknown raises
    OutcomeUnknownError and is not sent again. Calls of many tasks share requests. The records of a key are stored in
    the order of the calls on each server; a record that has to go elsewhere, or to wait for space, may come after later
    ones.

    Attributes:
        queue: Name of the queue.
    """

    def __init__(self, placement: Placement, membership: Membership, queue: str, options: QueueOptions | None) -> None:
        """Use `RecordLogFleet.producer`."""
        if options is not None:
            check_type("options", options, QueueOptions)
        self.queue = queue
        self._placement = placement
        self._membership = membership
        self._options = options
        self._lanes: dict[Server, Lane] = {}  # one that was forgotten and has come back is another `Server`
        self._open = False

    async def __aenter__(self) -> Self:
        # On every server that responds, so that consumers meet the queue before its first record.
        servers = [server for server in self._membership.servers.values() if server.writes]
        for result in await asyncio.gather(*map(self._create, servers), return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
        self._open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @coroutine_function
    def append_record(self, payload: Payload, *, key: Key | None = None) -> Coroutine[Any, Any, Stored]:
        """Append *payload* and wait until it is stored. Cancelling stops the waiting, not the sending.

        Args:
            payload: The record; it may be empty.
            key: Records with the same key go to the same server, as long as that takes records; None for the queue's
                name, which keeps all records together.

        Returns:
            Where the record is stored.

        Raises:
            PositionInPastError: The record was not stored: another producer writes to the queue.
            OutcomeUnknownError: The record may be stored; see `Producer`.
            RecordLogError: The errors of `RecordLogFleet`.
        """
        return self._append([copy_payload(payload)], key)  # at once, as in the log

    @coroutine_function
    def append_records(self, payloads: Iterable[Payload], *, key: Key | None = None) -> Coroutine[Any, Any, Stored]:
        """Append *payloads* to one server, all or none, and wait until they are stored.

        Args:
            payloads: The records; they get consecutive positions.
            key: As in `append_record`.

        Returns:
            Where the last one is stored.

        Raises:
            RecordLogError: The errors of `append_record`.
        """
        return self._append(copy_payloads(payloads), key)

    async def close(self) -> None:
        """Wait until every appended record is stored or refused. Later appends raise LogClosedError."""
        self._open = False
        await asyncio.gather(*(lane.close() for lane in self._lanes.values()))

    async def _append(self, payloads: Sequence[bytes], key: Key | None) -> Stored:
        async def store(server: Server) -> int | None:
            if not self._open:
                raise LogClosedError("the producer is closed, or was not entered with `async with`")
            return await self._lane(server).append(payloads)

        return await self._placement.place(self.queue, key, store)

    async def _create(self, server: Server) -> None:
        try:
            await self._lane(server).create()
        except RecordLogError as error:
            if outcome_of(error) is AttemptOutcome.REFUSED:
                raise
            self._membership.suspect(server)  # the queue is created there when it is used

    def _lane(self, server: Server) -> Lane:
        if server not in self._lanes:
            self._lanes[server] = Lane(server, self.queue, self._options, shares=False)
        return self._lanes[server]
