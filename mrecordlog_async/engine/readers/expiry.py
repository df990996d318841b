"""Expiry: records of queues with `max_age` are removed by ordinary truncates, even while nobody appends.

1. A heap has one entry for each queue with `max_age`: the earliest time at which its oldest record can be too old. An
   append does not touch it: what is appended to an empty queue is not too old before *max_age* has passed.
2. A pass takes the entries that are due, finds the records that are too old, and truncates these queues in one batch.
   Then each entry returns with the time of the oldest record that is left.
3. A queue is truncated at most once per max(1 s, max_age / 100), and passes are a second apart. A pass looks at up to a
   thousand queues, which takes 3 ms of the event loop; where more are due, the next one follows at once.
4. A queue is forgotten when it is deleted, or its `max_age` is taken away.
5. Of records on the disk it is known when a place of some 256 KiB begins and ends. Where that is more than a hundredth
   of the age, and the place has begun to be too old, its times are read, once.

Consumers do not hold the truncate of `max_age` back: it says how long records wait for them at most. `keep_at_least` is
an age too, but only what every consumer has acknowledged is removed then. While a consumer is behind, the queue is
looked at again after the time of 3.

While the clock that the log was opened with is in doubt (`clock_doubt`), the queues that this concerns are left alone.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from heapq import heapify, heappop, heappush

from mrecordlog_async.engine.clock_doubt import OPENINGS, WAIT_TICKS, concerns, removal_age
from mrecordlog_async.engine.intake.commands import Command
from mrecordlog_async.engine.intake.controls import TruncateQueue
from mrecordlog_async.engine.readers.age_clock import AgeClock
from mrecordlog_async.errors import CorruptionError, RecordLogError
from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.memory.stored_times import tick_spans, ticks_of_place
from mrecordlog_async.metrics import Counters
from mrecordlog_async.model import DAY_TICKS, TICKS_PER_SECOND, Times, time_of_tick
from mrecordlog_async.storage.end_note import NO_DOUBT, ClockDoubt

PASS_TICKS = TICKS_PER_SECOND
"""Passes are at least this far apart."""

SLEEP_SECONDS_MAX = 60.0
"""The timer does not run while the machine sleeps, so it never waits longer. A look that finds nothing costs 1 µs."""

QUEUES_PER_PASS = 1_000
"""A pass looks at no more queues. If more are due, the next pass begins once the truncates of this one are stored."""

WAIT_MINUTES = WAIT_TICKS // (60 * TICKS_PER_SECOND)

HEAP_SLACK = 64
"""The heap is made again once more than half of its entries, and this many, no longer count."""


logger = logging.getLogger("mrecordlog_async")


class Expiry:
    """Removes the records that are too old. The log owns it; everything runs on the log's event loop."""

    def __init__(
        self,
        queues: Queues,
        clock: AgeClock,
        counters: Counters,
        submit: Callable[[Command], None],
        opened_next: dict[int, int],
        read_times: Callable[[Queue, int], Awaitable[Times]],
        doubt: ClockDoubt,
        on_doubt: Callable[[ClockDoubt], None],
    ) -> None:
        """*submit* hands a command to the writer, *read_times* reads those of the place that has a position.

        *opened_next*: the next positions of the queues that had a `max_age` when the log was opened, by id. The records
        before them were stored before the log was opened. *doubt*: about the clock at the opening; *on_doubt*
        is called with what the next opening is to know.
        """
        self._counters = counters
        self._queues = queues
        self._clock = clock
        self._submit = submit
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None  # refers to this object weakly: a dropped log ends its timer
        self._heap: list[tuple[int, int]] = []  # (tick, queue id); only those in `_due` count
        self._due: dict[int, int] = {}
        self._unfinished = 0  # truncates that are being stored
        self._has_more = False  # the last pass left queues out
        self._read_times = read_times
        self._times: dict[int, tuple[int, Times]] = {}  # of the last place that was read of a queue, up to a position
        self._reads: dict[int, asyncio.Task[None]] = {}
        self._running = False
        self._opened_next = opened_next
        # Of each queue, when it was first seen with a `max_age`: the records before this position were stored by then.
        self._seen: dict[int, tuple[int, int]] = {}
        self._doubt = doubt
        self._on_doubt = on_doubt
        self._has_said = False
        queues.stopped_aging = deque()

    def start(self) -> None:
        """Begin: look at once, then whenever something can be too old. A log without `max_age` has no timer."""
        self._running = True
        self.queue_configured()

    def stop(self) -> None:
        """End: nothing is removed any more."""
        if self._running:
            self._note_setting(self._clock.now())
        self._running = False
        for read in self._reads.values():
            read.cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def queue_configured(self) -> None:
        """Look again soon if queues have another `max_age`, or none any more."""
        if self._running and (self._queues.newly_aging or self._queues.stopped_aging):
            self._arm(0.0)

    def run(self) -> int:
        """Hand in truncates for the records that are too old now; return for how many queues.

        Does nothing while those of the last pass are being stored.
        """
        now = self._clock.now()
        self._take_stopped()
        self._take_new(now)
        if self._unfinished:
            return 0
        if self._doubt.openings:
            now = self._doubt_less(now)
        else:
            self._note_setting(now)
        done = 0
        for _ in range(QUEUES_PER_PASS):
            if not self._is_due(now):
                break
            due, queue_id = heappop(self._heap)
            if self._due.get(queue_id) == due:
                del self._due[queue_id]
                done += self._expire(queue_id, now)
        return done

    def _is_due(self, now: int) -> bool:
        return bool(self._heap) and self._heap[0][0] <= now

    # The clock in doubt.

    def _doubt_less(self, now: int) -> int:
        """End the doubt about the clock if it was set, or the log is open for long enough; return the tick by then."""
        is_set = not concerns(self._doubt, self._clock.opened_by_now(), 0)
        if not is_set and now - self._clock.opened < WAIT_TICKS:
            return now
        if self._has_said:
            why = "the clock was set" if is_set else f"the log has been open for {WAIT_MINUTES} min"
            logger.info(
                "records are removed for their age again: %s", why, extra={"facts": {"event": "clock_believed"}}
            )
        gained = self._clock.restart()
        self._seen = {queue_id: (position, seen + gained) for queue_id, (position, seen) in self._seen.items()}
        self._due = dict.fromkeys(self._due, 0)
        self._heap = [(0, queue_id) for queue_id in self._due]
        self._note(NO_DOUBT)
        return self._clock.now()

    def _note_setting(self, now: int) -> None:
        """Note that the wall clock was set by more than a day while the log was open, or was set back since."""
        if not self._doubt.openings and (abs(self._clock.ahead()) > DAY_TICKS) != bool(self._doubt.newest):
            self._note(ClockDoubt(0, 0 if self._doubt.newest else now))

    def _note(self, doubt: ClockDoubt) -> None:
        """Have this opening and the next one know of *doubt*."""
        self._doubt = doubt
        self._on_doubt(doubt)

    def _holds(self, age: int) -> bool:
        """Return whether records that are removed at *age* stay, as the clock is in doubt."""
        return 0 < self._doubt.openings < OPENINGS and concerns(self._doubt, self._clock.opened, age)

    def _say_held(self) -> None:
        """Say once that records stay, and until when."""
        if self._has_said:
            return
        self._has_said = True
        newest = max(self._doubt.newest, self._doubt.latest)
        logger.warning(
            "the clock is in doubt: it showed %s when the log was opened, and the newest record is of %s; no record is "
            "removed for its age until the clock is set or the log has been open for %d min; the third such opening in "
            "a row does not wait",
            *(f"{time_of_tick(tick):%Y-%m-%d %H:%M} UTC" for tick in (self._clock.opened, newest)),
            WAIT_MINUTES,
            extra={"facts": {"event": "clock_in_doubt", "openings": self._doubt.openings}},
        )

    # One queue.

    def _expire(self, queue_id: int, now: int) -> bool:
        """Truncate a queue if it has records that are too old; enter its next time. Return whether it has."""
        queue = self._queues.by_id(queue_id)
        age = removal_age(queue)
        if queue is None or age is None:
            return False  # it is about to be forgotten
        if self._holds(age) and queue.first_position < queue.next_position:
            self._say_held()
            self._enter(queue_id, self._clock.opened + WAIT_TICKS)
            return False
        oldest, next_due, soonest = queue.first_position, now + age, now + max(PASS_TICKS, age // 100)
        seen_next, seen_at = self._seen.get(queue_id, (0, 0))
        for start, stop, tick in self._spans(queue):
            before_open = start < self._opened_next.get(queue_id, 0)
            stored = self._clock.stored_at(tick, before_open)
            if start < seen_next:
                stored = min(stored, seen_at)
            expires = stored + 1 + age  # + 1: the tick is rounded down
            if expires > now:
                next_due = expires
                self._look_into(queue, start, stop, now - expires + tick)
                break
            oldest = stop
        done = _acknowledged(queue)
        if oldest > done:
            oldest, next_due = done, soonest
        if oldest <= queue.first_position:
            self._enter(queue_id, next_due)
            return False
        self._enter(queue_id, max(next_due, soonest))
        self._truncate(queue, oldest - 1, soonest)
        return True

    def _spans(self, queue: Queue) -> Iterator[tuple[int, int, int]]:
        """Yield what `tick_spans` does; of a place whose times were read, these."""
        known_stop, times = self._times.get(queue.id, (0, Times.none()))
        for start, stop, tick in tick_spans(queue):
            if stop == known_stop:
                yield from times.spans(start, stop)
            else:
                yield start, stop, tick

    def _look_into(self, queue: Queue, start: int, stop: int, old: int) -> None:
        """Read the times of a place on the disk if its first record, and not its last one, is older than tick *old*."""
        known_stop, age = self._times.get(queue.id, (0, None))[0], removal_age(queue)
        if start < known_stop or start >= queue.memory_first or queue.id in self._reads or age is None:
            return
        first, last = ticks_of_place(queue, start)
        if first <= old and last - first > age // 100:
            self._reads[queue.id] = self._loop.create_task(self._read(queue, start, stop), name="mrecordlog times")

    async def _read(self, queue: Queue, start: int, stop: int) -> None:
        try:
            self._times[queue.id] = stop, await self._read_times(queue, start)
        except (CorruptionError, OSError):  # counted and logged; the place is removed once all of it is too old
            self._times.pop(queue.id, None)
        else:
            self._enter(queue.id, 0)
            self._arm(0.0)
        finally:
            del self._reads[queue.id]

    def _truncate(self, queue: Queue, position: int, again: int) -> None:
        """Hand in a truncate; if it is refused, look at the queue at the tick *again*."""
        future: asyncio.Future[object] = self._loop.create_future()
        expires = _expires(queue)
        future.add_done_callback(partial(self._on_truncated, queue.id, again, expires))
        self._unfinished += 1
        try:
            self._submit(TruncateQueue(future, queue.name, position, queue.id, past_consumers=expires))
        except RecordLogError as error:  # the log is closing, or has failed
            future.set_exception(error)

    def _on_truncated(self, queue_id: int, again: int, expires: bool, future: asyncio.Future[object]) -> None:
        self._unfinished -= 1
        if self._has_more and not self._unfinished and self._running:
            self._has_more = False
            self._arm(0.0)
        if future.cancelled() or future.exception() is not None:
            if removal_age(self._queues.by_id(queue_id)) is not None:  # closed or full: a later pass tries again
                self._enter(queue_id, min(again, self._due.get(queue_id, again)))
            return
        dropped = future.result()
        assert isinstance(dropped, int)
        self._counters.expired_records += dropped if expires else 0

    # When.

    def look(self) -> None:
        """Make a pass, and set the timer for the next one."""
        self.run()
        if self._queues.newly_aging or self._queues.stopped_aging or self._is_due(self._clock.now()):
            if not self._unfinished:
                self._arm(0.0)
                return
            self._has_more = True  # the last of these truncates continues
        if not self._due:
            return
        ahead = (self._heap[0][0] - self._clock.now()) / TICKS_PER_SECOND
        self._arm(min(max(ahead, PASS_TICKS / TICKS_PER_SECOND), SLEEP_SECONDS_MAX))

    def _arm(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, _look, weakref.ref(self))

    def _take_new(self, now: int) -> None:
        """Enter queues that were given a `max_age`, a pass's worth of them: they are looked at first."""
        new = self._queues.newly_aging
        for _ in range(min(len(new), QUEUES_PER_PASS)):
            queue_id = new.pop()
            queue = self._queues.by_id(queue_id)
            if queue is not None:
                self._seen.setdefault(queue_id, (queue.next_position, now))
                self._enter(queue_id, 0)

    def _take_stopped(self) -> None:
        """Forget queues that were deleted, or have no `max_age` any more, up to a pass's worth of them."""
        stopped = self._queues.stopped_aging
        assert stopped is not None, "it was made for this object"
        for _ in range(min(len(stopped), QUEUES_PER_PASS)):
            queue_id = stopped.popleft()
            if removal_age(self._queues.by_id(queue_id)) is None:  # it was not given one again meanwhile
                self._due.pop(queue_id, None)
                self._seen.pop(queue_id, None)
                self._times.pop(queue_id, None)
                self._opened_next.pop(queue_id, None)
        self._drop_old_entries()

    def _enter(self, queue_id: int, due: int) -> None:
        self._due[queue_id] = due
        heappush(self._heap, (due, queue_id))
        self._drop_old_entries()

    def _drop_old_entries(self) -> None:
        if len(self._heap) > 2 * len(self._due) + HEAP_SLACK:
            self._heap = [(due, queue_id) for queue_id, due in self._due.items()]
            heapify(self._heap)


def _look(expiry: weakref.ref[Expiry]) -> None:
    found = expiry()
    if found is not None:
        found.look()


def _expires(queue: Queue) -> bool:
    """Return whether records of *queue* are removed for their age alone, acknowledged or not."""
    return bool(queue.options.max_age_ns)


def _acknowledged(queue: Queue) -> int:
    """Return the position before which age alone decides: in front of all that a consumer still needs."""
    if _expires(queue):
        return queue.next_position
    slowest = queue.consumer(queue.slowest_consumer())
    return queue.first_position if slowest is None else slowest.position
