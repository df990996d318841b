"""Windows, as far as Linux can stand in for it: `import tests.deep.windows` before the package.

Modules that Windows does not have cannot be imported, names that its `os` and `signal` do not have are deleted, and
`ctypes` opens no C library without a name. `sys.platform` is "win32".
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import ctypes
import multiprocessing
import os
import re
import signal
import ssl
import subprocess
import sys
import sysconfig
import tempfile
import urllib.request
from contextlib import suppress
from importlib import import_module
from typing import Any

PACKAGE = "mrecordlog_async"

MODULES = ("fcntl", "grp", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty", "uvloop")
MISSING = {
    os: r"O_(CLOEXEC|DIRECT|DIRECTORY|DSYNC|NOFOLLOW|SYNC|TMPFILE)|(RWF|POSIX_FADV|EFD)_\w+|fork\w*|register_at_fork|"
    r"uname|sync|get(e?[ug]id|pgid)|f?chown|fchmod|fdatasync|posix_\w+|p(read|write)v?|(read|write)v|sched_\w+|statvfs|"
    r"fstatvfs|killpg|eventfd\w*|wait[34]|openpty",
    signal: r"SIG(ALRM|CHLD|CONT|HUP|KILL|PIPE|QUIT|STOP|TSTP|URG|USR1|USR2|WINCH)|pthread_\w+|setitimer|alarm",
}
"""Which names of a module Windows does not have."""

# These look at `sys.platform` when they are first used, and would load parts that only Windows has.
LOADED_BEFORE = (asyncio, concurrent.futures.thread, multiprocessing, ssl, subprocess, tempfile, urllib.request)
sysconfig.get_config_vars()


class NamedLibrary(ctypes.CDLL):
    """A library of C: Windows has none that belongs to the process."""

    def __init__(self, name: Any, *arguments: Any, **named: Any) -> None:
        if name is None:
            raise TypeError("argument of type 'NoneType' is not iterable")
        super().__init__(name, *arguments, **named)


def _become_it() -> None:
    assert PACKAGE not in sys.modules, "the package has already looked at this system"
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]  # so that importing it fails
    for module, names in MISSING.items():
        for name in [name for name in vars(module) if re.fullmatch(names, name)]:
            delattr(module, name)
    ctypes.CDLL = NamedLibrary  # type: ignore[misc]
    sys.platform = "win32"


for name in ("aiohttp", "deltalake", "fastapi", "msgspec", "pandas", "pyarrow", "pyspark.sql.datasource"):
    with suppress(ImportError):  # what others need of a system is not what is tested
        import_module(name)

_become_it()
