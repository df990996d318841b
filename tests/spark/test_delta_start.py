"""What a drain refuses before its query starts: a table and a checkpoint that do not belong together."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, Schema, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.schema import PrimitiveType

from mrecordlog_async.cli.main import main
from mrecordlog_async.spark.checkpoints.identity import RefusedError, query_of
from mrecordlog_async.spark.checkpoints.local_lake import LocalLake
from mrecordlog_async.spark.delta.content import ForeignBatchError, TableError
from mrecordlog_async.spark.delta.entries import entry_name, entry_numbers
from mrecordlog_async.spark.delta.parts import STATED
from mrecordlog_async.spark.delta.place import TablePlace
from mrecordlog_async.spark.delta.recovery import repair_table
from mrecordlog_async.spark.delta.resume import resume
from mrecordlog_async.spark.delta.start import prepare
from mrecordlog_async.spark.delta.table import NO_HOOKS, explained
from mrecordlog_async.spark.delta.upkeep import optimize
from mrecordlog_async.spark.positions.offsets import DataLossError
from tests.spark.delta_engine import COLUMNS, DeltaEngine
from tests.spark.services import ThreadedService, numbered


@pytest.fixture
def engine(service: ThreadedService, tmp_path: Path) -> DeltaEngine:
    """Drain ten records; keep copies of table and checkpoint; drain ten more, and append ten that are not drained."""
    engine = DeltaEngine(f"a={service.url}", tmp_path, failOnDataLoss="false")
    for first in (0, 10):
        service.append("q", numbered("q", first, first + 10), first)
        engine.drain()
        for path in (engine.table_path, engine.checkpoint_path):
            shutil.copytree(path, path.with_name(f"{path.name} {first}"))
    service.append("q", numbered("q", 20, 30), 20)
    return engine


def restore(path: Path) -> None:
    """Replace a directory by its older copy."""
    shutil.rmtree(path)
    shutil.copytree(path.with_name(f"{path.name} 0"), path)


def refused(engine: DeltaEngine, service: ThreadedService, sentence: str) -> None:
    """The drain does not start, even if losses are allowed; table and log stay as they are."""
    for _ in range(2):
        with pytest.raises(RefusedError, match=sentence):
            engine.drain()
    assert service.positions("q") == (20, 30)


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_a_checkpoint_without_its_id_says_where_that_is(
    engine: DeltaEngine, service: ThreadedService, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    """The table has it, and `lake show` prints it."""
    metadata = engine.checkpoint_path / "metadata"
    query = json.loads(metadata.read_bytes())["id"]
    metadata.unlink() if damage == "missing" else metadata.write_bytes(b"{")
    refused(engine, service, f"metadata is {damage}: restore it .* `mrecordlog lake show` .*query")
    assert main(["lake", "show", engine.place.uri]) == 0
    assert f"drained by query {query}," in capsys.readouterr().out
    metadata.write_text(json.dumps({"id": query}))
    engine.drain()


def test_an_older_checkpoint_is_refused(engine: DeltaEngine, service: ThreadedService) -> None:
    """A checkpoint from a backup would make the table skip new records, and the log lose them."""
    restore(engine.checkpoint_path)
    refused(engine, service, r"the checkpoint is older than the table.*lake resume")
    assert len(engine.rows()) == 20


def test_an_older_table_is_refused(engine: DeltaEngine, service: ThreadedService) -> None:
    """A table from a backup lacks rows whose records are truncated: that is said, not covered up."""
    restore(engine.table_path)
    refused(engine, service, "the table is older than the checkpoint")


def test_a_lake_from_a_backup_lacks_what_was_drained_since(service: ThreadedService, tmp_path: Path) -> None:
    """Table and checkpoint match, but the log has truncated what was stored after the backup, of new queues too."""
    engine = DeltaEngine(f"a={service.url}", tmp_path)
    service.append("q", numbered("q", 0, 10))
    engine.drain()
    for path in (engine.table_path, engine.checkpoint_path):
        shutil.copytree(path, path.with_name(f"{path.name} 0"))
    service.append("new", numbered("new", 0, 10))
    engine.drain()
    restore(engine.table_path)
    restore(engine.checkpoint_path)
    service.append("new", numbered("new", 10, 15), 10)
    with pytest.raises(DataLossError, match="queue 'new': positions 0 to 9 were truncated before they were read"):
        engine.drain()
    assert service.positions("new") == (10, 15)


def test_a_table_restored_in_place_is_refused(engine: DeltaEngine, service: ThreadedService) -> None:
    """Delta's RESTORE keeps the transactions of the batches that it takes back, so they alone prove nothing."""
    table = DeltaTable(engine.place.uri)
    last = table.version()
    table.restore(last - 1)
    refused(engine, service, r"was restored to a version without batch .*lake resume")
    table = DeltaTable(engine.place.uri)
    table.restore(last)
    engine.drain()
    assert len(engine.rows()) == 30, "a restore of what the restore took back"


