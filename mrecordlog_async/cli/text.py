"""Formats the output of commands: sizes, names, aligned columns, and progress if standard error is a terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING
from unicodedata import combining, east_asian_width

if TYPE_CHECKING:
    from mrecordlog_async.model import RecoveryProgress

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
REDRAW_SECONDS = 0.1
QUIET_SECONDS = 1.0
"""Work that takes less than this shows no progress."""
NAME_CELLS = 40
"""The widest column of names: one long name must not break every line of a table."""


def wants_colour() -> bool:
    """Return whether to print colours: standard output is a terminal, and NO_COLOR is not set, or empty."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def printable(name: str) -> str:
    """Return a queue's name, quoted if it is empty or has spaces or unprintable characters."""
    return name if name.isprintable() and name and " " not in name else repr(name)


def size(count: float) -> str:
    """Return a number of bytes as text for people: 731 B, 4.0 KiB, 1.2 GiB."""
    for unit in UNITS:
        if count < 1024 or unit == UNITS[-1]:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("the last unit takes everything")


def speed(count: int, seconds: float) -> str:
    """Return *count* bytes in *seconds* as text for people: 731.0 MiB/s."""
    return f"{size(count / max(seconds, 1e-9))}/s"


def plural(count: int, word: str) -> str:
    """Return *count* with its word: 1 batch, 2 batches."""
    ending = "" if count == 1 else "es" if word.endswith(("ch", "s", "sh", "x")) else "s"
    return f"{count:,} {word}{ending}"


def cells_of(text: str) -> int:
    """Return how many columns of a terminal *text* takes: two for a wide character, none for one that combines."""
    return sum(2 if east_asian_width(letter) in "WF" else not combining(letter) for letter in text)


def columns(rows: Sequence[Sequence[str]], left: int = 1) -> Iterator[str]:
    """Yield *rows* as lines of aligned columns: the first *left* columns to the left, numbers to the right.

    A cell at the left that is wider than `NAME_CELLS` moves the rest of its own line and no other.
    """
    widths = [max(map(cells_of, column)) for column in zip(*rows, strict=True)]
    widths = [min(width, NAME_CELLS) if index < left else width for index, width in enumerate(widths)]
    for row in rows:
        cells = (
            cell + padding if index < left else padding + cell
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
            for padding in [" " * (width - cells_of(cell))]
        )
        yield "  ".join(cells).rstrip() + "\n"


def ranges(pairs: Iterable[tuple[int, int]]) -> str:
    """Return (first, last) pairs as text for people: 3, 7-12."""
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in pairs)


class ProgressBar:
    """Shows the bytes read as a line on standard error, redrawn at each call, once the work has taken a second.

    Shows nothing if standard error is not a terminal.

    Call it with `RecoveryProgress`. `bytes` and `seconds` are for the summary.
    """

    def __init__(self, verb: str) -> None:
        self.bytes = 0
        self._verb = verb
        self._begun = time.perf_counter()
        self._drawn = 0.0
        self._watched = sys.stderr.isatty()

    @property
    def seconds(self) -> float:
        """Return the seconds since it was created."""
        return time.perf_counter() - self._begun

    def __call__(self, progress: RecoveryProgress) -> None:
        """Redraw the line."""
        now = time.perf_counter()
        if not self.bytes:
            self._begun = now  # other work may have come before
        self.bytes = progress.bytes_read
        if self._watched and now - self._begun >= QUIET_SECONDS and now - self._drawn >= REDRAW_SECONDS:
            self._drawn = now
            filled = int(progress.fraction * 30)
            bar = "#" * filled + "." * (30 - filled)
            text = f"{size(self.bytes)} of {size(progress.bytes_total)}  {speed(self.bytes, self.seconds)}"
            print(f"\r{self._verb} [{bar}] {text}\x1b[K", end="", file=sys.stderr, flush=True)

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._drawn:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
