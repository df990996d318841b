"""The disk of `mrecordlog_async.testing` with what else the log and its tools ask of one, and every way to fail.

1. A `Snapshot` is the disk between two calls. `crash(plan)` returns the disk after a power cut, when exactly the
   changes in *plan* had reached the medium. `kill()` returns the disk that a dead process leaves, with all caches
   intact.
2. A `Fault` makes the n-th call fail, once or from then on, before or after its work is done, or half-way.
3. A sync that fails loses a part of the changes, chosen by a seed. The cache still shows them, as in Linux.
4. A durable write ends with its own sectors durable, and the size they need; all other changes stay on the list.
5. Direct writes may be under way: each lands at its own time, in any order, from what its buffer holds then, and fails
   by itself (the call "land"). Until it has landed, a power cut may have taken any part of it, and a sync does not
   concern it. If the process dies, its writes under way still land, or fail.
6. Handles that are used in a way that the system does not allow are kept in `misuse`.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from mrecordlog_async.storage.filesystem import DIRECT_BLOCK_BYTES, Buffer
from mrecordlog_async.testing.disk import (
    SECTOR_BYTES,
    Change,
    DataWrite,
    EntryChange,
    MemoryDirectory,
    MemoryDisk,
    MemoryFile,
    SizeChange,
    applied,
    by_sector,
    linked,
)

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

WRITES = ("write", "write_durable", "land")
"""Calls that change the content of a file."""


@dataclass(frozen=True, slots=True)
class FileState:
    """A file at one moment.

    stale: changes that a failed sync lost and the cache still shows. under_way: those of writes that have not landed.
    """

    durable: bytes
    pending: tuple[Change, ...] = ()
    stale: tuple[Change, ...] = ()
    under_way: tuple[DataWrite, ...] = ()

    @property
    def changes(self) -> tuple[Change, ...]:
        """The changes that the medium may hold, besides what is durable."""
        return (*self.pending, *self.under_way)

    def landed(self, chance: random.Random) -> FileState:
        """Return the file after all writes under way landed, or in half of the cases some of them."""
        share = 1.0 if chance.random() < 0.5 else 0.5
        landed = [write for write in self.under_way if chance.random() < share]
        return FileState(self.durable, (*self.pending, *landed), self.stale)


@dataclass(frozen=True, slots=True)
class DirectoryState:
    """A directory at one moment."""

    durable: dict[str, int]
    pending: tuple[EntryChange, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """The changes that reached the medium, by node, in the order in which they are applied. All others are lost."""

    data: dict[int, tuple[Change, ...]] = field(default_factory=dict)
    entries: dict[int, tuple[EntryChange, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole disk between two calls."""

    files: dict[int, FileState]
    directories: dict[int, DirectoryState]
    sector_bytes: int = SECTOR_BYTES
    has_direct: bool = True
    has_prepared: bool = False

    def cut(self, plan: Plan) -> Snapshot:
        """Return what a power cut leaves if only the changes in *plan* survive it."""
        files = {
            number: FileState(applied(state.durable, plan.data.get(number, ()))) for number, state in self.files.items()
        }
        directories = {
            number: DirectoryState(linked(state.durable, plan.entries.get(number, ())))
            for number, state in self.directories.items()
        }
        return replace(self, files=files, directories=directories)

    def crash(self, plan: Plan) -> Disk:
        """Return the disk after a power cut that only the changes in *plan* survived."""
        return Disk(self.cut(plan))

    def kill(self) -> Disk:
        """Return the disk that the next process finds after this one died: all changes exist, none became durable."""
        chance = random.Random(sum(len(state.under_way) for state in self.files.values()))
        return Disk(replace(self, files={number: state.landed(chance) for number, state in self.files.items()}))


