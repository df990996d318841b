"""A directory of the crate's files: how many are open, and when they are synced."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mrecordlog_async.quickwit.files import Directory
from mrecordlog_async.quickwit.frame import BLOCK_BYTES
from mrecordlog_async.quickwit.reader import read
from mrecordlog_async.quickwit.writer import CrateWriter
from mrecordlog_async.storage.filesystem import Buffer
from mrecordlog_async.storage.os_filesystem import OsFileSystem


class Counted(OsFileSystem):
    """Records which files are open, and which have unsynced changes."""

    def __init__(self) -> None:
        self.names_of: dict[int, str] = {}
        self.most = 0
        self.unsynced: set[str] = set()

    def _opened(self, handle: int, path: str) -> int:
        self.names_of[handle] = path
        self.most = max(self.most, len(self.names_of))
        return handle

    def create(self, path: str) -> int:
        return self._opened(super().create(path), path)

    def open(self, path: str, *, write: bool = True) -> int:
        return self._opened(super().open(path, write=write), path)

    def close(self, handle: int) -> None:
        self.names_of.pop(handle, None)
        super().close(handle)

    def write(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        self.unsynced.add(self.names_of[handle])
        return super().write(handle, buffers, offset)

    def sync(self, handle: int) -> None:
        self.unsynced.discard(self.names_of[handle])
        super().sync(handle)


def test_one_file_is_open_at_a_time_and_all_are_synced(tmp_path: Path) -> None:
    """Writing and reading a directory of any number of files needs one descriptor."""
    files = Counted()
    target = Directory(files, str(tmp_path))
    writer = CrateWriter(target, file_bytes=BLOCK_BYTES)
    writer.create_queue("q")
    for number in range(40):
        writer.append("q", None, [bytes([number]) * 20_000])
    writer.sync()
    assert not files.unsynced
    target.close()
    assert len(list(tmp_path.iterdir())) > 20
    source = Directory(files, str(tmp_path))
    assert read(source).state.queues["q"].next_position == 40
    source.close()
    assert files.most == 1
    assert not files.names_of
