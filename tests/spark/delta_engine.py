"""Spark's part of a drain into a Delta table without Spark: offsets, tasks, the commit and commits/N, in Spark's order.

Stopping at a step leaves what a kill leaves there; `medium` decides what a power cut leaves of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable, Schema

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.protocol.calls import ServiceCall
from mrecordlog_async.spark.checkpoints.batches import COMMITS, OFFSETS, newest
from mrecordlog_async.spark.checkpoints.identity import query_of
from mrecordlog_async.spark.checkpoints.local_lake import LocalLake
from mrecordlog_async.spark.delta.confirm import confirm
from mrecordlog_async.spark.delta.content import merged
from mrecordlog_async.spark.delta.parts import Layout, write_parts
from mrecordlog_async.spark.delta.place import TablePlace
from mrecordlog_async.spark.delta.sink import arrow_schema
from mrecordlog_async.spark.delta.start import prepare, repair
from mrecordlog_async.spark.delta.table import DrainTable, NewBatch
from mrecordlog_async.spark.rows.blocks import READ_SCHEMA
from mrecordlog_async.spark.settings.options import Options

if TYPE_CHECKING:
    from mrecordlog_async.spark.source.stream import LogStreamReader

COLUMNS = Schema.from_arrow(READ_SCHEMA)
TASKS = 2

STEPS = (
    "offsets",
    "files of a task",
    "files",
    "sync of the checkpoint",
    "commit",
    "sync of the entry",
    "end of the commit",
    "commits",
    "truncate",
    "half of the truncate",
)
"""Where a kill may happen: before offsets/N, after the first task's files, …, in the middle of a truncate.

A drain that is a consumer acknowledges instead of truncating.
"""

RELEASE = {"/v1/truncate": "queues", "/v1/acknowledge": "consumers"}
"""The requests that release records from the log, and the member that lists the queues."""


class Killed(BaseException):
    """The process is killed here."""


@contextmanager
def continuing() -> Iterator[None]:
    """Raise AssertionError if a drain that must continue refuses to."""
    try:
        yield
    except RecordLogError as error:
        raise AssertionError(f"the drain does not continue: {error}") from error


class DeltaEngine:
    """A drain from *servers* into a table below *place*. step: called with the name of each step before it.

    As a consumer it acknowledges instead of truncating; its owner is the query.
    """

    def __init__(
        self,
        servers: str,
        place: Path,
        *,
        partition_by: tuple[str, ...] = (),
        table: TablePlace | None = None,
        consumer: str | None = None,
        **options: str,
    ) -> None:
        self.checkpoint_path, self.table_path = place / "checkpoint", place / "table"
        synced = json.dumps([str(self.checkpoint_path)])
        own = {"truncate": "true"} if consumer is None else {"consumer": consumer}
        self.given = {"servers": servers, "retries": "0", "readAgain": "{}", "syncDirs": synced, **own, **options}
        self.place = table or TablePlace(str(self.table_path))
        self.layout = Layout(partition_by)
        self.step: Callable[[str], None] = lambda name: None

    @contextmanager
    def started(self) -> Iterator[DeltaRun]:
        """Do what a start of the drain does, without its locks."""
        from mrecordlog_async.spark.source.stream import LogStreamReader  # pyspark 4.0 and 4.1 have none

        checkpoint = LocalLake(str(self.checkpoint_path))
        query = query_of(checkpoint)
        owner = {"consumerOwner": query} if "consumer" in self.given else {}
        reader = LogStreamReader(self.source_options(owner))
        try:
            said = repair(checkpoint, self.place)
            said += prepare(checkpoint, self.place, COLUMNS, self.layout.partition_by, query)
            said += confirm(checkpoint, self.place, query, self.source_options())
            yield DeltaRun(self, reader, query, checkpoint, said)
        finally:
            reader.stop()
            checkpoint.close()

    def source_options(self, more: Mapping[str, str] | None = None) -> Options:
        """Return the options of the data source."""
        return Options.parse({**self.given, **(more or {})})

    def drain(self) -> int:
        """Run until nothing is new; return the number of batches."""
        with self.started() as run:
            while run.batch():
                pass
            return run.batches

    def kill_at(self, step: str, nth: int = 1) -> bool:
        """Drain, and die before the *nth* step of this name; return False if there is none."""
        left = nth

        def stepped(name: str) -> None:
            nonlocal left
            left -= name == step
            if left == 0 and name == step:
                raise Killed

        self.step = stepped
        try:
            with continuing():
                self.drain()
        except Killed:
            return True
        finally:
            self.step = lambda name: None
        return False

    def rows(self) -> list[tuple[str, int, bytes]]:
        """Return (queue, position, payload) of the table's rows."""
        options = dict(self.place.storage_options)
        table = DeltaTable(self.place.uri, storage_options=options)
        rows = table.to_pyarrow_table(columns=["queue", "position", "payload"])
        return sorted(tuple(row.values()) for row in rows.to_pylist())


