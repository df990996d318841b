"""Exit codes, and which error leads to which.

| code | meaning |
|---|---|
| 0 | success |
| 1 | failed |
| 2 | wrong usage, as in argparse |
| 3 | acknowledged data is damaged |
| 4 | the directory is in use by another process |
| 5 | the service cannot be reached or is not ready |
"""

from __future__ import annotations

from mrecordlog_async.errors import CorruptionError, LogLockedError
from mrecordlog_async.token_file import TokenFileError

FINE = 0
FAILED = 1
USAGE = 2
DAMAGE = 3
LOCKED = 4
NOT_READY = 5
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
