"""Streaming queries without Spark: they drive the readers in the order and through the copies that Spark uses."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle

from mrecordlog_async.spark.log_stream import LogStreamBase, StartlessLogStream
from mrecordlog_async.spark.offsets import logs_of
from mrecordlog_async.spark.options import Options
from mrecordlog_async.spark.state import QueueAt
from tests.spark.services import numbered

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit

    from mrecordlog_async.spark.log_stream import LogStream42

Row = tuple[str, str, int, bytes]
Json = dict[str, Any]

NAMES = ("server", "queue", "position", "payload")
"""The columns of a row, as tests compare them."""

open_queries: list[Any] = []
"""Queries whose readers may have open connections."""


def read_batch(reader: LogStreamBase, start: Json, end: Json) -> list[Row]:
    """Read a batch as executors do, on a pickled copy of the reader."""
    rows: list[Row] = []
    for partition in reader.partitions(through_json(start), through_json(end)):
        sent = cloudpickle.dumps((reader, partition))  # type: ignore[no-untyped-call]  # Spark's copy
        copy, part = cloudpickle.loads(sent)
        for batch in copy.read(part):
            rows += [tuple(row[name] for name in NAMES) for row in batch.to_pylist()]
    return rows


class Query:
    """Plays Spark: offsets go through JSON, readers through pickle, and the checkpoint survives the reader."""

    def __init__(self, servers: str, **options: str) -> None:
        self.options = {"servers": servers, "retries": "0", "serverWait": "0", **options}
        self.committed: Json = {}  # the end of the last batch with a commit file
        self.planned: Json | None = None  # the end of a batch that has an offset file only
        self.rows: list[Row] = []
        self.batches = 0
        self.ran = False
        self.reader = self._reader()
        open_queries.append(self)

    def _reader(self) -> LogStream42:
        from mrecordlog_async.spark.log_stream import LogStream42  # pyspark 4.0 and 4.1 have none

        return LogStream42(Options.parse(self.options))

    @property
    def positions(self) -> dict[str, dict[str, QueueAt]]:
        """The checkpoint's positions: server → queue → its id, and the next position."""
        found = sorted(logs_of(self.committed).values(), key=lambda each: each.server)
        return {each.server: dict(each.queues) for each in found}

    def restart(self) -> None:
        """Lose the reader, as a kill does; keep the checkpoint."""
        self.reader.stop()
        self.reader = self._reader()
        self.ran = False

    def step(self, limit: ReadLimit | None = None, *, commit: bool = True, die_before_commit: bool = False) -> bool:
        """Run one micro-batch in Spark's order; return False if nothing is new."""
        if self.planned is None:
            start = through_json(self.committed)
            end = self.reader.latestOffset(start, limit or self.reader.getDefaultReadLimit())
            if json.dumps(end) == json.dumps(self.committed):
                return False
            self.planned = through_json(end)
            if commit and self.ran:
                self.reader.commit(through_json(self.committed))
        rows = read_batch(self.reader, self.committed, self.planned)
        if die_before_commit:
            self.restart()
            return True
        self.rows += rows
        self.batches += 1
        self.committed, self.planned, self.ran = self.planned, None, True
        return True

    def drain(self) -> None:
        """Run as Trigger.AvailableNow does, on a new reader."""
        self.restart()
        self.reader.prepareForTriggerAvailableNow()
        for _ in range(1_000):
            if not self.step():
                return
        raise AssertionError("the query never ends")


class EarlierQuery:
    """Plays Spark 4.0 and 4.1, whose calls were recorded: without a start, with a checkpoint on the disk.

    Before anything else, a start passes the newest offset of the checkpoint to `partitions`, twice.
    """

    def __init__(self, servers: str, place: Path, **options: str) -> None:
        self.place = place
        self.options = {"servers": servers, "retries": "0", "serverWait": "0", **options}
        self.rows: list[Row] = []
        self.batches = 0
        (place / "offsets").mkdir(parents=True)
        (place / "commits").mkdir()
        (place / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
        self.reader = StartlessLogStream(Options.parse(self.options))
        open_queries.append(self)

    def restart(self) -> None:
        """Lose the reader, as a kill does, and start again."""
        self.reader.stop()
        self.reader = StartlessLogStream(Options.parse(self.options))
        if (newest := self._newest("offsets")) >= 0:
            assert self.reader.partitions(self.end(newest), self.end(newest)) == []

    def step(self, *, die_before_commit: bool = False) -> bool:
        """Run one micro-batch, or the rest of one; return False if nothing is new."""
        number = self._newest("offsets")
        if number == self._newest("commits"):
            end = self.reader.latestOffset()
            if number >= 0 and json.dumps(end) == json.dumps(self.end(number)):
                return False
            number += 1
            self.write("offsets", number, "{}", json.dumps(end))
            if number > 0:
                self.reader.commit(self.end(number - 1))
            else:
                self.reader.initialOffset()
        rows = read_batch(self.reader, self.end(number - 1), self.end(number))
        if die_before_commit:
            self.restart()
            return True
        self.rows += rows
        self.batches += 1
        self.write("commits", number, '{"nextBatchWatermarkMs":0}')
        return True

    def run_available_now(self) -> None:
        """Run as trigger(availableNow=True) does there: one batch; after a crash it is the one that was begun."""
        self.restart()
        self.step()

    def end(self, batch: int) -> Json:
        """Return where *batch* ends."""
        return through_json(json.loads(self._path("offsets", batch).read_text().split("\n")[2])) if batch >= 0 else {}

    def write(self, directory: str, batch: int, *lines: str) -> None:
        self._path(directory, batch).write_text("\n".join(("v1", *lines)))

    def _path(self, directory: str, batch: int) -> Path:
        return self.place / directory / str(batch)

    def _newest(self, directory: str) -> int:
        return max((int(path.name) for path in (self.place / directory).iterdir()), default=-1)


def through_json(offset: Json) -> Json:
    result: Json = json.loads(json.dumps(offset))
    return result


def rows_of(server: str, queue: str, start: int, stop: int) -> list[Row]:
    return [(server, queue, at, payload) for at, payload in enumerate(numbered(queue, start, stop), start)]
