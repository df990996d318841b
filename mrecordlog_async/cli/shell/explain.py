"""Explains errors to somebody at a shell: the directory that is meant, and the command to run next."""

from __future__ import annotations

import shlex
import struct
import zlib

from mrecordlog_async.cli.shell.exit_codes import UsageError, sentence_of
from mrecordlog_async.errors import CorruptionError, LogLockedError, QueueNotFoundError
from mrecordlog_async.format.header import FormatVersionError, HeaderError
from mrecordlog_async.storage.directory import LogDirectory
from mrecordlog_async.storage.lock_file import LOCK_NAME
from mrecordlog_async.storage.segment import segment_name

UNAUTHORIZED = 401

_CRATE_BLOCK_BYTES = 32_768
_CRATE_FRAME = struct.Struct("<IHB")
"""Checksum of kind and payload, length, kind."""
_CRATE_KINDS = range(1, 5)

IN_A_SHELL = (
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


def explain(error: BaseException, directory: str | None, *, takes_url: bool = True, could_create: bool = False) -> str:
    """Return *error* as a sentence.

    Args:
        error: what ended the command.
        directory: of the log that the command was given, if it was given one.
        takes_url: whether the command also works on a service.
        could_create: whether its option --create was not given.
    """
    if isinstance(error, CorruptionError) and directory is not None and error.segment != LOCK_NAME:
        typed = shlex.quote(directory)
        return (
            f"{directory} is damaged: {error}; nothing was changed: list the damage with "
            f"`mrecordlog verify {typed}`, then run `mrecordlog repair {typed}`"
        )
    if isinstance(error, LogLockedError) and not error.is_linked:
        way_out = "stop it, or if it is a service, name its URL instead of the directory" if takes_url else "stop it"
        return f"{error.directory} is in use by {error.owner_and_command}: {way_out}"
    text = _in_a_shell(sentence_of(error))
    if could_create and isinstance(error, FileNotFoundError | QueueNotFoundError):
        return f"{text}; --create creates it"
    if getattr(error, "status", None) == UNAUTHORIZED:
        return f"{text}: name a file with the service's token: --token-file, or MRECORDLOG_TOKEN_FILE"
    return text


def _in_a_shell(text: str) -> str:
    for in_python, in_a_shell in IN_A_SHELL:
        text = text.replace(in_python, in_a_shell)
    return text


def refuse_foreign_directory(path: str) -> None:
    """Raise UsageError if *path* holds what no command reads as a log, though nothing in it is damaged.

    It may be files of Quickwit's Rust crate, or a log in another version of the format.
    """
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
