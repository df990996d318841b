"""Tells errors of a connection from those that a signal handler raises: it may raise TimeoutError, too."""

from __future__ import annotations

import signal


def has_failed(error: BaseException) -> bool:
    """Return whether *error* comes from what was called, not from a signal handler.

    The handler runs inside the call that it interrupts, so the traceback has its code.
    """
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()}
    place = error.__traceback__
    while place is not None:
        if place.tb_frame.f_code in handlers:
            return False
        place = place.tb_next
    return True


def _code_of(handler: object) -> object:
    function = getattr(handler, "func", handler)  # of a partial
    return getattr(getattr(function, "__func__", function), "__code__", None) or getattr(
        type(function).__call__, "__code__", 0
    )
