"""A Mac, as far as Linux stands in for one: `pytest -p tests.deep.macos tests/storage` runs without the calls of Linux.

1. Names that the standard library has on Linux and not on macOS are deleted; so are functions of the C library, and
   /proc cannot be read.
2. `sys.platform` is "darwin", and F_FULLFSYNC exists. It is an error if the package calls `os.fsync` or
   `os.fdatasync`: on macOS, they leave bytes in the drive's cache.

Import it before the package. What is not modelled: kqueue, APFS, and whatever else a Mac does differently.
"""

from __future__ import annotations

import asyncio
import builtins
import concurrent.futures.thread
import ctypes
import fcntl
import io
import multiprocessing
import os
import pathlib
import re
import resource
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request
from typing import Any

import uvloop

PACKAGE = "mrecordlog_async"

MISSING = {
    os: r"O_(DIRECT|LARGEFILE|NOATIME|PATH|RSYNC|TMPFILE)|(RWF|POSIX_FADV|EFD|MFD|GRND|SPLICE_F|TFD|CLONE)_\w+|"
    r"P_PIDFD|posix_(fallocate|fadvise)|fdatasync|copy_file_range|eventfd\w*|memfd_create|pidfd_open|pipe2|splice|"
    r"timerfd_\w+|getrandom|sched_(get|set|rr)\w+|[gs]etres[gu]id|waitid|unshare|setns",
    fcntl: r"DN_\w+|F_(ADD_SEALS|GET_SEALS|SEAL_\w+|[GS]ETSIG|NOTIFY|[GS]ETPIPE_SZ|\w*LEASE|OFD_\w+|\w+64|EXLCK|SHLCK)",
    socket: r"SOCK_(CLOEXEC|NONBLOCK)|MSG_(MORE|ERRQUEUE|CMSG_CLOEXEC|CONFIRM|FASTOPEN)|SO_(PEERCRED|PASSCRED|DOMAIN|"
    r"PROTOCOL|BINDTODEVICE|MARK|PRIORITY|INCOMING_CPU)|TCP_(KEEPIDLE|USER_TIMEOUT|QUICKACK|CORK|DEFER_ACCEPT|INFO)",
    signal: r"SIG(CLD|POLL|PWR|RTMAX|RTMIN|STKFLT)|pidfd_send_signal|sigtimedwait|sigwaitinfo",
    resource: r"RLIMIT_(MSGQUEUE|NICE|OFILE|RTPRIO|RTTIME|SIGPENDING)|RUSAGE_THREAD|prlimit",
    time: r"CLOCK_(BOOTTIME|TAI)|pthread_getcpuclockid",
}
"""Which names of a module macOS does not have, as mypy finds them with `--platform darwin`."""

MISSING_IN_C = {"statx", "malloc_trim", "syncfs"}

F_FULLFSYNC = 51

# These look at `sys.platform` when they are first used, and would load parts that only a Mac has.
LOADED_BEFORE = (asyncio, concurrent.futures.thread, multiprocessing, subprocess, urllib.request, uvloop)
sysconfig.get_config_vars()

full_syncs: list[str] = []
"""Path of each file or directory that the package flushed to the medium, in order."""

_fcntl, _fsync, _open = fcntl.fcntl, os.fsync, io.open


class CLibrary(ctypes.CDLL):
    """The C library without the functions that macOS does not have."""

    def __getattr__(self, name: str) -> Any:
        if name in MISSING_IN_C:
            raise AttributeError(name)
        return super().__getattr__(name)


def _control(handle: Any, command: int, *rest: Any) -> Any:
    if command != F_FULLFSYNC:
        return _fcntl(handle, command, *rest)
    _fsync(handle)
    full_syncs.append(os.readlink(f"/proc/self/fd/{handle}"))
    return 0


def _sync(handle: Any) -> None:
    caller = sys._getframe(1).f_globals["__name__"]
    assert not caller.startswith(PACKAGE), f"{caller} calls fsync: on macOS the bytes stay in the drive's cache"
    _fsync(handle)


def _open_file(file: Any, *arguments: Any, **named: Any) -> Any:
    if isinstance(file, str | pathlib.Path) and str(file).startswith("/proc/"):
        raise FileNotFoundError(file)
    return _open(file, *arguments, **named)


def _become_one() -> None:
    assert PACKAGE not in sys.modules, "the package has already looked at this system"
    for module, names in MISSING.items():
        for name in [name for name in vars(module) if re.fullmatch(names, name)]:
            delattr(module, name)
    for place, name, value in (
        (fcntl, "F_FULLFSYNC", F_FULLFSYNC),
        (fcntl, "fcntl", _control),
        (os, "fsync", _sync),
        (io, "open", _open_file),
        (builtins, "open", _open_file),
        (ctypes, "CDLL", CLibrary),
        (tempfile, "_O_TMPFILE_WORKS", False),  # what it found out when it was imported
        (sys, "platform", "darwin"),
    ):
        setattr(place, name, value)


_become_one()
