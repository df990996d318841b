"""Read a directory of Quickwit's Rust crate `mrecordlog` (0.5.0) into a new log.

    pip install mrecordlog_async
    python examples/import_quickwit.py ./quickwit-wal ./wal
    python examples/import_quickwit.py ./quickwit-wal ./wal --rename '{"": "default"}' --accept-damage

It imports the queues, positions and records that the crate would read. It reports what the crate skips silently:
damage, and torn tails, which are unfinished writes that a crash leaves. If there is damage, it imports nothing and
exits with 3, unless you give --accept-damage. The source is only read, and must not be in use. The log is built in
`DIR.partial`, so `DIR` is whole or absent. A new queue needs a name without control characters: --rename gives one.

The crate's format:

* **Directory**: files named `wal-` and 20 digits, in the order of their numbers, with gaps allowed. All other files are
  ignored. A file is created sparse and 128 MiB long, and never shortened; unwritten bytes read as zeros.
* **Frame**: checksum u32, length u16, kind u8 (1 full, 2 first, 3 middle, 4 last), payload; little endian. A frame
  never crosses the end of a 32 KiB block; fewer than 7 bytes at a block's end are zero padding. The checksum is zlib's
  CRC-32 over kind and payload; it covers neither the length nor the offset. A record may continue in the next file.
* **Record**: kind u8, position u64, length of the queue's name u16, the name; then, for kind 4, items of position u64,
  length u32, payload. Kinds: 1 truncate (last position to delete), 2 touch (the queue's next position: create, or
  reset), 3 delete, 4 append.
* **End**: seven zero bytes in the place of a header end the log, even if blocks and files with records follow.
* **Damage**: a frame whose checksum fails is skipped. An impossible kind or length skips the rest of its block. The
  crate logs a warning at most, and none if it ends at a hole of zeros. Only a position that goes back makes the crate
  refuse the whole directory.

Everything is read twice: once for positions, once for the records that the queues still hold.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import json
import os
import re
import shutil
import struct
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from mrecordlog_async import CorruptionError, Limits, MultiRecordLog, PersistPolicy, QueueNameError, RecordLogError

BLOCK_BYTES = 32_768
HEADER = struct.Struct("<IHB")
NO_HEADER = bytes(HEADER.size)
FULL, FIRST, MIDDLE, LAST = range(1, 5)

RECORD_HEAD = struct.Struct("<BQH")
ITEM_HEAD = struct.Struct("<QI")
TRUNCATE, TOUCH, DELETE, APPEND = range(1, 5)

CALLS_BYTES = 4 << 20
"""About this many bytes are appended at once."""

LIMITS = Limits(
    disk_bytes=1 << 62,
    pending_bytes=4 << 30,
    record_bytes=(2 << 30) - 1,
    name_bytes=65_535,
    queues=1 << 62,
    beyond_memory="disk",
)
"""Whatever the crate holds fits, but for records of 2 GiB."""


class SourceError(Exception):
    """The directory cannot be imported as it is. The text says why, and what to do."""


@dataclass(slots=True)
class Finding:
    """Bytes in which the crate finds no record.

    silent: the crate logs no warning. torn: a write that a crash interrupted; otherwise it is damage. hidden_frames:
    valid frames inside it that the crate does not see.
    """

    file: str
    offset: int
    bytes: int
    reason: str
    silent: bool = False
    torn: bool = True
    hidden_frames: int = 0

    def __str__(self) -> str:
        hidden = f", hiding {self.hidden_frames} frames with data" if self.hidden_frames else ""
        silent = " (the crate does not mention it)" if self.silent else ""
        kind = "torn tail" if self.torn else "damage"
        return f"{kind}: {self.file} at offset {self.offset}, {self.bytes} bytes: {self.reason}{hidden}{silent}"


# Files and frames.


def file_name(number: int) -> str:
    return f"wal-{number:020}"


class Directory:
    """The crate's files in a directory. numbers: theirs, ascending."""

    def __init__(self, path: Path) -> None:
        self.path = path
        matches = (re.fullmatch(r"wal-([0-9]{20})", name) for name in os.listdir(path))
        self.numbers = sorted(number for match in matches if match and (number := int(match[1])) < 1 << 64)
        if not self.numbers:
            raise SourceError(f"{path}: there is no file called wal- and 20 digits here")

    def block(self, number: int, offset: int) -> bytes:
        """Return the block at *offset* of a file, shorter where the file ends."""
        with (self.path / file_name(number)).open("rb") as file:
            file.seek(offset)
            return file.read(BLOCK_BYTES)


