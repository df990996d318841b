"""Watches the log's thread from the event loop: a job that does not return, slow ones, the times of the last minute.

One timer ticks while the log works, about once per second, and stops when it is idle. So a disk that hangs is reported
while it hangs, by the loop, which does not hang with it. A batch pays for none of this but the times of its calls.

The disk is blamed only for time inside system calls. Where something keeps the interpreter busy, such as a collection
of a large heap, no thread can run, and a call that has returned looks as if it had not: then this timer is late too,
and by so much less was the disk slow.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from mrecordlog_async.engine.commit.thread import SLOW_SECONDS, ThreadProgress
from mrecordlog_async.engine.intake.refusals import Refusals
from mrecordlog_async.metrics import Counters, Histogram, Recent
from mrecordlog_async.support.clock import Clock

logger = logging.getLogger("mrecordlog_async")

TICK_SECONDS = 1.0
QUIET_SECONDS = 60.0
"""Slow jobs are reported this often while they occur. One that hangs is reported again at ten times its age."""

NAMES = {
    "commit": "a commit",
    "commit_alone": "a commit",
    "commit_mark": "the commit of a mark",
    "sync": "a sync",
    "prepare_spare": "preparing the next segment",
    "roll": "a roll to the next segment",
    "reclaim": "removing segments",
    "shrink": "freeing the space of a removed segment",
}
"""Names of the jobs of the log's thread."""


class Watch:
    """Watches one log. Everything here runs on the event loop."""

    def __init__(
        self,
        progress: ThreadProgress,
        refusals: Refusals,
        counters: Counters,
        directory: str,
        waiting: Callable[[], int],
        clock: Clock,
    ) -> None:
        """Watch the thread that reports its *progress*; *waiting* counts the records that wait."""
        self._clock = clock.seconds
        self._loop = asyncio.get_running_loop()
        self._progress = progress
        self._refusals = refusals
        self._recent = Recent(counters, self._clock())
        self._directory = directory
        self._waiting = waiting
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0  # when the next tick is, on the clock's seconds
        self._stopped = False
        self._reported = 0.0  # when the job began that was last reported as hanging
        self._report_at = SLOW_SECONDS  # the age at which a job is reported although another was just now
        self._quiet_until = 0.0
        refusals.on_begin = self.arm
        progress.slow.clear()  # reading the log took as long as it took

    def arm(self) -> None:
        """Tick from now on, until nothing happens any more."""
        if self._timer is None and not self._stopped:
            self._tick_after(TICK_SECONDS)

    def stop(self) -> None:
        """Stop ticking for good."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def under_way_seconds(self) -> float:
        """Return how long the job under way has been in system calls so far; 0 without one."""
        return self._progress.disk_seconds(self._clock())

    def recent(self) -> dict[str, Histogram]:
        """Return the histograms of the last minute."""
        return self._recent.histograms(self._clock())

    def _tick(self) -> None:
        self._timer = None
        now = self._clock()
        self._progress.stood_still_seconds += max(now - self._due, 0.0)
        self._report_slow(now)
        self._report_hanging(now)
        age = self.under_way_seconds()
        # All of them, as each does its work.
        busy = [self._progress.job is not None, self._recent.keep(now), self._refusals.check()]
        if any(busy) and not self._stopped:
            # A job is reported when it becomes slow, not up to a tick later.
            self._tick_after(
                min(max(SLOW_SECONDS - age, 0.01), TICK_SECONDS) if 0 < age < SLOW_SECONDS else TICK_SECONDS
            )

    def _tick_after(self, seconds: float) -> None:
        self._due = self._clock() + seconds
        self._timer = self._loop.call_later(seconds, self._tick)

    def _report_hanging(self, now: float) -> None:
        job, age = self._progress.job, self._progress.disk_seconds(now)
        if job is None or age < SLOW_SECONDS or (now < self._quiet_until and age < self._report_at):
            return
        self._reported, self._report_at, self._quiet_until = job.begun, age * 10, now + QUIET_SECONDS
        facts = {"event": "hanging", "directory": self._directory, "seconds": round(age, 3)}
        logger.warning(
            "%s: the disk does not respond: %s has been under way for %.1f s (records waiting: %d); look at the disk "
            "and at the kernel's log",
            self._directory,
            name_of(job.work),
            age,
            self._waiting(),
            extra={"facts": facts},
        )

    def _report_slow(self, now: float) -> None:
        ended, self._progress.slow = self._progress.slow, []
        hung = any(job.begun == self._reported for job in ended)
        slow = [job._replace(seconds=self._progress.without_standstill(job, job.seconds)) for job in ended]
        longest = max(slow, key=lambda each: each.seconds, default=None)
        if longest is None or (not hung and (now < self._quiet_until or longest.seconds <= SLOW_SECONDS)):
            return
        self._report_at, self._quiet_until = SLOW_SECONDS * 10, now + QUIET_SECONDS
        facts = {"event": "slow", "directory": self._directory, "seconds": round(longest.seconds, 3)}
        logger.warning(
            "%s: the disk is slow: %s took %.1f s%s; if it stays slow, the next report comes in %.0f s",
            self._directory,
            name_of(longest.work),
            longest.seconds,
            "; it responds again" if hung else "",
            QUIET_SECONDS,
            extra={"facts": facts},
        )


def name_of(work: object) -> str:
    """Return what an operator calls this job of the log's thread."""
    name = getattr(getattr(work, "func", work), "__name__", "")
    return NAMES.get(name, "work of the log's thread")
