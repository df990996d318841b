"""A contestant as the comparing process sees it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from statistics import median
from types import TracebackType

from mrecordlog_async.bench.raw import SYNC, RawDisk, RawMeasurement
from tests.benchmarks.compare.contestant import MISSING, READY
from tests.benchmarks.compare.figures import Figures
from tests.benchmarks.compare.place import Version

CONTESTANT = "tests.benchmarks.compare.contestant"


class ContestantError(Exception):
    """A contestant's process failed; its traceback is on standard error."""


@dataclass(frozen=True, slots=True)
class Round:
    """The figures of a round. raw: the disk alone, repeating the mean batch; None where nothing was written."""

    figures: Figures
    raw: RawMeasurement | None

    @property
    def of_raw(self) -> float | None:
        """The rate as a share of the raw disk's, or of reading the files in one thread."""
        if self.figures.raw_seconds:
            return self.figures.raw_seconds / self.figures.seconds
        return None if self.raw is None else self.raw.seconds / self.figures.seconds

    @property
    def p50_over_raw(self) -> float | None:
        """The median call over the median write and sync of the raw disk."""
        if self.raw is None or not self.figures.p50:
            return None
        return self.figures.p50 / median(self.raw.latencies)


@dataclass(slots=True)
class Contestant:
    """One version on one row, with the rounds so far. Use it as a context; leaving it without an error checks."""

    version: Version
    row: str
    directory: str
    at_most: int
    rounds: list[Round] = field(default_factory=list)
    _process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Contestant:
        os.mkdir(self.directory)
        self._process = subprocess.Popen(
            [sys.executable, "-m", CONTESTANT, self.version.contender, self.row, self.directory, str(self.at_most)],
            cwd=self.version.directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        process = self._process
        assert process is not None
        if error is not None:
            process.kill()
        process.communicate()  # closes its input, which is its sign to end
        if error is None and process.returncode != 0:
            raise self._failed()

    def prepare(self) -> str:
        """Wait until the row is prepared; return why it cannot be, if a peer is not installed."""
        line = self._line()
        if line.startswith(MISSING):
            return line.removeprefix(MISSING).strip()
        if line != READY:
            raise self._failed()
        return ""

    def round(self, seconds: float, raw: RawDisk) -> None:
        """Measure once; then the raw disk writes and syncs the mean batch as often."""
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        figures = Figures.from_json(self._line())
        measured = None
        if figures.commits:
            measured = raw.replay([figures.written_bytes // figures.commits, SYNC] * figures.commits)
        self.rounds.append(Round(figures, measured))

    def _line(self) -> str:
        assert self._process is not None and self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._failed()
        return line.strip()

    def _failed(self) -> ContestantError:
        return ContestantError(f"{self.version.label} failed on row {self.row}; its traceback is above")
