"""`processes`: which process it is, and whether it is a worker of the same server."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mrecordlog_async.support import processes
from mrecordlog_async.support.processes import command_of, started_together


@contextmanager
def sleeping(*, apart: bool = False) -> Iterator[int]:
    """Run another process, *apart* in its own group; yield its number."""
    program = "\nimport sys\nsys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, start_new_session=apart)
    try:
        yield process.pid
    finally:
        process.communicate()


def test_the_command_is_one_line() -> None:
    """Even for a program of several lines."""
    with sleeping() as process_id:
        while not (command := command_of(process_id)).endswith("sys.stdin.read()"):
            time.sleep(0.001)  # between fork and exec it is this process's
        assert command == f"{sys.executable} -c import sys sys.stdin.read()"


def test_what_cannot_be_read_is_not_guessed() -> None:
    """Nor is this process's own number, which comes from another container."""
    assert command_of(None) == command_of(2**22 + 1) == command_of(os.getpid()) == ""
    assert not started_together(None) and not started_together(2**22 + 1)


def test_children_of_one_parent_that_started_at_once_are_siblings(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the workers of a server are; one in another group of processes is not."""
    monkeypatch.setattr(processes, "TOGETHER_SECONDS", 1e6)
    with sleeping() as one, sleeping(apart=True) as other:
        assert _seen_by_a_child(one) and not _seen_by_a_child(other)


def test_a_worker_that_started_later_is_not_a_sibling(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reload comes later than the start."""
    monkeypatch.setattr(processes, "TOGETHER_SECONDS", -1)
    with sleeping() as one:
        assert not _seen_by_a_child(one)


def _seen_by_a_child(process_id: int) -> bool:
    child = os.fork()
    if not child:
        os._exit(0 if started_together(process_id) else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
