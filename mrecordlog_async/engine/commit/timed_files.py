"""The file system of an open log, with a note of the system call that is under way and of the time that all took.

What is said of the disk (that it hangs, that it is slow) is said of this time alone. The rest of a job of the log's
thread is Python: it waits for the interpreter, or makes the table of the next segment, and no disk is to blame for it.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, cast

from mrecordlog_async.engine.commit.thread import Progress
from mrecordlog_async.storage.filesystem import FileSystem


def timed(files: FileSystem, progress: Progress) -> FileSystem:
    """Return *files* with calls that note their time in *progress*. Only the log's thread may call them."""
    return cast(FileSystem, _TimedFiles(files, progress))  # its methods are set below


class _TimedFiles:
    __slots__ = ("_files", "_progress")

    def __init__(self, files: FileSystem, progress: Progress) -> None:
        self._files = files
        self._progress = progress


def _timed_call(name: str) -> Callable[..., Any]:
    def call(self: _TimedFiles, *arguments: Any, **options: Any) -> Any:
        progress = self._progress
        begun = progress.call_begun = perf_counter()
        try:
            return getattr(self._files, name)(*arguments, **options)
        finally:
            # The sum first: the loop may look in between, and must not see a time that goes back.
            progress.called_seconds += perf_counter() - begun
            progress.call_begun = 0.0

    return call


for _name, _method in vars(FileSystem).items():
    if not _name.startswith("_") and callable(_method):
        setattr(_TimedFiles, _name, _timed_call(_name))