@dataclass(slots=True)
class Fault:
    """Failure of call number *at* (from 1) and, with *on*, of every later call of the same name.

    calls: only these fail, the first of them from number *at* on. once: no later one fails, whatever *on* says. effect:
    "before" (an error, nothing done), "after" (an error, all done), "half" (an error, a part of the write or
    reservation done), "short" (half of a write done, no error), "zero" (nothing of a write done, no error).
    """

    at: int
    errno: int = errno.EIO
    on: bool = False
    effect: str = "before"
    calls: frozenset[str] | None = None
    once: bool = False
    hit: str = ""

    def strikes(self, number: int, call: str) -> bool:
        """Return whether this call fails."""
        if self.calls is not None and call not in self.calls:
            return False
        if number == self.at or (self.on and self.calls is not None and number >= self.at):
            if self.once and not self.hit:
                self.at, self.on = number, False
            self.hit = self.hit or call
        return self.hit == call and (number == self.at or (self.on and number >= self.at))

    def error(self) -> OSError:
        return OSError(self.errno, os.strerror(self.errno))


class _File(MemoryFile):
    """A file of which a failed sync may have lost changes that its readers still see."""

    def __init__(self, state: FileState) -> None:
        super().__init__(state.durable)
        self.pending = list(state.pending)
        self.stale = list(state.stale)
        self.current = applied(state.durable, (*state.stale, *state.pending))

    def sync(self) -> None:
        if self.stale:  # readers see other bytes than those that become durable
            self.durable, self.pending = applied(self.durable, self.pending), []
        else:
            super().sync()

    def lose(self, chance: random.Random) -> None:
        """Make a part of the changes durable. The cache still shows the others, and considers them clean."""
        kept = [change for change in self.pending if chance.random() < 0.5]
        self.durable = applied(self.durable, kept)
        self.stale, self.pending = [*self.stale, *self.pending], []


