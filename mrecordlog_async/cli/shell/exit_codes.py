"""Exit codes, and which error leads to which.

| code | meaning |
|---|---|
| 0 | success |
| 1 | failed |
| 2 | wrong usage, as in argparse |
| 3 | acknowledged data is damaged |
| 4 | the directory is in use by another process |
| 5 | the service cannot be reached or is not ready |
| 6 | `serve`: a write or sync failed while it ran; starting it again recovers |
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from mrecordlog_async.errors import CorruptionError, LogLockedError
from mrecordlog_async.tokens import TokenFileError

FINE = 0
FAILED = 1
USAGE = 2
DAMAGE = 3
LOCKED = 4
NOT_READY = 5
LOG_FAILED = 6
INTERRUPTED = 130
"""128 + SIGINT, as in shells."""


class UsageError(Exception):
    """Arguments that cannot be used together; the message says what to write instead."""


class NotReadyError(Exception):
    """The service cannot be reached, or is still recovering."""


def exit_code_of(error: BaseException) -> int:
    """Return the exit code for *error*."""
    if isinstance(error, UsageError | TokenFileError | FileExistsError):  # FileExistsError: the target exists
        return USAGE
    if isinstance(error, CorruptionError):
        return DAMAGE
    if isinstance(error, LogLockedError):
        return LOCKED
    return NOT_READY if isinstance(error, NotReadyError) else FAILED


def sentence_of(error: BaseException) -> str:
    """Return *error* as a sentence: which file, and what happened to it."""
    if isinstance(error, OSError) and error.strerror is not None:
        if error.filename is None:
            return error.strerror
        denied = _missing_right(error.filename) if isinstance(error, PermissionError) else ""
        return f"{error.filename}: {error.strerror}{denied}"
    return str(error)


def _missing_right(name: str | bytes) -> str:
    """Return who owns the file or directory that this user may not use; "" if that cannot be found out."""
    if os.name != "posix":  # Windows, where commands that take a URL run, has neither modes nor numbers of users
        return ""
    path = os.path.abspath(os.fsdecode(name))
    with suppress(OSError):
        while path != "/":
            # The file may be missing, or the user's own: then a directory above it is what refuses.
            wanted = os.R_OK | os.W_OK | (os.X_OK if os.path.isdir(path) else 0)
            if os.access(os.path.dirname(path), os.X_OK) and os.path.lexists(path) and not os.access(path, wanted):
                found = os.stat(path)
                mode = stat.S_IMODE(found.st_mode)
                return f" ({path} belongs to user {found.st_uid}, mode {mode:04o}; this is user {os.getuid()})"
            path = os.path.dirname(path)
    return ""
