"""`ReadOnlyLog`: a look into a log directory without lock or write, beside a living writer or after it.

For the command line and for Spark on files. Blocking: it reads the directory once and shows that state; `refresh` reads
on from there. What it shows is on the disk, so no crash can take back what was seen.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from types import TracebackType

from mrecordlog_async.errors import LogClosedError
from mrecordlog_async.memory.reads import QueueReader
from mrecordlog_async.model import RecoveryProgress, RecoveryReport
from mrecordlog_async.recovery.follower import Follower, LostTrackError
from mrecordlog_async.recovery.live_reader import read_live_log
from mrecordlog_async.recovery.recovered import RecoveredLog
from mrecordlog_async.storage.directory import LogDirectory
from mrecordlog_async.storage.filesystem import FileSystem, OsFileSystem


class ReadOnlyLog(QueueReader):
    """The queues of a log as the disk had them when it was opened, or refreshed last."""

    def __init__(self, directory: str, recovered: RecoveredLog, seconds: float, files: FileSystem) -> None:
        """Use `open`."""
        self.directory = directory
        self.recovered = recovered
        self.recovery_report: RecoveryReport = recovered.report(seconds)
        self._files = files
        self._queues = recovered.queues
        self._follower = Follower(files, directory, recovered)
        self._closed = False

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        *,
        on_progress: Callable[[RecoveryProgress], None] | None = None,
        filesystem: FileSystem | None = None,
    ) -> ReadOnlyLog:
        """Read the log in *directory*.

        Raises FileNotFoundError if there is none, CorruptionError if acknowledged data is damaged, OSError for what
        cannot be read. A batch that a living writer had not finished is not shown.

        It needs a handful of descriptors, however many segments there are. A writer that removes segments faster than
        they can be read is not waited for: what it truncated while they were read may then be missing already, though
        records that came meanwhile are not shown yet.
        """
        path = os.path.abspath(os.fsdecode(directory))
        files = filesystem or OsFileSystem()
        begun = time.perf_counter()
        recovered = read_live_log(files, path, on_progress)
        if recovered is None:
            raise LogDirectory(files, path).no_log()
        return cls(path, recovered, time.perf_counter() - begun, files)

    def refresh(self) -> bool:
        """Read what a living writer stored since; True if that is anything. What was handed out does not change.

        It costs what is new, not what is there. Only where segments were written and removed again between two calls,
        or where something looks damaged, the whole log is read again, with the errors of `open`.
        """
        self._check_readable()
        try:
            return self._follower.read_on()
        except LostTrackError:
            return self._read_again()

    def _read_again(self) -> bool:
        before = self.recovered
        recovered = read_live_log(self._files, self.directory)
        if recovered is None:
            raise LogDirectory(self._files, self.directory).no_log()
        failed_looks = self._follower.failed_looks
        self.recovered, self._queues = recovered, recovered.queues
        self._follower = Follower(self._files, self.directory, recovered, failed_looks)
        return (recovered.log_id, recovered.last_batch) != (before.log_id, before.last_batch)

    def close(self) -> None:
        """Let go of what was read."""
        self._closed = True

    def __enter__(self) -> ReadOnlyLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _check_readable(self) -> None:
        if self._closed:
            raise LogClosedError()