class Frame(NamedTuple):
    """A valid frame, and where it begins."""

    kind: int
    payload: bytes
    file: int
    offset: int


def frame_stop(block: bytes, at: int) -> int | None:
    """Return where the valid frame at *at* ends; None if there is none."""
    checksum, length, kind = HEADER.unpack_from(block, at)
    start, stop = at + HEADER.size, at + HEADER.size + length
    fits = FULL <= kind <= LAST and stop <= len(block)
    return stop if fits and zlib.crc32(block[start:stop], zlib.crc32(bytes((kind,)))) == checksum else None


def frames_within(block: bytes, start: int) -> int:
    """Count the valid frames with a payload, at any byte of *block* from *start* on, that a damaged header hides."""
    found, at = 0, start
    while at + HEADER.size < len(block):
        stop = frame_stop(block, at)
        if stop is not None and stop > at + HEADER.size:
            found, at = found + 1, stop
        else:
            at += 1
    return found


class Frames:
    """A cursor over the blocks of all files, as in the crate's reader. Short blocks are added to *findings*."""

    def __init__(self, source: Directory, findings: list[Finding]) -> None:
        self.file = source.numbers[0]
        # The first file may begin with the rest of a record whose beginning was in a file that was removed.
        self.leading = self.file > 0
        self._source = source
        self._findings = findings
        self._block_offset = self._cursor = 0
        self._is_bad = False
        self._noted: set[int] = set()
        self._block = source.block(self.file, 0)
        if len(self._block) < BLOCK_BYTES:
            reason = "the first file is shorter than a block; the crate refuses to open this directory"
            raise CorruptionError(file_name(self.file), len(self._block), reason)

    def next(self) -> Frame | Finding | None:
        """Return the next frame, a finding in its place, or None at the place that the crate takes for the end."""
        if (self._is_bad or BLOCK_BYTES - self._cursor < HEADER.size) and not self._load_next():
            return None
        block, at = self._block, self._cursor
        if block[at : at + HEADER.size] == NO_HEADER:
            return None
        _, length, kind = HEADER.unpack_from(block, at)
        if not FULL <= kind <= LAST:
            return self._give_up_block(at, at, f"frame kind {kind} does not exist")
        start, stop = at + HEADER.size, at + HEADER.size + length
        if stop > BLOCK_BYTES:
            return self._give_up_block(at, start, "a frame is longer than its block")
        self._cursor = stop
        self.leading = self.leading and kind > FIRST
        if frame_stop(block, at) is None:
            return Finding(file_name(self.file), self._block_offset + at, stop - at, "a frame fails its checksum")
        return Frame(kind, block[start:stop], self.file, self._block_offset + at)

    def after_the_end(self) -> Finding | None:
        """Return the nonzero bytes after the end, which the crate never reads."""
        first: tuple[int, int] | None = None
        size = frames = 0
        for file, offset, block in self._rest():
            stripped = block.rstrip(b"\0")
            if not stripped:
                continue
            begin = len(block) - len(block.lstrip(b"\0"))
            first = first or (file, offset + begin)
            size += len(stripped) - begin
            frames += frames_within(block, begin)
        if first is None:
            return None
        reason = "bytes after a hole of zeros, which the crate takes for the end"
        return Finding(file_name(first[0]), first[1], size, reason, True, not frames, frames)

    def _rest(self) -> Iterator[tuple[int, int, bytes]]:
        if not self._is_bad:
            yield self.file, self._block_offset + self._cursor, self._block[self._cursor :]
        while self._load_next():
            yield self.file, self._block_offset, self._block

    def _give_up_block(self, at: int, cursor: int, reason: str) -> Finding:
        """Skip the rest of the block, as the crate does, and count the frames that this hides."""
        self._is_bad, self._cursor = True, cursor
        rest = self._block[at:].rstrip(b"\0")
        hidden = frames_within(self._block, at + 1)
        place = file_name(self.file), self._block_offset + at
        return Finding(*place, len(rest), reason, torn=not hidden, hidden_frames=hidden)

    def _load_next(self) -> bool:
        """Go to the next whole block, in this file or a later one. If there is none, the cursor does not move."""
        file, offset = self.file, self._block_offset + BLOCK_BYTES
        later = [number for number in self._source.numbers if number > file]
        while len(block := self._source.block(file, offset)) < BLOCK_BYTES:
            self._note_short_block(file, offset, block)
            if not later:
                return False
            file, offset = later.pop(0), 0
        self.file, self._block_offset, self._block = file, offset, block
        self._cursor, self._is_bad = 0, False
        return True

    def _note_short_block(self, file: int, offset: int, block: bytes) -> None:
        """Report the frames in an incomplete block, which the crate never reads."""
        frames = 0 if file in self._noted else frames_within(block, 0)
        self._noted.add(file)
        if frames:
            reason = "records in a block that the file holds only in part, which the crate does not read"
            self._findings.append(Finding(file_name(file), offset, len(block), reason, True, False, frames))


