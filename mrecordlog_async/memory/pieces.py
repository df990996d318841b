"""The pieces in which a queue keeps its records: runs with gaps (`gapped`) and without, and columns of many of them.

All runs of a queue (`Runs`) are stored by column, in the order of their positions, and a run is made only when it is
read. A gigabyte is tens of thousands of runs. If they were objects, or entries of lists, Python's cyclic garbage
collector would visit each of them, and stop the event loop meanwhile.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from operator import sub
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from mrecordlog_async.memory.gapped import GappedRun, HeldRun, RunsOfGapped
from mrecordlog_async.model import OFFSET_BYTES, POSITION_MAX, Run, pack_offsets


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


CHUNK_RUNS = 16
"""Runs in a full chunk."""

_COLUMNS = 2
CHUNK_COLUMNS = CHUNK_RUNS * _COLUMNS
_FIRST = Struct("<q")

Chunk = tuple[bytes, ...]
"""Offsets and payload of one run after the other."""

_NO_CHUNKS: list[Chunk] = []
"""Shared by all sequences that fill no chunk, and always empty."""

_NO_GAPS: dict[int, bytes] = {}
"""Shared by all sequences whose runs have no gaps, and always empty."""


class RunSizes(NamedTuple):
    """RunSizes of several runs; other_bytes: of their offsets and positions."""

    runs: int
    records: int
    payload_bytes: int
    other_bytes: int


class Runs:
    """A sequence of runs that grows at the back and shrinks at both ends. A store owns it.

    To the cycle collector it is one object, and one reference for each chunk: the collector stops tracking an exact
    tuple of bytes when it first sees it. As lists, the columns of a million runs took a full collection 90 ms.
    """

    __slots__ = ("_chunks", "_firsts", "_gaps", "_missing", "_newest")

    def __init__(self) -> None:
        self._firsts = bytearray()  # the first position of each run; taking from its front does not move the rest
        self._chunks = _NO_CHUNKS  # all of them full, but the oldest one
        self._missing = 0  # how many runs that one lacks
        # Never full. A list while small runs arrive: copying a tuple for each would add half to the cost of an append.
        self._newest: Chunk | list[bytes] = ()
        self._gaps = _NO_GAPS  # of each run with gaps, by its first position: its positions

    def __len__(self) -> int:
        return len(self._firsts) // _FIRST.size

    def append(self, first_position: int, offsets: bytes, payload: bytes) -> None:
        """Add a small run after the last one; more are likely to follow."""
        self._firsts += _FIRST.pack(first_position)
        newest = self._newest
        if type(newest) is not list:
            newest = self._newest = list(newest)
        newest += (offsets, payload)
        if len(newest) == CHUNK_COLUMNS:
            self._end_chunk()

    def append_large(self, run: HeldRun) -> None:
        """Add a run after the last one that others are not soon to follow."""
        if isinstance(run, GappedRun):
            if self._gaps is _NO_GAPS:
                self._gaps = {}
            self._gaps[run[0]] = run.positions
        self._firsts += _FIRST.pack(run[0])
        self._newest = (*self._newest, run[1], run[2])
        if len(self._newest) == CHUNK_COLUMNS:
            self._end_chunk()

    def rest(self) -> None:
        """Expect no other run soon: leave nothing to the collector but this object and a reference for each chunk."""
        self._newest = tuple(self._newest)

    def _end_chunk(self) -> None:
        if self._chunks is _NO_CHUNKS:
            self._chunks = []
        self._chunks.append(tuple(self._newest))
        self._newest = ()

    def oldest(self) -> HeldRun:
        """Return the run at the front."""
        return self._run(0)

    def newest(self) -> HeldRun:
        """Return the run at the back."""
        return self._run(len(self) - 1)

    def end(self) -> int:
        """Return the position after the last record."""
        return self._next_position(len(self) - 1)

    def ended_by(self, position: int) -> int:
        """Return the number of runs that end at or before *position*: those at the front."""
        at = self._begun_before(position + 1)
        # Of these, only the last one may end after it.
        return at - 1 if at and self._next_position(at - 1) > position else at

    def between(self, start: int, stop: int, most: int | None = None) -> list[HeldRun]:
        """Return the runs that reach into positions *start* … *stop* - 1, uncut; at most the first *most* of them.

        A run with gaps may have none of these positions.
        """
        first, end = self.ended_by(start), self._begun_before(stop)
        return self._held(first, end if most is None else min(end, first + most))

    def starting_at(self, position: int) -> Iterator[Run]:
        """Yield the runs from the one that holds *position* on, uncut. Nothing may change meanwhile.

        Runs with gaps are split, and the first of them is cut.
        """
        for at in range(self.ended_by(position), len(self)):
            run = self._run(at)
            if isinstance(run, Run):
                yield run
            elif (cut := run.cut(position, POSITION_MAX + 1)) is not None:
                yield from (cut,) if isinstance(cut, Run) else cut.runs()

    def remove_oldest(self, count: int) -> RunSizes:
        """Remove the first *count* runs; return their sizes."""
        removed = self._sizes(0, count)
        if self._gaps:
            for first in self._first_positions(0, count):
                self._gaps.pop(first, None)
        chunks, missing = divmod(count + self._missing, CHUNK_RUNS)
        if chunks >= len(self._chunks):
            self._newest, missing = self._columns(count, len(self)), 0
            self._chunks = _NO_CHUNKS
        else:
            oldest = self._chunks[chunks][(missing if chunks else count) * _COLUMNS :]
            self._chunks[: chunks + 1] = [oldest]
        self._missing = missing
        del self._firsts[: count * _FIRST.size]
        return removed

    def join_newest(self, count: int) -> HeldRun:
        """Join the last *count* runs, none of which has gaps, to one; return it. Gaps may be between these runs."""
        kept = len(self) - count
        run = self._joined(kept)
        self._remove_newest(kept)
        self.append_large(run)
        return run

    def _remove_newest(self, kept: int) -> None:
        """Remove all but the first *kept* runs."""
        chunk = (kept + self._missing) // CHUNK_RUNS
        if chunk >= len(self._chunks):
            self._newest = self._newest[: len(self._newest) - (len(self) - kept) * _COLUMNS]
        else:
            # The last chunk that stays is not full now.
            self._newest = self._columns(chunk * CHUNK_RUNS - self._missing if chunk else 0, kept)
            del self._chunks[chunk:]
            if not chunk:
                self._chunks, self._missing = _NO_CHUNKS, 0
        del self._firsts[kept * _FIRST.size :]

    def _joined(self, at: int) -> HeldRun:
        """Return the records of the runs from the one with index *at* on as one run, or as one with gaps."""
        columns = self._columns(at, len(self))
        offsets, payloads = columns[::_COLUMNS], columns[1::_COLUMNS]
        if len(payloads) == 1:
            return self._run(at)
        lengths: Iterable[int] = map(len, payloads)
        if max(map(len, offsets)) > 2 * OFFSET_BYTES:  # not all of them are single records
            each = [memoryview(ends).cast("i").tolist() for ends in offsets]
            lengths = chain.from_iterable(map(sub, ends[1:], ends) for ends in each)
        packed, payload = pack_offsets(accumulate(lengths, initial=0)), b"".join(payloads)
        firsts, records = self._first_positions(at, len(self)), len(packed) // OFFSET_BYTES - 1
        if self.end() - firsts[0] == records:
            return Run(firsts[0], packed, payload)
        return GappedRun.of(_positions(firsts, offsets, records), packed, payload)

    def _held(self, first: int, end: int) -> list[HeldRun]:
        """Return the runs with indexes *first* … *end* - 1."""
        if end - first == 1:
            return [self._run(first)]
        if first >= end:
            return []
        columns, firsts = self._columns(first, end), self._first_positions(first, end)
        runs = list(map(Run._make, zip(firsts, columns[::_COLUMNS], columns[1::_COLUMNS], strict=True)))
        return list(map(self._with_gaps, runs)) if self._gaps else runs  # type: ignore[return-value]  # all are Runs

    def _run(self, at: int) -> HeldRun:
        columns, place = self._place(at)
        run = Run(_FIRST.unpack_from(self._firsts, at * _FIRST.size)[0], columns[place], columns[place + 1])
        return self._with_gaps(run) if self._gaps else run

    def _with_gaps(self, run: Run) -> HeldRun:
        positions = self._gaps.get(run.first_position)
        return run if positions is None else GappedRun(*run, positions)

    def _first_positions(self, first: int, end: int) -> list[int]:
        return memoryview(self._firsts)[first * _FIRST.size : end * _FIRST.size].cast("q").tolist()

    def _begun_before(self, position: int) -> int:
        """Return the number of runs that begin before *position*."""
        firsts = self._firsts
        # Most readers and truncates are at an end, which needs no search.
        if not firsts or _FIRST.unpack_from(firsts)[0] >= position:
            return 0
        if _FIRST.unpack_from(firsts, len(firsts) - _FIRST.size)[0] < position:
            return len(firsts) // _FIRST.size
        return bisect_left(memoryview(firsts).cast("q"), position)

    def _place(self, at: int) -> tuple[Sequence[bytes], int]:
        """Return the chunk that holds the run with index *at*, and the index of its offsets there."""
        if not self._chunks:
            return self._newest, at * _COLUMNS
        chunk, place = divmod(at + self._missing, CHUNK_RUNS)
        if not chunk:
            place = at
        return self._chunks[chunk] if chunk < len(self._chunks) else self._newest, place * _COLUMNS

    def _columns(self, first: int, end: int) -> Chunk:
        """Return the columns of the runs with indexes *first* … *end* - 1."""
        low, high = (first + self._missing) // CHUNK_RUNS, (end - 1 + self._missing) // CHUNK_RUNS
        # The index of the first run of chunk `low`.
        begin = low * CHUNK_RUNS - self._missing if low else 0
        if low >= len(self._chunks):
            found = tuple(self._newest)
        elif low == high:
            found = self._chunks[low]
        else:
            newest = (self._newest,) if high == len(self._chunks) else ()
            found = tuple(chain.from_iterable((*self._chunks[low : high + 1], *newest)))
        return found[(first - begin) * _COLUMNS : (end - begin) * _COLUMNS]

    def _next_position(self, at: int) -> int:
        if self._gaps:
            return self._run(at).next_position
        columns, place = self._place(at)
        first: int = _FIRST.unpack_from(self._firsts, at * _FIRST.size)[0]
        return first + len(columns[place]) // OFFSET_BYTES - 1

    def _sizes(self, first: int, end: int) -> RunSizes:
        columns, runs = self._columns(first, end), end - first
        offsets = sum(map(len, columns[::_COLUMNS]))
        gaps = 0
        if self._gaps:
            gaps = sum(len(self._gaps.get(position, b"")) for position in self._first_positions(first, end))
        return RunSizes(runs, offsets // OFFSET_BYTES - runs, sum(map(len, columns[1::_COLUMNS])), offsets + gaps)


def _positions(firsts: list[int], offsets: Sequence[bytes], records: int) -> list[int]:
    """Return the position of each record of runs without gaps. *records*: their number in all runs."""
    if len(firsts) == records:
        return firsts
    counts = (len(ends) // OFFSET_BYTES - 1 for ends in offsets)
    return list(chain.from_iterable(range(first, first + n) for first, n in zip(firsts, counts, strict=True)))


NO_RUNS = Runs()
"""Shared by all queues without runs, and always empty."""


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