def test_an_optimize_keeps_what_shows_a_restore(engine: DeltaEngine, service: ThreadedService) -> None:
    """The entries of the log are the only trace of it, so they stay until the drain's last batch is back."""
    table = DeltaTable(engine.place.uri)
    table.restore(table.version() - 1)
    for day in ("one", "two"):
        DeltaTable(engine.place.uri).alter.set_table_properties(
            {"day": day}, raise_if_not_exists=False, post_commithook_properties=NO_HOOKS
        )
        optimize(engine.place)
        for path in (engine.table_path / "_delta_log").iterdir():
            os.utime(path, (path.stat().st_mtime - 2 * 86_400,) * 2)
    refused(engine, service, r"was restored to a version without batch .*lake resume")


def test_a_batch_that_was_restored_away_does_not_count_as_stored(engine: DeltaEngine, service: ThreadedService) -> None:
    """The last batch is in the table, its commit file is missing, and a restore takes its rows back."""
    assert engine.kill_at("commits")
    table = DeltaTable(engine.place.uri)
    table.restore(table.version() - 1)
    refused(engine, service, "was restored to a version without batch")


@pytest.mark.parametrize("by", ["version", "time"])
def test_a_table_restored_to_before_the_first_batch_is_refused(engine: DeltaEngine, by: str) -> None:
    """So it is if the restore states only a time: which batches the table has is not known then."""
    table = DeltaTable(engine.place.uri)
    created = table.history()[-1]["timestamp"]
    table.restore(0 if by == "version" else datetime.fromtimestamp(created / 1_000, UTC))
    with pytest.raises(RefusedError, match="was restored to a version without batch"):
        engine.drain()


def restored(engine: DeltaEngine) -> None:
    table = DeltaTable(engine.place.uri)
    table.restore(table.version() - 1)


def created_again(engine: DeltaEngine) -> None:
    DeltaTable.create(engine.place.uri, COLUMNS, mode="overwrite")


def resumed(engine: DeltaEngine) -> None:
    checkpoint = LocalLake(f"{engine.checkpoint_path} resumed")
    resume(engine.place, checkpoint)
    checkpoint.close()


def mapped(engine: DeltaEngine) -> None:
    """Do what Spark's ALTER TABLE does; delta-rs does not."""
    log = engine.table_path / "_delta_log"
    first = [json.loads(line) for line in (log / entry_name(0)).read_bytes().splitlines()]
    metadata = next(each["metaData"] for each in first if "metaData" in each)
    metadata["configuration"]["delta.columnMapping.mode"] = "name"
    schema = json.loads(metadata["schemaString"])
    for number, each in enumerate(schema["fields"], 1):
        each["metadata"] = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"col-{number}"}
    metadata["schemaString"] = json.dumps(schema)
    actions: list[Any] = [
        {"commitInfo": {"operation": "SET TBLPROPERTIES"}},
        {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}},
        {"metaData": metadata},
    ]
    entry = log / entry_name(DeltaTable(engine.place.uri).version() + 1)
    entry.write_text("\n".join(json.dumps(each) for each in actions))


def constrained(engine: DeltaEngine) -> None:
    DeltaTable(engine.place.uri).alter.add_constraint({"low": "position < 20"})


