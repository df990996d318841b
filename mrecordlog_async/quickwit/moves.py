"""Moving a log over: the calls that make a queue anew, position by position. Decides; somebody else does the calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from mrecordlog_async.model import POSITION_MAX, Run


class Truncate(NamedTuple):
    """Truncate up to and including *position*."""

    position: int


def calls(start: int, next_position: int, runs: Iterable[Run]) -> Iterator[Truncate | Run]:
    """Yield what brings a new, empty queue to *start*, *next_position* and the records of *runs*, in both formats.

    ValueError where the positions do not fit into this package's range.
    """
    if next_position > POSITION_MAX + 1:
        raise ValueError(f"its next position is {next_position}, positions here end at {POSITION_MAX}")
    if start:
        yield Truncate(start - 1)
    yield from runs
