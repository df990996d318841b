"""Runs as a store keeps them: cut, as callers get them, and their checksum."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from crc32c import crc32c

from mrecordlog_async.memory.gapped import GappedRun, HeldRun, RunsOfGapped
from mrecordlog_async.model import OFFSET_BYTES, Run


def cut_ends(found: list[HeldRun], start: int, stop: int) -> list[HeldRun]:
    """Cut the first and the last run to positions *start* … *stop* - 1. A run with gaps may have nothing left."""
    for at in {0, len(found) - 1} if found else ():
        cut = found[at].cut(start, stop)
        if cut is None:
            return [run for each in found if (run := each.cut(start, stop)) is not None]
        found[at] = cut
    return found


def cut_to(runs: list[HeldRun], start: int, stop: int) -> list[HeldRun]:
    """Return the parts of *runs* at positions *start* … *stop* - 1."""
    return cut_ends([run for run in runs if run.next_position > start and run[0] < stop], start, stop)


def as_runs(held: list[HeldRun]) -> Sequence[Run]:
    """Return *held* as runs. Those between gaps are made during iteration."""
    return RunsOfGapped(held) if GappedRun in map(type, held) else held  # type: ignore[return-value]  # all are Runs


def runs_of(held: Iterable[HeldRun]) -> Iterator[Run]:
    """Yield *held* as runs; one with gaps in its positions is split at the gaps, run by run."""
    for one in held:
        if isinstance(one, Run):
            yield one
        else:
            yield from one.runs()


def checksum_of(runs: Iterable[Run]) -> int:
    """Return the CRC-32C of the lengths and payloads of *runs*. It does not depend on how records are cut into runs."""
    checksum = 0
    for run in runs:
        checksum = crc32c(_packed_lengths(run.offsets), checksum)
    for run in runs:
        checksum = crc32c(run.payload, checksum)
    return checksum


def _packed_lengths(offsets: bytes) -> bytes:
    """Return the lengths between *offsets* as int32."""
    # One subtraction of long integers computes all of them: offsets ascend, so no difference borrows from the next one.
    lengths = int.from_bytes(offsets[OFFSET_BYTES:], "little") - int.from_bytes(offsets[:-OFFSET_BYTES], "little")
    return lengths.to_bytes(len(offsets) - OFFSET_BYTES, "little")
