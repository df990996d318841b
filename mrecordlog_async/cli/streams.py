"""The standard streams of a command: input that does not block the event loop, output that names itself when it fails.

A full disk behind `>` must not look like a full log. Nothing here imports asyncio before it is used: every command,
even `--help`, has its streams opened here.
"""

from __future__ import annotations

import codecs
import errno
import io
import os
import signal
import stat
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, TextIO, cast

if TYPE_CHECKING:
    import asyncio

    from mrecordlog_async.storage.filesystem import Buffer

READ_BYTES = 1024 * 1024
PIECES_AHEAD = 4
ESCAPED = "mrecordlog.escaped"
"""The name of the error handler `_escaped`."""


class OutputError(OSError):
    """Standard output could not be written. A reader that has closed it is a BrokenPipeError instead."""


class TerminalClosedError(OSError):
    """The terminal that standard output writes to was closed.

    It is not a BrokenPipeError, because rich ends the process at one, with exit code 1.
    """


class _Descriptor(io.FileIO):
    """The descriptor of standard output."""

    def write(self, data: Buffer, /) -> int:  # type: ignore[override]  # Python 3.12 names the type that it takes
        try:
            with _ended_by_interrupt():
                return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            if error.errno == errno.EIO and stat.S_ISCHR(os.fstat(self.fileno()).st_mode):
                raise TerminalClosedError(error.errno, error.strerror) from None
            raise OutputError(error.errno, error.strerror) from None


@contextmanager
def _ended_by_interrupt() -> Iterator[None]:
    """Let the first Ctrl-C end a write that nobody reads, even in a coroutine.

    There asyncio's handler has asked the main task to end, which the task cannot do before the write returns.
    """
    handler = signal.getsignal(signal.SIGINT)
    is_asyncio = isinstance(handler, partial)  # one that was ignored, or that a command has set, stays
    if not is_asyncio or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _escaped(error: UnicodeError) -> tuple[str | bytes, int]:
    r"""Encode one character: a byte of a path as it is, one that the encoding of the terminal lacks as \u6f22."""
    assert isinstance(error, UnicodeEncodeError), "nothing is decoded here"
    one = UnicodeEncodeError(error.encoding, error.object, error.start, error.start + 1, error.reason)
    try:
        return codecs.lookup_error("surrogateescape")(one)
    except UnicodeEncodeError:
        return codecs.backslashreplace_errors(one)


def open_standard_streams() -> None:
    """Open those of the descriptors 0, 1 and 2 that are closed: otherwise a segment could get the number of one.

    What goes to a closed standard error is dropped. Commands refuse to run without a standard output.
    """
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(opened)
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115  # it stays open
    _name_standard_output()


def _name_standard_output() -> None:
    """Let `sys.stdout` raise OutputError, and take any text. One that something replaced, such as a test, stays."""
    output = sys.__stdout__
    if output is None or output is not sys.stdout:
        return
    raw = _Descriptor(output.fileno(), "wb", closefd=False)
    codecs.register_error(ESCAPED, _escaped)
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(cast(io.RawIOBase, raw)),
        encoding=output.encoding,
        # A path may have bytes that are not UTF-8, a name characters that the locale lacks. A report of work that was
        # done must not fail because of them, and a list must not end there.
        errors=ESCAPED if output.errors in ("strict", "surrogateescape") else output.errors,
        line_buffering=output.line_buffering,
        write_through=output.write_through,
    )


async def write_output(data: bytes) -> None:
    """Write *data* to standard output, past its buffer, without blocking the event loop.

    A daemon thread writes. The process does not wait for it at the end, so Ctrl-C works while nobody reads.
    """
    from asyncio import get_running_loop

    loop = get_running_loop()
    written: asyncio.Future[None] = loop.create_future()

    def settle(error: OSError | None) -> None:
        if not written.done():
            written.set_result(None) if error is None else written.set_exception(error)

    def write() -> None:
        # Not through the buffer: its lock must be free when the process ends.
        output, error, rest = getattr(sys.stdout.buffer, "raw", sys.stdout.buffer), None, memoryview(data)
        try:
            while rest:
                rest = rest[output.write(rest) :]
        except OSError as failure:
            error = failure
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(settle, error)

    threading.Thread(target=write, daemon=True, name="standard output").start()
    await written


def drop_output() -> None:
    """Send what is still to be written nowhere: Python would report an error once more when it ends, or wait."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def drop_unwritten_errors() -> None:
    """Drop what standard error did not take: Python would try again when it ends, and change the exit code to 120."""
    try:
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def as_utf_8(stream: TextIO) -> None:
    """Let *stream* carry UTF-8, as dumps are, whatever the locale says; other bytes make their line invalid."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(encoding="utf-8", errors="surrogateescape")


async def read_input() -> AsyncIterator[bytes]:
    """Yield standard input in pieces, as they arrive.

    A daemon thread reads. The process does not wait for it at the end, so Ctrl-C works while no input arrives.
    """
    from asyncio import Queue, get_running_loop

    loop = get_running_loop()
    pieces: Queue[bytes | OSError] = Queue()
    ahead = threading.Semaphore(PIECES_AHEAD)

    def read() -> None:
        piece: bytes | OSError = b"?"
        while piece and not isinstance(piece, OSError):
            ahead.acquire()
            try:
                piece = os.read(0, READ_BYTES)  # not sys.stdin: its lock must be free when the process ends
            except OSError as error:
                piece = error
            try:
                loop.call_soon_threadsafe(pieces.put_nowait, piece)
            except RuntimeError:
                return  # the loop is closed: the command has ended without the rest

    threading.Thread(target=read, daemon=True, name="standard input").start()
    while piece := await pieces.get():
        ahead.release()
        if isinstance(piece, OSError):
            raise piece
        yield piece


async def read_lines() -> AsyncIterator[list[bytes]]:
    """Yield lists of the lines that have arrived. The last line needs no newline."""
    begun: list[bytes] = []  # pieces of a line, joined once: it may be longer than thousands of them
    async for piece in read_input():
        *lines, rest = piece.split(b"\n")
        if lines:
            lines[0] = b"".join((*begun, lines[0]))
            begun.clear()
            yield lines
        begun.append(rest)
    if last := b"".join(begun):
        yield [last]


async def read_text_lines() -> AsyncIterator[str]:
    """Yield the lines of standard input, which are UTF-8 whatever the locale says; other bytes become surrogates."""
    async for lines in read_lines():
        for line in lines:
            yield line.decode(errors="surrogateescape")