class _Directory(MemoryDirectory):
    def __init__(self, state: DirectoryState) -> None:
        super().__init__(state.durable)
        self.pending = list(state.pending)
        self.current = linked(state.durable, state.pending)


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

    _files: dict[int, _File]  # type: ignore[assignment]  # every one is made here

    def __init__(
        self,
        snapshot: Snapshot | None = None,
        capacity_bytes: int | None = None,
        *,
        sector_bytes: int = SECTOR_BYTES,
        has_direct: bool = True,
        has_prepared: bool = False,
    ) -> None:
        """Continue *snapshot*, or begin an empty disk.

        sector_bytes: the atom of writing. has_direct: files can be written past the page cache. has_prepared: the
        log's thread makes prepared writes.
        """
        super().__init__(capacity_bytes)
        if snapshot is None:
            directories = {self.ROOT: DirectoryState({"data": 2}), 2: DirectoryState({})}
            snapshot = Snapshot({}, directories, sector_bytes, has_direct, has_prepared)
        self.on_call: Callable[[str], None] = lambda call: None
        self.on_half_written: Callable[[], None] | None = None
        self.fault: Fault | None = None
        self.calls = 0
        self.call_names: list[str] = []
        self.misuse: list[str] = []
        self.sector_bytes = snapshot.sector_bytes
        self.has_direct, self.has_prepared = snapshot.has_direct, snapshot.has_prepared
        self._files = {number: _File(state) for number, state in snapshot.files.items()}
        self._directories = {number: _Directory(state) for number, state in snapshot.directories.items()}
        self._numbers = count(max((*snapshot.files, *snapshot.directories)) + 2)
        self._random = random.Random(0)
        self._only_reads: set[int] = set()
        self._direct_handles: set[int] = set()
        self._flights: dict[int, list[_Flight]] = {}

    # For tests.

    def snapshot(self) -> Snapshot:
        """Return the disk as it is."""
        files = {
            number: FileState(file.durable, tuple(file.pending), tuple(file.stale), tuple(self._under_way(file)))
            for number, file in self._files.items()
        }
        directories = {
            number: DirectoryState(dict(each.durable), tuple(each.pending))
            for number, each in self._directories.items()
        }
        return Snapshot(files, directories, self.sector_bytes, self.has_direct, self.has_prepared)

    def open_handles(self) -> int:
        """Return how many handles are open, with what `open_writes` returned."""
        return len(self._handles) + len(self._flights)

    def exists(self, path: str) -> bool:
        """Return whether something has this name."""
        try:
            self._find(path)
        except FileNotFoundError:
            return False
        return True

    def content(self, directory: str) -> dict[str, bytes]:
        """Return every file of *directory* as a reader would see it."""
        found = self._directory(directory)
        return {name: bytes(self._files[node].current) for name, node in found.current.items() if node in self._files}

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

    # Names and handles.

    def make_directory(self, path: str) -> None:
        super().make_directory(path)
        self._end()

    def create(self, path: str) -> int:
        handle = super().create(path)
        try:
            self._end()
        except OSError:
            self.close(handle)
            raise
        return handle

    def open(self, path: str, *, write: bool = True) -> int:
        handle = super().open(path, write=write)
        if self._handles[handle] not in self._files:
            self.close(handle)
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not write:
            self._only_reads.add(handle)
        return handle

    def close(self, handle: int) -> None:
        if handle not in self._handles:
            self.misuse.append(f"handle {handle} was closed twice")
        self._only_reads.discard(handle)
        super().close(handle)
        self._direct_handles.discard(handle)

    def links(self, handle: int) -> int:
        self._begin("links")
        node = self._node(handle)
        return sum(named == node for directory in self._directories.values() for named in directory.current.values())

    def recycles(self, handle: int) -> bool:
        self._begin("recycles")
        return True

    def is_alone(self, handle: int) -> bool:
        node = self._node(handle)
        try:
            self._begin("is_alone")
        except OSError:  # the system cannot tell
            return False
        return sum(found == node for found in self._handles.values()) == 1

    def is_replaceable(self, path: str) -> bool:
        self._begin("is_replaceable")
        return True

    def mode(self, path: str) -> int:
        self._begin("mode")
        self._find(path)
        return super().mode(path)

    def rename(self, old: str, new: str) -> None:
        parent, old_name = self._parent(old)
        target, new_name = self._parent(new)
        assert target is parent, "files are renamed inside their directory"
        self._begin("rename")
        node = self._find(old)
        replaced = self._directories.get(target.current.get(new_name, 0))
        if replaced is not None and replaced.current:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), new)
        self._change(parent, EntryChange(old_name, new_name, node))
        self._end()

    def link(self, old: str, new: str) -> None:
        parent, name = self._parent(new)
        self._begin("link")
        node = self._find(old)
        self._refuse_taken(parent, name, new)
        self._change(parent, EntryChange("", name, node))
        self._end()

    def unlink(self, path: str) -> None:
        if self.exists(path) and self._find(path) in self._directories:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        super().unlink(path)
        self._end()

    def remove_directory(self, path: str) -> None:
        parent, name = self._parent(path)
        self._begin("remove_directory")
        if self._directory(path).current:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        self._change(parent, EntryChange(name, "", 0))
        self._end()

    # Content.

    def set_direct(self, handle: int, direct: bool) -> None:
        self._node(handle)
        self._begin("set_direct")
        if direct and not self.has_direct:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        (self._direct_handles.add if direct else self._direct_handles.discard)(handle)

    def read_into(self, handle: int, buffer: memoryview, offset: int) -> int:
        if self._is_direct(handle):
            self._check_direct(self._file(handle), offset, len(buffer), is_write=False)
        return super().read_into(handle, buffer, offset)

    def write(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        return self._write("write", handle, buffers, offset)

    def write_durable(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        if not self._is_direct(handle):
            self.misuse.append(f"a durable write of handle {handle}, which is not direct")
        return self._write("write_durable", handle, buffers, offset)

    def reserve(self, handle: int, offset: int, length: int) -> None:
        file = self._writable(handle)
        self._begin("reserve")
        more = offset + length - len(file.current)
        if more > 0 and self._effect() == "half":
            file.resize(len(file.current) + more // 2)
        else:
            self._grow(file, offset + length)
        self._end()

    def set_size(self, handle: int, size: int) -> None:
        self._writable(handle)
        super().set_size(handle, size)
        self._end()

    def sync(self, handle: int) -> None:
        file = self._file(handle)
        is_failing = self.fault is not None and self.fault.strikes(self.calls + 1, "sync")
        try:
            super().sync(handle)
        except OSError:
            if is_failing:
                file.lose(self._random)
            raise
        self._end()

    def sync_directory(self, handle: int) -> None:
        super().sync_directory(handle)
        self._end()

    def drop_cache(self, handle: int) -> None:
        file = self._file(handle)
        self._begin("drop_cache")
        if file.stale:
            file.stale = []
            file.current = applied(file.durable, file.pending)

    def _write(self, call: str, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        data = b"".join(buffers)
        file = self._writable(handle)
        if self._is_direct(handle):
            self._check_direct(file, offset, len(data))
        self._begin(call)
        taken = len(data)
        effect = self._effect()
        if effect in ("short", "half"):
            taken = (taken + 1) // 2
        elif effect == "zero":
            taken = 0
        if offset + taken > len(file.current):
            free = self._free_bytes()
            if free is not None and free < offset + taken - len(file.current):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            file.resize(offset + taken)
        file.pending += self._stored_first(file, list(by_sector(data[:taken], offset, self.sector_bytes)))
        file.writable()[offset : offset + taken] = data[:taken]
        if effect != "half" and call == "write_durable":
            _make_durable(file, offset, taken)
        self._end()
        return taken

    def _stored_first(self, file: _File, writes: list[DataWrite]) -> list[DataWrite]:
        """Return those of *writes* that are still to be stored. Some of them are, where a write is seen half-way."""
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

    def _is_direct(self, handle: int) -> bool:
        return handle in self._direct_handles

    def _check_direct(self, file: _File, offset: int, length: int, *, is_write: bool = True) -> None:
        if offset % DIRECT_BLOCK_BYTES or length % DIRECT_BLOCK_BYTES:
            self.misuse.append(f"a direct access of {length} bytes at {offset}")
        if is_write and offset + length > len(file.current):
            self.misuse.append(f"a direct write of {length} bytes at {offset} moves the end from {len(file.current)}")

    # Writes under way.

    def open_writes(self, most: int) -> int:
        self._begin("open_writes")
        writes = next(self._numbers)
        self._flights[writes] = []
        return writes

    def start_write(self, writes: int, handle: int, buffer: memoryview, offset: int) -> None:
        if handle not in self._direct_handles:
            self.misuse.append(f"a write of handle {handle} was begun, which is not direct")
        file, flights = self._writable(handle), self._flights[writes]
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

    # Steps.

    def _begin(self, call: str) -> None:
        """Count the call and raise the error of a fault that strikes before its work."""
        self.on_call(call)
        self.calls += 1
        self.call_names.append(call)
        super()._begin(call)
        fault = self.fault
        if fault is None or not fault.strikes(self.calls, call) or fault.effect in ("short", "zero", "after"):
            return
        if fault.effect != "half" or call not in (*WRITES, "reserve"):
            raise fault.error()

    def _end(self) -> None:
        """Raise the error of a fault that strikes the last call once its work is done."""
        if self.fault is not None and self._effect() in ("after", "half"):
            raise self.fault.error()

    def _effect(self) -> str:
        """Return the effect of the fault on the call that was counted last."""
        fault = self.fault
        return fault.effect if fault is not None and fault.strikes(self.calls, self.call_names[-1]) else ""

    def _new_file(self) -> int:
        node = next(self._numbers)
        self._files[node] = _File(FileState(b""))
        return node

    def _node(self, handle: int) -> int:
        if handle not in self._handles:
            self.misuse.append(f"handle {handle} was used after it was closed")
        return super()._node(handle)

    def _file(self, handle: int) -> _File:
        return self._files[self._node(handle)]

    def _writable(self, handle: int) -> _File:
        if handle in self._only_reads:
            self.misuse.append(f"handle {handle} was opened for reading and written to")
        return self._file(handle)


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
