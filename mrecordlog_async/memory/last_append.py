"""A digest of the last append of a queue: its repeat is recognized even after its records were truncated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from crc32c import crc32c

from mrecordlog_async.model import OFFSET_BYTES, Run


class LastAppend(NamedTuple):
    """The last append of a queue: its positions, and a checksum (CRC-32C) of all its lengths and payloads.

    It outlives the records, so a repeat of the last call is recognized after they were truncated. The runs that a long
    call was split into are one append.
    """

    first_position: int
    records: int
    checksum: int

    @classmethod
    def of(cls, runs: Sequence[Run]) -> LastAppend:
        """Digest *runs*, which have no gap between them, as if they were one run."""
        first = runs[0].first_position
        return cls(first, runs[-1].next_position - first, checksum_of(runs))


def same_payloads(runs: Sequence[Run], first_position: int, payloads: Sequence[bytes]) -> bool:
    """Return whether *runs* hold *payloads*, the first of which belongs at *first_position*, without a gap.

    Payloads before the first run are not compared.
    """
    if runs and sum(run.record_count for run in runs) != first_position + len(payloads) - runs[0].first_position:
        return False
    return all(
        payload == payloads[position - first_position]
        for run in runs
        for position, payload in zip(range(run.first_position, run.next_position), run.payloads(), strict=True)
    )


def checksum_of(runs: Iterable[Run]) -> int:
    """Return the CRC-32C of the lengths and payloads of *runs*. It does not depend on how records are cut into runs."""
    checksum = 0
    for run in runs:
        checksum = crc32c(_packed_lengths(run.offsets), checksum)
    for run in runs:
        checksum = crc32c(run.payload, checksum)
    return checksum


def checksum_of_one(payload: bytes) -> int:
    """Return what `checksum_of` returns for a run of one record."""
    return crc32c(payload, crc32c(len(payload).to_bytes(OFFSET_BYTES, "little")))


def _packed_lengths(offsets: bytes) -> bytes:
    """Return the lengths between *offsets* as int32."""
    # One subtraction of long integers computes all of them: offsets ascend, so no difference borrows from the next one.
    lengths = int.from_bytes(offsets[OFFSET_BYTES:], "little") - int.from_bytes(offsets[:-OFFSET_BYTES], "little")
    return lengths.to_bytes(len(offsets) - OFFSET_BYTES, "little")
