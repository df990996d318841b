"""Gathered files on the disk: whole or absent, read in pieces, and never taken for anything that they are not."""

from __future__ import annotations

import errno
import os
from array import array
from pathlib import Path

import pytest

from mrecordlog_async.format.gathered import GatheredError, GatheredHead, Gathering
from mrecordlog_async.memory.collected import held_run
from mrecordlog_async.model import Times, offsets_of_one
from mrecordlog_async.storage.filesystem import DIRECT_BLOCK_BYTES
from mrecordlog_async.storage.gathered_files import (
    GatheredFile,
    gathered_number,
    gathered_path,
    write_gathered,
)
from mrecordlog_async.storage.os_filesystem import OsFileSystem
from tests.faults.disk import Disk, Fault

HEAD = GatheredHead(bytes(16), 7, 4_000, 1, 2, 3, 4)
SIZES = [0, 10, 5_000, 300_000, 3_000_000, 77]


def parts(sizes: list[int] = SIZES) -> list[list[bytes]]:
    """Return the parts of a file with one run for each of *sizes*, of one queue."""
    gathering = Gathering(HEAD)
    runs = [(at, offsets_of_one(size), bytes([at]) * size, b"") for at, size in enumerate(sizes)]
    times = Times(array("q", (0,)), array("q", (1,)))
    return [[HEAD.encode()], *gathering.add_queue(5, runs, times), gathering.end()]  # type: ignore[list-item]  # bytes


def read_all(file: GatheredFile) -> list[bytes]:
    """Return the payloads of all places."""
    found: list[bytes] = []
    index = file.index
    for place in range(len(index.records)):
        data = file.read(index.offsets[place], index.lengths[place])
        runs, _ = index.decode(data, range(place, place + 1), 0, len(SIZES))
        found += [record.payload for run in runs for record in held_run(run).records()]
    return found


def test_names() -> None:
    """The file's name is its segment's, with a suffix."""
    assert gathered_number(os.path.basename(gathered_path("/data", 7))) == 7
    assert gathered_number("wal-00000000000000000007") is None
    assert gathered_number("wal-00000000000000000007.runs.tmp") is None


@pytest.mark.parametrize("has_direct", [True, False])
def test_a_file_is_read_back(has_direct: bool) -> None:
    """Whatever the sizes of its runs, in the page cache or past it; every direct access is of whole blocks."""
    disk = Disk(has_direct=has_direct)
    path = gathered_path("/data", 7)
    size = write_gathered(disk, path, parts())
    file = GatheredFile(disk, path)
    assert file.size == size == sum(len(buffer) for part in parts() for buffer in part)
    assert read_all(file) == [bytes([at]) * each for at, each in enumerate(SIZES)]
    file.close()
    assert disk.misuse == []
    assert disk.open_handles() == 0
    assert disk.list_names("/data") == [os.path.basename(path)]


def test_a_file_on_the_real_disk_is_read_back(tmp_path: Path) -> None:
    """The same on the disk of this machine, twice over the same name."""
    path = gathered_path(str(tmp_path), 7)
    for sizes in ([1], SIZES):
        write_gathered(OsFileSystem(), path, parts(sizes))
        file = GatheredFile(OsFileSystem(), path)
        assert read_all(file) == [bytes([at]) * each for at, each in enumerate(sizes)]
        file.close()
    os.chmod(path, 0o400)
    file = GatheredFile(OsFileSystem(), path)
    assert len(read_all(file)) == len(SIZES)
    file.close()


@pytest.mark.parametrize("call", ["create", "reserve", "write", "set_size", "rename"])
def test_a_refused_file_leaves_nothing(call: str) -> None:
    """Whichever call fails, the error is raised, and no handle, no temporary file and no name is left."""
    disk = Disk()
    disk.fault = Fault(1, errno.ENOSPC, on=True, calls=frozenset({call}))
    with pytest.raises(OSError, match="No space"):
        write_gathered(disk, gathered_path("/data", 7), parts())
    assert disk.list_names("/data") == []
    assert disk.open_handles() == 0


def test_what_is_no_gathered_file_is_refused_without_a_handle() -> None:
    """An empty file, one of other bytes and one that a crash cut are refused."""
    disk = Disk()
    path = gathered_path("/data", 7)
    write_gathered(disk, path, parts())
    handle = disk.open(path)
    whole = disk.read(handle, disk.size(handle), 0)
    disk.close(handle)
    for content in (b"", bytes(10), bytes(100_000), whole[:-1], whole[:DIRECT_BLOCK_BYTES], whole + b"\0"):
        disk.put(path, content)
        with pytest.raises(GatheredError):
            GatheredFile(disk, path)
    assert disk.open_handles() == 0


def test_a_file_that_was_cut_while_it_is_open_is_noticed() -> None:
    """A place that is no longer there is an error, not a shorter record."""
    disk = Disk()
    path = gathered_path("/data", 7)
    write_gathered(disk, path, parts())
    file = GatheredFile(disk, path)
    disk.set_size(file.handle, DIRECT_BLOCK_BYTES)
    with pytest.raises(GatheredError):
        read_all(file)
    file.close()
