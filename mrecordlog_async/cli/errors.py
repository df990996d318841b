"""Exit codes, and errors in the words of a shell: what happened, which directory it is about, what to run next.

| code | meaning |
|---|---|
| 0 | success |
| 1 | failed |
| 2 | wrong usage |
| 3 | acknowledged data is damaged |
| 4 | the directory is in use by another process |
| 5 | the service cannot be reached or is not ready |
| 6 | `serve`: a write or sync failed while it ran; starting it again recovers |
"""

from __future__ import annotations

import os
import shlex
import stat
import struct
import zlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

FINE = 0
FAILED = 1
USAGE = 2
DAMAGE = 3
LOCKED = 4
NOT_READY = 5
LOG_FAILED = 6
INTERRUPTED = 130
"""128 + SIGINT, as in shells."""

_UNAUTHORIZED = 401
_NOT_FOUND = 404

_CRATE_BLOCK_BYTES = 32_768
_CRATE_FRAME = struct.Struct("<IHB")
"""Checksum of kind and payload, length, kind."""
_CRATE_KINDS = range(1, 5)

_IN_A_SHELL = (
    ("pass past_consumers=True", "pass --past-consumers"),
    ("; pass exist_ok=True to use it", ""),
    ("; create it with create_queue, or append with create=True", ""),
    ("create it with create_consumer, or create=True", "list those that exist with `mrecordlog consumers LOG`"),
    (
        "pass this owner, another consumer's name, or take_over=True if the owner is gone for good",
        "use the name of another consumer",
    ),
    ("raise its limits with configure_queue", "raise its limits with `mrecordlog configure`"),
)
"""Advice in the errors of the log for a Python program, with the words for a shell."""


class UsageError(Exception):
    """Arguments that cannot be used together; the message says what to write instead."""


class NotReadyError(Exception):
    """The service cannot be reached, or is still recovering."""


def exit_code_of(error: BaseException) -> int:
    """Return the exit code for *error*."""
    from mrecordlog_async.errors import CorruptionError, LogLockedError
    from mrecordlog_async.tokens import TokenFileError

    if isinstance(error, UsageError | TokenFileError | FileExistsError):  # FileExistsError: the target exists
        return USAGE
    if isinstance(error, CorruptionError):
        return DAMAGE
    if isinstance(error, LogLockedError):
        return LOCKED
    return NOT_READY if isinstance(error, NotReadyError) or says_not_ready(error) else FAILED


def says_not_ready(error: BaseException) -> bool:
    """Return whether *error* says that a service is unreachable or not ready."""
    return type(error).__name__ == "ServiceUnreachableError" or getattr(error, "status", None) == 503


def explain(error: BaseException, given: Mapping[str, Any]) -> str:
    """Return *error* as a sentence.

    Args:
        error: What ended the command.
        given: The arguments of the command by name.
    """
    from mrecordlog_async.errors import CorruptionError, LogLockedError, QueueNotFoundError
    from mrecordlog_async.storage.lock_file import LOCK_NAME

    directory = given.get("log") or given.get("directory") or next(iter(given.get("logs", ())), None)
    if isinstance(error, CorruptionError) and directory is not None and error.segment != LOCK_NAME:
        typed = shlex.quote(directory)
        return (
            f"{directory} is damaged: {error}; nothing was changed: list the damage with "
            f"`mrecordlog verify {typed}`, then run `mrecordlog repair {typed}`"
        )
    if isinstance(error, LogLockedError) and not error.is_linked:
        takes_url = "directory" not in given
        way_out = "stop it, or if it is a service, name its URL instead of the directory" if takes_url else "stop it"
        return f"{error.directory} is in use by {error.owner_and_command}: {way_out}"
    text = _in_a_shell(sentence_of(error)) + _advice(error)
    if given.get("create") is False and isinstance(error, FileNotFoundError | QueueNotFoundError):
        text += "; --create creates it"
    return text


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


def _in_a_shell(text: str) -> str:
    for in_python, in_a_shell in _IN_A_SHELL:
        text = text.replace(in_python, in_a_shell)
    return text


def _advice(error: BaseException) -> str:
    """Return what to do about the response of a service, or the lack of one; "" if the error says it."""
    status, reason = getattr(error, "status", None), getattr(error, "reason", "")
    if status == _UNAUTHORIZED:
        return ": name a file with the service's token: --token-file, or MRECORDLOG_TOKEN_FILE"
    if status == _NOT_FOUND and getattr(error, "code", "") == "unreadable":
        return "; if the API is mounted below a prefix, such as /wal, add it to the URL"
    if type(error).__name__ != "ServiceUnreachableError":
        return ""
    from mrecordlog_async.client.http1 import CUT_OFF, NO_TLS

    if reason == CUT_OFF:
        return "; if the service has a certificate, write https:// instead of http://"
    if reason.startswith(NO_TLS) or getattr(error, "sent", False):
        return ""
    return "; start a service with `mrecordlog serve DIR`, or name the directory of the log instead of the URL"


def refuse_foreign_directory(path: str) -> None:
    """Raise UsageError if *path* holds what no command reads as a log, though nothing in it is damaged.

    It may be files of Quickwit's Rust crate, or a log in another version of the format.
    """
    from mrecordlog_async.format.header import FormatVersionError, HeaderError
    from mrecordlog_async.storage.directory import LogDirectory
    from mrecordlog_async.storage.segment import segment_name

    log = LogDirectory.at(path)
    try:
        segments = log.list().segments
        is_foreign = _begins_as_the_crate_does(f"{path}/{segment_name(segments[0])}")
        if not is_foreign:
            log.header_of(segments[-1])
    except FormatVersionError as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    except (OSError, HeaderError, IndexError):
        return  # the command itself reports it
    if is_foreign:
        raise UsageError(
            f"{path} holds files of Quickwit's Rust crate, not a log: examples/import_quickwit.py of the repository "
            "reads them into a new one"
        )


def _begins_as_the_crate_does(path: str) -> bool:
    """Return whether a file begins with a valid frame of the crate, whose files are named as segments are."""
    with open(path, "rb") as file:
        block = file.read(_CRATE_BLOCK_BYTES)
    if len(block) < _CRATE_BLOCK_BYTES:
        return False
    checksum, length, kind = _CRATE_FRAME.unpack_from(block)
    stop = _CRATE_FRAME.size + length
    checked = zlib.crc32(block[_CRATE_FRAME.size : stop], zlib.crc32(bytes((kind,))))
    return kind in _CRATE_KINDS and stop <= len(block) and checked == checksum
