"""`BlockingProducer`: a `Producer` for threads. It runs on an event loop in its own thread, from enter to close.

Records that threads append while a request is under way share the next one, as those of tasks do.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Iterable

from mrecordlog_async.client.blocking_transport import BlockingTransport
from mrecordlog_async.client.client import RecordLogClient
from mrecordlog_async.client.loop_thread import FORKED, LoopThread
from mrecordlog_async.client.options import ClientOptions
from mrecordlog_async.client.producer import Producer
from mrecordlog_async.client.sender import Sender
from mrecordlog_async.client.transport import Transport
from mrecordlog_async.errors import LogClosedError
from mrecordlog_async.protocol.calls import Payload
from mrecordlog_async.support.forks import call_in_children

NOT_ENTERED = "the producer is closed, or was not entered with `with`"


class BlockingProducer:
    """Append to one queue as its only writer: each record is stored once. Many threads may append at once.

    Use it as `with`. See `Producer`, whose methods have the same names and errors.

    Attributes:
        queue: Name of the queue.
        running: The thread, between enter and close.
    """

    def __init__(self, transport: BlockingTransport, queue: str, *, create: bool = False) -> None:
        """Use `BlockingRecordLogClient.producer`."""
        self.queue = queue
        self._transport = transport  # or the client would be closed if nobody else kept it
        self._create = create
        self.running: _Running | None = None
        self._position: int | None = None
        transport.parts.add(self)
        _producers.add(self)

    @property
    def next_position(self) -> int | None:
        """Position of the next record; None before `with` and after the queue was deleted."""
        return self._position if self.running is None else self.running.producer.next_position

    def __enter__(self) -> BlockingProducer:
        self._transport.check()
        running = self.running = _Running(self._transport.options, self.queue, self._create)
        # Even if nobody closes it. `_end_with_interpreter` does it at the end of the program.
        weakref.finalize(self, running.stop).atexit = False
        try:
            running.thread.call(running.producer.__aenter__())
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append_record(self, payload: Payload) -> int:
        """Append *payload* and wait until it is stored."""
        running = self._entered()
        return running.thread.call(running.producer.append_record(payload))

    def append_records(self, payloads: Iterable[Payload]) -> int | None:
        """Append *payloads*, all or none, and wait until they are stored; return the last position."""
        running, records = self._entered(), list(payloads)  # a generator of the caller runs in the caller's thread
        return running.thread.call(running.producer.append_records(records))

    def close(self) -> None:
        """Wait until every appended record is stored or refused."""
        running = self.running
        if running is not None:
            running.thread.call(running.producer.close())
            self.end()

    def end(self) -> None:
        """End the thread without waiting for records: calls of other threads raise LogClosedError."""
        running, self.running = self.running, None
        if running is not None:
            self._position = running.producer.next_position
            running.stop()

    def exit(self) -> None:
        """End the thread as the interpreter ends: calls of daemon threads do not return."""
        if self.running is not None and not self.running.thread.inherited:
            self.running.thread.exit()
            self.end()

    def _entered(self) -> _Running:
        running = self.running
        if running is None:
            self._transport.check()
            raise LogClosedError(NOT_ENTERED)
        if running.thread.inherited:
            raise LogClosedError(FORKED)
        return running


class _Running:
    """The thread of one producer, and what runs on its loop. It keeps no reference to the `BlockingProducer`."""

    def __init__(self, options: ClientOptions, queue: str, create: bool) -> None:
        self.thread = LoopThread("mrecordlog client")
        self._client = RecordLogClient.over(Sender(Transport(options), options.retry_seconds))
        self.producer: Producer = self._client.producer(queue, create=create)

    def stop(self) -> None:
        """Close the client and end the thread. Nothing happens in a fork, or if it has ended."""
        if self.thread.inherited or self.thread.has_stopped:
            return
        if self.thread.is_current():  # the garbage collector may run there
            threading.Thread(target=self.stop, name="mrecordlog close").start()
            return
        self.thread.call(self._client.close())
        self.thread.stop()


_producers: weakref.WeakSet[BlockingProducer] = weakref.WeakSet()
_of_parents: list[_Running | None] = []
"""Loops that a forked child inherited. They are kept: closing one would take descriptors out of the parent's epoll."""


def _leave_to_parent() -> None:
    _of_parents.extend(producer.running for producer in list(_producers))


call_in_children(_leave_to_parent)


@atexit.register
def _end_with_interpreter() -> None:
    """End every producer that is still open, after the program's own functions for its exit."""
    for producer in list(_producers):
        producer.exit()