def not_null(engine: DeltaEngine) -> None:
    """Let a column that the drain leaves null in some rows be NOT NULL."""
    set_metadata(engine, lambda metadata, fields: fields["error"].update(nullable=False))


def with_invariant(engine: DeltaEngine) -> None:
    rule = json.dumps({"expression": {"expression": "position < 20"}})
    set_metadata(engine, lambda metadata, fields: fields["position"]["metadata"].update({"delta.invariants": rule}))


def generated(engine: DeltaEngine) -> None:
    rule = {"delta.generationExpression": "upper(queue)"}
    set_metadata(engine, lambda metadata, fields: fields["queue"]["metadata"].update(rule))


def wants_statistics(engine: DeltaEngine) -> None:
    table = DeltaTable(engine.place.uri)
    table.alter.add_columns([Field("amount", PrimitiveType("long"))])
    table.alter.set_table_properties({STATED: "position,amount"})


def set_metadata(engine: DeltaEngine, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> None:
    """Do what an ALTER TABLE of Spark does; delta-rs does not."""
    log = engine.table_path / "_delta_log"
    last = DeltaTable(engine.place.uri).version()
    lines = [line for number in range(last + 1) for line in (log / entry_name(number)).read_bytes().splitlines()]
    actions = [json.loads(line) for line in lines]
    metadata = [each["metaData"] for each in actions if "metaData" in each][-1]
    schema = json.loads(metadata["schemaString"])
    change(metadata, {each["name"]: each for each in schema["fields"]})
    metadata["schemaString"] = json.dumps(schema)
    entry: list[Any] = [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 4}}, {"metaData": metadata}]
    (log / entry_name(last + 1)).write_text("\n".join(json.dumps(each) for each in entry))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (restored, "was restored to a version without batch"),
        (created_again, "was created again by another program"),
        (resumed, "belongs to another checkpoint now"),
        (mapped, "maps the names of its columns"),
        (constrained, r"has a constraint 'low' \(position < 20\)"),
        (with_invariant, "has an invariant on the column 'position'"),
        (wants_statistics, "wants statistics of the column 'amount'"),
        (generated, r"generates the column 'queue' \(upper\(queue\)\)"),
    ],
)
def test_a_table_that_others_change_while_the_drain_runs(
    engine: DeltaEngine, service: ThreadedService, change: Callable[[DeltaEngine], None], said: str
) -> None:
    """The next batch is not stored and nothing more is truncated, even if the change comes right before its commit."""
    versions = []

    def stepped(name: str) -> None:
        if name == "sync of the checkpoint":
            change(engine)
            versions.append(DeltaTable(engine.place.uri).version())

    engine.step = stepped
    with pytest.raises((ForeignBatchError, TableError), match=said):
        engine.drain()
    assert versions == [DeltaTable(engine.place.uri).version()] and service.positions("q") == (20, 30)


@pytest.mark.parametrize("asked", [None, "position, `amount`", "amount.part"])
def test_a_table_that_wants_other_statistics_is_refused(engine: DeltaEngine, asked: str | None) -> None:
    """delta-rs takes statistics that are missing for null, and a filter by that column finds no row of the file."""
    checkpoint = LocalLake(str(engine.checkpoint_path))
    wider = Schema.from_arrow(pa.schema([*pa.schema(COLUMNS.to_arrow()), pa.field("amount", pa.int64())]))

    def begin() -> None:
        prepare(checkpoint, engine.place, wider, (), query_of(checkpoint))

    def ask(metadata: dict[str, Any], fields: dict[str, Any]) -> None:
        del metadata["configuration"][STATED]
        metadata["configuration"] |= {STATED: asked} if asked is not None else {}

    set_metadata(engine, ask)
    engine.drain()
    assert len(engine.rows()) == 30, "there is no such column yet"
    begin()  # adds the column
    with pytest.raises(TableError, match=f"wants statistics of the column 'amount'.*set {STATED} to server,queue,"):
        begin()
    DeltaTable(engine.place.uri).alter.set_table_properties({STATED: "queue, `position`"})
    begin()
    checkpoint.close()


