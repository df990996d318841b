"""What a power cut leaves of a directory on a disk: what was synced, and any part of the rest.

The model follows what a journalling file system promises. The contents of a file are durable once that file is synced,
the names in a directory once that directory is, and everything once its file system is (`syncfs`). Anything else may be
lost, each file and each name by itself, or reach the disk in part: a file that was written since may be empty, cut,
zeroed at its end, or whole; a name may be missing; a file that was removed or replaced may be back.

Left out: a write-back error (a disk that lies is tested in `test_delta_disks`), and directories that are removed.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mrecordlog_async.spark import log_stream, table_files


class OnlySynced(random.Random):
    """The chance by which nothing reaches the disk that was not synced."""

    def choice(self, candidates: Any) -> Any:
        """Lose names that are not durable, and half of the contents of files that never were."""
        if -1 in candidates:
            return -1
        return candidates[-1] if len(candidates) != CONTENTS else candidates[1]

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        """Keep half."""
        return start // 2

    def random(self) -> float:
        """Lose directories that are not durable."""
        return 0.9


CONTENTS = 4
"""What may be on the disk of a file that was never synced: nothing, a part, zeros at its end, or all of it."""


class Medium:
    """The disk under *root*. inode → contents that are durable; directory → its durable names."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._contents: dict[int, bytes] = {}
        self._names: dict[str, dict[str, int]] = {}
        self._open: list[int] = []

    @contextmanager
    def attached(self, patch: pytest.MonkeyPatch) -> Iterator[None]:
        """See every sync of this process."""
        fsync = os.fsync

        def synced(handle: int) -> None:
            path = os.readlink(f"/proc/self/fd/{handle}")
            if Path(path).is_relative_to(self.root):
                self._synced(path)
            else:
                fsync(handle)

        def file_system(handle: int) -> None:
            path = Path(os.readlink(f"/proc/self/fd/{handle}"))
            self._everything(self.root / path.relative_to(self.root).parts[0])

        with patch.context() as patched:
            patched.setattr(os, "fsync", synced)
            patched.setattr(table_files, "syncfs", file_system)
            patched.setattr(log_stream, "syncfs", file_system)
            yield

    def _synced(self, path: str) -> None:
        if os.path.isdir(path):
            self._names[path] = {each.name: each.inode() for each in os.scandir(path)}
        elif os.path.exists(path):
            self._remember(path)

    def _everything(self, below: Path) -> None:
        """Make a file system durable: each directory below the root is one."""
        for directory, _, files in os.walk(below):
            self._names[directory] = {each.name: each.inode() for each in os.scandir(directory)}
            for name in files:
                self._remember(f"{directory}/{name}")

    def _remember(self, path: str) -> None:
        inode = os.stat(path).st_ino
        if inode not in self._contents:
            self._open.append(os.open(path, os.O_RDONLY))  # no other file gets its inode
        self._contents[inode] = Path(path).read_bytes()

    def cut(self, chance: random.Random) -> None:
        """Cut the power: replace what is under the root by something that the disk may hold now."""
        kept, left = [str(self.root)], dict[str, bytes]()
        for directory in kept:
            left |= self._left_in(directory, chance)
            durable = self._names.get(directory, {})
            kept += [
                each.path
                for each in os.scandir(directory)
                if each.is_dir() and (each.name in durable or chance.random() < 0.5)
            ]
        shutil.rmtree(self.root)
        for directory in kept:
            os.mkdir(directory)
        for name, content in left.items():
            Path(name).write_bytes(content)
        self.close()
        self._everything(self.root)

    def close(self) -> None:
        """Forget what was durable."""
        for handle in self._open:
            os.close(handle)
        self._open.clear()
        self._contents.clear()
        self._names.clear()

    def _left_in(self, directory: str, chance: random.Random) -> dict[str, bytes]:
        durable = self._names.get(directory, {})
        now = {each.name: each.inode() for each in os.scandir(directory) if each.is_file()}
        found = {}
        for name in sorted({*durable, *now}):
            candidates = [inodes[name] for inodes in (durable, now) if name in inodes]
            if name not in durable or name not in now:
                candidates.append(-1)  # the name is not there
            inode = chance.choice(candidates)
            if inode != -1 and (content := self._content(inode, directory, now, chance)) is not None:
                found[f"{directory}/{name}"] = content
        return found

    def _content(self, inode: int, directory: str, now: dict[str, int], chance: random.Random) -> bytes | None:
        """Return what is on the disk of a file; None for a directory."""
        durable = self._contents.get(inode)
        name = next((name for name, each in now.items() if each == inode), None)
        if name is None:
            return durable
        written = Path(directory, name).read_bytes()
        if durable == written:
            return durable
        cut = chance.randrange(len(written) + 1)
        return chance.choice(
            [b"", written[:cut], written[:cut] + bytes(len(written) - cut), written, *([durable] if durable else [])]
        )
