"""A file system that has space and no inode left for a new file."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from mrecordlog_async import LogFullError, MultiRecordLog

INODES = 12


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of few inodes."""
    if os.geteuid():
        pytest.skip("mounting needs root")
    mounting = ["mount", "-t", "tmpfs", "-o", f"size=64m,nr_inodes={INODES}", "tmpfs", str(tmp_path)]
    if subprocess.run(mounting, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True, capture_output=True)


def take_all(place: Path) -> list[Path]:
    """Make files until there is no inode; return them."""
    made: list[Path] = []
    with suppress(OSError):
        for number in count():
            made.append(place / f"file{number}")
            made[-1].touch()
    return made[:-1]


def test_no_inode_is_told_from_no_space(place: Path) -> None:
    """An append that has to roll is refused with a sentence that names them, and the next one is stored after that."""

    async def use() -> None:
        async with MultiRecordLog.open(place / "wal", queues=["q"], segment_bytes=64 << 10) as log:
            await log.append("q", b"first")
            files = await asyncio.to_thread(take_all, place)
            with pytest.raises(LogFullError, match=r"no inodes left.*df -i") as refused:
                for _ in range(20):
                    await log.append("q", bytes(20_000))
            assert (refused.value.resource, refused.value.unit) == ("space", "inodes")
            await asyncio.to_thread(files[0].unlink)
            await log.append("q", b"again")

    asyncio.run(use())


def test_a_new_log_without_an_inode_says_so(place: Path) -> None:
    """The error of the system says that no space is left, of which there are 60 MiB."""
    take_all(place)
    with pytest.raises(OSError, match=r"no inodes left.*df -i"):
        asyncio.run(MultiRecordLog.open(place / "wal").__aenter__())
