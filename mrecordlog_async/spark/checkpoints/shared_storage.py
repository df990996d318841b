"""Proof, task by task, that a local path is one directory on every machine.

`--shared-paths` only claims it. On a machine without the mount, tasks would write into a local directory, the driver
would commit files that it cannot see, and the log would then be truncated. So the driver leaves a file with a random
name in the output, and a task reads nothing before it has seen that file. Without the mount the task fails and runs
again elsewhere, or the query fails and nothing is lost. This costs a task one stat.
"""

from __future__ import annotations

import os
import platform
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mrecordlog_async.errors import RecordLogError

PREFIX = ".mrecordlog-shared-"
"""Spark ignores files whose names begin with a dot."""


class NotSharedError(RecordLogError):
    """The directory that all machines should share is a different one on this machine, or missing; nothing was read."""


@contextmanager
def marked(directory: str) -> Iterator[str]:
    """Keep a file with a new random name in *directory*; yield its path."""
    for left_over in Path(directory).glob(f"{PREFIX}*"):  # from a run that was killed
        left_over.unlink()
    marker = Path(directory, PREFIX + secrets.token_hex(8))
    marker.touch()
    try:
        yield str(marker)
    finally:
        marker.unlink(missing_ok=True)


def check_marker(marker: str) -> None:
    """Raise NotSharedError if this machine does not see *marker*."""
    if not os.path.exists(marker):
        directory = os.path.dirname(marker)
        raise NotSharedError(
            f"{directory} on {platform.node()} is not the directory that the driver sees: mount it on every machine, "
            "or use storage that all machines share (hdfs://, s3a://, …)"
        )
