"""A streaming query without Spark: it drives the stream reader in the order and through the copies that Spark uses."""

from __future__ import annotations

import json
from typing import Any

from pyspark import cloudpickle
from pyspark.sql.streaming.datasource import ReadLimit

from mrecordlog_async.spark.settings.offset import Offset, Positions
from mrecordlog_async.spark.settings.options import Options
from mrecordlog_async.spark.source.stream import LogStreamReader
from tests.spark.services import numbered

Row = tuple[str, str, int, bytes]
Json = dict[str, Any]

NAMES = ("server", "queue", "position", "payload")
"""The columns of a row, as tests compare them."""

open_queries: list[Query] = []
"""Queries whose readers may have open connections."""


class Query:
    """Plays Spark: offsets go through JSON, readers through pickle, and the checkpoint survives the reader."""

    def __init__(self, servers: str, **options: str) -> None:
        self.options = {"servers": servers, "retries": "0", "serverWait": "0", **options}
        self.committed: Json = {}  # the end of the last batch with a commit file
        self.planned: Json | None = None  # the end of a batch that has an offset file only
        self.rows: list[Row] = []
        self.batches = 0
        self.ran = False
        self.reader = LogStreamReader(Options.parse(self.options))
        open_queries.append(self)

    @property
    def positions(self) -> Positions:
        """The checkpoint's positions: server → queue → [id, position]."""
        return Offset.decode(self.committed).by_server()

    def restart(self) -> None:
        """Lose the reader, as a kill does; keep the checkpoint."""
        self.reader.stop()
        self.reader = LogStreamReader(Options.parse(self.options))
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
        rows = self.read(self.committed, self.planned)
        if die_before_commit:
            self.restart()
            return True
        self.rows += rows
        self.batches += 1
        self.committed, self.planned, self.ran = self.planned, None, True
        return True

    def read(self, start: Json, end: Json) -> list[Row]:
        """Read a batch as executors do, on a pickled copy of the reader."""
        rows: list[Row] = []
        for partition in self.reader.partitions(through_json(start), through_json(end)):
            sent = cloudpickle.dumps((self.reader, partition))  # type: ignore[no-untyped-call]  # Spark's copy
            reader, part = cloudpickle.loads(sent)
            for batch in reader.read(part):
                rows += [tuple(row[name] for name in NAMES) for row in batch.to_pylist()]
        return rows

    def drain(self) -> None:
        """Run as Trigger.AvailableNow does, on a new reader."""
        self.restart()
        self.reader.prepareForTriggerAvailableNow()
        for _ in range(1_000):
            if not self.step():
                return
        raise AssertionError("the query never ends")


def through_json(offset: Json) -> Json:
    result: Json = json.loads(json.dumps(offset))
    return result


def rows_of(server: str, queue: str, start: int, stop: int) -> list[Row]:
    return [(server, queue, at, payload) for at, payload in enumerate(numbered(queue, start, stop), start)]
