"""What telemetry sees of an open log. Without a configured provider of OpenTelemetry this does nothing at all."""

from __future__ import annotations

import weakref
from time import perf_counter

from mrecordlog_async.engine.commit import CommitResult
from mrecordlog_async.engine.open import OpenedLog
from mrecordlog_async.engine.thread import Progress
from mrecordlog_async.engine.writer import Writer
from mrecordlog_async.metrics import Counters
from mrecordlog_async.telemetry import Observed, find


class Observation:
    """The telemetry of one log, from its opening to its end. Everything here runs on the event loop."""

    def __init__(self, opened: OpenedLog, counters: Counters, progress: Progress, writer: Writer) -> None:
        """Begin, and have *writer* report its batches."""
        self._telemetry = find()
        if self._telemetry is None:
            return
        self._directory = opened.directory.path
        self._observed = _observed(opened, counters, progress)
        self._telemetry.recovered(self._directory, opened.report)
        self._telemetry.watch(self._observed)
        # A log that was garbage collected is not read any more either.
        self._end = weakref.finalize(self, self._telemetry.forget, self._observed)
        telemetry, directory = self._telemetry, self._directory

        def committed(result: CommitResult) -> None:
            facts = {"bytes": result.written_bytes, "sync_seconds": result.sync_seconds, "rolled": result.rolled}
            telemetry.committed(directory, result.seconds, facts | {"log_records": len(result.records)})

        writer.observe_commits(committed)

    def failed(self, error: BaseException) -> None:
        """Record the batch or the sync that the log failed with."""
        if self._telemetry is not None:
            self._telemetry.failed(self._directory, error)

    def end(self) -> None:
        """Stop: the log is closed."""
        if self._telemetry is not None:
            self._end()


def _observed(opened: OpenedLog, counters: Counters, progress: Progress) -> Observed:
    """Return what another thread may read. It refers to no part that keeps the log from being collected."""
    queues, journal = opened.queues, opened.journal

    def under_way_seconds() -> float:
        job = progress.job
        return perf_counter() - job[0] if job is not None else 0.0

    used = {
        "memory_bytes": lambda: queues.memory_bytes,
        "disk_bytes": lambda: journal.disk_bytes,
        "segments": lambda: len(journal.older) + 1,
        "queues": lambda: len(queues),
        "under_way": under_way_seconds,
    }
    return Observed(opened.directory.path, counters, used)
