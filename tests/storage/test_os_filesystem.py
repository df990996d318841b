from __future__ import annotations

import errno
import fcntl
import mmap
import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from mrecordlog_async.storage import os_filesystem
from mrecordlog_async.storage.os_filesystem import OsFileSystem

OPENED_IN_BETWEEN = """
import contextlib, fcntl, os, sys
from mrecordlog_async.storage.os_filesystem import OsFileSystem

path, ask = sys.argv[1], fcntl.fcntl
def asked(handle, what, *rest):
    if what == fcntl.F_SETLEASE and rest == (fcntl.F_UNLCK,):
        with contextlib.suppress(BlockingIOError):
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    return ask(handle, what, *rest)

handle = os.open(path, os.O_RDWR)
fcntl.fcntl = asked
print(OsFileSystem().is_alone(handle))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="leases are Linux's")
def test_asking_whether_a_file_is_open_elsewhere_survives_somebody_who_opens_it(tmp_path: Path) -> None:
    """The kernel's signal to the one who asks does not end the process."""
    (tmp_path / "file").write_bytes(b"x")
    asked = subprocess.run(
        [sys.executable, "-c", OPENED_IN_BETWEEN, str(tmp_path / "file")], capture_output=True, text=True, check=False
    )
    assert (asked.returncode, asked.stdout, asked.stderr) == (0, "True\n", "")


MOUNTS = [path for path in ("/dev", "/proc", "/sys") if os.path.ismount(path)]


def test_a_link_cannot_be_replaced(tmp_path: Path) -> None:
    """A directory can be renamed over an empty one and to a new name, and over nothing else."""
    files = OsFileSystem()
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    assert files.is_replaceable(str(tmp_path / "empty"))
    assert files.is_replaceable(str(tmp_path / "new"))
    assert not files.is_replaceable(str(tmp_path / "link"))


@pytest.mark.skipif(not MOUNTS, reason="nothing is mounted")
@pytest.mark.parametrize("path", MOUNTS)
def test_a_mount_point_cannot_be_replaced(path: str) -> None:
    """What is on another file system than its parent is a mount point."""
    assert not OsFileSystem().is_replaceable(path)


BIND = ["unshare", "--mount", "--map-root-user", "sh", "-c", 'mount --bind "$1" "$2" && shift 2 && exec "$@"', "sh"]
REPLACEABLE = """
import sys
from mrecordlog_async.storage.os_filesystem import OsFileSystem

print(*(OsFileSystem().is_replaceable(path) for path in sys.argv[1:]))
"""


def test_a_directory_that_is_mounted_on_one_of_the_same_file_system_cannot_be_replaced(tmp_path: Path) -> None:
    """Only the kernel's word for it shows that mount point: both have the same device."""
    paths = [str(tmp_path / name) for name in ("source", "mounted", "empty")]
    for path in paths:
        os.mkdir(path)
    if not shutil.which("unshare") or subprocess.run([*BIND, *paths[:2], "true"], check=False).returncode:
        pytest.skip("nothing can be mounted here")
    asked = subprocess.run(
        [*BIND, *paths[:2], sys.executable, "-c", REPLACEABLE, *paths], capture_output=True, text=True, check=False
    )
    assert (asked.returncode, asked.stdout, asked.stderr) == (0, "True False True\n", "")


def test_names_are_counted(tmp_path: Path) -> None:
    """A file has one name, two with a hard link, and none once it is removed; a closed handle is an OSError."""
    files, path = OsFileSystem(), tmp_path / "file"
    handle = files.create(str(path))
    assert files.links(handle) == 1
    files.link(str(path), str(tmp_path / "second"))
    assert files.links(handle) == 2
    for name in (path, tmp_path / "second"):
        files.unlink(str(name))
    assert files.links(handle) == 0
    files.close(handle)
    with pytest.raises(OSError):
        files.links(handle)


def test_a_lock_is_released_while_another_process_is_being_started(tmp_path: Path) -> None:
    """What was just forked, and has not closed what it inherited yet, does not keep the lock."""
    files, path = OsFileSystem(), str(tmp_path / "LOCK")
    lock = files.lock(path)
    inherited = os.dup(lock)  # of the same open file, as in a process before its exec
    try:
        files.close(lock)
        files.close(files.lock(path))
    finally:
        os.close(inherited)


