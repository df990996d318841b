"""The client's methods that change queues: create, delete, append, truncate."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from contextlib import suppress
from typing import Any, overload

import msgspec

from mrecordlog_async.batches import check_position
from mrecordlog_async.client.consumers import JSON, encoded_options
from mrecordlog_async.client.retry import OutcomeUnknownError, Repeat
from mrecordlog_async.client.transport import Payload, Transport, copied, path_of
from mrecordlog_async.errors import PositionInPastError, QueueNotFoundError
from mrecordlog_async.model import Run
from mrecordlog_async.options import QueueOptions
from mrecordlog_async.protocol import wire
from mrecordlog_async.protocol.responses import ServiceError, decoded
from mrecordlog_async.protocol.schemas import AppendResponse, TruncateRequest, TruncateResponse
from mrecordlog_async.support.coroutine_mark import coroutine_function

OCTET_STREAM = "application/octet-stream"

TWICE = "another producer wrote there, or a proxy sent the request twice"


class Changes:
    """The methods of `RecordLogClient` that change queues."""

    _transport: Transport

    async def create_queue(self, queue: str, *, exist_ok: bool = False, options: QueueOptions | None = None) -> bool:
        """Create *queue* and wait until that is durable.

        Args:
            queue: Its name.
            exist_ok: Accept a queue that exists already. The request is then sent again after a lost response, which
                otherwise raises OutcomeUnknownError.
            options: Its options, if it is created.

        Returns:
            True if the queue was created, False if it existed.

        Raises:
            QueueExistsError: The queue exists, and *exist_ok* is false.
            QueueNameError: The name is not valid.
            LogFullError: The log holds as many queues as it may, or the disk is full.
        """
        query = {"exist_ok": "1"} if exist_ok else {}
        repeat = Repeat.FREELY if exist_ok else Repeat.NEVER
        body = None if options is None else encoded_options(options)
        reply = await self._transport.send(
            "PUT", path_of(queue), query=query, body=body, content_type=JSON if body else None, repeat=repeat
        )
        return reply.status == 201

    async def delete_queue(self, queue: str, *, queue_id: int | None = None, past_consumers: bool = False) -> None:
        """Delete *queue* and all its records.

        Args:
            queue: Its name.
            queue_id: Delete only this incarnation (`queue_summary(queue).id`). Such a call is sent again after a lost
                response. Without an id a lost response raises OutcomeUnknownError, because a second request could
                delete a queue that was created in between.
            past_consumers: Delete it even if a consumer has not acknowledged all records.

        Raises:
            QueueNotFoundError: The queue does not exist, or is another incarnation.
            ConsumerBehindError: A consumer has not acknowledged all records, and *past_consumers* is false.
        """
        query = {"past_consumers": "1"} if past_consumers else {}
        if queue_id is None:
            await self._transport.send("DELETE", path_of(queue), query=query, repeat=Repeat.NEVER)
            return
        query["id"] = str(queue_id)
        try:
            await self._transport.send("DELETE", path_of(queue), query=query, repeat=Repeat.RECOGNIZED)
        except OutcomeUnknownError as error:
            # After a lost response: the queue of this id does not exist, which is what was asked for.
            if not isinstance(error.__cause__, QueueNotFoundError):
                raise

    # The appends copy what is not `bytes` when they are called, as those of the log: a caller may use its buffer again.

    @overload
    def append(self, queue: str, payload: Payload, *, create: bool = False) -> Coroutine[Any, Any, int]: ...

    @overload
    def append(
        self, queue: str, payload: Payload, position: int | None, *, create: bool = False
    ) -> Coroutine[Any, Any, int | None]: ...

    @coroutine_function
    def append(
        self, queue: str, payload: Payload, position: int | None = None, *, create: bool = False
    ) -> Coroutine[Any, Any, int | None]:
        """Append *payload* to *queue*: `append_record` with the position last, where it can be left out.

        Args:
            queue: Its name.
            payload: The record; it may be empty.
            position: Position of the record, at least the next position; None assigns the next one.
            create: Create the queue if it does not exist.

        Returns:
            The position, or None if exactly this record was stored at *position* before.

        Raises:
            RecordLogError: The errors of `append_record`.
        """
        return self.append_record(queue, position, payload, create=create)

    @overload
    def append_record(
        self, queue: str, position: None, payload: Payload, *, create: bool = False
    ) -> Coroutine[Any, Any, int]: ...

    @overload
    def append_record(
        self, queue: str, position: int | None, payload: Payload, *, create: bool = False
    ) -> Coroutine[Any, Any, int | None]: ...

    @coroutine_function
    def append_record(
        self, queue: str, position: int | None, payload: Payload, *, create: bool = False
    ) -> Coroutine[Any, Any, int | None]:
        """Append *payload* to *queue* and wait until it is stored.

        Without a position, a lost response raises OutcomeUnknownError, because sending the record again could store it
        twice. With a position it is sent again; if that is refused, the call raises OutcomeUnknownError too, because
        the first attempt may have been stored. `producer` assigns positions itself.

        Args:
            queue: Its name.
            position: Position of the record, at least the next position; None assigns the next one.
            payload: The record; it may be empty.
            create: Create the queue if it does not exist.

        Returns:
            The position, or None if exactly this record was stored at *position* before. Never None without a position.

        Raises:
            QueueNotFoundError: The queue does not exist, and *create* is false.
            PositionInPastError: Another record has this position.
            RecordTooLargeError: The record exceeds a limit of the service.
            LogFullError: The log has no room within `retry_seconds`; truncate queues.
        """
        record, checked = copied(payload), None if position is None else check_position(position)
        return self._append_copied(queue, checked, [record], create)

    @coroutine_function
    def append_records(
        self, queue: str, position: int | None, payloads: Iterable[Payload], *, create: bool = False
    ) -> Coroutine[Any, Any, int | None]:
        """Append *payloads* to *queue*, all or none, and wait until they are stored.

        Args:
            queue: Its name.
            position: Position of the first record; None assigns the next one. Lost responses are handled as in
                `append_record`.
            payloads: The records; they get consecutive positions.
            create: Create the queue if it does not exist.

        Returns:
            The last position, or None if the records were stored before or *payloads* is empty.

        Raises:
            QueueNotFoundError: The queue does not exist, and *create* is false.
            PositionInPastError: Other records have these positions.
            RecordTooLargeError: A record, or all together, exceed a limit of the service.
            LogFullError: The log has no room within `retry_seconds`; truncate queues.
        """
        records = [copied(payload) for payload in payloads]
        return self._append_copied(queue, None if position is None else check_position(position), records, create)

    async def _append_copied(self, queue: str, position: int | None, records: list[bytes], create: bool) -> int | None:
        response = await _append(self._transport, queue, position, records, create)
        return None if response.duplicate else response.position

    async def append_new(self, queue: str, position: int, payloads: Iterable[Payload]) -> int:
        """Append *payloads* at *position*, for a queue with this one writer.

        Unlike in `append_records`, records that are already stored there are an error, even if they are the same: only
        an attempt that follows a lost response counts as a repeat. Otherwise another producer stored them, or a proxy
        sent the request twice; no response shows which.

        Args:
            queue: Its name.
            position: Position of the first record, which no other writer may have taken.
            payloads: The records, at least one.

        Returns:
            The last position.

        Raises:
            PositionInPastError: Another writer stored other records at these positions; these were not stored.
            OutcomeUnknownError: These records may have been stored.
        """
        records = [copied(payload) for payload in payloads]
        action = f"POST {path_of(queue, 'records')}"
        try:
            response, repeated = await _send_append(self._transport, queue, position, records)
        except PositionInPastError as error:
            if not error.outcome_unknown:
                raise
            raise OutcomeUnknownError(action, str(error)) from error
        if response.duplicate and not repeated:
            raise OutcomeUnknownError(
                action, f"exactly these records are already stored at position {position}: {TWICE}"
            )
        return position + len(records) - 1

    async def truncate(
        self, queue: str, position: int, *, queue_id: int | None = None, past_consumers: bool = False
    ) -> int:
        """Drop the records of *queue* up to and including *position*; durable as the policy of the service says.

        Args:
            queue: Its name.
            position: The last position to drop; it must have been assigned.
            queue_id: Truncate only this incarnation of the queue (`queue_summary(queue).id`, or that of a batch).
                Without it, a call that is sent again after a lost response may truncate a queue that was created in
                between.
            past_consumers: Truncate even what a consumer has not acknowledged.

        Returns:
            The number of records dropped.

        Raises:
            QueueNotFoundError: The queue does not exist, or is another incarnation.
            ConsumerBehindError: A consumer has not acknowledged the records, and *past_consumers* is false.
            ServiceError: The position has not been assigned yet (code `ahead`).
        """
        check_position(position)
        body = msgspec.json.encode(TruncateRequest(position, queue_id, past_consumers))
        reply = await self._transport.send("POST", path_of(queue, "truncate"), body=body, content_type=JSON)
        return decoded(reply, TruncateResponse).dropped


async def _append(
    transport: Transport, queue: str, position: int | None, records: list[bytes], create: bool
) -> AppendResponse:
    """Append *records*. The queue is created only after a refusal, so *create* costs other calls nothing."""
    if create:
        with suppress(QueueNotFoundError):
            return (await _send_append(transport, queue, position, records))[0]
    return (await _send_append(transport, queue, position, records, create=create))[0]


async def _send_append(
    transport: Transport, queue: str, position: int | None, records: list[bytes], *, create: bool = False
) -> tuple[AppendResponse, bool]:
    """Append *records*; return the response, and whether the response to an earlier attempt was lost."""
    body, content_type = _body_of(records, queue)
    query = {} if position is None else {"position": str(position)}
    if create:
        query["create"] = "1"
    reply = await transport.send(
        "POST",
        path_of(queue, "records"),
        query=query,
        body=body,
        content_type=content_type,
        repeat=Repeat.NEVER if position is None else Repeat.RECOGNIZED,
    )
    response = decoded(reply, AppendResponse)
    count = len(records)
    # A proxy may mix up responses; a response to another request acknowledges nothing.
    if response.records != count or (position is not None and count and response.position != position + count - 1):
        got = f"{response.records} records up to position {response.position}"
        sent = f"{count} at position {position}" if position is not None else f"{count}"
        raise ServiceError(reply.status, "unreadable", f"the response reports {got}, but the request had {sent}")
    return response, reply.repeated


def _body_of(records: list[bytes], queue: str) -> tuple[bytes, str]:
    """Return body and content type: a single record is the body itself."""
    if len(records) == 1:
        return records[0], OCTET_STREAM
    runs = [Run.of(0, records)] if records else []
    return b"".join(wire.encode([wire.QueueRuns(queue, 0, runs)])), wire.CONTENT_TYPE
