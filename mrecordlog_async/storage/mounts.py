"""Names the file system that a path is on, for people. Linux only; elsewhere it is unknown."""

from __future__ import annotations

import os
import re


def file_system_of(path: str) -> tuple[str, str]:
    """Return the kind of the file system that *path* is on, such as "ext4", and where it is mounted; "" if unknown."""
    try:
        with open("/proc/mounts", "rb") as file:
            mounts = [[_unescaped(field) for field in line.split()[1:3]] for line in file]
    except OSError:
        return "", ""
    real = os.path.realpath(path)
    holding = [(mount, kind) for mount, kind in mounts if os.path.commonpath((real, mount)) == mount]
    # The last of those with the same place: it hides the others.
    mount, kind = max(reversed(holding), key=lambda pair: len(pair[0]), default=("", ""))
    return kind, mount


def _unescaped(field: bytes) -> str:
    """Return a field of the table, in which a space is written as a backslash and octal digits."""
    return os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), field))
