"""A disk in memory that loses unsynced changes and fails on request: the second `FileSystem` of the log.

The tests of the log use the same model, with writes past the page cache added (`tests/faults/disk.py`).

1. Every file has its durable bytes, and a list of changes since its last sync: sizes, and writes cut at sector borders.
   Every directory has its durable entries, and a list of changes since its last sync. Nothing else is durable. A file
   exists while it has a name, durable or not, or an open handle. All names of a file share its bytes, so every name and
   every reader sees a change made through one of them.
2. A `DiskSnapshot` is the disk between two calls. `crash(plan)` returns the disk after a power cut, when exactly the
   changes in *plan* had reached the medium. `kill()` returns the disk that a dead process leaves, with all caches
   intact.
3. A `Fault` makes the n-th call fail, once or from then on, before or after its work is done, or half-way.
4. A sync that fails loses a part of the changes, chosen by a seed. The cache still shows them, as in Linux.

Only one call may run at a time; callers from several threads need a lock.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, NoReturn, Self

from mrecordlog_async.storage.filesystem import Buffer, DiskThread

SECTOR_BYTES = 512

WRITES = ("write", "write_durable", "land")
"""Calls that change the content of a file."""


class DataWrite(NamedTuple):
    """Bytes written inside one sector."""

    offset: int
    data: bytes


class SizeChange(NamedTuple):
    """The size of the file changed to this."""

    size: int


class EntryChange(NamedTuple):
    """One step of a directory: the name *removed* is deleted, *added* names the node; either may be empty."""

    removed: str
    added: str
    node: int


Change = DataWrite | SizeChange


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
class PowerCut:
    """The changes that reached the medium, by node, in the order in which they are applied. All others are lost."""

    data: dict[int, tuple[Change, ...]] = field(default_factory=dict)
    entries: dict[int, tuple[EntryChange, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DiskSnapshot:
    """The whole disk between two calls."""

    files: dict[int, FileState]
    directories: dict[int, DirectoryState]
    sector_bytes: int = SECTOR_BYTES

    def crash(self, plan: PowerCut) -> MemoryDisk:
        """Return the disk after a power cut that only the changes in *plan* survived."""
        return MemoryDisk(self.cut(plan))

    def cut(self, plan: PowerCut) -> Self:
        """Return what a power cut leaves if only the changes in *plan* survive it."""
        files = {
            number: FileState(applied(state.durable, plan.data.get(number, ()))) for number, state in self.files.items()
        }
        directories = {
            number: DirectoryState(_linked(state.durable, plan.entries.get(number, ())))
            for number, state in self.directories.items()
        }
        return replace(self, files=files, directories=directories)

    def some(self, chance: random.Random) -> PowerCut:
        """Return which changes survive a power cut, chosen by *chance*: none, all, or a part of them."""
        share = chance.choice((0.0, chance.random(), 1.0))
        return PowerCut(
            {
                number: tuple(change for change in state.changes if chance.random() < share)
                for number, state in self.files.items()
            },
            {
                number: tuple(change for change in state.pending if chance.random() < share)
                for number, state in self.directories.items()
            },
        )


@dataclass(slots=True)
class Fault:
    """Failure of call number *at* (from 1) and, with *on*, of every later call of the same name.

    effect: "before" (an error, nothing done), "after" (an error, all done), "half" (an error, a part of the write or
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


class _File:
    __slots__ = ("current", "durable", "pending", "stale")

    def __init__(self, state: FileState) -> None:
        self.durable = state.durable
        self.pending = list(state.pending)
        self.stale = list(state.stale)
        self.current: bytes | bytearray = applied(state.durable, (*state.stale, *state.pending))

    def writable(self) -> bytearray:
        """Return the content as bytes that can be changed. Files that are only read share theirs with the snapshot."""
        if not isinstance(self.current, bytearray):
            self.current = bytearray(self.current)
        return self.current


class _Directory:
    __slots__ = ("current", "durable", "pending")

    def __init__(self, state: DirectoryState) -> None:
        self.durable = state.durable
        self.pending = list(state.pending)
        self.current = _linked(state.durable, state.pending)


class MemoryDisk:
    """The file system. Calls `on_call(name)` before each call. Its log is in a directory below `/data`."""

    ROOT = 1

    def __init__(self, snapshot: DiskSnapshot | None = None, capacity_bytes: int | None = None) -> None:
        """Continue *snapshot*, or begin an empty disk, on which the directory `/data` exists."""
        snapshot = snapshot or DiskSnapshot({}, {self.ROOT: DirectoryState({"data": 2}), 2: DirectoryState({})})
        self.on_call: Callable[[str], None] = lambda call: None
        self.fault: Fault | None = None
        self.calls = 0
        self.call_names: list[str] = []
        self.misuse: list[str] = []
        self.capacity_bytes = capacity_bytes
        self._random = random.Random(0)
        self._next_handle = 3
        self._guard = threading.Lock()  # several threads of a log may change the directory
        self._continue(snapshot)

    def _continue(self, snapshot: DiskSnapshot) -> None:
        self.sector_bytes = snapshot.sector_bytes
        self._files = {number: _File(state) for number, state in snapshot.files.items()}
        self._directories = {number: _Directory(state) for number, state in snapshot.directories.items()}
        self._next_node = max((*snapshot.files, *snapshot.directories)) + 1
        self._handles: dict[int, tuple[int, bool]] = {}
        self._locks: dict[int, int] = {}

    # For tests.

    def snapshot(self) -> DiskSnapshot:
        """Return the disk as it is."""
        return DiskSnapshot(*self._states(), self.sector_bytes)

    def _states(self) -> tuple[dict[int, FileState], dict[int, DirectoryState]]:
        files = {n: FileState(f.durable, tuple(f.pending), tuple(f.stale)) for n, f in self._files.items()}
        return files, {n: DirectoryState(dict(d.durable), tuple(d.pending)) for n, d in self._directories.items()}

    def fail(self, *calls: str, error: int = errno.EIO, once: bool = False) -> None:
        """Have the next one of *calls* fail, and with it all later ones unless *once*: `fail("sync")`, say.

        The calls are the methods of `FileSystem`: "write", "sync", "reserve", "read" and the others.
        """
        self.fault = Fault(self.calls + 1, error, on=True, calls=frozenset(calls), once=once)

    def heal(self) -> None:
        """Have every call succeed again."""
        self.fault = None

    def cut_power(self) -> None:
        """Have every later call fail, and change nothing, until `restart`."""

        def refuse(call: str) -> NoReturn:
            raise OSError(errno.EIO, f"the power was cut before this {call}")

        self.on_call = refuse

    def restart(self, left: DiskSnapshot) -> None:
        """Continue with *left* after a power cut. No handle of before is open, and nothing fails any more."""
        self.fault = None
        self._continue(left)
        self.on_call = lambda call: None

    def open_handles(self) -> int:
        """Return how many handles are open."""
        return len(self._handles)

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

    def allocated_bytes(self) -> int:
        """Return the space of all files that have a name or an open handle."""
        named = {node for directory in list(self._directories.values()) for node in directory.current.values()}
        named |= {node for node, _ in list(self._handles.values())}
        return sum(len(self._files[node].current) for node in named if node in self._files)

    # FileSystem.

    def make_directory(self, path: str) -> None:
        parent, name = self._parent(path)
        done = self._begin("make_directory")
        if name in parent.current:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        node = self._new_node()
        self._directories[node] = _Directory(DirectoryState({}))
        self._change(parent, EntryChange("", name, node))
        done()

    def list_names(self, path: str) -> list[str]:
        self._begin("list_names")
        node = self._find(path)
        if node not in self._directories:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return list(self._directories[node].current)

    def open_directory(self, path: str) -> int:
        self._begin("open_directory")
        node = self._find(path)
        if node not in self._directories:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return self._new_handle(node, write=False)

    def create(self, path: str) -> int:
        parent, name = self._parent(path)
        done = self._begin("create")
        if name in parent.current:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        node = self._new_file()
        self._change(parent, EntryChange("", name, node))
        done()
        return self._new_handle(node, write=True)

    def open(self, path: str, *, write: bool = True) -> int:
        self._begin("open")
        node = self._find(path)
        if node not in self._files:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return self._new_handle(node, write=write)

    def close(self, handle: int) -> None:
        if self._handles.pop(handle, None) is None:
            self.misuse.append(f"handle {handle} was closed twice")
        for node in [node for node, owner in self._locks.items() if owner == handle]:
            del self._locks[node]

    def size(self, handle: int) -> int:
        self._begin("size")
        return len(self._file(handle).current)

    def is_alone(self, handle: int) -> bool:
        node = self._handle(handle)[0]
        try:
            self._begin("is_alone")
        except OSError:  # the system cannot tell
            return False
        return sum(found == node for found, _ in self._handles.values()) == 1

    def disk_thread(self) -> DiskThread | None:
        return None

    def recycles(self, handle: int) -> bool:
        self._begin("recycles")
        return True

    def is_at(self, handle: int, path: str) -> bool:
        self._begin("is_at")
        return self.exists(path) and self._find(path) == self._handle(handle)[0]

    def is_replaceable(self, path: str) -> bool:
        self._begin("is_replaceable")
        return True

    def mode(self, path: str) -> int:
        self._begin("mode")
        self._find(path)
        return 0o700

    def read(self, handle: int, length: int, offset: int) -> bytes:
        self._begin("read")
        return bytes(self._file(handle).current[offset : offset + length])

    def read_into(self, handle: int, buffer: memoryview, offset: int) -> int:
        self._begin("read_into")
        found = self._file(handle).current[offset : offset + len(buffer)]
        buffer[: len(found)] = found
        return len(found)

    def set_direct(self, handle: int, direct: bool) -> None:
        if direct:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    def write(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        return self._write("write", handle, buffers, offset)

    def write_durable(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    def open_writes(self, most: int) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    def start_write(self, writes: int, handle: int, buffer: memoryview, offset: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    def finish_writes(self, writes: int, count: int) -> dict[int, int]:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    def close_writes(self, writes: int) -> None:
        """There are none."""

    def _write(self, call: str, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        data = b"".join(buffers)
        file = self._file(handle, write=True)
        done = self._begin(call)
        taken = len(data)
        effect = self._effect()
        if effect in ("short", "half"):
            taken = (taken + 1) // 2
        elif effect == "zero":
            taken = 0
        if offset + taken > len(file.current):
            self._take_space(offset + taken - len(file.current))
            self._resize(file, offset + taken)
        file.pending += self._stored_first(file, list(by_sector(data[:taken], offset, self.sector_bytes)))
        file.writable()[offset : offset + taken] = data[:taken]
        if effect != "half":
            self._written(call, file, offset, taken)
        done()
        return taken

    def _stored_first(self, file: _File, writes: list[DataWrite]) -> list[DataWrite]:
        """Return those of *writes* that are still to be stored. A disk that writes bit by bit stores some of them."""
        return writes

    def _written(self, call: str, file: _File, offset: int, length: int) -> None:
        """Do what *call* does besides writing."""

    def reserve(self, handle: int, offset: int, length: int) -> None:
        file = self._file(handle, write=True)
        done = self._begin("reserve")
        more = offset + length - len(file.current)
        if more > 0:
            if self._effect() == "half":
                self._resize(file, len(file.current) + more // 2)
            else:
                free = self._free_bytes()
                if free is not None and free < more:
                    self._resize(file, len(file.current) + free)  # as ext4: what was found is kept
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._resize(file, offset + length)
        done()

    def set_size(self, handle: int, size: int) -> None:
        file = self._file(handle, write=True)
        done = self._begin("set_size")
        self._resize(file, size)
        done()

    def sync(self, handle: int) -> None:
        file = self._file(handle)
        failing = self._fails()
        done = self._begin("sync", lambda: self._lose(file)) if failing else self._begin("sync")
        if file.stale:  # readers see other bytes than those that become durable
            file.durable = applied(file.durable, file.pending)
        else:
            file.durable = file.current = bytes(file.current)
        file.pending = []
        done()

    def sync_directory(self, handle: int) -> None:
        directory = self._directories[self._handle(handle)[0]]
        done = self._begin("sync_directory")
        directory.durable, directory.pending = dict(directory.current), []
        done()

    def drop_cache(self, handle: int) -> None:
        file = self._file(handle)
        self._begin("drop_cache")
        if file.stale:
            file.stale = []
            file.current = applied(file.durable, file.pending)

    def rename(self, old: str, new: str) -> None:
        parent, old_name = self._parent(old)
        target, new_name = self._parent(new)
        assert target is parent, "a rename between directories is not modelled"
        done = self._begin("rename")
        node = self._find(old)
        replaced = self._directories.get(target.current.get(new_name, 0))
        if replaced is not None and replaced.current:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), new)
        self._change(parent, EntryChange(old_name, new_name, node))
        done()

    def link(self, old: str, new: str) -> None:
        parent, name = self._parent(new)
        done = self._begin("link")
        node = self._find(old)
        if name in parent.current:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
        self._change(parent, EntryChange("", name, node))
        done()

    def links(self, handle: int) -> int:
        self._begin("links")
        node, _ = self._handle(handle)
        return sum(named == node for directory in self._directories.values() for named in directory.current.values())

    def space_of(self, handle: int) -> tuple[int, int]:
        self._begin("space_of")
        return self.capacity_bytes or 0, self._free_bytes() or 0

    def give_to_owner_of(self, path: str, handle: int) -> None:
        """Nothing here has an owner."""

    def note(self, directory: int, name: str, text: bytes, *, aside: bool) -> None:
        """Keep nothing: a note may be missing, and whatever stands in one changes nothing else."""

    def unlink(self, path: str) -> None:
        parent, name = self._parent(path)
        done = self._begin("unlink")
        if self._find(path) in self._directories:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        self._change(parent, EntryChange(name, "", 0))
        done()

    def remove_directory(self, path: str) -> None:
        parent, name = self._parent(path)
        done = self._begin("remove_directory")
        if self._directory(path).current:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        self._change(parent, EntryChange(name, "", 0))
        done()

    def lock(self, path: str) -> int:
        parent, name = self._parent(path)
        self._begin("lock")
        if name not in parent.current:
            self._change(parent, EntryChange("", name, self._new_file()))
        node = parent.current[name]
        if node in self._locks:
            raise BlockingIOError(errno.EALREADY, os.strerror(errno.EALREADY), path)
        handle = self._new_handle(node, write=True)
        self._locks[node] = handle
        return handle

    # Steps.

    def _begin(self, call: str, before_error: Callable[[], None] | None = None) -> Callable[[], None]:
        """Count the call and raise the error of its fault. Return what to call when its work is done."""
        self.on_call(call)
        self.calls += 1
        self.call_names.append(call)
        fault = self.fault
        if fault is None or not fault.strikes(self.calls, call) or fault.effect in ("short", "zero"):
            return _nothing
        error = OSError(fault.errno, os.strerror(fault.errno))
        if fault.effect == "after" or (fault.effect == "half" and call in (*WRITES, "reserve")):
            return lambda: _raise(error)
        if before_error is not None:
            before_error()
        raise error

    def _fails(self) -> bool:
        return self.fault is not None and self.fault.strikes(self.calls + 1, "sync")

    def _effect(self) -> str:
        """Return the effect of the fault on the call that was just counted."""
        fault = self.fault
        return fault.effect if fault is not None and fault.strikes(self.calls, self.call_names[-1]) else ""

    def _lose(self, file: _File) -> None:
        """Make a part of the changes durable. The cache still shows the others, and considers them clean."""
        kept = [change for change in file.pending if self._random.random() < 0.5]
        file.durable = applied(file.durable, kept)
        file.stale = [*file.stale, *file.pending]
        file.pending = []

    def _resize(self, file: _File, size: int) -> None:
        if size != len(file.current):
            file.pending.append(SizeChange(size))
            _set_size(file.writable(), size)

    def _free_bytes(self) -> int | None:
        return None if self.capacity_bytes is None else max(self.capacity_bytes - self.allocated_bytes(), 0)

    def _take_space(self, more: int) -> None:
        free = self._free_bytes()
        if free is not None and free < more:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _change(self, directory: _Directory, change: EntryChange) -> None:
        with self._guard:
            directory.pending.append(change)
            directory.current = _linked(directory.current, [change])

    def _new_node(self) -> int:
        with self._guard:
            self._next_node += 1
            return self._next_node

    def _new_file(self) -> int:
        node = self._new_node()
        self._files[node] = _File(FileState(b""))
        return node

    def _new_handle(self, node: int, *, write: bool) -> int:
        with self._guard:
            self._next_handle += 1
            self._handles[self._next_handle] = node, write
            return self._next_handle

    def _handle(self, handle: int) -> tuple[int, bool]:
        if handle not in self._handles:
            self.misuse.append(f"handle {handle} was used after it was closed")
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return self._handles[handle]

    def _file(self, handle: int, *, write: bool = False) -> _File:
        node, writable = self._handle(handle)
        if write and not writable:
            self.misuse.append(f"handle {handle} was opened for reading and written to")
        return self._files[node]

    def _find(self, path: str) -> int:
        node = self.ROOT
        for name in filter(None, path.split("/")):
            entries = self._directories[node].current if node in self._directories else {}
            if name not in entries:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            node = entries[name]
        return node

    def _directory(self, path: str) -> _Directory:
        return self._directories[self._find(path)]

    def _parent(self, path: str) -> tuple[_Directory, str]:
        parent, _, name = path.rpartition("/")
        return self._directory(parent), name


def by_sector(data: bytes, offset: int, sector_bytes: int) -> Iterator[DataWrite]:
    """Yield a write cut at the borders of sectors."""
    start = 0
    while start < len(data):
        stop = min(start + sector_bytes - (offset + start) % sector_bytes, len(data))
        yield DataWrite(offset + start, data[start:stop])
        start = stop


def applied(durable: bytes, changes: Iterable[Change]) -> bytes:
    """Return *durable* with *changes* applied in order. Bytes past the final end never existed."""
    changes = list(changes)
    if not changes:
        return durable
    content = bytearray(durable)
    size = len(content)
    for change in changes:
        if isinstance(change, SizeChange):
            if change.size < size:
                content[change.size :] = bytes(max(len(content) - change.size, 0))
            size = change.size
        else:
            stop = change.offset + len(change.data)
            if stop > len(content):
                content += bytes(stop - len(content))
            content[change.offset : stop] = change.data
    _set_size(content, size)
    return bytes(content)


def _linked(entries: dict[str, int], changes: Iterable[EntryChange]) -> dict[str, int]:
    linked = dict(entries)
    for change in changes:
        linked.pop(change.removed, None)
        if change.added:
            linked[change.added] = change.node
    return linked


def _set_size(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content += bytes(size - len(content))


def _nothing() -> None:
    pass


def _raise(error: OSError) -> None:
    raise error
