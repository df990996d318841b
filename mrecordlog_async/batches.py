"""The limits of a batch that a tail or a consumer hands out, in the log and in its clients."""

from __future__ import annotations

from typing import NamedTuple

from mrecordlog_async.options import MIB

BATCH_RECORDS = 1_000
BATCH_BYTES = 1 * MIB
BATCH_SECONDS = 0.2


class BatchLimits(NamedTuple):
    """How large a batch may become, and how many seconds after its first record it is returned; None: only if full."""

    records: int
    bytes: int
    seconds: float | None

    @classmethod
    def checked(cls, max_records: int, max_bytes: int, max_wait: float | None) -> BatchLimits:
        """Return the limits; raise ValueError for one that no batch can meet."""
        for name, value in (("max_records", max_records), ("max_bytes", max_bytes)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} must be an int, not {type(value).__name__}")
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if max_wait is not None and not max_wait >= 0:  # also refuses NaN
            raise ValueError(f"max_wait must be at least 0 seconds, or None to wait for a full batch, got {max_wait}")
        return cls(max_records, max_bytes, max_wait)
