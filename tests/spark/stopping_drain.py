"""A drain that stops before its steps where a campaign wants it: `python -m tests.spark.stopping_drain drain …`.

It is the command with some functions replaced: those of the driver in this process, that of a task in Spark's workers,
which import the writer from here. They call `stops.step` first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa

from mrecordlog_async.protocol.bulk_schemas import QueueTruncated, TruncateOne
from mrecordlog_async.spark import drain_call
from mrecordlog_async.spark.__main__ import main
from mrecordlog_async.spark.delta_output import DeltaOutput, DeltaWriter
from mrecordlog_async.spark.log_server import LogListing, LogServer
from mrecordlog_async.spark.output import WrittenFile
from tests.spark import stops
from tests.spark.draining import STEPS as DRIVER_STEPS

FILES = "files of a task"
COMMIT_STEPS = (
    "a file of positions",
    "the look at the files",
    "the commit",
    "the look at the commit",
    "the sync of the entry",
    "old positions",
)
TRUNCATE_STEPS = ("the release", "half of the release")
ACKNOWLEDGE_STEPS = ("an acknowledgement",)
STEPS = (FILES, *COMMIT_STEPS, *TRUNCATE_STEPS)


class StoppingWriter(DeltaWriter):
    """The writer of a task, which stops once its files are durable."""

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[WrittenFile]:
        found = super().write(batches)
        stops.step(FILES)
        return found


class StoppingOutput(DeltaOutput):
    """An output whose tasks stop."""

    @property
    def writer(self) -> DeltaWriter:
        plain = super().writer
        return StoppingWriter(plain.files, plain.layout, plain.schema, plain.mark)


_truncate = LogServer.truncate


def truncate(server: LogServer, due: Sequence[TruncateOne], listing: LogListing) -> list[QueueTruncated]:
    """Truncate as a drain does, in two requests."""
    half = (len(due) + 1) // 2
    found = list[QueueTruncated]()
    for step, part in zip(TRUNCATE_STEPS, (due[:half], due[half:]), strict=True):
        stops.step(step)
        found += _truncate(server, part, listing) if part else []
    return found


def stopping(step: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return *method*, which stops before *step*."""

    def stopped(*args: Any, **named: Any) -> Any:
        stops.step(step)
        return method(*args, **named)

    return stopped


def run() -> int:
    """Run the command with what this module replaces."""
    for step in (*COMMIT_STEPS, *ACKNOWLEDGE_STEPS):
        owner, name = DRIVER_STEPS[step]
        setattr(owner, name, stopping(step, getattr(owner, name)))
    LogServer.truncate = truncate  # type: ignore[method-assign, assignment]  # with a step before each request
    vars(drain_call)["DeltaOutput"] = StoppingOutput
    return main()


if __name__ == "__main__":
    from tests.spark import stopping_drain  # Spark's workers import its writer under this name

    sys.exit(stopping_drain.run())
