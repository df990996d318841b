"""A log at several moments of its life, and a file system that replaces one by the next between two calls."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

from mrecordlog_async import MultiRecordLog, PersistPolicy
from mrecordlog_async.storage.os_filesystem import OsFileSystem
from mrecordlog_async.storage.segment import segment_name
from tests import damage
from tests.conftest import contents

BLOCK = 32_768

State = dict[str, tuple[int, int, list[tuple[int, bytes]]]]


class Interrupted(OsFileSystem):
    """Calls *before* once, just before a segment is opened; counts listings."""

    def __init__(self) -> None:
        self.name = ""
        self.before: Callable[[], None] = lambda: None
        self.opened: list[str] = []
        self.listed = 0

    def interrupt(self, segment: int, before: Callable[[], None]) -> None:
        self.name, self.before = segment_name(segment), before

    def open(self, path: str, *, write: bool = True) -> int:
        if path.endswith(self.name) and self.name:
            self.name = ""
            self.before()
        self.opened.append(path.rpartition("/")[2])
        return super().open(path, write=write)

    def list_names(self, path: str) -> list[str]:
        self.listed += 1
        return super().list_names(path)


class Stages:
    """The same log at several moments of its life: a directory and a state for each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.directories: list[Path] = []
        self.states: list[State] = []

    def take(self, log: MultiRecordLog) -> None:
        target = self.path / f"stage{len(self.directories)}"
        self.directories.append(damage.copy(Path(log.directory), target))
        self.states.append(contents(log))

    def put(self, number: int, directory: Path) -> None:
        """Give *directory* the files of a stage, as the writer would: new files first, then old ones are deleted."""
        wanted = self.directories[number]
        for path in sorted(wanted.iterdir()):
            shutil.copyfile(path, directory / path.name)
        for path in sorted(directory.iterdir()):
            if not (wanted / path.name).exists():
                path.unlink()

    def segments(self, number: int) -> list[int]:
        return [int(path.name[4:]) for path in damage.segments(self.directories[number])]


async def build(path: Path, count: int, each: int, kept: int) -> Stages:
    """Create a log that grows by *each* segments from stage to stage and keeps *kept*; a second queue never changes."""
    stages = Stages(path)
    async with MultiRecordLog.open(path / "made", segment_bytes=BLOCK, persist_policy=PersistPolicy.never()) as log:
        await log.create_queue("q")
        await log.create_queue("idle")
        await log.append_record("q", 7, b"the first")
        while len(stages.directories) < count:
            for _ in range(each if stages.directories else max(each, kept)):
                await log.append_records("q", None, [bytes([n]) * 20_000 for n in range(2)])
            await log.truncate("q", log.next_position("q") - 1 - 2 * kept)
            await log.sync()
            await log.append_record("q", None, b"behind the truncate")
            while log.segments[0] < (log.queue_summary("q").first_segment or 0):
                await asyncio.sleep(0)
            stages.take(log)
    return stages
