"""Sizes and times as people write them: `512MiB`, `4G`, `1.5GB`, `500ms`, `2min`. Every place that takes one uses them.

For sizes, k, m, g, t and KiB, MiB, GiB, TiB are powers of 1024, as in systemd and Java; kB, MB, GB, TB are powers of
1000. Upper and lower case mean the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

_PREFIXES = "kmgt"
_BYTES = (
    {"": 1, "b": 1}
    | {f"{prefix}{end}": 1024**power for power, prefix in enumerate(_PREFIXES, 1) for end in ("", "ib")}
    | {f"{prefix}b": 1000**power for power, prefix in enumerate(_PREFIXES, 1)}
)
_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_LENGTHS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
_QUANTITY = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)\s*([a-zA-Z]*)", re.ASCII)


def parse_size(text: str) -> int:
    """Return bytes for `4096`, `512MiB`, `4G` or `1.5GB`. Raises ValueError for anything else."""
    size = _parse(text, _BYTES, "a size such as 512MiB or 4G")
    if size % 1 and text.strip().rstrip("bB ")[-1].isdigit():  # of `1.1GiB`, the part of a byte is nothing
        raise ValueError(f"{text!r} is not a whole number of bytes: write a unit after it, such as MiB or G")
    return int(size)


def parse_seconds(text: str) -> float:
    """Return seconds for `5`, `1.5s`, `500ms`, `2m`, `2min`, `1h` or `7d`. Raises ValueError for anything else."""
    return _parse(text, _SECONDS, "a time such as 10s, 500ms or 2m")


def parse_moment(text: str) -> datetime:
    """Return the time of `10min` (that long ago), `2026-11-22T09:30:00Z` or `2026-11-22 10:30`. ValueError otherwise.

    A time without a zone is local time: a person at a shell types what the clock on the wall shows.
    """
    try:
        return datetime.fromisoformat(text.strip()).astimezone()
    except (ValueError, OverflowError):  # a time at the end of the calendar may have no date in the local zone
        pass
    try:
        return datetime.now(UTC) - timedelta(seconds=parse_seconds(text))
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not a time such as 10min (ago) or 2026-11-22T09:30:00Z") from None


def age(seconds: float | None) -> str:
    """Return an age in whole units of the largest that gives 2 or more, like 5 min or 3 d; a dash if there is none."""
    if seconds is None:
        return "-"
    unit, length = next(each for each in _LENGTHS if seconds >= 2 * each[1] or each[1] == 1)
    return f"{seconds // length:.0f} {unit}"  # what is not over does not count


def span(seconds: float) -> str:
    """Return a length of time that somebody has set, exactly: 7 d, 90 s, 0.5 s."""
    unit, length = next(each for each in _LENGTHS if (seconds and seconds % each[1] == 0) or each[1] == 1)
    return f"{seconds / length:g} {unit}"


def _parse(text: str, units: Mapping[str, float], expected: str) -> float:
    found = _QUANTITY.fullmatch(text.strip())
    if not found or found[2].lower() not in units:
        raise ValueError(f"{text!r} is not {expected}")
    # A whole number is not rounded through a float: sizes may exceed 2**53.
    number: float = float(found[1]) if "." in found[1] else int(found[1])
    return number * units[found[2].lower()]
