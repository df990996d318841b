"""The disk of `mrecordlog_async.testing` with what else the log asks of one: direct writes, and a disk thread.

1. A durable write ends with its own sectors durable, and the size they need; all other changes stay on the list.
2. Direct writes may be under way: each lands at its own time, in any order, from what its buffer holds then, and fails
   by itself (the call "land"). Until it has landed, a power cut may have taken any part of it, and a sync does not
   concern it. If the process dies, its writes under way still land, or fail.
3. `kill()` of a `Snapshot` returns the disk that a dead process leaves, with all caches intact.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from mrecordlog_async.storage.filesystem import DIRECT_BLOCK_BYTES, Buffer
from mrecordlog_async.testing.disk import (
    SECTOR_BYTES,
    WRITES,
    Change,
    DataWrite,
    DirectoryState,
    DiskSnapshot,
    EntryChange,
    Fault,
    FileState,
    MemoryDisk,
    PowerCut,
    SizeChange,
    _File,
    applied,
    by_sector,
)

from .disk_thread import ModelDiskThread

Plan = PowerCut

__all__ = [
    "SECTOR_BYTES",
    "WRITES",
    "Change",
    "DataWrite",
    "DirectoryState",
    "Disk",
    "EntryChange",
    "Fault",
    "FileState",
    "Plan",
    "SizeChange",
    "Snapshot",
]


@dataclass(frozen=True, slots=True)
class Snapshot(DiskSnapshot):
    """The whole disk between two calls."""

    has_direct: bool = True
    has_thread: bool = False

    def crash(self, plan: PowerCut) -> Disk:
        """Return the disk after a power cut that only the changes in *plan* survived."""
        return Disk(self.cut(plan))

    def kill(self) -> Disk:
        """Return the disk that the next process finds after this one died: all changes exist, none became durable."""
        chance = random.Random(sum(len(state.under_way) for state in self.files.values()))
        return Disk(replace(self, files={number: state.landed(chance) for number, state in self.files.items()}))


@dataclass(slots=True)
class _Flight:
    """A write that was begun. taken: what it took, or its negative error number, once it has landed."""

    handle: int
    file: _File
    buffer: memoryview
    begun: bytes
    offset: int
    taken: int | None = None


class Disk(MemoryDisk):
    """The file system. Calls `on_call(name)` before each call and each landing, `on_half_written()` in each write."""

    def __init__(
        self,
        snapshot: Snapshot | None = None,
        capacity_bytes: int | None = None,
        *,
        sector_bytes: int = SECTOR_BYTES,
        has_direct: bool = True,
        has_thread: bool = False,
    ) -> None:
        """Continue *snapshot*, or begin an empty disk.

        sector_bytes: the atom of writing. has_direct: files can be written past the page cache. has_thread: a disk
        thread writes small batches.
        """
        if snapshot is None:
            directories = {self.ROOT: DirectoryState({"data": 2}), 2: DirectoryState({})}
            snapshot = Snapshot({}, directories, sector_bytes, has_direct, has_thread)
        super().__init__(snapshot, capacity_bytes)
        self.on_half_written: Callable[[], None] | None = None
        self._direct_handles: set[int] = set()
        self._duplicates: dict[int, int] = {}  # a handle of the same open file, by what it was duplicated from
        self.has_direct, self.has_thread = snapshot.has_direct, snapshot.has_thread
        self._flights: dict[int, list[_Flight]] = {}

    def snapshot(self) -> Snapshot:
        """Return the disk as it is."""
        files, directories = self._states()
        files = {n: replace(one, under_way=tuple(self._under_way(self._files[n]))) for n, one in files.items()}
        return Snapshot(files, directories, self.sector_bytes, self.has_direct, self.has_thread)

    def open_handles(self) -> int:
        """Return how many handles are open, with what `open_writes` returned."""
        return len(self._handles) + len(self._flights)

    def fingerprint(self) -> int:
        """Return a number that differs for other bytes, names or links, as the next process would find them."""
        files = tuple((number, bytes(file.current)) for number, file in self._files.items())
        return hash((files, tuple((number, *each.current.items()) for number, each in self._directories.items())))

    def writes_under_way(self) -> int:
        """Return how many writes were begun and have not landed."""
        return sum(flight.taken is None for flights in self._flights.values() for flight in flights)

    def put(self, path: str, content: bytes | None) -> None:
        """Set a file's content, durable at once; None removes it. For damage."""
        parent, name = self._parent(path)
        if content is None:
            parent.current.pop(name)
        else:
            if name not in parent.current:
                parent.current[name] = self._new_file()
            file = self._files[parent.current[name]]
            file.durable, file.current, file.pending, file.stale = content, content, [], []
        parent.durable, parent.pending = dict(parent.current), []

    def close(self, handle: int) -> None:
        origin = self._duplicates.pop(handle, handle)
        super().close(handle)
        if origin not in self._handles and origin not in self._duplicates.values():
            self._direct_handles.discard(origin)

    def is_alone(self, handle: int) -> bool:
        node = self._handle(handle)[0]
        try:
            self._begin("is_alone")
        except OSError:  # the system cannot tell
            return False
        same = {self._duplicates.get(other, other) for other, (found, _) in self._handles.items() if found == node}
        return len(same) == 1

    def disk_thread(self) -> ModelDiskThread | None:
        return ModelDiskThread(self) if self.has_thread else None

    def duplicate(self, handle: int) -> int:
        """Return another handle of the same open file, as dup(2) does. It takes no lock along."""
        self._begin("duplicate")
        node, write = self._handle(handle)
        made = self._new_handle(node, write=write)
        self._duplicates[made] = self._duplicates.get(handle, handle)
        return made

    def _is_direct(self, handle: int) -> bool:
        return self._duplicates.get(handle, handle) in self._direct_handles

    def set_direct(self, handle: int, direct: bool) -> None:
        self._handle(handle)
        self._begin("set_direct")
        if direct and not self.has_direct:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        (self._direct_handles.add if direct else self._direct_handles.discard)(handle)

    def read_into(self, handle: int, buffer: memoryview, offset: int) -> int:
        self._begin("read_into")
        file = self._file(handle)
        if self._is_direct(handle):
            self._check_direct(file, offset, len(buffer), is_write=False)
        found = file.current[offset : offset + len(buffer)]
        buffer[: len(found)] = found
        return len(found)

    def write_durable(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        if not self._is_direct(handle):
            self.misuse.append(f"a durable write of handle {handle}, which is not direct")
        return self._write("write_durable", handle, buffers, offset)

    def open_writes(self, most: int) -> int:
        self._begin("open_writes")
        self._next_handle += 1
        self._flights[self._next_handle] = []
        return self._next_handle

    def start_write(self, writes: int, handle: int, buffer: memoryview, offset: int) -> None:
        if handle not in self._direct_handles:
            self.misuse.append(f"a write of handle {handle} was begun, which is not direct")
        file, flights = self._file(handle, write=True), self._flights[writes]
        self._check_direct(file, offset, len(buffer))
        self._begin("start_write")
        for other in flights:
            if other.file is file and offset < other.offset + len(other.begun) and other.offset < offset + len(buffer):
                self.misuse.append(f"two writes under way touch the bytes at {offset}")
        flights.append(_Flight(handle, file, buffer, bytes(buffer), offset))
        while self._random.random() < 0.25 and any(flight.taken is None for flight in flights):
            self._land_one(flights)

    def finish_writes(self, writes: int, count: int) -> dict[int, int]:
        flights = self._flights[writes]
        if count != len(flights):
            self.misuse.append(f"{count} of {len(flights)} writes under way were waited for")
        self._begin("finish_writes")
        self._land_all(flights)
        taken = {flight.offset: flight.taken for flight in flights if flight.taken is not None}
        flights.clear()
        return taken

    def close_writes(self, writes: int) -> None:
        self._land_all(self._flights[writes])
        del self._flights[writes]

    def _land_all(self, flights: list[_Flight]) -> None:
        while any(flight.taken is None for flight in flights):
            self._land_one(flights)

    def _land_one(self, flights: list[_Flight]) -> None:
        flight = self._random.choice([flight for flight in flights if flight.taken is None])
        if flight.handle not in self._handles:
            self.misuse.append(f"handle {flight.handle} was closed while it was written to")
        if flight.buffer != flight.begun:
            self.misuse.append(f"the buffer of a write at {flight.offset} was changed while it was under way")
        try:
            flight.taken = self._write("land", flight.handle, [bytes(flight.buffer)], flight.offset)
        except OSError as error:
            flight.taken = -(error.errno or errno.EIO)

    def _under_way(self, file: _File) -> Iterator[DataWrite]:
        for flights in self._flights.values():
            for flight in flights:
                if flight.file is file and flight.taken is None:
                    yield from by_sector(bytes(flight.buffer), flight.offset, self.sector_bytes)

    def _write(self, call: str, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        if self._is_direct(handle):
            self._check_direct(self._file(handle, write=True), offset, sum(map(len, buffers)))
        return super()._write(call, handle, buffers, offset)

    def _stored_first(self, file: _File, writes: list[DataWrite]) -> list[DataWrite]:
        if self.on_half_written is None:
            return writes
        # Half of the time all of it: then each part can be lost although all others are there.
        share = 1.0 if self._random.random() < 0.5 else 0.5
        done_first = [write for write in writes if self._random.random() < share]
        for write in done_first:
            file.writable()[write.offset : write.offset + len(write.data)] = write.data
        file.pending += done_first
        self.on_half_written()
        return [write for write in writes if write not in done_first]

    def _written(self, call: str, file: _File, offset: int, length: int) -> None:
        if call == "write_durable":
            _make_durable(file, offset, length)

    def _check_direct(self, file: _File, offset: int, length: int, *, is_write: bool = True) -> None:
        if offset % DIRECT_BLOCK_BYTES or length % DIRECT_BLOCK_BYTES:
            self.misuse.append(f"a direct access of {length} bytes at {offset}")
        if is_write and offset + length > len(file.current):
            self.misuse.append(f"a direct write of {length} bytes at {offset} moves the end from {len(file.current)}")


def _make_durable(file: _File, offset: int, length: int) -> None:
    """Do what the sync of one write does: its sectors, and sizes only if the file would else be too short for them."""
    stop = offset + length
    sizes = [change.size for change in file.pending if isinstance(change, SizeChange)]
    needs_sizes = stop > min([len(file.durable), *sizes])
    done: list[Change] = []
    kept: list[Change] = []
    for change in file.pending:
        if isinstance(change, SizeChange):
            is_done = needs_sizes
        else:  # older writes to these sectors were replaced by this one
            is_done = offset <= change.offset and change.offset + len(change.data) <= stop
        (done if is_done else kept).append(change)
    file.durable, file.pending = applied(file.durable, done), kept
