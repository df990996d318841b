"""Drains in this process for the tests of the pipeline, and kills at any of their steps."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.servers.names import Endpoint
from mrecordlog_async.spark import delta_output, table_files
from mrecordlog_async.spark.consuming import ConsumerHolder, ConsumerOfDrain
from mrecordlog_async.spark.delta_output import DeltaOutput
from mrecordlog_async.spark.drain_loop import Drain
from mrecordlog_async.spark.log_server import LogServer, ReadTask
from mrecordlog_async.spark.output import RowWriter, WrittenFile
from mrecordlog_async.spark.runners import in_process, row_schema
from mrecordlog_async.spark.server_set import ServerSet
from mrecordlog_async.spark.surveying import DrainSettings
from mrecordlog_async.spark.table_files import TableFiles
from tests.spark.services import ThreadedService, numbered

Runner = Callable[[Sequence[ReadTask], RowWriter], list[WrittenFile]]


open_drains: list[Draining] = []
"""A fixture closes them after each test."""


class Draining:
    """One process of a drain: `of` starts it, and nothing of it lives on in the next one. said: what it reports."""

    def __init__(
        self,
        services: dict[str, ThreadedService],
        table: Path | str,
        *,
        name: str = "drain",
        partition_by: tuple[str, ...] | None = None,
        run: Runner = in_process,
        storage_options: dict[str, str] | None = None,
        consumer: str | None = None,
        take_over: bool = False,
        rule: str | None = "*",
        **settings: Any,
    ) -> None:
        self.said: list[str] = []
        schema = row_schema(partition_by or ())
        self.output = DeltaOutput(
            TableFiles(str(table), storage_options or {}),
            schema,
            name=name,
            partition_by=partition_by,
            accepts_restore=settings.get("allow_loss", False),
            report=self.said.append,
        )
        self.output.open()
        self.servers = [Endpoint(each.url, name=name) for name, each in services.items()]
        held = None if consumer is None else ConsumerOfDrain(consumer, self.output.owner, rule, take_over)
        self.drain = Drain(
            ServerSet(self.servers, consumer=held),
            self.output,
            run,
            DrainSettings(**settings),
            cores=2,
            report=self.said.append,
        )
        open_drains.append(self)

    def close(self) -> None:
        self.drain.close()
        self.output.close()

    def step(self) -> int:
        return self.drain.step()

    def all(self) -> int:
        """Store everything; return how many records that were."""
        total = 0
        while True:
            records = self.step()
            total += records
            if not records:
                return total


def drain_all(services: dict[str, ThreadedService], table: Path | str, **more: Any) -> int:
    """Drain in a process of its own; return how many records that were."""
    return Draining(services, table, **more).all()


def table_rows(table: Path | str, options: dict[str, str] | None = None) -> list[tuple[str, int, bytes]]:
    """Return queue, position and payload of each row, sorted."""
    found = DeltaTable(str(table), storage_options=options).to_pyarrow_table(columns=["queue", "position", "payload"])
    rows = zip(*(found.column(name).to_pylist() for name in ("queue", "position", "payload")), strict=True)
    return sorted(rows)


def expected(**queues: int) -> list[tuple[str, int, bytes]]:
    """Return the rows of queues that got `numbered` records from position 0 on."""
    return sorted((name, at, each) for name, stop in queues.items() for at, each in enumerate(numbered(name, 0, stop)))


def columns(table: Path | str, *names: str) -> list[tuple[Any, ...]]:
    """Return some columns of each row."""
    found: pa.Table = DeltaTable(str(table)).to_pyarrow_table(columns=list(names))
    return list(zip(*(found.column(name).to_pylist() for name in names), strict=True))


@contextmanager
def going_on() -> Iterator[None]:
    """Fail if a drain stops in the block, or its table cannot be read: nothing that happened before is a reason."""
    try:
        yield
    except (RecordLogError, DeltaError, OSError, pa.ArrowException) as error:
        raise AssertionError(f"it does not go on: {error}") from error


def age_entries(table: Path) -> None:
    """Make the entries of the table's log two days old, so that a clean-up deletes those that are summed up."""
    for path in (table / "_delta_log").glob("*.json"):
        os.utime(path, (time.time() - 2 * 86_400,) * 2)


class Killed(BaseException):
    """The process is killed here."""


STEPS = {
    "files of a task": (delta_output, "write_rows"),
    "one sync": (table_files, "_sync"),
    "a file of positions": (TableFiles, "write"),
    "the look at the files": (TableFiles, "missing"),
    "the commit": (DeltaTable, "create_write_transaction"),
    "the look at the commit": (DeltaOutput, "_is_committed"),
    "the sync of the entry": (DeltaOutput, "_sync_entries"),
    "old positions": (TableFiles, "remove"),
    "a checkpoint": (DeltaTable, "create_checkpoint"),
    "clean-up": (DeltaTable, "cleanup_metadata"),
    "the release": (LogServer, "truncate"),
    "an acknowledgement": (ConsumerHolder, "acknowledge"),
    "an attach": (ConsumerHolder, "attach"),
}
"""What a kill may come before or after. A release is a truncate, or what a consumer acknowledges."""


class Killer:
    """Kills the process before or after the n-th time that a step is reached."""

    def __init__(self) -> None:
        self._due: tuple[str, str] | None = None
        self._left = 0

    def arm(self, when: str, step: str, nth: int = 1) -> None:
        self._due, self._left = (when, step), nth

    def disarm(self) -> bool:
        """Return whether nothing was killed."""
        was, self._due = self._due is not None, None
        return was

    def disarmed(self) -> tuple[tuple[str, str] | None, int]:
        """Kill nothing until `rearm` gets what this returns."""
        due, self._due = (self._due, self._left), None
        return due

    def rearm(self, due: tuple[tuple[str, str] | None, int]) -> None:
        self._due, self._left = due

    def reached(self, when: str, step: str) -> None:
        if self._due == (when, step):
            self._left -= 1
            if self._left <= 0:
                self._due = None
                raise Killed(f"{when} {step}")

    @contextmanager
    def attached(self, patch: pytest.MonkeyPatch) -> Iterator[Killer]:
        with patch.context() as patched:
            for step, (owner, name) in STEPS.items():
                patched.setattr(owner, name, self._wrapped(step, getattr(owner, name)))
            yield self

    def _wrapped(self, step: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **named: Any) -> Any:
            self.reached("before", step)
            result = method(*args, **named)
            self.reached("after", step)
            return result

        return wrapped
