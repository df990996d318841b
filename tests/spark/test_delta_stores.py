"""A drain into an object store that fails: one sentence, and every batch is stored once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from pyspark.sql.types import StructType

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.spark.delta.content import TableError
from mrecordlog_async.spark.delta.entries import entry_name, entry_numbers
from mrecordlog_async.spark.delta.place import TablePlace
from mrecordlog_async.spark.delta.reasons import reason_of
from mrecordlog_async.spark.delta.sink import DeltaWriter, SinkOptions, StoredRows
from mrecordlog_async.spark.delta.table import DrainTable
from mrecordlog_async.spark.drain.command import cause_of
from tests.spark.delta_engine import COLUMNS, DeltaEngine
from tests.spark.services import ThreadedService, numbered

EXPIRED = (
    "Kernel error -> Generic S3 error\n          \x1b[31m↳\x1b[0m Error performing list request\n"
    "           \x1b[31m↳\x1b[0m Error performing GET http://h/b?list-type=2 in 41ms - Server returned non-2xx status "
    'code\n            \x1b[31m↳\x1b[0m 403 Forbidden\n             \x1b[31m↳\x1b[0m <?xml version="1.0" '
    'encoding="UTF-8"?>\n<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message>'
    "<RequestId>1</RequestId></Error>\n"
)
SAID = "ExpiredToken: The provided token has expired"


def expired(*arguments: object, **named: object) -> Any:
    raise OSError(EXPIRED)


@pytest.fixture
def engine(service: ThreadedService, tmp_path: Path) -> DeltaEngine:
    """Drain ten records, and append ten more."""
    engine = DeltaEngine(f"a={service.url}", tmp_path)
    service.append("q", numbered("q", 0, 10))
    engine.drain()
    service.append("q", numbered("q", 10, 20), 10)
    return engine


def after_the_commit(engine: DeltaEngine, action: Callable[[], None]) -> None:
    """Call *action* before the last step of each commit, until the engine's step is set again."""
    engine.step = lambda name: action() if name == "end of the commit" else None


def drained(engine: DeltaEngine, service: ThreadedService, stop: int) -> None:
    """A start stores everything once, and truncates it."""
    engine.step = lambda name: None
    engine.drain()
    assert [payload for _, _, payload in engine.rows()] == numbered("q", 0, stop)
    assert service.positions("q") == (stop, stop)


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (TablePlace, "new_file"),
        (TablePlace, "sizes"),
        (DeltaTable, "update_incremental"),
        (DeltaTable, "create_write_transaction"),
    ],
)
def test_a_store_that_refuses_is_one_sentence(
    engine: DeltaEngine, service: ThreadedService, monkeypatch: pytest.MonkeyPatch, place: type, name: str
) -> None:
    """Spark's text about the query has many lines; the user reads the whole sentence, with the store's reason."""
    with engine.started() as run, monkeypatch.context() as patch, pytest.raises(RecordLogError) as raised:
        assert run.batch()
        service.append("q", numbered("q", 20, 30), 20)
        patch.setattr(place, name, expired)
        run.batch()
    kind = type(raised.value)
    said = cause_of(f"Traceback (most recent call last):\n{kind.__module__}.{kind.__name__}: {raised.value}\n")
    assert said == str(raised.value) and SAID in said and "start again" in said
    drained(engine, service, 30)


def test_a_store_that_fails_after_the_commit_does_not_end_the_query(
    engine: DeltaEngine, service: ThreadedService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The batch is stored; only the checkpoint of the table, if it is due, waits."""
    with monkeypatch.context() as patch:
        after_the_commit(engine, lambda: patch.setattr(DeltaTable, "update_incremental", expired))
        with engine.started() as run:
            assert run.batch()
    assert "was not read after batch 2 was stored" in caplog.text and SAID in caplog.text
    drained(engine, service, 20)


def test_a_response_that_is_lost_three_times_is_looked_up(
    engine: DeltaEngine, service: ThreadedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """delta-rs takes its own entry for that of a faster writer: the batch is found, and not said to be missing."""
    commit, tries = DeltaTable.create_write_transaction, list[int]()

    def conflicting(table: DeltaTable, *arguments: Any, **named: Any) -> None:
        tries.append(1)
        if len(tries) == 3:
            commit(table, *arguments, **named)
        raise CommitFailedError("Transaction failed: version already exists")

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_write_transaction", conflicting)
        with engine.started() as run:
            assert run.batch()
    assert len(tries) == 3
    drained(engine, service, 20)


def test_an_entry_that_another_writer_replaced_is_not_believed(engine: DeltaEngine, service: ThreadedService) -> None:
    """A store that ignores conditional puts loses the batch: it runs again, and its records are still in the log."""

    def replaced() -> None:
        number = max(entry_numbers(str(engine.table_path)))
        entry = engine.table_path / "_delta_log" / entry_name(number)
        entry.write_text(json.dumps({"commitInfo": {"operation": "OPTIMIZE", "timestamp": 1}}) + "\n")

    after_the_commit(engine, replaced)
    with pytest.raises(TableError, match="another writer replaced the entry of batch"):
        engine.drain()
    assert service.positions("q") == (10, 20)
    drained(engine, service, 20)


def test_a_new_token_counts_from_the_next_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark uses a process for several queries: one that starts with new credentials does not use the old ones."""
    used = []
    monkeypatch.setattr(DrainTable, "store", lambda table, *arguments: used.append((table, table.place)))
    schema = StructType.fromJson(json.loads(COLUMNS.to_json()))
    for number, token in enumerate(("old", "old", "new")):
        place = TablePlace(str(tmp_path / "table"), {"AWS_SESSION_TOKEN": token})
        DeltaWriter(SinkOptions(place), schema).commit([StoredRows("q")], number)
    assert [place.storage_options["AWS_SESSION_TOKEN"] for _, place in used] == ["old", "old", "new"]
    assert used[0][0] is used[1][0], "the state of the table is kept"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (EXPIRED, f"Kernel error -> Generic S3 error: {SAID}"),
        ("Arrow error: GET: 503: <?xml version='1.0'?>\n<Error><Code>SlowDown</Code></Error>.", "503: SlowDown"),
        ("Generic S3 error\n ↳ HTTP error\n  ↳ connection closed", "Generic S3 error: connection closed"),
        ("one line.", "one line"),
    ],
)
def test_a_reason_has_one_line(text: str, reason: str) -> None:
    """The call stack, the addresses and the XML are left out."""
    assert reason_of(OSError(text)).endswith(reason) and "\n" not in reason_of(OSError(text))
