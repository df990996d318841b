"""A disk that another process writes to meanwhile: the recorded moments of a history pass while a reader reads.

1. Before each call of the reader a random number of moments passes: none, one, or many at once.
2. A handle stays with its file, even if the name is removed. Files that the reader creates, and its links to the
   writer's files, are kept separately and hide recorded files with the same name.
3. The writer does not see the reader. A history in which the writer would check links or handles cannot be used here.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Sequence

from mrecordlog_async.storage.filesystem import Buffer

from .disk import Disk, Snapshot


class MovingDisk:
    """A `FileSystem` over *snapshots*; `at` is the present one."""

    def __init__(self, snapshots: Sequence[Snapshot], chance: random.Random, pace: float) -> None:
        self.at = 0
        self.snapshots = snapshots
        self._chance = chance
        self._pace = pace
        self._shown: tuple[int, Disk] = (-1, Disk())
        self._own_files: dict[int, bytearray] = {}  # by node, which is negative
        self._own_names: dict[str, int] = {}  # by path
        self._own_directories: set[str] = set()
        self._handles: dict[int, int] = {}
        self._next = 1

    def let_pass(self) -> None:
        """Let the writer advance by some moments."""
        if self._chance.random() < self._pace:
            self.at = min(self.at + self._chance.choice([1, 1, 1, 2, 5, 30]), len(self.snapshots) - 1)

    def open_handles(self) -> int:
        """Return how many handles are open."""
        return len(self._handles)

    # FileSystem, as far as readers need it.

    def list_names(self, path: str) -> list[str]:
        self.let_pass()
        own = [name.rpartition("/")[2] for name in self._own_names if name.rpartition("/")[0] == path]
        directories = [name.rpartition("/")[2] for name in self._own_directories if name.rpartition("/")[0] == path]
        if path in self._own_directories:
            return own
        return [*self._disk()._directory(path).current, *directories]

    def open(self, path: str, *, write: bool = True) -> int:
        self.let_pass()
        return self._handle(self._node(path))

    def open_directory(self, path: str) -> int:
        return self._handle(0)

    def close(self, handle: int) -> None:
        del self._handles[handle]

    def size(self, handle: int) -> int:
        self.let_pass()
        return len(self._content(handle))

    def space_of(self, handle: int) -> tuple[int, int]:
        self.let_pass()
        return 0, 0

    def links(self, handle: int) -> int:
        self.let_pass()
        node = self._handles[handle]
        named = sum(node in directory.current.values() for directory in self._disk()._directories.values())
        return named + sum(node == own for own in self._own_names.values())

    def is_alone(self, handle: int) -> bool:
        return False

    def recycles(self, handle: int) -> bool:
        return False

    def is_at(self, handle: int, path: str) -> bool:
        return True

    def is_replaceable(self, path: str) -> bool:
        return True

    def mode(self, path: str) -> int:
        return 0o700

    def set_direct(self, handle: int, direct: bool) -> None:
        raise AssertionError("readers read through the cache")

    def read_into(self, handle: int, buffer: memoryview, offset: int) -> int:
        raise AssertionError("readers read through the cache")

    def write_durable(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        raise AssertionError("readers write nothing")

    def open_writes(self, most: int) -> int:
        raise AssertionError("readers write nothing")

    def start_write(self, writes: int, handle: int, buffer: memoryview, offset: int) -> None:
        raise AssertionError("readers write nothing")

    def finish_writes(self, writes: int, count: int) -> dict[int, int]:
        raise AssertionError("readers write nothing")

    def close_writes(self, writes: int) -> None:
        raise AssertionError("readers write nothing")

    def read(self, handle: int, length: int, offset: int) -> bytes:
        self.let_pass()
        return bytes(self._content(handle)[offset : offset + length])

    def sync(self, handle: int) -> None:
        self.let_pass()

    def sync_directory(self, handle: int) -> None:
        self.let_pass()

    def drop_cache(self, handle: int) -> None:
        self.let_pass()

    # What a snapshot writes.

    def make_directory(self, path: str) -> None:
        self._own_directories.add(path)

    def remove_directory(self, path: str) -> None:
        self._own_directories.remove(path)

    def create(self, path: str) -> int:
        self.let_pass()
        self._own_names[path] = node = -len(self._own_files) - 1
        self._own_files[node] = bytearray()
        return self._handle(node)

    def write(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        data = b"".join(buffers)
        self._own_files[self._handles[handle]][offset : offset + len(data)] = data
        return len(data)

    def link(self, old: str, new: str) -> None:
        self.let_pass()
        self._own_names[new] = self._node(old)

    def give_to_owner_of(self, path: str, handle: int) -> None:
        """Nothing here has an owner."""

    def note(self, directory: int, name: str, text: bytes, *, aside: bool) -> None:
        """Keep nothing: readers write no notes."""

    def unlink(self, path: str) -> None:
        if path not in self._own_names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        del self._own_names[path]

    def rename(self, old: str, new: str) -> None:
        self._own_directories = {new if name == old else name for name in self._own_directories}
        self._own_names = {
            new + name.removeprefix(old) if name.startswith(old + "/") else name: node
            for name, node in self._own_names.items()
        }

    def set_size(self, handle: int, size: int) -> None:
        assert self._handles[handle] < 0, "a reader cuts only its own files"
        del self._own_files[self._handles[handle]][size:]

    def reserve(self, handle: int, offset: int, length: int) -> None:
        raise AssertionError("a reader reserves nothing")

    def lock(self, path: str) -> int:
        assert path.rpartition("/")[0] in self._own_directories, "a reader locks only what it makes"
        return self.create(path)

    # Steps.

    def _disk(self) -> Disk:
        if self._shown[0] != self.at:
            self._shown = self.at, self.snapshots[self.at].kill()
        return self._shown[1]

    def _node(self, path: str) -> int:
        return self._own_names[path] if path in self._own_names else self._disk()._find(path)

    def _handle(self, node: int) -> int:
        self._next += 1
        self._handles[self._next] = node
        return self._next

    def _content(self, handle: int) -> bytes | bytearray:
        node = self._handles[handle]
        return self._own_files[node] if node < 0 else self._disk()._files[node].current
