"""A contestant, and the raw disk next to it, as the comparing process sees them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from types import TracebackType

from tests.benchmarks.compare.contestant import MISSING, READY
from tests.benchmarks.compare.figures import Figures
from tests.benchmarks.compare.place import Version

ROOM = "tests.benchmarks.compare"
STOP_SECONDS = 10.0


class ContestantError(Exception):
    """A contestant's process failed; its traceback is on standard error."""


class Child:
    """A Python process that prints a line for each line it reads, and ends with its input. Use it as a context.

    Raises:
        EOFError: It ended before, or with an error.
    """

    def __init__(self, module: str, arguments: Sequence[str], version: Version) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{ROOM}.{module}", *arguments],
            cwd=version.directory,
            env=version.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self._stop()
        self._process.communicate()  # closes its input
        if error is None and self._process.returncode != 0:
            raise EOFError

    def _stop(self) -> None:
        """End the process; it gets the time to end a server that it started."""
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def ask(self, line: str) -> str:
        """Send *line* and return the next line that is printed."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self.read()

    def read(self) -> str:
        """Return the next line that is printed."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise EOFError
        return line.strip()


@dataclass(slots=True)
class Contestant:
    """One version on one row, with the rounds so far. Use it as a context; leaving it without an error checks."""

    version: Version
    row: str
    directory: str
    at_most: int
    rounds: list[Figures] = field(default_factory=list)
    _children: ExitStack = field(default_factory=ExitStack)
    _log: Child | None = None
    _raw: Child | None = None

    def __enter__(self) -> Contestant:
        os.mkdir(self.directory)
        words = [self.version.contender, self.row, self.directory, str(self.at_most)]
        self._log = self._children.enter_context(Child("contestant", words, self.version))
        raw = os.path.join(os.path.dirname(self.directory), "raw")  # one file for all contestants of the row
        self._raw = self._children.enter_context(Child("raw", [raw], self.version))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._children.__exit__(kind, error, traceback)
        except EOFError:
            raise self._failed() from None

    def prepare(self) -> str:
        """Wait until the row is prepared; return why it cannot be, if a peer is not installed."""
        assert self._log is not None
        try:
            line = self._log.read()
        except EOFError:
            raise self._failed() from None
        assert line == READY or line.startswith(MISSING)
        return "" if line == READY else line.removeprefix(MISSING).strip()

    def round(self, seconds: float) -> None:
        """Measure once, and then the raw disk for as long."""
        assert self._log is not None and self._raw is not None
        try:
            figures = Figures.from_json(self._log.ask(str(seconds)))
            if figures.commits:
                latencies = self._raw.ask(f"{figures.written_bytes // figures.commits} {seconds}")
                figures = replace(figures, raw_latencies=json.loads(latencies))
        except EOFError:
            raise self._failed() from None
        self.rounds.append(figures)

    def _failed(self) -> ContestantError:
        return ContestantError(f"{self.version.label} failed on row {self.row}; its traceback is above")
