"""Refused appends: each is counted once under its reason, and an episode of them is logged where it begins and ends.

| reason | the append |
|---|---|
| `memory`, `disk` | is above a limit of the log |
| `queue` | is above a limit of its queue |
| `space` | found the file system full |
| `disk_error` | met another error of the disk before anything was written |
| `pending` | came from `append_soon` while too much was pending |
| `positions` | asks for positions that its queue does not have |
| `past` | names a position that is taken |
| `too_large` | can never fit |
| `no_queue` | names a queue that does not exist |
| `queues`, `consumers` | would create a queue above a limit of the log |
| `sealed` | names a queue that takes no more records |
| `failed`, `closed` | came to a log that stores nothing any more, or was waiting when it ended |
| `other` | anything else |

Only a log that stores less than it should is worth a line of its own log: `memory`, `disk`, `queue`, `space` and
`disk_error`. It gets a line where an episode of refusals begins and one where it ended, instead of a line for each.
Everything here runs on the event loop, and only when something is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TypeVar

from mrecordlog_async.engine.intake.commands import AppendRecords, Command
from mrecordlog_async.errors import (
    LogClosedError,
    LogFailedError,
    LogFullError,
    PositionInPastError,
    QueueNotFoundError,
    QueueSealedError,
    RecordTooLargeError,
)
from mrecordlog_async.metrics import Counters

logger = logging.getLogger("mrecordlog_async")

_REASONS: tuple[tuple[type[BaseException], str], ...] = (
    (PositionInPastError, "past"),
    (RecordTooLargeError, "too_large"),
    (QueueNotFoundError, "no_queue"),
    (QueueSealedError, "sealed"),
    (LogFailedError, "failed"),
    (LogClosedError, "closed"),
    (OSError, "disk_error"),
)

Refusal = TypeVar("Refusal", bound=Exception)

_LOGGED = ("memory", "disk", "queue", "space", "disk_error")

CALM_SECONDS = 30.0
"""An episode ends once nothing was refused for its reason for this long."""


class Refusals:
    """Counts what one log refuses. on_begin: called when an episode begins, so that `check` is called every second."""

    def __init__(self, counters: Counters, directory: str = "", clock: Callable[[], float] = monotonic) -> None:
        """Count in *counters*. *clock*: of the episodes."""
        self.on_begin: Callable[[], object] = lambda: None
        self._counters = counters
        self._directory = directory
        self._episodes = Episodes(self._log_end, clock)

    def refuse(self, commands: Iterable[Command], error: Exception) -> None:
        """Fail *commands* with *error*, and count the appends among them whose callers still wait."""
        refused = list(commands)
        self._count(error, refused)  # before: a caller that was refused does not wait any more
        for command in refused:
            command.refuse(error)

    def counted(self, error: Refusal, command: AppendRecords | None) -> Refusal:
        """Count *command*, whose call raises *error* instead of waiting; return *error*.

        None stands for an append that was refused before the log saw it.
        """
        self._count(error, [command])
        return error

    def _count(self, error: BaseException, refused: Sequence[Command | None]) -> None:
        # Every append that is refused comes through here, once, with its command: what is to be known of refusals per
        # queue or in bytes is known here.
        appends = sum(1 if command is None else command.waiting_appends() for command in refused)
        if not appends:
            return
        reason = reason_of(error)
        counts = self._counters.refused
        counts[reason] = counts.get(reason, 0) + appends
        if reason in _LOGGED and self._episodes.note(reason, appends):
            self._log_begin(reason, error)
            self.on_begin()

    def check(self) -> bool:
        """End the episodes that are over; return whether any is still under way."""
        return self._episodes.check()

    def _log_begin(self, reason: str, error: BaseException) -> None:
        cause = error.__cause__ if isinstance(error.__cause__, OSError) else None
        text = f"{error} ({cause})" if cause is not None else str(error)
        facts = {"event": "refusing", "directory": self._directory, "reason": reason}
        logger.warning("%s: appends are refused: %s", self._directory, text, extra={"facts": facts})

    def _log_end(self, reason: str, episode: Episode) -> None:
        facts = {"event": "accepting", "directory": self._directory, "reason": reason}
        logger.info(
            "%s: no append was refused for %g s; %d were refused within %g s (reason: %s)",
            self._directory,
            CALM_SECONDS,
            episode.count,
            episode.seconds,
            reason,
            extra={"facts": facts | {"appends": episode.count, "seconds": episode.seconds}},
        )


def reason_of(error: BaseException) -> str:
    """Return under which reason a refusal with *error* is counted."""
    if isinstance(error, LogFullError):
        return error.resource
    return next((reason for kind, reason in _REASONS if isinstance(error, kind)), "other")


@dataclass(slots=True)
class Episode:
    """Refusals for one reason. Times are of the clock."""

    began: float
    last: float
    count: int = 0

    @property
    def seconds(self) -> float:
        """Seconds that it lasted, from the first refusal to the last."""
        return round(self.last - self.began, 3)


class Episodes:
    """The episodes under way, by reason. on_end: called with the reason and the episode once it is over."""

    def __init__(self, on_end: Callable[[str, Episode], object], clock: Callable[[], float] = monotonic) -> None:
        self._on_end = on_end
        self._clock = clock
        self._open: dict[str, Episode] = {}

    def note(self, reason: str, count: int = 1) -> bool:
        """Count refusals. Returns whether they begin an episode; one that is over ends first."""
        now = self._clock()
        episode = self._open.get(reason)
        if episode is not None and now - episode.last >= CALM_SECONDS:
            self._end(reason)
            episode = None
        begins = episode is None
        if episode is None:
            episode = self._open[reason] = Episode(now, now)
        episode.last = now
        episode.count += count
        return begins

    def check(self) -> bool:
        """End the episodes that are over; return whether any is still under way."""
        now = self._clock()
        for reason, episode in list(self._open.items()):
            if now - episode.last >= CALM_SECONDS:
                self._end(reason)
        return bool(self._open)

    def _end(self, reason: str) -> None:
        self._on_end(reason, self._open.pop(reason))