@pytest.mark.parametrize("direct", [False, True])
def test_space_is_reserved_where_the_file_system_and_the_c_library_offer_no_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct: bool
) -> None:
    """glibc writes zeros then; musl, which Alpine Linux has, reports an error. The handle stays as direct as it was."""

    def unsupported(handle: int, offset: int, length: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fallocate", unsupported, raising=False)
    files, handle = OsFileSystem(), os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    try:
        os.write(handle, b"kept")
        if direct:
            try:
                files.set_direct(handle, True)
            except OSError:
                pytest.skip("no direct writes here")
        before = fcntl.fcntl(handle, fcntl.F_GETFL)
        files.reserve(handle, 0, 10_000)
        assert fcntl.fcntl(handle, fcntl.F_GETFL) == before
    finally:
        os.close(handle)
    assert (tmp_path / "file").read_bytes() == b"kept" + bytes(9_996)


WRITING = """
import mmap, os, signal, sys
from mrecordlog_async.storage.os_filesystem import OsFileSystem

files, size, count = OsFileSystem(), 1 << 20, 16
handle = files.open(sys.argv[1])
files.set_direct(handle, True)
staging = mmap.mmap(-1, size * count)
writes = files.open_writes(count)
for at in range(count):
    staging.write(bytes([65 + at]) * size)
for at in range(count):
    files.start_write(writes, handle, memoryview(staging)[at * size : (at + 1) * size], at * size)
"""
ENDS = {
    "leaves": "del staging, files",
    "exits": "os._exit(3)",
    "is killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "closes the file": "os.close(handle)",
    "forks": "os.fork() and os.wait()",
    "gives back": "files.close_writes(writes)",
    "replaces itself": "os.execv('/bin/true', ['true'])",
}


@pytest.mark.skipif(sys.platform != "linux", reason="writes under way are Linux's")
@pytest.mark.parametrize("end", ENDS)
def test_writes_under_way_land_whatever_becomes_of_the_process(tmp_path: Path, end: str) -> None:
    """None is left when the process has ended: so the next holder of a lock finds a file that stays as it is."""
    path = tmp_path / "file"
    path.write_bytes(bytes(16 << 20))
    done = subprocess.run([sys.executable, "-c", WRITING + ENDS[end], str(path)], capture_output=True, text=True)
    if "Invalid argument" in done.stderr or "not implemented" in done.stderr:
        pytest.skip(f"not here: {done.stderr}")
    assert done.stderr == ""
    assert path.read_bytes() == b"".join(bytes([65 + at]) * (1 << 20) for at in range(16))


@pytest.mark.skipif(sys.platform != "linux", reason="writes under way are Linux's")
def test_a_signal_does_not_end_the_wait_for_writes(tmp_path: Path) -> None:
    """The call is repeated; results that came before the signal are not lost."""
    files, interrupts = OsFileSystem(), [1, 1]

    def call(number: int, *arguments: int) -> int:
        if number == os_filesystem._IO_GETEVENTS and interrupts:
            interrupts.pop()
            raise InterruptedError
        return original(number, *arguments)

    original = os_filesystem._call_aio
    handle = files.create(str(tmp_path / "file"))
    try:
        writes = files.open_writes(2)
    except OSError as error:
        pytest.skip(f"not here: {error}")
    staging = memoryview(mmap.mmap(-1, 8_192))
    with patch.object(os_filesystem, "_call_aio", call):
        files.start_write(writes, handle, staging[:4_096], 0)
        files.start_write(writes, handle, staging[4_096:], 4_096)
        assert files.finish_writes(writes, 2) == {0: 4_096, 4_096: 4_096}
    assert not interrupts
    files.close_writes(writes)
    files.close(handle)


def test_a_machine_whose_calls_are_not_known_has_no_writes_under_way() -> None:
    """ENOSYS, as from a kernel without them."""
    with patch.object(os_filesystem, "_aio_numbers", None), pytest.raises(OSError, match="not implemented"):
        OsFileSystem().open_writes(4)
