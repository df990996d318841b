"""Reads standard input without blocking the event loop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator

READ_BYTES = 1024 * 1024
PIECES_AHEAD = 4


async def read_input() -> AsyncIterator[bytes]:
    """Yield standard input in pieces, as they arrive.

    A daemon thread reads. The process does not wait for it at the end, so Ctrl-C works while no input arrives.
    """
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[bytes | OSError] = asyncio.Queue()
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
