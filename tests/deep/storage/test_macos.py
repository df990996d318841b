"""What the package does without the calls of Linux: `tests/deep/macos.py` takes them away in a separate process."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mrecordlog_async.storage.os_filesystem import OsFileSystem, full_sync

ROOT = Path(__file__).parents[2]

EVERY_MODULE = """
import importlib, pkgutil
import tests.deep.macos
import mrecordlog_async
for module in pkgutil.walk_packages(mrecordlog_async.__path__, "mrecordlog_async."):
    importlib.import_module(module.name)
"""

ONE_LOG = """
import asyncio, os, socket, sys
from tests.deep.macos import full_syncs
from mrecordlog_async import MultiRecordLog, PersistPolicy
from mrecordlog_async.service.watching.systemd import notify

directory = sys.argv[1]

def flushed():
    found = [os.path.basename(path)[:4] for path in full_syncs]
    full_syncs.clear()
    return found

async def main():
    async with MultiRecordLog.open(directory, persist_policy=PersistPolicy.always(), segment_bytes=131072) as log:
        await log.create_queue("q")
        print("opened:", {"wal-", "wal"} <= set(flushed()))  # the first segment, and the directory that names it
        await log.append_record("q", None, b"record")
        print("appended:", flushed())
        while log.resource_usage().segments == 1:
            await log.append_record("q", None, bytes(30_000))
        print("rolled:", "wal" in flushed())
    async with MultiRecordLog.open(directory) as log:
        print("reopened:", bytes(next(iter(log.range("q"))).payload))

asyncio.run(main())

with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
    systemd.bind(directory + ".notify")
    os.environ["NOTIFY_SOCKET"] = directory + ".notify"
    notify("READY=1")
    print("notified:", systemd.recv(100))
"""


def on_a_mac(script: str, *arguments: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", script, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_every_module_can_be_imported_there() -> None:
    """No module needs a name that macOS does not have."""
    on_a_mac(EVERY_MODULE)


def test_a_log_is_on_the_medium_there(directory: Path) -> None:
    """Every durable change ends with F_FULLFSYNC, even one of the directory: fsync alone leaves bytes in the drive."""
    assert on_a_mac(ONE_LOG, str(directory)).splitlines() == [
        "opened: True",
        "appended: ['wal-']",
        "rolled: True",
        "reopened: b'record'",
        "notified: b'READY=1'",
    ]


@pytest.mark.parametrize("sync", [full_sync, OsFileSystem().sync, OsFileSystem().sync_directory])
@pytest.mark.parametrize(("error", "falls_back"), [(errno.ENOTSUP, True), (errno.EIO, False)])
def test_only_a_file_system_without_a_drive_is_synced_in_another_way(
    monkeypatch: pytest.MonkeyPatch, sync: Callable[[int], None], error: int, falls_back: bool
) -> None:
    """A network share refuses F_FULLFSYNC, and fsync is all it has. After other errors, it proves nothing."""
    calls = []

    def control(handle: int, command: int) -> int:
        calls.append("F_FULLFSYNC")
        raise OSError(error, os.strerror(error))

    with monkeypatch.context() as patched:
        patched.setattr(sys, "platform", "darwin")
        patched.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
        patched.setattr(fcntl, "fcntl", control)
        patched.setattr(os, "fsync", lambda handle: calls.append("fsync"))
        if falls_back:
            sync(3)
        else:
            with pytest.raises(OSError, match=os.strerror(error)):
                sync(3)
    assert calls == (["F_FULLFSYNC", "fsync"] if falls_back else ["F_FULLFSYNC"])


def test_space_is_reserved_by_writing_zeros(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What the file holds stays; it has all the space that was asked for."""
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    path, files = tmp_path / "file", OsFileSystem()
    handle = files.create(str(path))
    files.write(handle, [b"content"], 0)
    files.reserve(handle, 0, 3_000_000)
    files.reserve(handle, 5, 100)
    files.close(handle)
    assert path.read_bytes() == b"content" + bytes(2_999_993)
