"""The project's own targets: what is wanted, what was measured, and whether that is enough.

A target is a ratio within rounds wherever there is something to compare with: a raw disk, a bare read, another store,
another build. The verdict then rests on the range that holds the true median with 95 % confidence: if a target lies
within it, the run has not decided. A target in seconds or per second is met or missed by the machine's other load too:
if that load was high and the target missed, the run has not decided either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from statistics import median

from tests.benchmarks.results import Row

NOISE_MAX = 0.1
"""Share of the machine's processors that other programs may take before they decide a target in seconds."""


@dataclass(frozen=True, slots=True)
class Check:
    """A target in words, what was measured against it, and whether that is enough.

    met: None if the run has not decided. of_times: the target is in seconds or per second.
    """

    target: str
    measured: str
    met: bool | None
    of_times: bool = False


@dataclass(frozen=True, slots=True)
class JudgedRow(Row):
    """A row with the targets that it was checked against."""

    checks: tuple[Check, ...] = ()


def judged(row: Row, *checks: Check) -> JudgedRow:
    """Return *row* with *checks*."""
    return JudgedRow(**{field.name: getattr(row, field.name) for field in fields(Row)}, checks=checks)


def checks_of(rows: tuple[Row, ...]) -> list[Check]:
    """Return every check of *rows*, in order."""
    return [check for row in rows if isinstance(row, JudgedRow) for check in row.checks]


def under_noise(row: Row, noise: float) -> Row:
    """Return *row* as it is to be judged if other programs took the share *noise* of the processors meanwhile."""
    if not isinstance(row, JudgedRow) or noise <= NOISE_MAX:
        return row
    return replace(row, checks=tuple(_under_noise(check, noise) for check in row.checks))


def _under_noise(check: Check, noise: float) -> Check:
    if not check.of_times or check.met is not False:
        return check
    return replace(check, met=None, measured=f"{check.measured}, while other programs took {noise:.0%} of the CPUs")


def at_least(target: str, value: float, wanted: float, measured: str, *, of_times: bool = False) -> Check:
    """Check *value* against a floor."""
    return Check(target, measured, value >= wanted, of_times)


def at_most(target: str, value: float, wanted: float, measured: str, *, of_times: bool = False) -> Check:
    """Check *value* against a ceiling."""
    return Check(target, measured, value <= wanted, of_times)


def rounds_at_least(target: str, ratios: Sequence[float], wanted: float, note: str = "") -> Check:
    """Check the median of the rounds' *ratios* against a floor; their range decides."""
    low, high = confidence_range(ratios)
    met = True if low >= wanted else False if high < wanted else None
    return Check(target, spread(ratios, _times) + note, met)


def rounds_at_most(target: str, ratios: Sequence[float], wanted: float, note: str = "") -> Check:
    """Check the median of the rounds' *ratios* against a ceiling; their range decides."""
    low, high = confidence_range(ratios)
    met = True if high <= wanted else False if low > wanted else None
    return Check(target, spread(ratios, _times) + note, met)


def spread(found: Sequence[float], shown: Callable[[float], str]) -> str:
    """Return the median and the range in words: `1.25 × (1.16 to 1.32)`."""
    low, high = confidence_range(found)
    return f"{shown(median(found))} ({shown(low).removesuffix(' ×')} to {shown(high).removesuffix(' ×')})"


def confidence_range(found: Sequence[float]) -> tuple[float, float]:
    """Return the range that holds the true median with a confidence of 95 %, however the rounds are distributed.

    It is between two rounds of the ordered ones, the same number from either end: a coin thrown for each round decides
    whether it is below the true median. With fewer than 6 rounds it is the range of all.
    """
    ordered = sorted(found)
    from_end = max(math.floor(len(ordered) / 2 - 0.98 * math.sqrt(len(ordered))), 0)
    return ordered[from_end], ordered[-1 - from_end]


def _times(ratio: float) -> str:
    return f"{ratio:.2f} ×"
