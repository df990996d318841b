"""Looking after a table: larger files, old files, a lost checkpoint, and what people see of it."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, Field, QueryBuilder, TableFeatures, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.schema import PrimitiveType
from deltalake.transaction import AddAction, RemoveAction

from mrecordlog_async.cli.main import main
from mrecordlog_async.spark.delta import table as table_module
from mrecordlog_async.spark.delta import upkeep as upkeep_module
from mrecordlog_async.spark.delta.content import TableError
from mrecordlog_async.spark.delta.entries import entry_name, entry_numbers
from mrecordlog_async.spark.delta.parts import write_files
from mrecordlog_async.spark.delta.place import TablePlace
from mrecordlog_async.spark.delta.recovery import wrong_with_entry
from mrecordlog_async.spark.delta.sink import DeltaReader, schema_of
from mrecordlog_async.spark.delta.table import sum_up
from mrecordlog_async.spark.delta.upkeep import Replaced, drop_older, files_of, open_table, optimize
from mrecordlog_async.spark.delta.vacuum import vacuum
from tests.spark.delta_engine import DeltaEngine
from tests.spark.services import ThreadedService, numbered

QUEUES = ("007", "7", "ä/%= b")


@pytest.fixture
def drained(service: ThreadedService, tmp_path: Path) -> DeltaEngine:
    """Drain four batches of three queues into a table that is partitioned by queue."""
    engine = DeltaEngine(f"a={service.url}", tmp_path, partition_by=("queue",))
    for first in range(0, 40, 10):
        for queue in QUEUES:
            service.append(queue, numbered(queue, first, first + 10))
        engine.drain()
    return engine


def rows(stop: int) -> list[tuple[str, int, bytes]]:
    return sorted((queue, at, each) for queue in QUEUES for at, each in enumerate(numbered(queue, 0, stop)))


def test_small_files_are_rewritten_and_rows_stay(drained: DeltaEngine, service: ThreadedService) -> None:
    """Each partition has one file afterwards; the drain continues, and readers of the older version still can."""
    before = open_table(drained.place).version()
    assert optimize(drained.place) == Replaced(12, 3)
    assert optimize(drained.place) == Replaced()
    assert drained.rows() == rows(40) and len(files_of(open_table(drained.place))) == 3
    service.append("7", numbered("7", 40, 50))
    drained.drain()
    assert len(drained.rows()) == 130
    older = open_table(drained.place)
    older.load_as_version(before)
    assert older.to_pyarrow_table().num_rows == 120


CHANGES = (optimize, partial(drop_older, seconds=-3_600))


@pytest.mark.parametrize("change", CHANGES)
def test_a_lost_response_does_not_deny_a_change(
    drained: DeltaEngine, monkeypatch: pytest.MonkeyPatch, change: Callable[[TablePlace], Replaced]
) -> None:
    """delta-rs sends an entry again, and takes its own for that of a faster writer: the numbers say what was done."""
    commit = DeltaTable.create_write_transaction

    def unheard(table: DeltaTable, *arguments: Any, **named: Any) -> None:
        commit(table, *arguments, **named)
        raise CommitFailedError("Transaction failed: version already exists")

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_write_transaction", unheard)
        done = change(drained.place)
    assert done.removed == 12 and done.added == len(files_of(open_table(drained.place)))
    assert change(drained.place) == Replaced()


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_gets_past_a_drain_that_commits_all_the_time(
    drained: DeltaEngine,
    service: ThreadedService,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[TablePlace], Replaced],
) -> None:
    """A batch is stored before each of its first five commits: it tries again, and so does the drain after it."""
    commit, first = DeltaTable.create_write_transaction, iter(range(40, 90, 10))

    def late(table: DeltaTable, *arguments: Any, **named: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(DeltaTable, "create_write_transaction", commit)
            if (at := next(first, None)) is not None:
                service.append("7", numbered("7", at, at + 10))
                drained.drain()
        commit(table, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_write_transaction", late)
        assert change(drained.place).removed == 12
    stored = [row for row in drained.rows() if row[0] == "7"]
    assert stored[-50:] == [("7", at, each) for at, each in enumerate(numbered("7", 40, 90), 40)]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_another_writer_made_is_not_ours(
    drained: DeltaEngine, monkeypatch: pytest.MonkeyPatch, change: Callable[[TablePlace], Replaced]
) -> None:
    """Its files are no longer in the table: nothing was replaced."""
    commit = DeltaTable.create_write_transaction

    def second(table: DeltaTable, *arguments: Any, **named: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(DeltaTable, "create_write_transaction", commit)
            optimize(drained.place)
        commit(table, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_write_transaction", second)
        assert change(drained.place) == Replaced()
    assert drained.rows() == rows(40) and len(files_of(open_table(drained.place))) == 3


@pytest.mark.parametrize("change", CHANGES)
def test_a_half_written_change_is_set_aside(drained: DeltaEngine, change: Callable[[TablePlace], Replaced]) -> None:
    """An entry that ends within its actions, at the end of a line, adds files without removing what they replace."""
    log = drained.table_path / "_delta_log"
    change(drained.place)
    entry = max(log.glob("*.json"))
    for each in (*log.glob("*.checkpoint.parquet"), log / "_last_checkpoint"):
        each.unlink(missing_ok=True)
    assert wrong_with_entry(entry.read_bytes()) is None
    entry.write_bytes(b"".join(entry.read_bytes().splitlines(keepends=True)[:-2]))
    with drained.started() as run:
        assert "it lacks a part of its change" in run.said[0]
    assert drained.rows() == rows(40) and not entry.exists()


@pytest.mark.parametrize("by", ["optimize", "drop", "resume"])
def test_a_half_written_change_is_not_built_upon(drained: DeltaEngine, tmp_path: Path, by: str) -> None:
    """A commit after it would keep it in the table: a start of the drain sets only the newest entries aside."""
    assert optimize(drained.place) == Replaced(12, 3)
    log = drained.table_path / "_delta_log"
    entry = max(log.glob("*.json"))
    for each in (*log.glob("*.checkpoint.parquet"), log / "_last_checkpoint"):
        each.unlink()
    lines = entry.read_bytes().splitlines(keepends=True)
    entry.write_bytes(b"".join(line for line in lines if b'"remove"' not in line))
    if by == "optimize":
        assert optimize(drained.place) == Replaced(4, 1)
    elif by == "drop":
        assert drop_older(drained.place, 1e9) == Replaced()
    else:
        assert main(["lake", "resume", str(drained.table_path), "--checkpoint", str(tmp_path / "new")]) == 0
    assert drained.rows() == rows(40)


def test_files_that_delta_rs_cannot_remove_are_left_alone(
    drained: DeltaEngine, service: ThreadedService, caplog: pytest.LogCaptureFixture
) -> None:
    """Delta-Spark spells the paths of files differently: to rewrite such files would double their rows."""
    moved = entries_as_delta_spark(drained, "queue=ä é")
    before = drained.rows()
    assert optimize(drained.place) == Replaced(8, 2)
    assert drained.rows() == before == rows(40) and "so they stay as they are (4)" in caplog.text
    with pytest.raises(TableError, match=r"'queue=ä é/.*nothing was dropped\. Delete the old rows with the engine"):
        drop_older(drained.place, 0)
    assert drained.rows() == before and len(files_of(open_table(drained.place))) == 6
    assert {each.path for each in files_of(open_table(drained.place))} >= moved


def entries_as_delta_spark(engine: DeltaEngine, directory: str) -> set[str]:
    """Move the files of one partition to *directory*, and rewrite the entries that add them; return their paths."""
    (engine.table_path / directory).mkdir()
    moved = set()
    for entry in (engine.table_path / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in entry.read_text().splitlines()]
        for each in (action["add"] for action in actions if "add" in action):
            if each["partitionValues"]["queue"] == QUEUES[-1]:
                old = engine.table_path / unquote(each["path"])
                name = f"{directory}/{old.name}"
                old.rename(engine.table_path / name)
                each["path"] = name
                moved.add(name)
        entry.write_text("".join(json.dumps(each, ensure_ascii=False) + "\n" for each in actions))
    return moved


def test_the_paths_that_delta_rs_can_remove_are_known(drained: DeltaEngine) -> None:
    """Its encoding of each character of a path is the one that `Held.is_removable` expects."""
    names = [f"{chr(code)}.parquet" for code in [*range(1, 128), 0xA0, 0xE4, 0x20AC, 0x1F600] if chr(code) != "/"]
    table = open_table(drained.place)
    removed: list[AddAction | RemoveAction] = [RemoveAction(name, True, 1, 1, {"queue": "7"}) for name in names]
    table.create_write_transaction(removed, "append", table.schema(), ["queue"])
    entry = drained.table_path / "_delta_log" / entry_name(open_table(drained.place).version())
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    written = [each["remove"]["path"] for each in actions if "remove" in each]
    (held, *_) = files_of(open_table(drained.place))
    assert len(written) == len(names)
    for name, raw in zip(names, written, strict=True):
        assert replace(held, path=name, raw=raw).is_removable, name
        assert not replace(held, path=name, raw=f"{raw} ").is_removable


def test_a_drain_that_commits_meanwhile_keeps_both(
    drained: DeltaEngine, service: ThreadedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An optimize whose commit comes second is prepared again, and so is a batch."""
    service.append("7", numbered("7", 40, 50))

    def at_commit(name: str) -> None:
        if name == "commit":
            drained.step = lambda name: None
            optimize(drained.place)

    drained.step = at_commit
    drained.drain()
    assert len(drained.rows()) == 130 and len(files_of(open_table(drained.place))) == 4


