"""What 0.3.0 takes out or renames among the names of 0.2.0, and what to use instead: the changelog has the same table.

0.2.0 was never published. The promise that a name stays begins with 0.3.0: its release empties this table.
"""

from __future__ import annotations

_SUITE = "`python -m tests.benchmarks suite` in a clone of the repository"
_PARQUET = "a Delta table: finish a drain into Parquet files with 0.2.0, then begin a table"
REMOVED: dict[str, str] = {
    "bench --list": _SUITE,
    "bench --markdown": _SUITE,
    "bench --only": _SUITE,
    "bench --svg": _SUITE,
    "drain --adopt-output": _PARQUET,
    "drain --format": _PARQUET,
    "load-parquet": "`load-table`, for Delta tables; rows of other files are written with Spark",
}
"""A line of `surface.json`, or the beginning of several ones → what to use instead, as the changelog says it."""


def is_removed(line: str) -> bool:
    """Return whether the table has *line*: itself, or the name that it is a member, a parameter or a flag of."""
    return any(line == name or line.startswith((f"{name}.", f"{name}(", f"{name} ")) for name in REMOVED)
