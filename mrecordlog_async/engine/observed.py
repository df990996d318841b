"""Shows an open log to telemetry. Without a configured provider of OpenTelemetry this does nothing at all."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from time import perf_counter

from mrecordlog_async.engine.commit.batch import CommitResult
from mrecordlog_async.engine.commit.open import OpenedLog
from mrecordlog_async.engine.commit.thread import ThreadProgress
from mrecordlog_async.engine.commit.writer import Writer
from mrecordlog_async.metrics import Counters
from mrecordlog_async.telemetry import Observed, find

logger = logging.getLogger("mrecordlog_async")


class Observation:
    """The telemetry of one log, from its opening to its end. Everything here runs on the event loop."""

    def __init__(self, opened: OpenedLog, counters: Counters, progress: ThreadProgress, writer: Writer) -> None:
        """Begin, and have *writer* report its batches."""
        self._telemetry = find()
        if self._telemetry is None:
            return
        self._directory = opened.directory.path
        self._observed = _observed(opened, counters, progress)
        self._is_broken = False
        self._tell(self._telemetry.recovered, opened.report)
        self._telemetry.watch(self._observed)
        # A log that was garbage collected is not read any more either.
        self._end = weakref.finalize(self, self._telemetry.forget, self._observed)
        telemetry = self._telemetry

        def committed(result: CommitResult) -> None:
            facts = {"bytes": result.written_bytes, "sync_seconds": result.sync_seconds, "rolled": result.rolled}
            self._tell(telemetry.committed, result.seconds, facts | {"log_records": len(result.records)})

        writer.observe_commits(committed)

    def failed(self, error: BaseException) -> None:
        """Record the batch or the sync that the log failed with."""
        if self._telemetry is not None:
            self._tell(self._telemetry.failed, error)

    def end(self) -> None:
        """Stop: the log is closed."""
        if self._telemetry is not None:
            self._end()

    def _tell(self, report: Callable[..., None], *facts: object) -> None:
        """Report something. That runs code of the application: an error of it must not be one of the log."""
        if self._is_broken:
            return
        try:
            report(self._directory, *facts)
        except Exception:
            self._is_broken = True
            logger.exception("%s: OpenTelemetry raised an error; this log makes no more spans", self._directory)


def _observed(opened: OpenedLog, counters: Counters, progress: ThreadProgress) -> Observed:
    """Return what another thread may read. It refers to no part that keeps the log from being collected."""
    queues, journal = opened.queues, opened.journal

    used = {
        "memory_bytes": lambda: queues.memory_bytes,
        "disk_bytes": lambda: journal.space.taken_bytes,
        "disk_only_bytes": lambda: queues.pins.disk_only_bytes,
        "segments": lambda: len(journal.space.complete) + 1,
        "queues": lambda: len(queues),
        "under_way": lambda: progress.disk_seconds(perf_counter()),
    }
    return Observed(opened.directory.path, counters, used)