@pytest.mark.parametrize("change", [constrained, with_invariant, generated])
def test_a_table_with_rules_that_nothing_here_checks_is_refused(
    engine: DeltaEngine, service: ThreadedService, change: Callable[[DeltaEngine], None]
) -> None:
    """delta-rs adds files to it without a look at their rows, and Delta's protocol forbids that."""
    change(engine)
    with pytest.raises(TableError, match="such rules are not checked here"):
        engine.drain()
    assert service.positions("q") == (20, 30) and len(engine.rows()) == 20


def test_a_column_that_others_made_not_null_is_refused(engine: DeltaEngine) -> None:
    """A column of a payload that does not parse is null. Columns that every row has may be NOT NULL."""
    checkpoint = LocalLake(str(engine.checkpoint_path))
    wider = Schema.from_arrow(pa.schema([*pa.schema(COLUMNS.to_arrow()), pa.field("error", pa.string())]))

    def begin() -> None:
        prepare(checkpoint, engine.place, wider, (), query_of(checkpoint))

    begin()
    set_metadata(engine, lambda metadata, fields: fields["payload"].update(nullable=False))
    begin()
    not_null(engine)
    with pytest.raises(TableError, match="NOT NULL on the column 'error'"):
        begin()
    checkpoint.close()


def test_a_table_is_resumed_whose_rules_nothing_here_checks(engine: DeltaEngine) -> None:
    """A resume adds no rows; the drain says what is in its way."""
    constrained(engine)
    resumed(engine)
    engine.checkpoint_path = engine.checkpoint_path.with_name(f"{engine.checkpoint_path.name} resumed")
    with pytest.raises(TableError, match="has a constraint 'low'"):
        engine.drain()


def deleted(engine: DeltaEngine, copy: Path) -> None:
    shutil.rmtree(engine.table_path)


def replaced_by_an_older_copy(engine: DeltaEngine, copy: Path) -> None:
    shutil.rmtree(engine.table_path)
    shutil.copytree(copy, engine.table_path)


@pytest.mark.parametrize("change", [deleted, replaced_by_an_older_copy])
@pytest.mark.parametrize("step", ["sync of the entry", "end of the commit"])
def test_a_batch_that_is_gone_before_it_is_truncated_stays_in_the_log(
    engine: DeltaEngine,
    service: ThreadedService,
    tmp_path: Path,
    change: Callable[[DeltaEngine, Path], None],
    step: str,
) -> None:
    """The table is looked at after each commit: if it lacks the batch, the drain stops before it releases records."""
    copy = tmp_path / "copy"
    shutil.copytree(engine.table_path, copy)
    engine.step = lambda name: change(engine, copy) if name == step else None
    with pytest.raises(TableError, match=r"right after batch \d was stored. Nothing of the batch was truncated"):
        engine.drain()
    assert service.positions("q") == (20, 30)


def test_a_table_that_is_missing_is_refused(engine: DeltaEngine, service: ThreadedService) -> None:
    """A new table in its place would begin in the middle of the log."""
    shutil.rmtree(engine.table_path)
    refused(engine, service, "there is no table at")
    assert not engine.table_path.exists() or not DeltaTable.is_deltatable(str(engine.table_path))


@pytest.mark.parametrize("name", ["main.py", "wal/LOCK", "orders/_delta_log/0.json", "part-0.parquet", "_SUCCESS"])
def test_a_table_is_not_created_among_other_files(service: ThreadedService, tmp_path: Path, name: str) -> None:
    """Readers would take them for rows of the table, and a vacuum of another program would delete them."""
    service.append("q", numbered("q", 0, 10))
    engine = DeltaEngine(f"a={service.url}", tmp_path)
    (engine.table_path / name).parent.mkdir(parents=True)
    (engine.table_path / name).touch()
    for _ in range(2):
        with pytest.raises(RefusedError, match=rf"holds '{name.partition('/')[0]}' and no table: .* new or empty"):
            engine.drain()
    assert service.positions("q") == (0, 10) and not (engine.table_path / "_delta_log").exists()


