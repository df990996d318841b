"""What a command prints is written for a shell, and what a service responds for a request."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from mrecordlog_async.cli.errors import explain, sentence_of
from mrecordlog_async.errors import (
    ConsumerBehindError,
    ConsumerExistsError,
    ConsumerNotFoundError,
    ConsumerOwnedError,
    LogFullError,
    RecordLogError,
)
from mrecordlog_async.protocol.problems import problem_of

PYTHON = re.compile(r"=True|create_consumer|configure_queue")


@pytest.mark.parametrize(
    ("error", "shell", "request_"),
    [
        (ConsumerBehindError("q", "c", 0, 1), "or pass --past-consumers", "or pass past_consumers"),
        (ConsumerExistsError("q", "c"), "queue 'q' already has a consumer 'c'", "pass exist_ok=1 to use it"),
        (
            ConsumerNotFoundError("q", "c"),
            "with `mrecordlog consumers LOG`",
            "create it with PUT, or attach with create",
        ),
        (ConsumerOwnedError("q", "c", "x"), "use the name of another consumer", "or take_over if the owner is gone"),
        (LogFullError("queue", 1, 1, "q"), "its limits with `mrecordlog configure`", "raise its limits in its options"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, RecordLogError) else "",
)
def test_advice_is_for_the_one_who_reads_it(error: RecordLogError, shell: str, request_: str) -> None:
    """The errors of the log advise a Python program. Neither a shell nor HTTP has its keywords."""
    assert PYTHON.search(str(error))
    printed, detail = explain(error, {}), problem_of(error).detail
    assert printed.endswith(shell)
    assert request_ in detail
    assert not PYTHON.search(printed + detail)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
@pytest.mark.parametrize("shut", ["the file", "its directory", "a directory above"])
def test_a_missing_right_is_said_with_who_has_it(shut: str) -> None:
    """The system names the file that was asked for, even where its directory is what refuses."""
    with tempfile.TemporaryDirectory() as made:
        above, directory = Path(made), Path(made, "data", "wal")
        directory.mkdir(parents=True)
        file = directory / "CLOSED"
        file.touch()
        for path in (above, directory.parent, directory, file):
            os.chown(path, 10_001, 10_001)
        path, mode = {"the file": (file, 0o600), "its directory": (directory, 0o755)}.get(
            shut, (directory.parent, 0o700)
        )
        os.chown(path, 0, 0)
        path.chmod(mode)
        with ProcessPoolExecutor(1, get_context("fork"), os.setuid, (10_001,)) as other:
            said = other.submit(sentence_of, PermissionError(errno.EACCES, "Permission denied", str(file))).result()
    assert said == f"{file}: Permission denied ({path} belongs to user 0, mode {mode:04o}; this is user 10001)"
