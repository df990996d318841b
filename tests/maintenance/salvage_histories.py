"""Random logs and random damage to them, which `salvage_judge` uses to check salvage."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from mrecordlog_async import MultiRecordLog, PersistPolicy
from mrecordlog_async.format.controls import Create, Delete, Truncate
from mrecordlog_async.format.frame import BLOCK_BYTES, FILLER, FULL, LAST
from mrecordlog_async.format.header import HEADER_BYTES, decode_header
from mrecordlog_async.format.record import Append, Commit, LogRecord, decode_record
from mrecordlog_async.format.table import TABLE, Table, decode_table
from mrecordlog_async.storage.segment import CLOSED_NAME
from tests import damage

NAMES = ("a", "b", "c")


@dataclass
class Piece:
    """A log record of the whole log, where its frames are, and the number of its batch; None for a table."""

    segment: str
    frames: list[tuple[int, int]]
    record: LogRecord | Commit | Table
    batch: int | None = None


@dataclass
class History:
    """The calls made to a log and their results, by queue id, and its intact files."""

    names: dict[int, str] = field(default_factory=dict)
    acknowledged: dict[int, dict[int, bytes]] = field(default_factory=dict)
    alive: dict[int, dict[int, bytes]] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    pieces: list[Piece] = field(default_factory=list)
    oldest: str = ""

    def restore(self, directory: Path) -> None:
        """Put all files back as they were."""
        directory.mkdir(exist_ok=True)
        for path in directory.iterdir():
            path.unlink()
        for name, data in self.files.items():
            (directory / name).write_bytes(data)


# A history.


def make_history(directory: Path, rng: random.Random) -> History:
    """Create and close a log of a few small segments in *directory*."""
    history = History()
    asyncio.run(_live(directory, rng, history))
    history.files = {path.name: path.read_bytes() for path in directory.iterdir() if path.name != "LOCK"}
    for segment in damage.segments(directory):
        history.pieces += _pieces(segment)
    headers = [decode_header(path.read_bytes()[:HEADER_BYTES]) for path in damage.segments(directory)]
    commits = [piece.record.oldest_segment for piece in history.pieces if isinstance(piece.record, Commit)]
    oldest = max([header.oldest_segment for header in headers] + commits)
    history.oldest = f"wal-{oldest:020}"
    return history


async def _live(directory: Path, rng: random.Random, history: History) -> None:
    blocks, steps = rng.choice([1, 2, 4]), rng.randint(10, 60)
    opening = MultiRecordLog.open(directory, persist_policy=PersistPolicy.never(), segment_bytes=blocks * BLOCK_BYTES)
    async with opening as log:
        for name in NAMES:
            await _create(log, name, history)
        for _ in range(steps):
            await _step(log, rng, history)
        for name, summary in log.summary().items():
            history.alive[summary.id] = dict(log.range(name))


async def _create(log: MultiRecordLog, name: str, history: History) -> None:
    await log.create_queue(name)
    queue_id = log.summary()[name].id
    history.names[queue_id] = name
    history.acknowledged[queue_id] = {}


async def _step(log: MultiRecordLog, rng: random.Random, history: History) -> None:
    name, dice = rng.choice(NAMES), rng.random()
    if not log.queue_exists(name):
        await _create(log, name, history)
    elif dice < 0.65:
        calls = [_append(log, rng, history, rng.choice(log.list_queues()), None) for _ in range(rng.randint(1, 6))]
        await asyncio.gather(*calls)
    elif dice < 0.75:
        last = log.next_position(name) - 1
        if last >= log.first_position(name):
            await log.truncate(name, rng.randint(log.first_position(name), last))
    elif dice < 0.8:
        await _append(log, rng, history, name, log.next_position(name) + rng.randint(1, 5))
    else:
        await log.delete_queue(name)
        if dice < 0.97:
            await _create(log, name, history)


async def _append(log: MultiRecordLog, rng: random.Random, history: History, name: str, position: int | None) -> None:
    payloads = [rng.randbytes(rng.choice([0, 3, 8, 60, 700, 40_000])) for _ in range(rng.choice([1, 1, 1, 3]))]
    queue_id = log.summary()[name].id
    last = await log.append_records(name, position, payloads)
    assert last is not None
    first = last - len(payloads) + 1
    history.acknowledged[queue_id].update(enumerate(payloads, first))


def _pieces(segment: Path) -> list[Piece]:
    pieces: list[Piece] = []
    frames: list[tuple[int, int]] = []
    parts: list[bytes] = []
    begun = 0
    for offset, end, kind, payload in damage.frames(segment):
        if kind == FILLER:
            continue
        frames.append((offset, end))
        parts.append(payload)
        if kind in (FULL, LAST):
            body = b"".join(parts)
            record = decode_table(body) if body[0] == TABLE else decode_record(body)
            pieces.append(Piece(segment.name, frames, record))
            frames, parts = [], []
            if isinstance(record, Table):
                begun = len(pieces)
            elif isinstance(record, Commit):
                for piece in pieces[begun:]:
                    piece.batch = record.batch
                begun = len(pieces)
    return pieces


# Damage.


def flip(directory: Path, rng: random.Random, history: History) -> None:
    path, end = _place(directory, rng)
    damage.flip_byte(path, rng.randrange(end), 1 << rng.randrange(8))


def zero(directory: Path, rng: random.Random, history: History) -> None:
    path, end = _place(directory, rng)
    at = rng.randrange(end)
    damage.zero(path, at, min(rng.choice([16, 512, 4_096]), end - at))


def zero_blocks(directory: Path, rng: random.Random, history: History) -> None:
    path, end = _place(directory, rng)
    at = rng.randrange(end) // BLOCK_BYTES * BLOCK_BYTES
    damage.zero(path, at, min(rng.choice([1, 2]) * BLOCK_BYTES, end - at))


def scribble(directory: Path, rng: random.Random, history: History) -> None:
    path, end = _place(directory, rng)
    damage.write_at(path, rng.randrange(end), rng.randbytes(200))


def move(directory: Path, rng: random.Random, history: History) -> None:
    """Copy bytes of the log over other bytes of it."""
    path, end = _place(directory, rng)
    source, _ = _place(directory, rng)
    data = source.read_bytes()
    length = min(rng.choice([64, 4_096, BLOCK_BYTES]), end)
    to = rng.randrange(end - length + 1)
    damage.write_at(path, to, data[rng.randrange(len(data)) :][:length])


def hit(directory: Path, rng: random.Random, history: History) -> None:
    """Damage the log records that create, end and name queues, and those that say where batches end."""
    kind = rng.choice([Create, Delete, Table, Commit, Truncate, Append])
    for piece in rng.choices(history.pieces, k=20):
        if isinstance(piece.record, kind) and (path := directory / piece.segment).exists():
            offset, end = rng.choice(piece.frames)
            if end <= path.stat().st_size:
                damage.flip_byte(path, rng.randrange(offset, min(end, offset + 40)))


def remove(directory: Path, rng: random.Random, history: History) -> None:
    segments = damage.segments(directory)
    if len(segments) > 1:
        rng.choice(segments).unlink()


def cut(directory: Path, rng: random.Random, history: History) -> None:
    path, end = _place(directory, rng)
    damage.cut(path, rng.randrange(min(HEADER_BYTES, end), end + 1))


def forget_end(directory: Path, rng: random.Random, history: History) -> None:
    """Make the log look killed, or make its end unreadable."""
    path = directory / CLOSED_NAME
    if path.exists():
        path.unlink() if rng.random() < 0.7 else damage.flip_byte(path, rng.randrange(path.stat().st_size))


HARMS: list[Callable[[Path, random.Random, History], None]] = [
    *(flip, zero, zero_blocks, scribble, move, hit, hit, remove, cut),
    *(forget_end, forget_end),
]


def _place(directory: Path, rng: random.Random) -> tuple[Path, int]:
    """Choose a segment; return it and the end of its nonzero bytes."""
    path = rng.choice(damage.segments(directory))
    return path, max(len(path.read_bytes().rstrip(b"\0")), 1)