def test_a_table_is_created_on_a_new_disk(service: ThreadedService, tmp_path: Path) -> None:
    """Its top has a directory of the file system, and may have hidden files."""
    service.append("q", numbered("q", 0, 10))
    engine = DeltaEngine(f"a={service.url}", tmp_path)
    for name in ("lost+found", ".Trash"):
        (engine.table_path / name).mkdir(parents=True)
    engine.drain()
    assert len(engine.rows()) == 10


@pytest.mark.parametrize("left", ["", "_delta_log/", f"_delta_log/{entry_name(0)}", f"_delta_log/{entry_name(0)}#1"])
def test_a_creation_that_was_killed_is_continued(service: ThreadedService, tmp_path: Path, left: str) -> None:
    """It leaves the directories, a temporary file, or an empty entry."""
    service.append("q", numbered("q", 0, 10))
    engine = DeltaEngine(f"a={service.url}", tmp_path)
    (engine.table_path / left).parent.mkdir(parents=True, exist_ok=True)
    (engine.table_path / left).mkdir(exist_ok=True, parents=True) if left[-1:] in ("", "/") else (
        engine.table_path / left
    ).touch()
    engine.drain()
    assert len(engine.rows()) == 10 and service.positions("q") == (10, 10)


def test_another_drains_checkpoint_is_refused(engine: DeltaEngine, service: ThreadedService, tmp_path: Path) -> None:
    """A checkpoint that belongs to another table, or is new, is refused, however many batches it has."""
    (tmp_path / "other").mkdir()
    other = DeltaEngine(f"a={service.url}", tmp_path / "other", truncate="false")
    other.drain()
    for checkpoint in (other.checkpoint_path, tmp_path / "new"):
        engine.checkpoint_path = checkpoint
        refused(engine, service, r"was written with another checkpoint than .*lake resume")


def test_a_table_of_another_program_is_refused(engine: DeltaEngine, service: ThreadedService) -> None:
    """It is not written to, and not owned."""
    shutil.rmtree(engine.table_path)
    write_deltalake(str(engine.table_path), pa.table({"x": [1]}))
    refused(engine, service, "was not created by a drain")
    assert DeltaTable(str(engine.table_path)).version() == 0


def test_a_damaged_table_is_named(engine: DeltaEngine, service: ThreadedService) -> None:
    """Only the newest entries of a table's log can be half written; damage below a whole one is not set aside."""
    (engine.table_path / "_delta_log" / f"{1:020}.json").write_bytes(b"garbage\n")
    with pytest.raises(TableError, match=r"cannot be used: .*Its log is damaged: restore the table from a copy"):
        engine.drain()
    assert service.positions("q") == (20, 30)


def test_entries_that_others_left_half_written_are_set_aside(engine: DeltaEngine) -> None:
    """A vacuum of Spark adds one before it deletes files and one after: a power cut may take both."""
    last = DeltaTable(engine.place.uri).version()
    for number in (last + 1, last + 2):
        (engine.table_path / "_delta_log" / entry_name(number)).write_bytes(b"")
    with engine.started() as run:
        assert [line.partition(" was ")[0] for line in run.said] == [
            f"version {last + 2} of the table",
            f"version {last + 1} of the table",
        ]
    engine.drain()
    assert len(engine.rows()) == 30


GET = "Error performing GET http://h/lake/t/1.checkpoint.parquet in 43ms"


@pytest.mark.parametrize(
    ("said", "address", "damaged"),
    [
        ("Kernel error: Arrow error: Parquet error: Invalid Parquet file. Corrupt footer", "s3://lake/t", True),
        ("Json error: whilst decoding field 'add'", "s3://lake/t", True),
        (f"Kernel error: Arrow error: External: Generic S3 error: {GET} - 503 SlowDown", "s3://lake/t", False),
        (f"Kernel error: Arrow error: External: The operation lacked … {GET} - 403 Forbidden", "s3://lake/t", False),
        ("Kernel error: Arrow error: External: Generic GCS error: HTTP error: error sending", "gs://lake/t", False),
        ("Object at location /data/Parquet/1.json: Permission denied", "/data/Parquet", False),
    ],
)
def test_only_what_was_read_is_called_damaged(said: str, address: str, damaged: bool) -> None:
    """An object store that does not respond says nothing about the table in it."""
    with pytest.raises(TableError) as raised, explained(TablePlace(address)):
        raise DeltaError(said)
    assert ("is damaged: restore" in str(raised.value)) is damaged


