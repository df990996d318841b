"""Damage to a finished log: what is changed, and what opening the log must report.

The verdict comes from the intact log, the state after each of its batches, and the results that callers had when each
batch was written. It does not use what the log itself records about that in its COMMITs.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from mrecordlog_async.errors import CorruptionError
from mrecordlog_async.format.frame import BLOCK_BYTES, FILLER, read_frame, segment_seed
from mrecordlog_async.format.header import HEADER_BYTES, decode_closed, decode_header
from mrecordlog_async.format.parse import COMMIT_FRAME_BYTES, ParsedBatch, SegmentParser
from mrecordlog_async.readonly import ReadOnlyLog
from mrecordlog_async.storage.gathered_files import GATHERED_SUFFIX
from mrecordlog_async.storage.segment import segment_name

from .disk import SECTOR_BYTES, WRITES, Disk
from .driver import DIRECTORY, Moment, Run
from .explore import open_twice
from .judge import State, Verdict

Files = dict[str, bytes | None]


class Batch(NamedTuple):
    """A batch of the intact last segment.

    promised: how many calls had to survive a power cut when the batch was written; its COMMIT proves them. itself: how
    many calls it proves if the whole batch is found after damage.
    """

    number: int
    start: int
    commit: int
    end: int
    promised: int
    itself: int

    def proves(self, damaged: Damaged) -> int:
        """Return how many promised calls this batch proves to a reader of the damaged log."""
        if damaged.start < self.end and self.commit < damaged.stop:
            return 0
        return self.promised if damaged.start < self.end and self.start < damaged.stop else self.itself


class Damaged(NamedTuple):
    """A damaged log: what was done, to which file, and which of its bytes changed."""

    what: str
    files: Files
    name: str
    start: int
    stop: int


class Due(NamedTuple):
    """What opening must find. may_refuse: further records provably existed, but none of them was promised."""

    state: State | None
    may_refuse: bool


@dataclass(frozen=True)
class Intact:
    """A finished log and everything that is known about it."""

    files: dict[str, bytes]
    closed: bool
    table_end: int
    batches: list[Batch]
    states: list[State | None]  # None: its segments were reclaimed since, so the log must be refused
    held: list[int]  # how many calls each state contains
    ends: dict[str, int]

    @classmethod
    def of(cls, run: Run, *, closed: bool) -> Intact:
        """Return the log that *run* left, with its `CLOSED` if *closed*."""
        files = {name: data for name, data in run.disk.content(DIRECTORY).items() if name != "LOCK"}
        assert "CLOSED" in files
        end = decode_closed(files["CLOSED"]).end
        if not closed:
            del files["CLOSED"]
        segments = sorted(name for name in files if name.startswith("wal-") and not name.endswith(GATHERED_SUFFIX))
        last = files[segments[-1]]
        ends = {name: decode_header(files[after]).previous_end for name, after in itertools.pairwise(segments)}  # pairs
        header = decode_header(last[:HEADER_BYTES])
        parser = SegmentParser(header.log_id, header.segment, header.first_batch)
        found = list(parser.feed(last, 0))
        table_end = parser.table_end
        unclosed: Files = {name: data for name, data in files.items() if name != "CLOSED"}
        states = [
            _state(on_disk({**unclosed, segments[-1]: last[:stop] + bytes(len(last) - stop)}))
            for stop in [table_end, *(batch.end for batch in found)]
        ]
        verdict = Verdict(run.model)
        held = [max(verdict.counts(state), default=0) if state is not None else 0 for state in states]
        batches = list(_batches(run, found, table_end, held))
        return cls(files, closed, table_end, batches, states, held, {**ends, segments[-1]: end})

    @property
    def last(self) -> str:
        """Name of the last segment."""
        return max(self.ends)

    def verdict(self, damaged: Damaged) -> Due | None:
        """Return what opening must find, None if it must refuse the log."""
        if damaged.name == "CLOSED":
            return None
        end = self.ends[damaged.name]
        if damaged.start >= end:
            return Due(self.states[-1], may_refuse=False)
        if damaged.name != self.last or self.closed or damaged.start < self.table_end:
            return None
        hit = next(index for index, batch in enumerate(self.batches) if damaged.start < batch.end)
        proven = [batch.proves(damaged) for batch in self.batches[hit:]]
        if max(proven) > self.held[hit]:
            return None
        return Due(self.states[hit], may_refuse=any(proven))


def _batches(run: Run, found: list[ParsedBatch], start: int, held: list[int]) -> Iterator[Batch]:
    """Yield the batches with what was promised when each was written.

    Under policy `always` everything before a batch was promised. A whole batch after damage also proves itself.
    """
    final, last = run.model.bounds().at_least, segment_name(found[0].commit.segment) if found else ""
    for index, batch in enumerate(found):
        if run.policy.syncs_each_batch:
            promised, itself = min(final, held[index]), min(final, held[index + 1])
        else:
            promised = itself = _promised(run, last, batch)
        yield Batch(batch.commit.batch, start, batch.end - COMMIT_FRAME_BYTES, batch.end, promised, itself)
        start = batch.end


def _promised(run: Run, name: str, batch: ParsedBatch) -> int:
    """Return how many calls had to survive a power cut when *batch* was written: before its COMMIT was on the disk."""
    written = [moment for life in run.lives for moment in life.moments if moment.call in WRITES]
    start, stop = batch.end - COMMIT_FRAME_BYTES, batch.end

    def has_it(moment: Moment) -> bool:
        content = moment.snapshot.kill().content(DIRECTORY).get(name, b"")[start:stop]
        return batch.commit.log_id in content and batch.commit.batch.to_bytes(8, "little") in content

    return written[max(bisect_left(written, True, key=has_it) - 1, 0)].bounds.at_least


def _state(disk: Disk) -> State | None:
    try:
        ReadOnlyLog.open(DIRECTORY, filesystem=disk).close()
    except CorruptionError:
        return None
    return open_twice(disk, "intact")


def on_disk(files: Files) -> Disk:
    """Return a new disk with *files*."""
    disk = Disk()
    disk.make_directory(DIRECTORY)
    disk.sync_directory(disk.open_directory("/data"))
    for name, content in files.items():
        if content is not None:
            disk.put(f"{DIRECTORY}/{name}", content)
    fresh = disk.snapshot().kill()
    fresh.misuse.clear()
    return fresh


def damages(intact: Intact) -> Iterator[Damaged]:
    """Yield damage of every kind at every frame of every segment, and to whole files."""
    for name, end in intact.ends.items():
        content = intact.files[name]
        for start, stop, kind in _frames(content, end):
            yield from _to_frame(intact, name, start, stop, kind)
        for offset in range(0, HEADER_BYTES, 3):
            yield _flipped(intact, name, offset)
        for offset in (end, end + 700, len(content) - 1):
            if offset < len(content):
                yield _flipped(intact, name, offset)
        for length in (0, 10, HEADER_BYTES, len(content) // 2):
            yield _with(intact, f"{name} cut to {length}", name, content[:length])
    if intact.closed:
        for offset in range(0, len(intact.files["CLOSED"]), 5):
            yield _flipped(intact, "CLOSED", offset)
        yield _with(intact, "CLOSED emptied", "CLOSED", b"")


def _to_frame(intact: Intact, name: str, start: int, stop: int, kind: int) -> Iterator[Damaged]:
    content = intact.files[name]
    payload = start + 7
    for offset in sorted({start, start + 4, start + 6, payload, (payload + stop) // 2, stop - 1}):
        yield _flipped(intact, name, offset)
    sector = start - start % SECTOR_BYTES
    yield _replaced(intact, "zero_sector", name, sector, bytes(SECTOR_BYTES))
    one, two = content[sector : sector + SECTOR_BYTES], content[sector + SECTOR_BYTES : sector + 2 * SECTOR_BYTES]
    yield _replaced(intact, "swap", name, sector, two + one)
    block = start - start % BLOCK_BYTES
    yield _replaced(intact, "zero_block", name, block, bytes(BLOCK_BYTES))
    yield _replaced(intact, "moved", name, start, content[stop : stop + stop - start])
    yield _with(intact, f"cut at {start}", name, content[:start])
    yield _with(intact, f"cut at {stop - 1}", name, content[: stop - 1])
    assert kind <= FILLER


def _flipped(intact: Intact, name: str, offset: int) -> Damaged:
    content = intact.files[name]
    return _replaced(intact, "flip_byte", name, offset, bytes([content[offset] ^ 0x40]))


def _replaced(intact: Intact, what: str, name: str, offset: int, data: bytes) -> Damaged:
    content = intact.files[name]
    data = data[: len(content) - offset]
    return _with(intact, f"{what} at {offset}", name, content[:offset] + data + content[offset + len(data) :])


def _with(intact: Intact, what: str, name: str, content: bytes) -> Damaged:
    """Describe the damage by the first and last byte that differ. A missing byte differs unless it was zero."""
    old = intact.files[name]
    new = content.ljust(len(old), b"\0")
    differ = list(_differing(old, new))
    start, stop = (differ[0], differ[-1] + 1) if differ else (len(old), len(old))
    if name != "CLOSED" and len(content) < intact.ends[name]:
        start = min(start, len(content))
    files: Files = {**intact.files, name: content}
    return Damaged(f"{name}: {what}", files, name, start, stop)


def _differing(old: bytes, new: bytes) -> list[int]:
    if old == new:
        return []
    step = 4_096
    return [
        at
        for base in range(0, len(old), step)
        if old[base : base + step] != new[base : base + step]
        for at in range(base, min(base + step, len(old)))
        if old[at] != new[at]
    ]


def _frames(content: bytes, end: int) -> Iterator[tuple[int, int, int]]:
    header = decode_header(content[:HEADER_BYTES])
    seed = segment_seed(header.log_id, header.segment)
    view, at = memoryview(content), HEADER_BYTES
    while at < end and (frame := read_frame(view, 0, at, seed)) is not None:
        yield frame.offset, frame.end, frame.kind
        at = frame.end
