"""Single keys from a terminal, without waiting for Enter."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

ESCAPES = {b"\x1b[A": "up", b"\x1b[B": "down", b"\x1b[5~": "page up", b"\x1b[6~": "page down", b"\x1b[H": "home"}
GONE = "gone"
"""The last key, of a terminal that is gone."""


@contextmanager
def keys(handle: Callable[[str], None]) -> Iterator[None]:
    """Call *handle* with each key that is pressed: a character, or the name of one in `ESCAPES`.

    The last one is `GONE` where the terminal goes while it is read.
    Nothing is read if standard input is not a terminal. The terminal is as before afterwards.
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
        except OSError:  # the terminal of another session was hung up
            pressed = b""
        _dispatch(pressed, handle)
        if not pressed:
            loop.remove_reader(descriptor)  # it would be ready for ever
            handle(GONE)

    loop.add_reader(descriptor, read)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        with suppress(termios.error):  # it is gone
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
