"""A table in an object store: a real S3 server in its own process, and no disk to sync."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

from mrecordlog_async.spark.checkpoints.identity import RefusedError
from mrecordlog_async.spark.delta import vacuum as vacuum_module
from mrecordlog_async.spark.delta.content import ForeignBatchError, QueueRows
from mrecordlog_async.spark.delta.entries import entry_name
from mrecordlog_async.spark.delta.place import TablePlace
from mrecordlog_async.spark.delta.table import DrainTable, NewBatch
from mrecordlog_async.spark.delta.upkeep import Replaced, files_of, open_table, optimize
from mrecordlog_async.spark.delta.vacuum import vacuum
from tests.deep.spark.s3 import s3_server
from tests.spark.delta_engine import COLUMNS, STEPS, DeltaEngine
from tests.spark.services import ThreadedService, numbered

AT_COMMIT = STEPS[STEPS.index("commit") : STEPS.index("commits") + 1]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Start an S3 server with one bucket; yield what delta-rs needs to reach it."""
    with s3_server(tmp_path_factory.mktemp("s3")) as options:
        yield options


def test_a_kill_around_the_commit_changes_nothing(
    store: dict[str, str], service: ThreadedService, tmp_path: Path
) -> None:
    """Killed before each step of the commit, the drain continues; optimize and vacuum work there too."""
    place = TablePlace("s3://lake/a b/events", store)
    engine = DeltaEngine(f"a={service.url}", tmp_path, table=place, partition_by=("queue",))

    for number, step in enumerate(AT_COMMIT):
        if number == 1:
            engine.drain()  # the queues are enrolled: the batches from now on have rows
        for queue in ("007", "7"):
            service.append(queue, numbered(queue, 10 * number, 10 * (number + 1)))
        assert engine.kill_at(step)
    engine.drain()
    stop = 10 * len(AT_COMMIT)
    expected = sorted((queue, at, each) for queue in ("007", "7") for at, each in enumerate(numbered(queue, 0, stop)))
    assert engine.rows() == expected and not any(service.records().values())
    files = len(files_of(open_table(place)))
    assert files > 2 and optimize(place) == Replaced(files, 2)
    assert vacuum(place) == []
    assert engine.rows() == expected


def test_of_two_commits_at_the_same_moment_one_is_refused(store: dict[str, str], tmp_path: Path) -> None:
    """A conditional put decides; the other one sees the table again, and what it holds there."""
    place = TablePlace("s3://lake/raced", store)
    engine = DeltaEngine("a=http://127.0.0.1:1", tmp_path, table=place)
    with engine.started():
        pass

    def second(name: str) -> None:
        if name == "commit":
            DrainTable(place).store(NewBatch("q", 0, [], []), COLUMNS, ())

    content = [QueueRows("a", "q", 1, 1, 0, 0, 0)]
    with pytest.raises(ForeignBatchError, match="already has a batch 0"):
        DrainTable(place, step=second).store(NewBatch("q", 0, content, []), COLUMNS, ())
    assert open_table(place).transaction_version("q") == 0


def test_a_restored_table_is_refused(store: dict[str, str], service: ThreadedService, tmp_path: Path) -> None:
    """Its log is read from the store as far back as needed: here, past many entries of another writer."""
    place = TablePlace("s3://lake/restored", store)
    engine = DeltaEngine(f"a={service.url}", tmp_path, table=place)
    for first in (0, 10):
        service.append("q", numbered("q", first, first + 10))
        engine.drain()
    table = open_table(place)
    stored = table.version()
    table.restore(stored - 1)
    for number in range(20):
        table.alter.set_table_description(str(number))
    with pytest.raises(RefusedError, match="was restored to a version without batch"):
        engine.drain()
    table.restore(stored)
    service.append("q", numbered("q", 20, 30))
    engine.drain()
    assert len(engine.rows()) == 30 and not any(service.records().values())


def test_a_restore_is_judged_by_the_numbers_of_the_entries(
    store: dict[str, str], service: ThreadedService, tmp_path: Path
) -> None:
    """An entry of another writer without commit information counts as a version, though no history shows it."""
    place = TablePlace("s3://lake/numbered", store)
    engine = DeltaEngine(f"a={service.url}", tmp_path, table=place)
    for first in (0, 10):
        service.append("q", numbered("q", first, first + 10))
        engine.drain()
    stored = open_table(place).version()
    entry = json.dumps({"txn": {"appId": "of another program", "version": 7}})
    url = f"{store['AWS_ENDPOINT_URL']}/lake/numbered/_delta_log/{entry_name(stored + 1)}"
    urlopen(Request(url, entry.encode(), method="PUT")).close()
    open_table(place).restore(stored - 1)
    with pytest.raises(RefusedError, match="was restored to a version without batch"):
        engine.drain()
    open_table(place).restore(stored)
    service.append("q", numbered("q", 20, 30))
    engine.drain()
    assert len(engine.rows()) == 30 and not any(service.records().values())


def test_a_vacuum_deletes_only_what_writers_of_the_table_made(
    store: dict[str, str], service: ThreadedService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other objects below its address stay, another table with its files too; a table is not created among them."""
    url, place = store["AWS_ENDPOINT_URL"], TablePlace("s3://lake/swept", store)
    engine = DeltaEngine(f"a={service.url}", tmp_path, table=place, partition_by=("queue",))
    service.append("ä/%= b", numbered("ä", 0, 10))
    engine.drain()
    rows, version = engine.rows(), open_table(place).version()
    named = f"part-{uuid.uuid4()}.parquet"
    others = ["main.py", "sales.parquet", f"other/{named}", f"queue=7/inner/{named}"]
    tables = ["queue=8", "queue=%C3%A4%2F8"]
    others += [f"{table}/{named}" for table in tables]
    own = [named, f"queue=7/{named}", f"queue=%C3%A4%2F%25%3D%20b/{named}"]
    for name in (*others, *own, *(f"{table}/_delta_log/{entry_name(0)}" for table in tables)):
        urlopen(Request(f"{url}/lake/swept/{quote(name)}", b"x", method="PUT")).close()
    listed = vacuum_module._unnamed
    monkeypatch.setattr(vacuum_module, "_unnamed", lambda table, seconds, orphans: listed(table, 0, orphans=orphans))
    assert vacuum(place) == sorted(own)
    assert vacuum(place) == []
    kept = [name for name in others if place.read(name) is not None]
    assert kept == others and engine.rows() == rows and open_table(place).version() == version
    (tmp_path / "second").mkdir()
    inside = DeltaEngine(f"a={service.url}", tmp_path / "second", table=TablePlace("s3://lake/swept/queue=7", store))
    with pytest.raises(RefusedError, match="holds 'inner' and no table"):
        inside.drain()
