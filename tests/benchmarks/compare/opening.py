"""The rows that open a log after a crash, with a cold or a warm page cache.

A child process fills the log and exits without closing it. Each round forks another child, which opens the log, reports
how long that took, and exits without closing it too, so that every round finds a crashed log. The contestant itself
never starts an event loop or a thread in these rows: a fork would lose them.
"""

from __future__ import annotations

import asyncio
import os
import time
import traceback
from collections.abc import Awaitable, Callable
from typing import NoReturn

from crc32c import crc32c

from mrecordlog_async import MultiRecordLog
from tests.benchmarks.compare.figures import Figures
from tests.benchmarks.compare.rows import Place
from tests.benchmarks.log_api import LogApi

PIECE_BYTES = 512 * 1024

Leave = Callable[[str], NoReturn]
"""Sends its argument to the parent process and ends this one, with nothing closed."""


class Opening:
    """Open what *fill* appended, and count the records."""

    def __init__(
        self, place: Place, *, records: int, fill: Callable[[LogApi, int], Awaitable[None]], cold: bool = False
    ) -> None:
        self._contender = place.contender
        self._records = min(records, place.at_most)
        self._fill = fill
        self._cold = cold
        self._directory = place.path("log")

    def prepare(self) -> None:
        """Fill the log and leave it without closing it."""
        in_child(lambda leave: asyncio.run(self._fill_and_leave(leave)))

    def round(self, seconds: float) -> Figures:
        """Read the plain files, then open the log, both with the same page cache."""
        drop_page_cache(self._directory)
        cold = _read_files(self._directory)
        warm = _read_files(self._directory)
        if self._cold:
            drop_page_cache(self._directory)
        raw = cold if self._cold else warm
        return Figures.from_json(in_child(lambda leave: asyncio.run(self._open_and_leave(leave, raw))))

    def finish(self) -> None:
        """See `Running`; every round counts the records that it found."""

    async def _fill_and_leave(self, leave: Leave) -> None:
        await self._fill(await self._contender.open(self._directory), self._records)
        leave("")

    async def _open_and_leave(self, leave: Leave, raw_seconds: float) -> None:
        cpu, begun = time.process_time(), time.perf_counter()
        log = await self._contender.open(self._directory)
        taken, cpu = time.perf_counter() - begun, time.process_time() - cpu
        assert isinstance(log, MultiRecordLog)
        found = log.recovery_report.records
        if found != self._records:
            raise AssertionError(f"{self._records} records were appended, {found} were found when the log was opened")
        leave(Figures(records=found, seconds=taken, cpu_seconds=cpu, raw_seconds=raw_seconds).to_json())


def in_child(work: Callable[[Leave], object]) -> str:
    """Run *work* in a forked process and return what it left with.

    Raises:
        RuntimeError: The child failed; its traceback is on standard error.
    """
    receiving, sending = os.pipe()

    def leave(text: str) -> NoReturn:
        os.write(sending, text.encode())  # one line of JSON: less than a pipe takes at once
        os._exit(0)

    child = os.fork()
    if child == 0:
        try:
            work(leave)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    os.close(sending)
    with os.fdopen(receiving, "rb") as pipe:
        text = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    if status != 0:
        raise RuntimeError(f"the child process failed with status {status}; see its traceback above")
    return text


def drop_page_cache(directory: str) -> None:
    """Sync the files in *directory* and have the system forget their pages, where it can."""
    for path in _files(directory):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


def _read_files(directory: str) -> float:
    """Read all files of *directory* in pieces, and compute a checksum of each; return the seconds that took."""
    begun = time.perf_counter()
    for path in _files(directory):
        handle, offset = os.open(path, os.O_RDONLY), 0
        try:
            while piece := os.pread(handle, PIECE_BYTES, offset):
                offset += len(piece)
                crc32c(piece)
        finally:
            os.close(handle)
    return time.perf_counter() - begun


def _files(directory: str) -> list[str]:
    return sorted(entry.path for entry in os.scandir(directory) if entry.is_file())
