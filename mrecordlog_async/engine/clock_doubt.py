"""Doubt about the machine's clock when a log is opened: it may be wrong by years, and be put right later.

The clock is in doubt if it is before the newest record of the log, or more than a day and more than `max_age` after it.
A machine without a battery begins in 1970, a broken time server sets any year, and a log may really have been closed
for a month. Nothing in the log separates these cases, so removal by age waits:

| until | then |
|---|---|
| the clock is set, and is not in doubt any more | records age by the new time, as if it had been right from the start |
| the log has been open for ten minutes | the clock is believed |
| it is the third opening in a row, all before or all after | the clock is believed at once |

So a process that is restarted every minute removes as well.

The records of such an opening prove nothing: their times come from the same clock. So the openings of a row are
compared with the newest record before the first of them. `LAST_END` has its time, and their number. It also says when a
clock was set by more than a day while the log was open, which changes nothing before the next opening. If the process
was killed before it saw that, the times of the last batches say it. If the file is lost, the row begins again.
"""

from __future__ import annotations

from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.memory.stored_times import tick_spans
from mrecordlog_async.memory.times import NO_TICK
from mrecordlog_async.model import DAY_TICKS, TICK_NS, TICKS_PER_SECOND
from mrecordlog_async.recovery.recovered import ClockJump
from mrecordlog_async.storage.end_note import NO_DOUBT, ClockDoubt

BEHIND_TICKS = 60 * TICKS_PER_SECOND
"""A clock that is behind the newest record by less than this was adjusted, and is not in doubt."""

WAIT_TICKS = 600 * TICKS_PER_SECOND
"""Once the log has been open for this long, the clock is believed."""

UNSEEN_TICKS = 120 * TICKS_PER_SECOND
"""A clock that was set this long before the newest batch may not have been noted: looks are a minute apart."""

OPENINGS = 3
"""With this many openings in a row, the clock is believed at once."""


def removal_age(queue: Queue | None) -> int | None:
    """Return the age in ticks from which records of *queue* may be removed, rounded up; None if it has none."""
    if queue is None or not queue.options.removed_from_ns():
        return None
    return -(-queue.options.removed_from_ns() // TICK_NS)


def concerns(doubt: ClockDoubt, tick: int, age: int) -> bool:
    """Return whether a clock that showed *tick* at the opening is in doubt for records that are removed at *age*."""
    return _is_behind(doubt, tick) or tick > doubt.newest + max(DAY_TICKS, age)


def _is_behind(doubt: ClockDoubt, tick: int) -> bool:
    return tick < max(doubt.newest, doubt.latest) - BEHIND_TICKS


def doubt_of(queues: Queues, tick: int, noted: ClockDoubt, jump: ClockJump) -> ClockDoubt:
    """Return the doubt about a clock that shows *tick*; `NO_DOUBT` without one.

    noted: by the opening before. jump: of the clock, by the times of the batches, if that opening ended unforeseen.
    """
    if not noted.newest and queues.last_tick - jump.after < UNSEEN_TICKS:
        noted = ClockDoubt(0, jump.before)
    aging = [queue for queue in map(queues.by_id, queues.newly_aging) if queue is not None]
    ages = [age for age in map(removal_age, aging) if age is not None]
    latest = queues.last_tick or max(map(_newest, aging), default=NO_TICK)
    newest = noted.newest if noted.newest and noted.openings < OPENINGS else latest
    doubt = ClockDoubt(1, newest, latest=latest)
    if latest == NO_TICK or not concerns(doubt, tick, min(ages, default=0)):
        return NO_DOUBT
    is_behind = _is_behind(doubt, tick)
    before = noted.openings if is_behind == noted.is_behind else 0  # a clock that is right again begins a row
    return doubt._replace(openings=before + 1, is_behind=is_behind)


def _newest(queue: Queue) -> int:
    """Return when the newest record of *queue* was stored; `NO_TICK` if it has none."""
    return max((tick for _, _, tick in tick_spans(queue, queue.next_position - 1)), default=NO_TICK)
