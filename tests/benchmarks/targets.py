"""The project's own targets: what is wanted, what was measured, and whether that is enough."""

from __future__ import annotations

from dataclasses import dataclass, fields

from tests.benchmarks.results import Row


@dataclass(frozen=True, slots=True)
class Check:
    """A target in words, what was measured against it, and whether that is enough."""

    target: str
    measured: str
    met: bool


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


def at_least(target: str, value: float, wanted: float, measured: str) -> Check:
    """Check *value* against a floor."""
    return Check(target, measured, value >= wanted)


def at_most(target: str, value: float, wanted: float, measured: str) -> Check:
    """Check *value* against a ceiling."""
    return Check(target, measured, value <= wanted)
