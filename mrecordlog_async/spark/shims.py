"""Small scripts that replace a program that Spark starts: written once, kept in the user's cache."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from pathlib import Path


def install_shim(name: str, script: str) -> Path:
    """Write an executable *script* into its own directory, unless it is already there; return the directory.

    Several processes may do this at the same time. name: path of the script in it, such as `java` or `bin/java`.

    Raises:
        OSError: neither the user's cache nor the directory for temporary files can be written.
    """
    place = f"{Path(name).name}-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    try:
        return write(_cache_directory() / place, name, script)
    except OSError:
        return write(Path(tempfile.gettempdir()) / f"mrecordlog_async-{os.getuid()}" / place, name, script)


def write(home: Path, name: str, script: str) -> Path:
    """Write an executable *script* to *home*/*name* unless it is already there. Raises OSError."""
    program = home / name
    program.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if home.stat().st_uid != os.getuid():
        raise PermissionError(f"{home} belongs to another user")
    if not program.exists() or program.read_text() != script:
        handle, temporary = tempfile.mkstemp(dir=program.parent)
        with os.fdopen(handle, "w") as file:
            file.write(script)
        # Executable before it has its name: another process may run it at that moment.
        Path(temporary).chmod(0o700)
        Path(temporary).replace(program)
    return home


def _cache_directory() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "mrecordlog_async"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mrecordlog_async"