def test_columns_are_not_added_to_a_table_that_delta_rs_cannot_write(engine: DeltaEngine) -> None:
    """The sentence is about the table's feature, not about rights or space."""
    checkpoint = LocalLake(str(engine.checkpoint_path))
    log = engine.table_path / "_delta_log"
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [], "writerFeatures": ["rowTracking"]}
    entry = log / entry_name(max(entry_numbers(str(engine.table_path))) + 1)
    entry.write_text(json.dumps({"protocol": protocol}))
    wider = Schema.from_arrow(pa.schema([*pa.schema(COLUMNS.to_arrow()), pa.field("error", pa.string())]))
    with pytest.raises(TableError, match=r"needs what delta-rs does not write \(.*RowTracking.* Drop the feature"):
        prepare(checkpoint, engine.place, wider, (), query_of(checkpoint))
    checkpoint.close()


@pytest.mark.parametrize("more", [{}, {"commitInfo": None}])
def test_an_entry_of_another_writer_needs_no_commit_information(engine: DeltaEngine, more: dict[str, None]) -> None:
    """It is optional in Delta's protocol: such an entry is not half written, and is not set aside."""
    log = engine.table_path / "_delta_log"
    entry = log / entry_name(max(entry_numbers(str(engine.table_path))) + 1)
    entry.write_text(json.dumps({"txn": {"appId": "of another program", "version": 7}} | more))
    lake = LocalLake(str(engine.table_path))
    assert repair_table(lake) == []
    lake.close()
    assert DeltaTable(engine.place.uri).transaction_version("of another program") == 7


def test_columns_are_added_and_never_changed(engine: DeltaEngine) -> None:
    """A column of another type, and one that the drain does not write, are refused with what to do."""
    checkpoint = LocalLake(str(engine.checkpoint_path))
    query = query_of(checkpoint)

    def begin(*columns: pa.Field) -> list[str]:
        fields = Schema.from_arrow(pa.schema([*pa.schema(COLUMNS.to_arrow()), *columns]))
        return prepare(checkpoint, engine.place, fields, (), query)

    assert begin(pa.field("amount", pa.int64())) == ["added to the table: amount"]
    with pytest.raises(RefusedError, match=r"column 'amount' is long in the table and string in this drain"):
        begin(pa.field("amount", pa.string()))
    with pytest.raises(RefusedError, match=r"has the columns amount, which this drain does not write: set --schema"):
        begin()
    with pytest.raises(RefusedError, match="is not partitioned: leave out --partition-by"):
        prepare(checkpoint, engine.place, COLUMNS, ("queue",), query)
    checkpoint.close()


def test_a_start_that_fails_at_the_services_leaves_no_table(tmp_path: Path) -> None:
    """A wrong token or a misspelt queue is found before the table is created, so the next start may partition it."""
    checkpoint, place = LocalLake(str(tmp_path / "c")), TablePlace(str(tmp_path / "t"), {})
    query = query_of(checkpoint)

    def check() -> None:
        raise RefusedError("missing or invalid bearer token")

    with pytest.raises(RefusedError, match="token"):
        prepare(checkpoint, place, COLUMNS, (), query, check)
    assert prepare(checkpoint, place, COLUMNS, ("queue",), query) == []
    checkpoint.close()


def test_of_two_drains_that_create_one_table_one_is_refused(
    service: ThreadedService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both find no table; the one that creates it second says that the table has another checkpoint."""
    drains = [DeltaEngine(f"a={service.url}", tmp_path / name) for name in ("one", "two")]
    for drain in drains:
        drain.checkpoint_path.parent.mkdir()
        drain.place = drains[0].place
    drains[0].drain()
    looks, found = iter([False]), DeltaTable.is_deltatable
    with monkeypatch.context() as looked_before:
        looked_before.setattr(DeltaTable, "is_deltatable", lambda *arguments: next(looks, found(*arguments)))
        with pytest.raises(RefusedError, match="was written with another checkpoint"):
            drains[1].drain()
