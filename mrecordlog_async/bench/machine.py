"""The machine of a measurement, in one line."""

from __future__ import annotations

import os
import platform


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
            f"{_file_system(os.path.abspath(directory))} file system",
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


def _file_system(path: str) -> str:
    try:
        with open("/proc/mounts", encoding="utf-8") as file:
            mounts = [line.split()[1:3] for line in file]
    except OSError:
        return "unknown"
    holding = [(mount, kind) for mount, kind in mounts if os.path.commonpath((path, mount)) == mount]
    return max(holding, key=lambda pair: len(pair[0]), default=("", "unknown"))[1]
