"""Waits until a consumer has acknowledged a position. A wait costs one entry, and nothing while the consumer rests.

A consumer moves past a position in three ways, and only the first one means that somebody has the record:

1. It acknowledges.
2. It seeks forward, or an operator moves it.
3. A truncate passes it: one of another program, or of `max_age` or `when_full="drop_oldest"`.

The positions of 2 are noted here, those of 3 by `memory.consumers`, both since the log was opened: what a consumer had
passed before counts as acknowledged.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from typing import NamedTuple

from mrecordlog_async.engine.planning.consumer_view import ConsumerMove
from mrecordlog_async.errors import ConsumerNotFoundError, QueueNotFoundError, RecordLogError, RecordTruncatedError
from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.memory.queues import Queues

Key = tuple[int, str]
"""Id of a queue, and name of a consumer."""

WAITS_PER_TURN = 128
"""Waits that end per iteration of the event loop. With 10,000 in one, their responses blocked a service for 240 ms."""


class _Wait(NamedTuple):
    position: int
    number: int  # unique, so that futures are never compared
    queue: str
    consumer: str
    done: asyncio.Future[None]


class _Waits:
    """The waits for one consumer, a heap by position. Those that were cancelled stay until they are half of all."""

    def __init__(self) -> None:
        self.heap: list[_Wait] = []
        self.cancelled = 0

    def up_to(self, position: int | None) -> Iterator[_Wait]:
        """Take and yield the waits for positions below *position*; all without one."""
        while self.heap and (position is None or self.heap[0].position < position):
            wait = heappop(self.heap)
            if wait.done.done():
                self.cancelled -= 1
            else:
                yield wait

    def note_cancelled(self) -> None:
        """Count one more cancelled wait of the heap."""
        self.cancelled += 1
        if self.cancelled * 2 > len(self.heap):
            self.heap = [wait for wait in self.heap if not wait.done.done()]
            heapify(self.heap)
            self.cancelled = 0


class Acknowledgements:
    """The waits of a log. The writer reports each batch that it has applied; all on the event loop.

    waits: by queue id and consumer. Each batch looks whether there are any: a call would cost every append.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, queues: Queues) -> None:
        self._loop = loop
        self._queues = queues
        self.waits: dict[int, dict[str, _Waits]] = {}
        self._numbers = count()
        self._ending: deque[tuple[_Wait, Callable[[_Wait], RecordLogError] | None]] = deque()  # in the next iterations
        self._sought: dict[Key, tuple[int, int]] = {}  # first position passed by seeks, and the one after the last

    async def wait(self, queue: Queue, consumer: str, position: int) -> None:
        """Wait until *consumer* has acknowledged *position*.

        Raises:
            RecordTruncatedError: Something else moved the consumer past it.
            ConsumerNotFoundError, QueueNotFoundError: It does not exist, or was deleted during the wait.
        """
        state = queue.consumer(consumer)
        if state is None:
            raise ConsumerNotFoundError(queue.name, consumer)
        if state.position > position:
            if self._was_passed(queue, consumer, position):
                raise RecordTruncatedError(queue.name, position, consumer)
            return
        waits = self.waits.setdefault(queue.id, {}).setdefault(consumer, _Waits())
        done = self._loop.create_future()
        heappush(waits.heap, _Wait(position, next(self._numbers), queue.name, consumer, done))
        try:
            await done
        except asyncio.CancelledError:
            if done.cancelled():
                waits.note_cancelled()
                self._end_up_to((queue.id, consumer), 0)  # forgets the consumer if nobody waits any more
            raise

    def applied(self, queue_ids: Iterable[int], moves: Sequence[ConsumerMove]) -> None:
        """End the waits that a batch settles. moves: the acknowledgements and seeks in it, in order."""
        for move in moves:
            if move.seeks:
                self._note_seek(move)
            else:
                self._end_up_to((move.queue_id, move.consumer), move.position)
        if self.waits:
            for queue_id in self.waits.keys() & set(queue_ids):
                self._look_at(queue_id)

    def end_all(self, error: RecordLogError) -> None:
        """End every wait with *error*: the log failed or closes."""
        for queue_id, consumers in list(self.waits.items()):
            for consumer in list(consumers):
                self._end_up_to((queue_id, consumer), None, lambda _: error.copy())

    def _note_seek(self, move: ConsumerMove) -> None:
        key = (move.queue_id, move.consumer)
        first, end = self._sought.get(key, (move.position, move.position))
        if move.position < move.before:
            end = min(end, move.position)  # it reads on from there, and acknowledges again
        else:
            first, end = min(first, move.before), move.position
        if first < end:
            self._sought[key] = first, end
        else:
            self._sought.pop(key, None)

    def _was_passed(self, queue: Queue, consumer: str, position: int) -> bool:
        """Return whether anything but an acknowledgement may have moved *consumer* past *position*."""
        first, end = self._sought.get((queue.id, consumer), (0, 0))
        truncated_from, truncated_to = queue.consumers.passed(consumer)
        return first <= position < end or truncated_from <= position < truncated_to

    def _look_at(self, queue_id: int) -> None:
        """End the waits for a queue that changed if it, a consumer or a position of theirs is gone."""
        queue = self._queues.by_id(queue_id)
        for consumer in list(self.waits[queue_id]):
            state = None if queue is None else queue.consumer(consumer)
            key = queue_id, consumer
            if queue is None:
                self._end_up_to(key, None, lambda wait: QueueNotFoundError(wait.queue))
            elif state is None:
                self._end_up_to(key, None, lambda wait: ConsumerNotFoundError(wait.queue, wait.consumer))
            else:  # what it acknowledged has ended already
                self._end_up_to(key, state.position, _truncated)

    def _end_up_to(
        self, key: Key, position: int | None, error: Callable[[_Wait], RecordLogError] | None = None
    ) -> None:
        """End the waits for positions below *position*, or all, with the error that *error* makes, or without one."""
        queue_id, consumer = key
        waits = self.waits.get(queue_id, {}).get(consumer)
        if waits is None:
            return
        more_follow = bool(self._ending)
        self._ending.extend((wait, error) for wait in waits.up_to(position))
        if not more_follow:
            self._end_some()
        if not waits.heap:
            del self.waits[queue_id][consumer]
            if not self.waits[queue_id]:
                del self.waits[queue_id]

    def _end_some(self) -> None:
        for _ in range(min(len(self._ending), WAITS_PER_TURN)):
            wait, error = self._ending.popleft()
            if wait.done.done():
                continue  # cancelled since
            if error is None:
                wait.done.set_result(None)
            else:
                wait.done.set_exception(error(wait))
        if self._ending:
            self._loop.call_soon(self._end_some)


def _truncated(wait: _Wait) -> RecordLogError:
    return RecordTruncatedError(wait.queue, wait.position, wait.consumer)
