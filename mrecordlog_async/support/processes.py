"""Other processes of this machine: what they run, and whether they are workers of the same server as this one."""

from __future__ import annotations

import os
from pathlib import Path

TOGETHER_SECONDS = 0.5
"""Children of one parent that started within this time are the workers of a server; a reload comes later."""


def command_of(process_id: int | None) -> str:
    """Return the command line of another process of this machine; "" if it cannot be read."""
    if process_id == os.getpid():  # that number comes from another container, where it is another process
        return ""
    try:
        words = Path(f"/proc/{process_id}/cmdline").read_bytes().replace(b"\0", b" ").split()
    except OSError:
        return ""
    return b" ".join(words).decode(errors="replace")  # in one line, even `python -c` with a program of several


def started_together(process_id: int | None) -> bool:
    """Return whether another process and this one have the same parent and group and started at the same time.

    Such processes are the workers of one server, and none of them ends for the other. False if that cannot be read.
    """
    try:
        ours, theirs = _family_and_start("self"), _family_and_start(process_id)
    except (OSError, IndexError, ValueError):
        return False
    return ours[0] == theirs[0] and abs(ours[1] - theirs[1]) <= TOGETHER_SECONDS * os.sysconf("SC_CLK_TCK")


def _family_and_start(process_id: int | str | None) -> tuple[list[bytes], int]:
    """Return a process's parent and group, and when it started, in clock ticks; see proc_pid_stat(5)."""
    stat = Path(f"/proc/{process_id}/stat").read_bytes()
    fields = stat[stat.rindex(b")") + 1 :].split()  # the name before it may contain anything
    return fields[1:3], int(fields[19])
