"""Memory of the machine: what this process may use before the kernel ends it, and the part of it that records get.

1. The smallest limit of its cgroups, from its own up to the root of the mount: v2 (`memory.max`, and `memory.high`,
   above which the kernel slows a process down until it stands still), v1 (`memory.limit_in_bytes`), or both, where a
   system has v1 controllers next to an empty v2 hierarchy.
2. A container sees its own cgroup as the root of the mount, while `/proc/self/cgroup` may name the path on the host.
   That path does not exist below the mount, so only the root is found on the way up.
3. The memory of the machine, if that is less or no cgroup has a limit. None where a system says neither.

Read whenever a log is opened without a limit of its own: 0.4 ms. These files are in memory, so the event loop may.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

MIB, GIB = 1 << 20, 1 << 30

MEMORY_BYTES = 4 * GIB
"""The largest default of `Limits.memory_bytes`, and the default where nothing says how much memory there is."""
MEMORY_BYTES_MIN = 8 * MIB
"""The smallest, for a library in a container in which the service would not start."""
PROCESS_BYTES = 64 * MIB
"""What the process takes besides: 30 MB with the library alone, 55 MB as a service."""
LEFT_BYTES_MIN = 64 * MIB
"""Less than this next to the process and its budgets is too little for records and the copies made of them."""
SERVICE_BYTES_MIN = 192 * MIB
"""`serve` does not start with less."""
BUDGETS = {
    "record_bytes": 64 * MIB,
    "pending_bytes": 128 * MIB,
    "body_bytes": 80 * MIB,
    "bodies_bytes": 88 * MIB,
    "control_bytes": 16 * MIB,
    "read_bytes": 64 * MIB,
    "sending_bytes": 64 * MIB,
    "unread_bytes": 64 * MIB,
}
"""Sizes for a machine of 1 GiB or more: a smaller one has less of each, in proportion."""
HELD = ("pending_bytes", "bodies_bytes", "sending_bytes")
"""Those that clients can fill at the same time, whatever the log holds."""
WITHIN = {"record_bytes": "pending_bytes", "body_bytes": "bodies_bytes"}
"""The first may never be larger than the second."""

FILES = {2: ("memory.max", "memory.high"), 1: ("memory.limit_in_bytes",)}
UNLIMITED_BYTES = 1 << 62
"""v1 writes "no limit" as the largest multiple of a page below 2**63."""


class MachineMemory(NamedTuple):
    """Memory that this process may use, and what says so."""

    bytes: int
    source: str


class _Mount(NamedTuple):
    """A hierarchy of cgroups. root: the cgroup that is mounted at *path*. files: that may hold a limit of it."""

    version: int
    root: str
    path: str


def machine_memory(root: str = "") -> MachineMemory | None:
    """Return the memory that this process may use, None if nothing says so.

    Args:
        root: A folder that holds `proc` and `sys` instead of `/`, for tests.
    """
    found = [*_cgroup_limits(root), *_physical(root)]
    return min(found, default=None)


def default_memory_bytes(machine: MachineMemory | None, held_bytes: int | None = None) -> int:
    """Return the memory that records get by default: half of what the process and its budgets leave, 4 GiB at most.

    The other half is for what no account names: copies of a batch while it is stored, parts of the heap, indexes of
    records on the disk.

    Args:
        machine: What `machine_memory` returns.
        held_bytes: All that clients can fill besides, whatever the log holds; by default, what default budgets allow.
    """
    if machine is None:
        return MEMORY_BYTES
    if held_bytes is None:
        held_bytes = sum(fit_budgets(dict.fromkeys(HELD), machine).values())
    return min(max((machine.bytes - PROCESS_BYTES - held_bytes) // 2, MEMORY_BYTES_MIN), MEMORY_BYTES)


def fit_budgets(wanted: Mapping[str, int | None], machine: MachineMemory | None) -> dict[str, int]:
    """Return *wanted*, some of `BUDGETS`, with the default for *machine* in place of each None.

    What was set stays as it is, and the default of what belongs to it follows, up to what it is for 1 GiB: a larger
    record needs room to wait.
    """
    whole = GIB if machine is None else min(machine.bytes, GIB)
    fitted = {name: BUDGETS[name] * whole // GIB if size is None else size for name, size in wanted.items()}
    for part, total in WITHIN.items():
        if part in wanted and fitted[part] > fitted[total]:
            if wanted[total] is None:
                fitted[total] = max(fitted[total], min(fitted[part], BUDGETS[total]))
            elif wanted[part] is None:
                fitted[part] = fitted[total]
    return fitted


def _cgroup_limits(root: str) -> Iterator[MachineMemory]:
    """Yield each limit of this process's cgroups."""
    paths = _cgroup_paths(root)
    for mount in _mounts(root):
        if mount.version not in paths:
            continue
        folder = _below(mount, paths[mount.version])
        while True:
            for name in FILES[mount.version]:
                size = _number(f"{root}{folder}/{name}")
                if size is not None and size < UNLIMITED_BYTES:
                    yield MachineMemory(size, f"{folder}/{name}")
            if folder in (mount.path, "/"):
                break
            folder = os.path.dirname(folder)


def _cgroup_paths(root: str) -> dict[int, str]:
    """Return the cgroup of this process in the hierarchy of each version that can limit memory."""
    paths = {}
    for line in _lines(f"{root}/proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            paths[2] = path
        elif "memory" in controllers.split(","):
            paths[1] = path
    return paths


def _mounts(root: str) -> Iterator[_Mount]:
    for line in _lines(f"{root}/proc/self/mountinfo"):
        place, _, kind = line.partition(" - ")
        fields, (system, _, options) = place.split(" "), kind.split(" ", 2)
        if system == "cgroup2" or (system == "cgroup" and "memory" in options.split(",")):
            top, path = (re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), field) for field in fields[3:5])
            yield _Mount(2 if system == "cgroup2" else 1, top, path)


def _below(mount: _Mount, path: str) -> str:
    """Return the folder of the cgroup *path* below *mount*; the mount itself for one that is outside of it."""
    top = mount.root.rstrip("/")
    if not path.startswith(f"{top}/") or ".." in path.split("/"):  # a namespace shows what is outside of it as /..
        return mount.path
    return mount.path.rstrip("/") + path.removeprefix(top).rstrip("/")


def _physical(root: str) -> Iterator[MachineMemory]:
    for line in _lines(f"{root}/proc/meminfo"):
        if line.startswith("MemTotal:"):
            yield MachineMemory(int(line.split()[1]) * 1024, "the memory of this machine")
            return
    with suppress(AttributeError, OSError, ValueError):  # macOS has no /proc, and Windows has neither
        size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if size > 0:
            yield MachineMemory(size, "the memory of this machine")


def _number(path: str) -> int | None:
    """Return the number in a file; None for `max`, or if it cannot be read."""
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdecimal() else None


def _lines(path: str) -> list[str]:
    try:
        with open(path, "rb", buffering=0) as file:
            return os.fsdecode(file.readall()).splitlines()
    except OSError:
        return []
