"""A server process for the length of a measurement."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Thread
from typing import IO

STOP_SECONDS = 60.0


def serve_command(directory: str) -> list[str]:
    """Return the command that serves the log in *directory* on a free port."""
    return [sys.executable, "-u", "-m", "mrecordlog_async", "serve", directory, "--port", "0"]


@contextmanager
def serving(command: Sequence[str]) -> Iterator[str]:
    """Start *command*, wait until it prints its address, and yield that; stop it afterwards with SIGTERM.

    Raises:
        RuntimeError: It did not start, or did not end with exit code 0.
    """
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        rest = Thread(target=process.stderr.read)  # a full pipe would block the server
        try:
            address = _address(process.stderr)
            rest.start()
            yield address
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(STOP_SECONDS)
            if rest.ident is not None:
                rest.join()
    if code != 0:
        raise RuntimeError(f"the server ended with exit code {code}")


def _address(output: IO[str]) -> str:
    lines = []
    for line in output:
        lines.append(line)
        if found := re.search(r"listening on (http://\S+)", line):
            return found[1]
    raise RuntimeError(f"the server did not start: {''.join(lines)}")