def part_of(call: ServiceCall[Any], request: dict[str, Any], member: str, items: list[Any]) -> ServiceCall[Any]:
    return call._replace(body=json.dumps({**request, member: items}).encode())


class DeltaRun:
    """One start of an engine."""

    def __init__(
        self, engine: DeltaEngine, reader: LogStreamReader, query: str, checkpoint: LocalLake, said: list[str]
    ) -> None:
        self.said, self.batches = said, 0
        self._engine, self._reader, self._query = engine, reader, query
        self._table = DrainTable(engine.place, step=engine.step)
        self._planned, self._committed = newest(checkpoint, OFFSETS), newest(checkpoint, COMMITS)
        client, step = reader._fleet.client(engine.source_options().servers[0].name), engine.step
        send = client.send

        def stepped(call: ServiceCall[Any], log: str = "") -> Any:
            if call.path not in RELEASE:
                return send(call, log)
            request, member = json.loads(call.body or b""), RELEASE[call.path]
            items, half = request[member], (len(request[member]) + 1) // 2
            step("truncate")
            done = send(part_of(call, request, member, items[:half]), log)
            step("half of the truncate")
            rest = send(part_of(call, request, member, items[half:]), log) if items[half:] else ()
            return [*done, *rest]

        client.send = stepped  # type: ignore[method-assign]  # a kill in the middle

    def batch(self) -> bool:
        """Run a batch, or the rest of one, as Spark does; return False if nothing is new."""
        engine, number, before = self._engine, self._planned, self._end(self._committed)
        if self._planned == self._committed:
            end = self._reader.latestOffset(json.loads(json.dumps(before)), self._reader.getDefaultReadLimit())
            if json.dumps(end) == json.dumps(before):
                return False
            engine.step("offsets")
            number = self._planned = self._planned + 1
            _write(engine.checkpoint_path / OFFSETS / str(number), "{}", json.dumps(end))
            self._reader.commit(before)  # of batch N - 1, as Spark does
        self.sink(number)
        engine.step("commits")
        _write(engine.checkpoint_path / COMMITS / str(number), '{"nextBatchWatermarkMs":0}')
        self._committed = number
        self.batches += 1
        return True

    def sink(self, number: int) -> None:
        """Run the tasks of a batch and commit what they wrote."""
        engine = self._engine
        partitions = self._reader.partitions(self._end(number - 1), self._end(number))
        files, content = [], []
        for part in partitions:
            written, held = write_parts(engine.place, engine.layout, arrow_schema(COLUMNS), self._reader.read(part))
            files += written
            content += held
            engine.step("files of a task")
        engine.step("files")
        checkpoint = LocalLake(str(engine.checkpoint_path))
        try:
            batch = NewBatch(self._query, number, merged(content), files)
            self._table.store(batch, COLUMNS, engine.layout.partition_by, checkpoint.sync)
        finally:
            checkpoint.close()

    def _end(self, number: int) -> dict[str, Any]:
        if number < 0:
            return {}
        text = (self._engine.checkpoint_path / OFFSETS / str(number)).read_text()
        found: dict[str, Any] = json.loads(text.split("\n")[2])
        return found


def _write(path: Path, *lines: str) -> None:
    """Write a file as Hadoop does: next to it, then renamed; never synced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text("\n".join(("v1", *lines)))
    temporary.rename(path)
