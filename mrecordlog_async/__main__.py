"""`python -m mrecordlog_async` is `mrecordlog`."""

import signal
import sys
from types import FrameType


def run() -> int:
    """Run the command line. Ctrl-C ends it quietly, even while its modules are imported."""
    expected = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not in the background of a shell
    if expected:
        signal.signal(signal.SIGINT, _interrupt_once)
        if hasattr(signal, "setitimer"):  # not on Windows
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            sys.unraisablehook = _interrupt_again
    try:
        from mrecordlog_async.cli.main import main

        if expected:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return main()
    except KeyboardInterrupt:
        return 130  # cli.errors.INTERRUPTED, which may not be imported yet
    finally:
        if expected:
            _end_at_once()


def _interrupt_once(number: int, frame: FrameType | None) -> None:
    _end_at_once()
    raise KeyboardInterrupt


def _interrupt_again(lost: "sys.UnraisableHookArgs", /) -> None:
    """Interrupt a little later what has lost an interrupt, as when Python frees the lock of a module it imported."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, 0.005)
    else:
        sys.__unraisablehook__(lost)


def _end_at_once() -> None:
    """Leave the next Ctrl-C to the system: Python prints a traceback if one interrupts how it ends its threads."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(run())