# Records and queues.


class LogRecord(NamedTuple):
    """One record of the crate. items: (position, payload) of an append, else empty."""

    kind: int
    queue: str
    position: int
    items: Sequence[tuple[int, bytes]]


def decode_record(body: bytes) -> LogRecord:
    """Decode a record. Raises ValueError if the crate could not read it, and would skip it."""
    if len(body) < RECORD_HEAD.size:
        raise ValueError("a record is shorter than its head")
    kind, position, name_bytes = RECORD_HEAD.unpack_from(body)
    if not TRUNCATE <= kind <= APPEND:
        raise ValueError(f"record kind {kind} is not known")
    at = RECORD_HEAD.size + name_bytes
    if at > len(body):
        raise ValueError("a record's queue name is cut short")
    try:
        queue = body[RECORD_HEAD.size : at].decode()
    except UnicodeDecodeError:
        raise ValueError("a record's queue name is not UTF-8") from None
    items: list[tuple[int, bytes]] = []
    while kind == APPEND and at < len(body):
        start = at + ITEM_HEAD.size
        if start > len(body):
            raise ValueError("an item is cut short")
        item_position, length = ITEM_HEAD.unpack_from(body, at)
        at = start + length
        if at > len(body):
            raise ValueError("an item is cut short")
        items.append((item_position, body[start:at]))
    return LogRecord(kind, queue, position, items)


@dataclass(slots=True)
class Queue:
    """The positions of a queue. number: how many queues were made before it, under any name."""

    number: int
    first_position: int
    next_position: int
    has_records: bool = False

    def append(self, position: int) -> None:
        """Add a record at *position*, which may leave a gap. Raises ValueError if the crate refuses it."""
        if position < self.next_position:
            raise ValueError(f"position {position} comes after {self.next_position - 1}")
        if self.first_position == 0 and not self.has_records:
            self.first_position = position
        self.has_records, self.next_position = True, position + 1

    def truncate(self, position: int) -> None:
        """Delete the records up to and including *position*. Past the end, next_position moves forward."""
        if position >= self.first_position:
            self.has_records = self.has_records and position < self.next_position - 1
            self.next_position = max(self.next_position, position + 1)
            self.first_position = position + 1


