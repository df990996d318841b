"""Spark's part of a drain without Spark: offsets, Parquet, manifest and commits are written as Spark writes them.

Stopping after a step leaves what a kill leaves; emptying files leaves what a power failure leaves.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from mrecordlog_async.spark import refusal
from mrecordlog_async.spark.batches import COMMITS, MANIFEST, OFFSETS, Batches, newest
from mrecordlog_async.spark.drain_steps import reread
from mrecordlog_async.spark.fleet import Fleet
from mrecordlog_async.spark.identity import claim
from mrecordlog_async.spark.local_lake import LocalLake
from mrecordlog_async.spark.offsets import DataLossError, HeldBackError
from mrecordlog_async.spark.options import Options
from mrecordlog_async.spark.release import Release
from mrecordlog_async.spark.stream import LogStreamReader
from mrecordlog_async.spark.truncation import LogWentBackError
from tests.spark.services import ThreadedService, numbered

COMPACT_INTERVAL = 10


class Engine:
    """A drain into *place* from *servers*, without Java."""

    def __init__(self, servers: str, place: Path, *, output: Path | None = None, **options: str) -> None:
        self.given = {"servers": servers, "retries": "0", "readAgain": "{}", **options}
        self.options = Options.parse(self.given)
        self.checkpoint_path, self.output_path = place / "checkpoint", output or place / "out"

    @contextmanager
    def started(self, *, truncate: bool = True, adopt: bool = False, accept: Collection[str] = ()) -> Iterator[Run]:
        """Do what a start of the drain does, without its locks; close everything at the end.

        accept: the flags of losses that the user accepts.
        """
        checkpoint, output = LocalLake(str(self.checkpoint_path)), LocalLake(str(self.output_path))
        fleet, reader = Fleet(self.options), LogStreamReader(self.options)
        try:
            claim(checkpoint, output, adopt=adopt)
            batches = Batches(checkpoint, output)
            release = Release(batches, fleet, truncate=truncate)
            found = release.recover(adopt=adopt)
            again = refusal.check(checkpoint, set(accept), batches.end(newest(checkpoint, OFFSETS)) or {})
            release.accept(again | reread(set(accept), fleet, batches))
            given = {"readAgain": json.dumps(again), "acceptWentBack": str(refusal.WENT_BACK in accept)}
            reader = LogStreamReader(Options.parse(self.given | given))
            release.refuse_older_logs()
            release.advance()
            yield Run(self, reader, release, found)
        except (DataLossError, LogWentBackError) as error:
            if not isinstance(error, HeldBackError):
                refusal.remember(checkpoint, str(error))
            raise
        finally:
            reader.stop()
            fleet.close()
            checkpoint.close()
            output.close()

    def drain(self, *, accept: Collection[str] = ()) -> int:
        """Start, run until nothing is new, release; return the number of proven rows."""
        with self.started(accept=accept) as run:
            while run.batch():
                run.release.advance()
            return run.release.rows

    def rows(self) -> list[tuple[str, str, int, bytes]]:
        """Read the rows of all files that the manifest names: server, queue, position, payload."""
        names = ["server", "queue", "position", "payload"]
        output = LocalLake(str(self.output_path))
        files = Batches(output, output).files_up_to(newest(output, MANIFEST))
        output.close()
        assert files is not None
        tables = [pq.read_table(unquote(urlsplit(each.uri).path), columns=names) for each in files]
        return sorted(tuple(row.values()) for table in tables for row in table.to_pylist())

    def empty(self, *names: str) -> None:
        """Empty files, as a power failure may; *names* such as `out/_spark_metadata/3`."""
        for name in names:
            top, _, rest = name.partition("/")
            ({"out": self.output_path, "checkpoint": self.checkpoint_path}[top] / rest).write_bytes(b"")

    def parquet(self) -> list[str]:
        """Return the data files, oldest first."""
        return [f"out/{path.name}" for path in sorted(self.output_path.glob("*.parquet"))]


class Run:
    """One start of an engine."""

    def __init__(self, engine: Engine, reader: LogStreamReader, release: Release, found: str | None) -> None:
        self.reader, self.release, self.found = reader, release, found
        self._output, self._checkpoint = engine.output_path, engine.checkpoint_path
        lake = LocalLake(str(self._checkpoint))
        self._planned, self._committed = newest(lake, OFFSETS), newest(lake, COMMITS)
        lake.close()

    def batch(self, *, until: str = "commit") -> bool:
        """Run a batch, or the rest of one, as Spark does; return False if nothing is new.

        until: the last step: offset, manifest or commit.
        """
        number = self._planned
        if self._planned == self._committed:
            start = self._end(self._planned)
            end = self.reader.latestOffset(json.loads(json.dumps(start)), self.reader.getDefaultReadLimit())
            if json.dumps(end) == json.dumps(start):
                return False
            number = self._planned = self._planned + 1
            _write(self._checkpoint / OFFSETS / str(number), "{}", json.dumps(end))
        if until == "offset":
            return True
        self.sink(number, self._rows(number))
        if until == "manifest":
            return True
        _write(self._checkpoint / COMMITS / str(number), '{"nextBatchWatermarkMs":0}')
        self._committed = number
        return True

    def sink(self, number: int, rows: pa.Table) -> None:
        """Write a batch; as Spark does, skip it if the manifest has an entry with its number."""
        manifest = self._output / MANIFEST
        known = [int(path.name.removesuffix(".compact")) for path in manifest.glob("[0-9]*")]
        if number <= max(known, default=-1):
            return
        path = self._output / f"part-{number:05}-of a run.parquet"
        pq.write_table(rows, path)
        entry = {"path": f"file://{quote(str(path))}", "size": path.stat().st_size, "action": "add"}
        lines, name = [json.dumps(entry)], str(number)
        if (number + 1) % COMPACT_INTERVAL == 0:
            name += ".compact"
            before = sorted(path for path in manifest.glob("[0-9]*") if path.stem.isdigit())
            last = max((each for each in before if each.suffix), key=lambda each: int(each.stem), default=None)
            newer = [each for each in before if not each.suffix and (last is None or int(each.name) > int(last.stem))]
            older = [*([last] if last else []), *sorted(newer, key=lambda each: int(each.name))]
            lines = [line for each in older for line in each.read_text().splitlines()[1:]] + lines
        _write(manifest / name, *lines)

    def _rows(self, number: int) -> pa.Table:
        start, end = self._end(number - 1), self._end(number)
        batches = [batch for part in self.reader.partitions(start, end) for batch in self.reader.read(part)]
        schema = pa.schema(
            [("server", pa.string()), ("queue", pa.string()), ("position", pa.int64()), ("payload", pa.binary())]
        )
        return pa.Table.from_batches(batches).select(schema.names) if batches else schema.empty_table()

    def _end(self, number: int) -> dict[str, Any]:
        if number < 0:
            return {}
        found: dict[str, Any] = json.loads((self._checkpoint / OFFSETS / str(number)).read_text().split("\n")[2])
        return found


def _write(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(("v1", *lines)))


def expected(stop: int) -> list[tuple[str, str, int, bytes]]:
    """Return the rows of an output that has the first *stop* records of queue q."""
    return [("a", "q", at, payload) for at, payload in enumerate(numbered("q", 0, stop))]


def go_back_after_a_batch(engine: Engine, service: ThreadedService, copy: Path) -> list[bytes]:
    """Commit a batch without releasing it, put other records at its last positions, and return those."""
    service.keep_copy(copy)
    service.append("q", numbered("q", 150, 180))
    with engine.started() as run:
        assert run.batch()
    service.go_back(copy)
    new = [f"new:{position}".encode() for position in range(150, 200)]
    service.append("q", new)
    return new