def test_an_entry_that_is_deleted_meanwhile_does_not_come_back_empty(
    drained: DeltaEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drain may sum up the log of the table between the listing and the sync of its newest entries."""
    numbers, gone = entry_numbers, 99
    monkeypatch.setattr(upkeep_module, "entry_numbers", lambda path: [*numbers(path), gone])
    assert optimize(drained.place) == Replaced(12, 3)
    assert gone not in numbers(str(drained.table_path))


def test_a_checkpoint_of_the_table_replaces_old_entries(
    drained: DeltaEngine, service: ThreadedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the entries that it sums up, the table is the same; a torn one is removed while they are there."""
    monkeypatch.setattr(table_module, "CHECKPOINT_INTERVAL", 3)
    for first in range(40, 70, 10):
        service.append("7", numbered("7", first, first + 10))
        drained.drain()
    log = drained.table_path / "_delta_log"
    newest = max(log.glob("*.checkpoint.parquet"))
    whole = newest.read_bytes()
    newest.write_bytes(whole[:100])
    (log / "_last_checkpoint").write_bytes(b"")
    drained.drain()
    assert len(drained.rows()) == 150 and not newest.exists()
    newest.write_bytes(whole)
    for number in range(int(newest.name[:20])):
        (log / entry_name(number)).unlink()
    service.append("7", numbered("7", 70, 80))
    drained.drain()
    assert len(drained.rows()) == 160
    for each in log.glob("*.checkpoint.parquet"):
        each.write_bytes(whole[:100])
    with pytest.raises(TableError, match="restore the table"):
        drained.drain()


def test_a_table_may_keep_all_entries_of_its_log(drained: DeltaEngine) -> None:
    """Who wants to read any older version turns the cleanup off, as for every writer of Delta tables."""
    open_table(drained.place).alter.set_table_properties({"delta.enableExpiredLogCleanup": "false"})
    log = drained.table_path / "_delta_log"
    for path in log.iterdir():
        os.utime(path, (path.stat().st_mtime - 2 * 86_400,) * 2)
    sum_up(open_table(drained.place), drained.place)
    last = open_table(drained.place).version()
    assert sorted(entry_numbers(str(drained.table_path))) == [*range(last + 1)]
    assert list(log.glob("*.checkpoint.parquet")), "readers need not read all of them"


def test_a_lost_checkpoint_is_resumed(
    drained: DeltaEngine, service: ThreadedService, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A new checkpoint continues after what the table holds, even of a recreated queue; the lost one is refused."""
    service.delete("7")
    service.append("7", numbered("again", 0, 5))
    drained.drain()
    lost = tmp_path / "lost"
    shutil.move(drained.checkpoint_path, lost)
    for queue in QUEUES[::2]:
        service.append(queue, numbered(queue, 40, 50))
    where = ["--checkpoint", str(drained.checkpoint_path), "--json"]
    assert main(["lake", "resume", str(drained.table_path), *where]) == 0
    assert json.loads(capsys.readouterr().out) == {"positions": {"a": {"007": 40, "7": 5, "ä/%= b": 40}}}
    assert main(["lake", "resume", str(drained.table_path), *where]) == 2
    drained.drain()
    assert len(drained.rows()) == 145 and not any(service.records().values())
    shutil.rmtree(drained.checkpoint_path)
    shutil.move(lost, drained.checkpoint_path)
    with pytest.raises(Exception, match="written with another checkpoint"):
        drained.drain()


def test_the_command_shows_a_table(drained: DeltaEngine, capsys: pytest.CaptureFixture[str]) -> None:
    """For people and for programs; a table without parsed columns has no bad rows to print."""
    assert main(["lake", "show", str(drained.table_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["rows"], found["files"], found["partitions"]) == (120, 12, 3)
    assert main(["lake", "show", str(drained.table_path)]) == 0
    assert "120 rows in 12 files" in capsys.readouterr().out
    assert main(["lake", "show", str(drained.table_path), "--bad"]) == 1
    assert main(["lake", "show", str(drained.table_path / "nowhere")]) == 1
    assert main(["lake", "optimize", str(drained.table_path)]) == 0
    assert main(["lake", "vacuum", str(drained.table_path), "--dry-run"]) == 0
    assert "12 files rewritten into 3\n0 files would be deleted" in capsys.readouterr().out


def test_rows_are_dropped_by_age_in_whole_files(
    service: ThreadedService, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files whose newest row is old enough leave the table; their space is given back by a later vacuum."""
    engine = DeltaEngine(f"a={service.url}", tmp_path)
    service.append("q", numbered("q", 0, 10))
    stored = service.log.time_of("q", 9)
    engine.drain()
    (held,) = files_of(open_table(engine.place))
    assert held.newest == stored
    assert main(["lake", "vacuum", str(engine.table_path), "--drop-older-than", "1h"]) == 0
    assert "0 files of old rows dropped" in capsys.readouterr().out and len(engine.rows()) == 10
    now = time.time()
    with monkeypatch.context() as later:
        later.setattr(time, "time", lambda: now + 7_200)
        assert main(["lake", "vacuum", str(engine.table_path), "--drop-older-than", "1h", "--dry-run"]) == 0
        said = "1 file of old rows would be dropped, 0 files would be deleted\n"
        assert capsys.readouterr().out == said and len(engine.rows()) == 10
        assert main(["lake", "vacuum", str(engine.table_path), "--drop-older-than", "1h", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"dropped": 1, "files": []}
    assert engine.rows() == []
    service.append("q", numbered("q", 10, 20))
    engine.drain()
    assert [row[1] for row in engine.rows()] == list(range(10, 20))


def test_deleted_rows_do_not_come_back(drained: DeltaEngine, service: ThreadedService) -> None:
    """With deletion vectors a file may hold deleted rows, and other files say which: neither is touched."""
    table = open_table(drained.place)
    table.alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    before = sorted(path.name for path in drained.table_path.iterdir())
    for change in (optimize, vacuum, partial(drop_older, seconds=0)):
        with pytest.raises(TableError, match="has deletion vectors, without which deleted rows would come back"):
            change(drained.place)
    with pytest.raises(TableError, match="has deletion vectors"):
        DeltaReader(drained.place, schema_of(drained.place)).partitions()
    assert sorted(path.name for path in drained.table_path.iterdir()) == before
    service.append("7", numbered("7", 40, 50))
    drained.drain()
    assert not any(service.records().values())


NOON = datetime(2026, 1, 1, 12, 0, 0, 7, UTC)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([5, -6, None], pa.int32()),
        pa.array([2**63 - 1, 0, 1]),
        pa.array([True, False, None]),
        pa.array([NOON, NOON.replace(microsecond=0), None], pa.timestamp("us", "UTC")),
        pa.array([1.5, 1e20, -0.1]),
        pa.array([Decimal("1.50"), Decimal(-2), None], pa.decimal128(5, 2)),
        pa.array([NOON.date(), None, date(1969, 1, 1)]),
        pa.array([b"ab", b"\xff", None]),
    ],
    ids=lambda column: str(column.type),
)
def test_a_partition_column_may_have_any_type(tmp_path: Path, column: pa.Array) -> None:
    """A table of another program is read, and its files are rewritten, with the values that it has."""
    place, table = TablePlace(str(tmp_path / "t")), pa.table({"position": [0, 1, 2], "by": column})
    for _ in range(2):
        write_deltalake(place.uri, table, mode="append", partition_by=["by"])

    def values() -> list[Any]:
        return sorted(open_table(place).to_pyarrow_table().column("by").to_pylist(), key=str)

    before, reader = values(), DeltaReader(place, schema_of(place))
    parts = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert sorted((each for part in parts for each in part.column("by").to_pylist()), key=str) == before
    assert optimize(place) == Replaced(6, 3)
    assert values() == before


def test_a_filter_finds_the_rows_of_rewritten_files(tmp_path: Path) -> None:
    """A table of another program wants statistics of columns that a drain does not have."""
    place, table = TablePlace(str(tmp_path / "t")), pa.table({"position": [0, 1, 2], "name": ["a", None, "b"]})
    for _ in range(2):
        write_deltalake(place.uri, table, mode="append")

    def found() -> int:
        return len(open_table(place).to_pyarrow_dataset().to_table(filter=pc.field("name") == "a"))

    assert found() == 2
    assert optimize(place) == Replaced(2, 1)
    assert found() == 2 and files_of(open_table(place))[0].rows == 6


def test_a_batch_that_took_too_long_is_not_stored(
    drained: DeltaEngine, service: ThreadedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vacuum may have removed its files. It runs again with the same records, so only its tasks can be faster."""
    service.append("7", numbered("7", 40, 50))
    with monkeypatch.context() as slow:
        slow.setattr(table_module, "FILE_SECONDS_MAX", -1)
        with pytest.raises(TableError, match=r"Start again with a higher --min-partitions, or give Spark more cores"):
            drained.drain()
    assert service.positions("7") == (40, 50)
    drained.drain()
    assert len(drained.rows()) == 130


def test_a_feature_that_delta_rs_does_not_write_is_named(drained: DeltaEngine, service: ThreadedService) -> None:
    """It is not taken for a faster writer, which would go away."""
    service.append("7", numbered("7", 40, 50))
    open_table(drained.place).alter.add_feature(TableFeatures.RowTracking, allow_protocol_versions_increase=True)
    with pytest.raises(TableError, match=r"needs what delta-rs does not write .*RowTracking"):
        drained.drain()
    with pytest.raises(TableError, match=r"needs what delta-rs does not write .*RowTracking"):
        optimize(drained.place)
    assert service.positions("7") == (40, 50)


def test_rows_of_an_append_only_table_are_not_dropped(drained: DeltaEngine) -> None:
    """The property is named, instead of a faster writer, who would go away; rewritten files delete no row."""
    open_table(drained.place).alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(TableError, match=r"is append-only \(delta\.appendOnly\)"):
        drop_older(drained.place, 0)
    assert optimize(drained.place) == Replaced(12, 3)
    assert drained.rows() == rows(40)


def test_a_period_may_be_longer_than_the_calendar(drained: DeltaEngine, capsys: pytest.CaptureFixture[str]) -> None:
    """No row and no file is that old."""
    forever = ["--drop-older-than", "1000000d", "--older-than", "99999999999999d"]
    assert main(["lake", "vacuum", str(drained.table_path), *forever]) == 0
    assert capsys.readouterr().out == "0 files of old rows dropped, 0 files deleted\n"
    assert drained.rows() == rows(40)


@pytest.mark.parametrize(
    ("action", "option", "owner"),
    [
        ("optimize", "--dry-run", "vacuum"),
        ("optimize", "--older-than=2d", "vacuum"),
        ("resume", "--drop-older-than=2d", "vacuum"),
        ("vacuum", "--target-file-bytes=1m", "optimize"),
        ("show", "--rewrite", "optimize"),
        ("vacuum", "--checkpoint=new", "resume"),
        ("vacuum", "--bad", "show"),
    ],
)
def test_an_option_of_another_action_is_refused(
    drained: DeltaEngine, capsys: pytest.CaptureFixture[str], action: str, option: str, owner: str
) -> None:
    """An optimize that is to be a dry run must not rewrite the table."""
    version = open_table(drained.place).version()
    assert main(["lake", action, str(drained.table_path), option]) == 2
    assert f"{option.partition('=')[0]} is an option of `lake {owner}`" in capsys.readouterr().err
    assert open_table(drained.place).version() == version


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("position", [1.5, float("nan")]),
        ("queue", [{"a": 1}, {"a": 2}]),
        ("server", [["a"], ["b"]]),
        ("queue", [b"a", b"\xff"]),
        ("queue_id", [Decimal("1.5"), Decimal("2.5")]),
        ("timestamp", [date(2026, 1, 1), date(2026, 1, 2)]),
    ],
)
def test_columns_of_another_program_have_any_type(tmp_path: Path, column: str, values: list[Any]) -> None:
    """Even if they have the name of a column of a drain; a filter finds their rows afterwards."""
    place = TablePlace(str(tmp_path / "table"))
    for _ in range(2):
        write_deltalake(place.uri, pa.table({column: values, "x": [1, 2]}), mode="append")
    assert optimize(place) == Replaced(2, 1)
    query = f"select * from lake where x = 2 and {column} is not null"
    found = pa.RecordBatchReader.from_stream(QueryBuilder().register("lake", open_table(place)).execute(query))
    assert found.read_all().num_rows == 2
    assert optimize(place, rewrite=True) == Replaced()


def test_an_optimize_next_to_a_wider_schema_goes_on(drained: DeltaEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drain that adds a column meanwhile adds nothing to the files that are rewritten."""

    def meanwhile(*given: Any) -> Any:
        monkeypatch.setattr(upkeep_module, "write_files", write_files)
        column = Field("customer", PrimitiveType("string"))
        open_table(drained.place).alter.add_columns(column)
        return write_files(*given)

    monkeypatch.setattr(upkeep_module, "write_files", meanwhile)
    assert optimize(drained.place) == Replaced(12, 3)
    assert drained.rows() == rows(40)


@pytest.mark.parametrize("by", ["optimize", "resume"])
def test_the_versions_of_a_table_keep_their_times(drained: DeltaEngine, tmp_path: Path, by: str) -> None:
    """Readers take the time of an entry for that of the version: a time in the past names the version that it did."""
    entries = sorted((drained.table_path / "_delta_log").glob("*.json"))
    now = time.time()
    times = [now - 86_400 * (len(entries) - number) for number in range(len(entries))]
    for entry, at in zip(entries, times, strict=True):
        os.utime(entry, (at, at))
    if by == "optimize":
        optimize(drained.place)
    else:
        assert main(["lake", "resume", str(drained.table_path), "--checkpoint", str(tmp_path / "new")]) == 0
    assert [entry.stat().st_mtime for entry in entries] == pytest.approx(times, rel=0, abs=1)
    table = open_table(drained.place)
    table.load_as_version(datetime.fromtimestamp(now - 86_400 * 1.5, UTC))
    assert table.version() == len(entries) - 2


def test_what_delta_rs_does_not_support_is_one_sentence(
    drained: DeltaEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither a feature that its writer lacks nor a store that is down ends in a call stack."""
    table = open_table(drained.place)
    table.alter.add_feature(TableFeatures.RowTracking, allow_protocol_versions_increase=True)
    store = ("AWS_ENDPOINT_URL=http://127.0.0.1:1", "AWS_ALLOW_HTTP=true", "AWS_REGION=x", "max_retries=0")
    secrets = ("AWS_ACCESS_KEY_ID=a", "AWS_SECRET_ACCESS_KEY=b")
    down = [part for each in (*store, *secrets) for part in ("--storage-option", each)]
    for line, said in (
        (["resume", str(drained.table_path), "--checkpoint", str(tmp_path / "new")], "RowTracking"),
        (["show", "s3://nowhere/table", *down], "Connection refused"),
    ):
        assert main(["lake", *line]) == 1
        (sentence,) = capsys.readouterr().err.splitlines()
        assert sentence.startswith("mrecordlog: the table at ") and said in sentence


def test_a_rewrite_that_another_program_planned_before_is_reported(
    drained: DeltaEngine,
    service: ThreadedService,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """delta-rs commits it, and every row is in the table twice: the drain names the version, and the command, too."""
    stale = open_table(drained.place)
    optimize(drained.place)
    stale.optimize.compact()
    version = open_table(drained.place).version()
    assert len(drained.rows()) == 240, "delta-rs refuses it now: the drain need not look any more"
    said = f"version {version} removes files that version {version - 1} does not have"
    for first in (40, 50):
        service.append("7", numbered("7", first, first + 10))
        drained.drain()
        assert caplog.text.count(said) == 1
    assert main(["lake", "show", str(drained.table_path)]) == 0
    assert said in capsys.readouterr().out
    with drained.started() as run:
        assert run.said == [], "the entry that names it is whole"


def deleted_and_restored(place: TablePlace) -> None:
    before = open_table(place).version()
    open_table(place).delete("position = 5")
    open_table(place).restore(before)


def test_what_other_writers_may_do_is_not_reported(
    drained: DeltaEngine, service: ThreadedService, caplog: pytest.LogCaptureFixture
) -> None:
    """They delete and update rows, rewrite files, restore, and delete entries of the log."""
    changes: tuple[Callable[[], object], ...] = (
        lambda: open_table(drained.place).delete("position = 3"),
        lambda: open_table(drained.place).update({"payload": "payload"}, predicate="position = 4"),
        lambda: optimize(drained.place),
        lambda: open_table(drained.place).optimize.compact(),
        lambda: open_table(drained.place).optimize.z_order(["position"]),
        lambda: deleted_and_restored(drained.place),
        lambda: sum_up(open_table(drained.place), drained.place),
        lambda: open_table(drained.place).delete("queue = '7'"),
    )
    for number, change in enumerate(changes):
        change()
        service.append("7", numbered("7", 40 + 10 * number, 50 + 10 * number))
        drained.drain()
    assert "removes files that" not in caplog.text