class Reader:
    """Reads a directory as the crate does, and reports what the crate does not.

    A finding is a torn tail if no record was read after it and nothing readable is hidden after it. Every other one is
    damage.
    """

    def __init__(self, source: Directory) -> None:
        self.queues: dict[str, Queue] = {}
        self.findings: list[Finding] = []
        self._source = source
        self._frames = Frames(source, self.findings)
        self._made = 0

    def read(self) -> None:
        """Read everything.

        Raises:
            CorruptionError: The crate refuses to open the directory.
        """
        for _ in self.appends():
            pass
        for before, after in pairwise(self._source.numbers):  # the crate removes only the lowest files
            if after != before + 1:
                reason = f"{after - before - 1} file(s) are missing from here on"
                self.findings.append(Finding(file_name(before + 1), 0, 0, reason, silent=True, torn=False))
        if (hidden := self._frames.after_the_end()) is not None:
            self.findings.append(hidden)
            self._nothing_is_torn_before()

    def appends(self) -> Iterator[tuple[Queue, LogRecord]]:
        """Apply the records up to the end of the log, and yield each append with its queue."""
        while (found := self._next_body()) is not None:
            frame, body = found
            try:
                record = decode_record(body)
            except ValueError as error:
                place = file_name(frame.file), frame.offset
                self.findings.append(Finding(*place, len(body), str(error), torn=False))
                continue
            try:
                queue = self._apply(record)
            except ValueError as error:
                reason = f"queue {record.queue!r}: {error}; the crate refuses to open this directory"
                raise CorruptionError(file_name(frame.file), frame.offset, reason) from None
            self._nothing_is_torn_before()
            if queue is not None:
                yield queue, record

    def _next_body(self) -> tuple[Frame, bytes] | None:
        """Join the frames of the next record; return the first one and the bytes, or None at the end of the log."""
        first: Frame | None = None
        parts: list[bytes] = []
        while True:
            frame = self._frames.next()
            is_next = isinstance(frame, Frame) and frame.kind in (MIDDLE, LAST)
            if first is not None and not is_next:
                rest = "whose rest is damaged" if isinstance(frame, Finding) else "that was not finished"
                self._pass_over(first, sum(map(len, parts)), f"a record {rest}")
                first = None
            if frame is None:
                return None
            if isinstance(frame, Finding):
                self.findings.append(frame)
            elif not is_next:
                first, parts = frame, [frame.payload]
            elif first is not None:
                parts.append(frame.payload)
            elif not self._frames.leading:
                self._pass_over(frame, len(frame.payload), "a record without its beginning")
            if first is not None and isinstance(frame, Frame) and frame.kind in (FULL, LAST):
                return first, b"".join(parts)

    def _pass_over(self, frame: Frame, payload_bytes: int, reason: str) -> None:
        size = payload_bytes + HEADER.size
        self.findings.append(Finding(file_name(frame.file), frame.offset, size, reason, silent=True))

    def _apply(self, record: LogRecord) -> Queue | None:
        """Change a queue as *record* says; return it if records were appended to it."""
        queue = self.queues.get(record.queue)
        if record.kind == APPEND:
            queue = queue or self._make(record)
            for position, _ in record.items:
                queue.append(position)
            return queue
        if record.kind == TRUNCATE and queue is not None:
            queue.truncate(record.position)
        elif record.kind == TOUCH:
            if queue is None or queue.has_records or queue.next_position != record.position:
                self._make(record)
        elif record.kind == DELETE:
            self.queues.pop(record.queue, None)
        return None

    def _make(self, record: LogRecord) -> Queue:
        queue = self.queues[record.queue] = Queue(self._made, record.position, record.position)
        self._made += 1
        return queue

    def _nothing_is_torn_before(self) -> None:
        """Mark all findings so far as damage, because a record was read, or is hidden, after them."""
        for finding in reversed(self.findings):
            if not finding.torn and not finding.hidden_frames:
                break
            finding.torn = False


