"""Other processes of this machine, for messages."""

from __future__ import annotations

import os
from pathlib import Path


def command_of(process_id: int | None) -> str:
    """Return the command line of another process of this machine; "" if it cannot be read."""
    if process_id == os.getpid():  # that number comes from another container, where it is another process
        return ""
    try:
        words = Path(f"/proc/{process_id}/cmdline").read_bytes().replace(b"\0", b" ").split()
    except OSError:
        return ""
    return b" ".join(words).decode(errors="replace")  # in one line, even `python -c` with a program of several
