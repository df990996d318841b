"""`python -m mrecordlog_async` is `mrecordlog`."""

import builtins
import signal
import sys
from collections.abc import Callable
from typing import Any


def run() -> int:
    """Run the command line. Ctrl-C ends it quietly, even while its modules are imported."""
    expected = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not in the background of a shell
    if expected and hasattr(signal, "pthread_sigmask"):  # not on Windows
        builtins.__import__ = _uninterrupted(builtins.__import__)
    try:
        from mrecordlog_async.cli.main import main

        return main()
    except KeyboardInterrupt:
        return 130  # cli.errors.INTERRUPTED, which may not be imported yet
    finally:
        if expected:  # leave the next one to the system: Python prints a traceback if it interrupts how threads end
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _uninterrupted(importing: Callable[..., Any]) -> Callable[..., Any]:
    """Return an import that Ctrl-C does not interrupt, but waits for.

    Commands import what they need when they run. Python frees the lock of each module in a callback: an interrupt
    there is printed as an ignored exception, and lost.
    """

    def whole(*args: Any, **kwargs: Any) -> Any:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return importing(*args, **kwargs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    return whole


if __name__ == "__main__":
    sys.exit(run())
