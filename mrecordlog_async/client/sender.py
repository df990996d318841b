"""`Sender`: sends the calls of one client, each until it has a response that another attempt would not change."""

from __future__ import annotations

from typing import TypeVar

from mrecordlog_async.client.blocking_transport import BlockingTransport
from mrecordlog_async.client.outage import Outage
from mrecordlog_async.client.transport import Transport
from mrecordlog_async.errors import LogClosedError, RecordLogError
from mrecordlog_async.protocol.attempts import Attempts, NoResponseError
from mrecordlog_async.protocol.calls import ServiceCall
from mrecordlog_async.protocol.responses import Reply

T = TypeVar("T")

AnyTransport = Transport | BlockingTransport
"""The coroutines of a client run over either: over the second one they never wait for an event loop."""

POLL_SECONDS = 3.0
"""Pause before a client that the service does not let wait asks for records."""


class Sender:
    """Send calls and retry them: `Attempts` decides what is sent twice, and the transport exchanges.

    Attributes:
        transport: The connections.
    """

    def __init__(self, transport: AnyTransport, retry_seconds: float) -> None:
        self.transport = transport
        self._retry_seconds = retry_seconds
        self._outage = Outage(transport.options.address)

    async def send(self, call: ServiceCall[T]) -> T:
        """Send *call* and return its result.

        Raises:
            RecordLogError: The last refusal, or what is known after the last lost response.
        """
        # Before anything is sent: otherwise a change would be made whose caller gets another error.
        self.transport.check()
        try:
            reply = await self._reply(call)
        except RecordLogError as error:
            return call.after_error(error)
        return call.read(reply)

    async def _reply(self, call: ServiceCall[T]) -> Reply:
        """Return a response with a status below 300."""
        transport, seconds = self.transport, self._retry_seconds
        action = f"{call.method} {call.path}"
        attempts = Attempts.begun(action, transport.options.address, call.repeat, seconds, call.wait_seconds)
        attempts.lost = call.lost
        while True:
            try:
                reply = await transport.exchange(call, attempts.left_seconds())
                if reply.status < 300:
                    self._outage.ended()
                    return reply._replace(repeated=True) if attempts.lost else reply
                if call.wait_seconds and reply.status == 429:
                    call, attempts.at_least_seconds = call.without_waiting(), POLL_SECONDS
                    await transport.pause(attempts.next_pause() or 0.0, call.end)
                    continue
                error = attempts.after_refusal(reply)
            except LogClosedError as closed:
                raise attempts.final(closed) from None
            except NoResponseError as lost:
                error = attempts.after_loss(lost)
            self._outage.failed(error, attempts.left_seconds())
            pause = attempts.next_pause()
            if pause is None:
                raise attempts.final(error)
            await transport.pause(pause, call.end)
