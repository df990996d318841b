"""System calls that a file system, an old kernel or a sandbox refuses. The kernel itself refuses them, by seccomp."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests import warm
from tests.refused_calls import MARK
from tests.sandbox import IS_SUPPORTED

pytestmark = pytest.mark.skipif(not IS_SUPPORTED, reason="the filter is made for two machines, and for Linux")

OPTIONAL = (
    "chown",
    "direct",
    "direct writes",
    "duplicate",
    "durable",
    "durable later",
    "eventfd2",
    "fadvise64",
    "fallocate",
    "fstatfs,statfs",
    "io_getevents",
    "io_getevents,io_destroy",
    "io_setup",
    "io_submit",
    "lease",
    "lease signal",
    "link,linkat",
    "madvise",
    "prctl",
    "preadv2",
    "pwritev2",
    "statx",
    "direct,durable,fadvise64,fallocate,fstatfs,statfs,io_setup,lease,link,linkat,preadv2,pwritev2,statx",
)


def use_log(calls: str, error: int, directory: Path) -> tuple[int, str]:
    """Use a log while *calls* fail with *error*; return the exit code and what was printed."""
    ended = warm.run([calls, str(error), str(directory)], "", program="tests.refused_calls")
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.parametrize("calls", OPTIONAL)
def test_the_log_does_without_an_optional_call(calls: str, tmp_path: Path) -> None:
    """It opens, appends, rolls, truncates, reads from the disk, is copied and opens again where it is refused."""
    assert use_log(calls, errno.EPERM, tmp_path / "log") == (0, MARK + "\n")


@pytest.mark.parametrize("call", ["fdatasync", "fsync"])
def test_a_sync_is_never_optional(call: str, tmp_path: Path) -> None:
    """Nothing is acknowledged that the system did not sync, whatever its reason."""
    code, printed = use_log(call, errno.ENOSYS, tmp_path / "log")
    assert code and os.strerror(errno.ENOSYS) in printed.splitlines()[-1]


@pytest.mark.parametrize("name", ["ENOLCK", "ENOSYS", "EOPNOTSUPP"])
def test_a_file_system_without_locks_is_named(name: str, tmp_path: Path) -> None:
    """Two writers would destroy the log, so it is refused, in a sentence that says which file system is to blame."""
    code, printed = use_log("flock", number := getattr(errno, name), tmp_path / "log")
    last = printed.splitlines()[-1]
    assert (
        code and "cannot lock files" in last and os.strerror(number) in last and str(tmp_path / "log" / "LOCK") in last
    )
    assert " at /" in last


@pytest.mark.parametrize("name", ["ENOSPC", "EDQUOT", "EFBIG"])
def test_a_disk_that_has_no_room_to_reserve_is_full(name: str, tmp_path: Path) -> None:
    """It says so of itself: writing zeros instead would find less room still."""
    code, printed = use_log("fallocate", number := getattr(errno, name), tmp_path / "log")
    assert code and os.strerror(number) in printed.splitlines()[-1]


@pytest.mark.parametrize("call", ["fallocate", "durable", "durable later", "direct writes", "fadvise64"])
def test_an_error_of_the_disk_is_never_a_refusal(call: str, tmp_path: Path) -> None:
    """EIO is reported where it happens, even by a call that the log could do without."""
    code, printed = use_log(call, errno.EIO, tmp_path / "log")
    assert code and os.strerror(errno.EIO) in printed.splitlines()[-1]
