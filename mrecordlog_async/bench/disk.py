"""The machine and its disk: a line that names both, and how long one small write and its sync take."""

from __future__ import annotations

import os
import platform
import time

from mrecordlog_async.options import MIB
from mrecordlog_async.storage.mounts import file_system_of
from mrecordlog_async.storage.os_filesystem import OsFileSystem


def machine(directory: str) -> str:
    """Name the machine in one line: processor, cores, memory, kernel, Python, file system."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return ", ".join(
        (
            _processor(),
            f"{os.cpu_count()} cores",
            f"{memory:.0f} GiB memory",
            f"{platform.system()} {platform.release()}",
            f"{platform.python_implementation()} {platform.python_version()}",
            f"{file_system_of(directory)[0] or 'unknown'} file system",
        )
    )


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


WRITE_BYTES = 4096
FILE_BYTES = 4 * MIB


class DiskProbe:
    """A file in *directory* whose blocks were written before, so no sync has to record new ones. Blocking."""

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, "probe")
        self._content = os.urandom(WRITE_BYTES)
        self._offset = 0
        self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        os.pwrite(self._handle, bytes(FILE_BYTES), 0)
        os.fsync(self._handle)

    def measure(self, seconds: float) -> list[float]:
        """Write 4 KiB and sync, again and again for *seconds*. Return how long each time took, in seconds."""
        clock, sync = time.perf_counter, OsFileSystem().sync
        end = clock() + seconds
        taken: list[float] = []
        while not taken or clock() < end:
            begun = clock()
            os.pwrite(self._handle, self._content, self._offset)
            sync(self._handle)
            taken.append(clock() - begun)
            self._offset = (self._offset + WRITE_BYTES) % FILE_BYTES
        return taken

    def close(self) -> None:
        """Remove the file."""
        os.close(self._handle)
        os.unlink(self._path)
