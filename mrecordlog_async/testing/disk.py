"""A disk in memory that loses unsynced changes in a power cut, and fails on request: the `FileSystem` of `memory_log`.

Every file has its durable bytes, and a list of changes since its last sync: sizes, and writes cut at the borders of
sectors. Every directory has its durable entries, and a list of changes since its last sync. Nothing else is durable.
All names and handles of a file share its bytes, so every reader sees a change at once. A power cut keeps what is
durable, and a part of the changes that a seed chooses.

Only one call may run at a time, but for those that create files and handles: callers from several threads need a lock.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import NamedTuple, NoReturn

from mrecordlog_async.storage.filesystem import Buffer

SECTOR_BYTES = 512


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


class MemoryFile:
    """The bytes of a file: those that are durable, the changes since its last sync, and what readers see."""

    def __init__(self, durable: bytes = b"") -> None:
        self.durable = durable
        self.pending: list[Change] = []
        self.current: bytes | bytearray = durable

    def writable(self) -> bytearray:
        """Return the content as bytes that can be changed. A file that is only read shares those that are durable."""
        if not isinstance(self.current, bytearray):
            self.current = bytearray(self.current)
        return self.current

    def resize(self, size: int) -> None:
        """Set the size."""
        if size != len(self.current):
            self.pending.append(SizeChange(size))
            set_size(self.writable(), size)

    def sync(self) -> None:
        """Make the changes durable."""
        self.durable = self.current = bytes(self.current)
        self.pending = []

    def cut(self, kept: list[Change]) -> None:
        """Lose all changes but those that were *kept*."""
        self.durable = self.current = applied(self.durable, kept)
        self.pending = []


class MemoryDirectory:
    """The entries of a directory, as names of nodes: those that are durable, the changes, and what readers see."""

    def __init__(self, durable: dict[str, int] | None = None) -> None:
        self.durable = durable or {}
        self.pending: list[EntryChange] = []
        self.current = dict(self.durable)

    def sync(self) -> None:
        """Make the changes durable."""
        self.durable, self.pending = dict(self.current), []

    def cut(self, kept: list[EntryChange]) -> None:
        """Lose all changes but those that were *kept*."""
        self.durable = linked(self.durable, kept)
        self.current, self.pending = dict(self.durable), []


class MemoryDisk:
    """A file system in memory. Its log is in a directory below `/data`.

    capacity_bytes: what its files may take together; None for no limit.
    """

    ROOT = 1

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.sector_bytes = SECTOR_BYTES
        self._files: dict[int, MemoryFile] = {}
        self._directories = {self.ROOT: MemoryDirectory({"data": 2}), 2: MemoryDirectory()}
        self._numbers = count(3)  # of nodes and handles
        self._handles: dict[int, int] = {}  # the node of each
        self._locks: dict[int, int] = {}  # the handle, by its node
        self._guard = threading.Lock()  # several threads of a log may change the directory
        self._is_off = False
        self.heal()

    # For tests.

    def fail(self, *calls: str, error: int = errno.EIO, once: bool = False) -> None:
        """Have *calls* fail from now on, or with *once* the next one of them alone: `fail("sync")`, say.

        The calls are the methods of `FileSystem`: "write", "sync", "reserve", "read" and the others. A call that fails
        changes nothing.
        """
        self._failing, self._error, self._fails_once = frozenset(calls), error, once

    def heal(self) -> None:
        """Have every call succeed again."""
        self.fail()

    def cut_power(self) -> None:
        """Have every later call fail, and change nothing, until `restart`."""
        self._is_off = True

    def restart(self, seed: int | None = None) -> None:
        """Continue after a power cut. No handle of before is open, and nothing fails any more.

        seed: chooses which of the changes that were not synced survive: none, all, or a part of them.
        """
        chance = random.Random(seed)
        share = chance.choice((0.0, chance.random(), 1.0))
        for file in self._files.values():
            file.cut([change for change in file.pending if chance.random() < share])
        for directory in self._directories.values():
            directory.cut([change for change in directory.pending if chance.random() < share])
        self._handles, self._locks = {}, {}
        self._is_off = False
        self.heal()

    def allocated_bytes(self) -> int:
        """Return the space of all files that have a name or an open handle."""
        nodes = {node for directory in list(self._directories.values()) for node in directory.current.values()}
        nodes |= set(self._handles.values())
        return sum(len(self._files[node].current) for node in nodes if node in self._files)

    # FileSystem.

    def make_directory(self, path: str) -> None:
        parent, name = self._parent(path)
        self._begin("make_directory")
        self._refuse_taken(parent, name, path)
        node = next(self._numbers)
        self._directories[node] = MemoryDirectory()
        self._change(parent, EntryChange("", name, node))

    def list_names(self, path: str) -> list[str]:
        self._begin("list_names")
        return list(self._directory(path).current)

    def open_directory(self, path: str) -> int:
        self._begin("open_directory")
        self._directory(path)
        return self._new_handle(self._find(path))

    def create(self, path: str) -> int:
        parent, name = self._parent(path)
        self._begin("create")
        self._refuse_taken(parent, name, path)
        node = self._new_file()
        self._change(parent, EntryChange("", name, node))
        return self._new_handle(node)

    def open(self, path: str, *, write: bool = True) -> int:
        self._begin("open")
        return self._new_handle(self._find(path))

    def close(self, handle: int) -> None:
        self._handles.pop(handle, None)
        self._locks = {node: owner for node, owner in self._locks.items() if owner != handle}

    def size(self, handle: int) -> int:
        self._begin("size")
        return len(self._file(handle).current)

    def links(self, handle: int) -> int:
        return 1

    def space_of(self, handle: int) -> tuple[int, int]:
        self._begin("space_of")
        return self.capacity_bytes or 0, self._free_bytes() or 0

    def recycles(self, handle: int) -> bool:
        return False

    def is_alone(self, handle: int) -> bool:
        return False

    def give_to_owner_of(self, path: str, handle: int) -> None:
        """Nothing here has an owner."""

    def is_at(self, handle: int, path: str) -> bool:
        self._begin("is_at")
        try:
            return self._find(path) == self._node(handle)
        except FileNotFoundError:
            return False

    def is_replaceable(self, path: str) -> bool:
        return True

    def mode(self, path: str) -> int:
        return 0o700

    def read(self, handle: int, length: int, offset: int) -> bytes:
        self._begin("read")
        return bytes(self._file(handle).current[offset : offset + length])

    def read_into(self, handle: int, buffer: memoryview, offset: int) -> int:
        self._begin("read_into")
        found = self._file(handle).current[offset : offset + len(buffer)]
        buffer[: len(found)] = found
        return len(found)

    def write(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        data = b"".join(buffers)
        file = self._file(handle)
        self._begin("write")
        self._grow(file, offset + len(data))
        file.pending += by_sector(data, offset, self.sector_bytes)
        file.writable()[offset : offset + len(data)] = data
        return len(data)

    def reserve(self, handle: int, offset: int, length: int) -> None:
        file = self._file(handle)
        self._begin("reserve")
        self._grow(file, offset + length)

    def set_size(self, handle: int, size: int) -> None:
        file = self._file(handle)
        self._begin("set_size")
        file.resize(size)

    def sync(self, handle: int) -> None:
        file = self._file(handle)
        self._begin("sync")
        file.sync()

    def sync_directory(self, handle: int) -> None:
        directory = self._directories[self._node(handle)]
        self._begin("sync_directory")
        directory.sync()

    def drop_cache(self, handle: int) -> None:
        """There is none: nothing is read from a medium."""

    def rename(self, old: str, new: str) -> None:
        parent, old_name = self._parent(old)
        _, new_name = self._parent(new)
        self._begin("rename")
        self._change(parent, EntryChange(old_name, new_name, self._find(old)))

    def unlink(self, path: str) -> None:
        parent, name = self._parent(path)
        self._begin("unlink")
        self._find(path)
        self._change(parent, EntryChange(name, "", 0))

    def note(self, directory: int, name: str, text: bytes, *, aside: bool) -> None:
        """Keep nothing: a note may be missing, and whatever stands in one changes nothing else."""

    def lock(self, path: str) -> int:
        parent, name = self._parent(path)
        self._begin("lock")
        if name not in parent.current:
            self._change(parent, EntryChange("", name, self._new_file()))
        node = parent.current[name]
        if node in self._locks:
            raise BlockingIOError(errno.EALREADY, os.strerror(errno.EALREADY), path)
        handle = self._locks[node] = self._new_handle(node)
        return handle

    # What only some file systems can do, and this one cannot. A log works without it.

    def set_direct(self, handle: int, direct: bool) -> None:
        if direct:
            _refuse()

    def write_durable(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        _refuse()

    def open_writes(self, most: int) -> int:
        _refuse()

    def start_write(self, writes: int, handle: int, buffer: memoryview, offset: int) -> None:
        _refuse()

    def finish_writes(self, writes: int, count: int) -> dict[int, int]:
        _refuse()

    def close_writes(self, writes: int) -> None:
        """There are none."""

    def link(self, old: str, new: str) -> None:
        _refuse()

    def remove_directory(self, path: str) -> None:
        _refuse()

    # Steps.

    def _begin(self, call: str) -> None:
        """Raise the error of a call that fails."""
        if self._is_off or call in self._failing:
            error = self._error
            if self._fails_once:
                self.heal()
            raise OSError(error, os.strerror(error))

    def _free_bytes(self) -> int | None:
        return None if self.capacity_bytes is None else max(self.capacity_bytes - self.allocated_bytes(), 0)

    def _grow(self, file: MemoryFile, size: int) -> None:
        """Make *file* at least this large. A disk that gets full keeps what it found, as ext4 does."""
        more, free = size - len(file.current), self._free_bytes()
        if more > 0 and free is not None and free < more:
            file.resize(len(file.current) + free)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if more > 0:
            file.resize(size)

    def _change(self, directory: MemoryDirectory, change: EntryChange) -> None:
        with self._guard:
            directory.pending.append(change)
            directory.current = linked(directory.current, [change])

    def _new_file(self) -> int:
        node = next(self._numbers)
        self._files[node] = MemoryFile()
        return node

    def _new_handle(self, node: int) -> int:
        handle = next(self._numbers)
        self._handles[handle] = node
        return handle

    def _node(self, handle: int) -> int:
        if handle not in self._handles:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return self._handles[handle]

    def _file(self, handle: int) -> MemoryFile:
        return self._files[self._node(handle)]

    def _find(self, path: str) -> int:
        node = self.ROOT
        for name in filter(None, path.split("/")):
            entries = self._directories[node].current if node in self._directories else {}
            if name not in entries:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            node = entries[name]
        return node

    def _directory(self, path: str) -> MemoryDirectory:
        node = self._find(path)
        if node not in self._directories:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return self._directories[node]

    def _parent(self, path: str) -> tuple[MemoryDirectory, str]:
        parent, _, name = path.rpartition("/")
        return self._directory(parent), name

    def _refuse_taken(self, parent: MemoryDirectory, name: str, path: str) -> None:
        if name in parent.current:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)


def _refuse() -> NoReturn:
    raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))


def by_sector(data: bytes, offset: int, sector_bytes: int) -> Iterator[DataWrite]:
    """Yield a write cut at the borders of sectors."""
    start = 0
    while start < len(data):
        stop = min(start + sector_bytes - (offset + start) % sector_bytes, len(data))
        yield DataWrite(offset + start, data[start:stop])
        start = stop


def applied(durable: bytes, changes: Sequence[Change]) -> bytes:
    """Return *durable* with *changes* applied in order. Bytes past the final end never existed."""
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
    set_size(content, size)
    return bytes(content)


def linked(entries: dict[str, int], changes: Iterable[EntryChange]) -> dict[str, int]:
    """Return *entries* with *changes* applied in order."""
    found = dict(entries)
    for change in changes:
        found.pop(change.removed, None)
        if change.added:
            found[change.added] = change.node
    return found


def set_size(content: bytearray, size: int) -> None:
    """Cut *content*, or fill it with zeros."""
    if size < len(content):
        del content[size:]
    else:
        content += bytes(size - len(content))