# The new log.


async def write_log(directory: Path, source: Directory, queues: dict[str, Queue]) -> int:
    """Write the *queues* of *source*, by their new names, into a new log in *directory*; return how many records."""
    names = {queue.number: name for name, queue in queues.items()}
    records = 0
    async with MultiRecordLog.open(directory, persist_policy=PersistPolicy.never(), limits=LIMITS) as log:
        await log.create_queues(queues)
        for name, queue in queues.items():
            if queue.first_position:
                await log.truncate(name, queue.first_position - 1)
        calls: list[tuple[str, int, list[bytes]]] = []
        size = 0
        for found, record in Reader(source).appends():
            # A queue that was deleted, or made again, has another number.
            if (to := names.get(found.number)) is None:
                continue
            for position, payload in record.items:
                if position < queues[to].first_position:
                    continue
                if not calls or calls[-1][0] != to or calls[-1][1] + len(calls[-1][2]) != position:
                    calls.append((to, position, []))
                calls[-1][2].append(payload)
                size += len(payload) + 64
                records += 1
            if size > CALLS_BYTES:
                await asyncio.gather(*(log.append_records(*call) for call in calls))
                calls, size = [], 0
        await asyncio.gather(*(log.append_records(*call) for call in calls))
        if any(log.next_position(name) != queue.next_position for name, queue in queues.items()):
            raise SourceError(f"{source.path} changed while it was read: stop the program that writes to it")
    return records


def build(directory: Path, source: Directory, queues: dict[str, Queue]) -> int:
    """Write a log that gets the name *directory* once it is complete; return how many records it holds."""
    partial = directory.with_name(f"{directory.name}.partial")
    for path in (directory, partial):
        if path.exists() or path.is_symlink():
            raise FileExistsError(errno.EEXIST, "exists already; name a directory that does not exist yet", str(path))
    try:
        records = asyncio.run(write_log(partial, source, queues))
        partial.rename(directory)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    parent = os.open(directory.parent, os.O_RDONLY)
    os.fsync(parent)
    os.close(parent)
    return records


def renamed(queues: dict[str, Queue], names: dict[str, str]) -> dict[str, Queue]:
    """Return *queues* by their new names."""
    found: dict[str, Queue] = {}
    for name in sorted(queues):
        new = names.get(name, name)
        if new in found or (new != name and new in queues):
            raise SourceError(f"two queues would be named {new!r}: choose another name for --rename")
        found[new] = queues[name]
    return found


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="import_quickwit.py", description="Read files of the crate into a new log.")
    parser.add_argument("source", type=Path, help="directory that the Rust crate wrote")
    parser.add_argument("directory", type=Path, help="directory of the log to create; must not exist yet")
    parser.add_argument("--rename", type=json.loads, default={}, help='JSON object: old name → new name, as {"": "a"}')
    parser.add_argument("--accept-damage", action="store_true", help="import what can be read around damage")
    arguments = parser.parse_args(words)
    try:
        source = Directory(arguments.source)
        reader = Reader(source)
        reader.read()
        sys.stdout.writelines(f"{finding}\n" for finding in reader.findings)
        if not arguments.accept_damage and not all(finding.torn for finding in reader.findings):
            print(f"nothing was imported; {len(reader.queues)} queue(s) can be read: import them with --accept-damage")
            return 3
        records = build(arguments.directory.absolute(), source, renamed(reader.queues, arguments.rename))
    except QueueNameError as error:
        print(f"import_quickwit.py: {error}; give it another name with --rename", file=sys.stderr)
        return 1
    except (SourceError, RecordLogError, OSError) as error:
        print(f"import_quickwit.py: {error}", file=sys.stderr)
        return 1
    print(f"imported {len(reader.queues)} queue(s), {records} record(s) into {arguments.directory}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
