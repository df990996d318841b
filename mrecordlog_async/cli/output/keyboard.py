"""Single keys from a terminal, without waiting for Enter."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ESCAPES = {b"\x1b[A": "up", b"\x1b[B": "down", b"\x1b[5~": "page up", b"\x1b[6~": "page down", b"\x1b[H": "home"}


@contextmanager
def keys(handle: Callable[[str], None]) -> Iterator[None]:
    """Call *handle* with each key that is pressed: a character, or the name of one in `ESCAPES`.

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
    loop.add_reader(descriptor, lambda: _dispatch(os.read(descriptor, 64), handle))
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
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
