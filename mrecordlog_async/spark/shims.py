"""Small scripts that replace a program which Spark starts: written once, kept in the user's cache."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from pathlib import Path


def stand_in(name: str, script: str) -> Path:
    """Write *script* under *name*, `java` or `bin/java` say, into a directory of its own; return that directory.

    The same script is found again, and processes that write it at once do not disturb each other. Raises OSError where
    neither the user's cache nor the directory for temporary files can be written.
    """
    place = f"{Path(name).name}-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    try:
        return write(_cache_directory() / place, name, script)
    except OSError:
        return write(Path(tempfile.gettempdir()) / f"mrecordlog_async-{os.getuid()}" / place, name, script)


def write(home: Path, name: str, script: str) -> Path:
    """Write an executable *script* to *home*/*name* unless it is there; another process may be doing the same."""
    program = home / name
    program.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if home.stat().st_uid != os.getuid():
        raise PermissionError(f"{home} belongs to somebody else")
    if not program.exists() or program.read_text() != script:
        handle, temporary = tempfile.mkstemp(dir=program.parent)
        with os.fdopen(handle, "w") as file:
            file.write(script)
        Path(temporary).chmod(0o700)
        Path(temporary).replace(program)
    return home


def _cache_directory() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "mrecordlog_async"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mrecordlog_async"
