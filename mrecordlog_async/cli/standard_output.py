"""Standard output that says its own name when it fails: a full disk behind `>` must not look like a full log."""

from __future__ import annotations

import io
import os
import sys
from typing import cast

from mrecordlog_async.storage.filesystem import Buffer


class OutputError(OSError):
    """Standard output could not be written. A reader that has closed it is a BrokenPipeError instead."""


class _Descriptor(io.FileIO):
    """The descriptor of standard output."""

    def write(self, data: Buffer, /) -> int:  # type: ignore[override]  # Python 3.12 names the type that it takes
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(error.errno, error.strerror) from None


def name_standard_output() -> None:
    """Let `sys.stdout` raise OutputError, and take any path. One that something replaced, such as a test, stays."""
    output = sys.__stdout__
    if output is None or output is not sys.stdout:
        return
    raw = _Descriptor(output.fileno(), "wb", closefd=False)
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(cast(io.RawIOBase, raw)),
        encoding=output.encoding,
        # A path may have bytes that are not UTF-8, and a report of work that was done must not fail because of them.
        errors="surrogateescape" if output.errors == "strict" else output.errors,
        line_buffering=output.line_buffering,
        write_through=output.write_through,
    )


def drop_output() -> None:
    """Send what is still to be written nowhere: otherwise Python would report the same error once more when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
