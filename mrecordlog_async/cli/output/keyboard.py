"""Single keys from a terminal, without waiting for Enter."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

ESCAPES = {b"\x1b[A": "up", b"\x1b[B": "down", b"\x1b[5~": "page up", b"\x1b[6~": "page down", b"\x1b[H": "home"}
GONE = "gone"
"""Reported as the last key when the terminal was closed."""


@contextmanager
def keys(handle: Callable[[str], None]) -> Iterator[None]:
    """Call *handle* with each key that is pressed: a character, or the name of one in `ESCAPES`.

    If the terminal is closed meanwhile, the last one is `GONE`. Nothing is read if standard input is not a terminal.
    The terminal is as before afterwards.
    """
    if sys.stdin is None or not sys.stdin.isatty():  # None: it was closed when the process began
        yield
        return
    import termios
    import tty

    descriptor, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)  # Ctrl-C still interrupts

    def read() -> None:
        try:
            pressed = os.read(descriptor, 64)
        except OSError:  # hung up, which the terminal of another session reports so
            pressed = b""
        _dispatch(pressed, handle)
        if not pressed:
            loop.remove_reader(descriptor)  # a closed terminal is always ready to be read
            handle(GONE)

    loop.add_reader(descriptor, read)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        with suppress(termios.error):  # it was closed
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _dispatch(pressed: bytes, handle: Callable[[str], None]) -> None:
    while pressed:
        escape = next((one for one in ESCAPES if pressed.startswith(one)), None)
        if escape is not None:
            handle(ESCAPES[escape])
            pressed = pressed[len(escape) :]
        else:
            handle(chr(pressed[0]))
            pressed = pressed[1:]
