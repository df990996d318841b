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
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    return str(error)
