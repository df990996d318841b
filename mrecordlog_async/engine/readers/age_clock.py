"""The clock by which records age: wall time when the log was opened, and after that the time that really passed.

A wall clock that is set forward must not make every record too old at once, and one that is set back must not keep
them for ever. So age runs on CLOCK_BOOTTIME, which also counts while the machine sleeps, from the wall clock at open.
Records only have the wall time of their commit. `noted` steps of the wall clock lead from there to the time by which a
record ages. Where they allow two answers, after the clock was set back, it is the later one: a record is rather kept
too long than removed too early.
"""

from __future__ import annotations

from typing import NamedTuple

from mrecordlog_async.model import TICK_NS
from mrecordlog_async.support.clock import Clock

STEP_TICKS = 10
"""The wall clock was set if it is this far from where it should be: a second. Less is drift."""


class _ClockSetting(NamedTuple):
    """From *since* on, by this clock, the wall clock may have shown *ahead* ticks more than it; *noted* says it did.

    The clock was set between the two, so the setting before may last until *noted*.
    """

    since: int
    noted: int
    ahead: int


class AgeClock:
    """Ticks of 0.1 s since 1970 that never jump. opened: the tick at which it began, which is the wall clock's."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.opened = clock.stamp_ns() // TICK_NS
        self._boot_ns = clock.boot_ns()
        self._noted = self.opened
        self._settings = [_ClockSetting(self.opened, self.opened, 0)]

    def now(self) -> int:
        """Return the current tick; note whether the wall clock was set since the last call."""
        now = self.opened + (self._clock.boot_ns() - self._boot_ns) // TICK_NS
        ahead = self._clock.stamp_ns() // TICK_NS - now
        if abs(ahead - self._settings[-1].ahead) >= STEP_TICKS:
            self._settings.append(_ClockSetting(self._noted, now, ahead))  # it was set after the last look
        self._noted = now
        return now

    def ahead(self) -> int:
        """Return by how many ticks the wall clock was set forward since the log was opened, as of the last call."""
        return self._settings[-1].ahead

    def opened_by_now(self) -> int:
        """Return when the log was opened, by the wall clock as it is now: if it was set since, that is another time."""
        return self._clock.stamp_ns() // TICK_NS - (self._clock.boot_ns() - self._boot_ns) // TICK_NS

    def restart(self) -> int:
        """Go on from the wall clock as it is now, as if it had been right at the open; return the ticks gained."""
        self.now()
        gained = self.opened_by_now() - self.opened
        self.opened += gained
        self._noted += gained
        self._settings = [
            _ClockSetting(since + gained, noted + gained, ahead - gained) for since, noted, ahead in self._settings
        ]
        return gained

    def stored_at(self, tick: int, before_open: bool) -> int:
        """Return by this clock when a record with *tick* was stored. before_open: before the log was opened.

        A record from before the open that is from the future counts from the open.
        """
        if before_open:
            return min(tick, self.opened)
        until = self._noted
        for since, noted, ahead in reversed(self._settings):
            if since - STEP_TICKS <= tick - ahead <= until + STEP_TICKS:
                return min(tick - ahead, self._noted)
            until = noted
        return min(max(tick, self.opened), self._noted)  # it was set back and forth between two looks
