"""A Delta table takes rows and positions in one commit, and nothing that the driver has not seen."""

from __future__ import annotations

import json
import os
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, QueryBuilder, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from mrecordlog_async.spark import delta_output, drain_loop, parquet_writer, table_files
from mrecordlog_async.spark.log_server import ReadTask
from mrecordlog_async.spark.output import BatchFailedError, OutputRefusedError, RowWriter, WrittenFile
from mrecordlog_async.spark.runners import in_process, row_schema
from mrecordlog_async.spark.table_files import NotSyncedError, TableFiles
from mrecordlog_async.storage import os_filesystem
from tests.spark.draining import (
    Draining,
    Killed,
    Killer,
    age_entries,
    columns,
    drain_all,
    expected,
    going_on,
    table_rows,
)
from tests.spark.lake_readers import with_delta
from tests.spark.medium import Medium, OnlySynced
from tests.spark.services import ThreadedService, numbered


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table"


def feed(service: ThreadedService, start: int, stop: int, queue: str = "q") -> None:
    service.append(queue, numbered(queue, start, stop))


def entry(table: Path, version: int) -> Path:
    return table / "_delta_log" / f"{version:020}.json"


def left(service: ThreadedService) -> int:
    return sum(map(len, service.records().values()))


# Nothing is committed that the driver has not seen.


def _deleted(table: Path, file: Path) -> None:
    file.unlink()


def _moved(table: Path, file: Path) -> None:
    (table / "elsewhere").mkdir()
    file.rename(table / "elsewhere" / file.name)


def _cut(table: Path, file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-50])


def _vacuumed(table: Path, file: Path) -> None:
    found = DeltaTable(str(table))
    found.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert not file.exists()


@pytest.mark.parametrize("harm", [_deleted, _moved, _cut, _vacuumed])
def test_a_file_that_the_driver_does_not_see_is_not_committed(
    service: ThreadedService, table: Path, harm: Callable[[Path, Path], None]
) -> None:
    """Between task and commit it was deleted, is somewhere else, is shorter, or a vacuum ran: nothing is truncated."""
    feed(service, 0, 10)

    def harmed(tasks: Sequence[ReadTask], writer: RowWriter) -> list[WrittenFile]:
        files = in_process(tasks, writer)
        harm(table, table / files[0]["path"])
        return files

    process = Draining({"s": service}, table, run=harmed)
    with pytest.raises(BatchFailedError, match="lacks 1 of 2 files of the batch"):
        process.step()
    assert table_rows(table) == [] and left(service) == 10
    assert drain_all({"s": service}, table) == 10
    assert table_rows(table) == expected(q=10)


def test_positions_that_are_missing_are_not_committed(
    service: ThreadedService, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that acknowledges a file and lacks it does not end the drain for good."""
    feed(service, 0, 10)
    process = Draining({"s": service}, table)
    with monkeypatch.context() as patched:
        patched.setattr(TableFiles, "write", lambda self, name, content: None)
        with pytest.raises(BatchFailedError, match="_mrecordlog/drain/"):
            process.step()
    assert process.all() == 10


def test_a_mark_that_another_drain_of_this_name_removed_is_made_again(service: ThreadedService, table: Path) -> None:
    """One that runs for longer than a day finds the mark of the other unused, and removes it; the tables are one."""
    first = Draining({"s": service}, table)
    second = Draining({"s": service}, table)
    for mark in (table / "_mrecordlog" / "drain").glob("mark-*"):
        os.utime(mark, (time.time() - 2 * 86_400,) * 2)
    first.output._drop_unused()
    feed(service, 0, 10)
    assert second.step() == 10


def test_tasks_elsewhere_store_nothing(service: ThreadedService, table: Path, tmp_path: Path) -> None:
    """A task that does not see the driver's mark has another directory at this path, and writes nothing there."""
    feed(service, 0, 10)
    (tmp_path / "not mounted").mkdir()

    def elsewhere(tasks: Sequence[ReadTask], writer: Any) -> list[WrittenFile]:
        other = TableFiles(str(tmp_path / "not mounted"))
        return in_process(tasks, delta_output.DeltaWriter(other, writer.layout, writer.schema, writer.mark))

    process = Draining({"s": service}, table, run=elsewhere)
    with pytest.raises((OutputRefusedError, BatchFailedError)) as raised:
        process.step()
    assert list((tmp_path / "not mounted").iterdir()) == [] and left(service) == 10
    assert "is not the directory that the driver sees" in str(raised.value)


def test_a_batch_that_took_too_long_is_written_again(
    service: ThreadedService, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vacuum of others may remove its files."""
    feed(service, 0, 10)
    now = [100.0]
    monkeypatch.setattr(drain_loop, "_clock", lambda: now[0])

    def slow(tasks: Sequence[ReadTask], writer: RowWriter) -> list[WrittenFile]:
        now[0] += 31 * 60
        return in_process(tasks, writer)

    process = Draining({"s": service}, table, run=slow)
    with pytest.raises(BatchFailedError, match=r"took 31 minutes.*--max-records"):
        process.step()
    assert table_rows(table) == [] and left(service) == 10


# Nothing is truncated behind a commit that the driver has not seen.


@pytest.mark.parametrize("error", [CommitFailedError("412"), OSError("no response")])
def test_a_commit_whose_response_was_lost_is_found(
    service: ThreadedService, table: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The entry is there, so the batch is stored, and its records are truncated."""
    feed(service, 0, 10)
    commit = DeltaTable.create_write_transaction

    def lost(*args: Any, **named: Any) -> None:
        commit(*args, **named)
        raise error

    monkeypatch.setattr(DeltaTable, "create_write_transaction", lost)
    assert drain_all({"s": service}, table) == 10
    assert table_rows(table) == expected(q=10) and left(service) == 0


@pytest.mark.parametrize("says", [None, CommitFailedError("403")])
def test_a_commit_that_is_not_there_releases_nothing(
    service: ThreadedService, table: Path, monkeypatch: pytest.MonkeyPatch, says: Exception | None
) -> None:
    """Whatever the store said: a response 200 without an entry is no commit."""
    feed(service, 0, 10)

    def nothing(*args: Any, **named: Any) -> None:
        if says is not None:
            raise says

    process = Draining({"s": service}, table)
    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "create_write_transaction", nothing)
        for _ in range(2):
            with pytest.raises(BatchFailedError, match="could not be committed to"):
                process.step()
    assert left(service) == 10
    assert process.all() == 10
    assert table_rows(table) == expected(q=10)


def test_an_entry_that_arrives_late_is_taken(
    service: ThreadedService, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the client had given up, the store carries the commit out: the batch is in the table, and only once."""
    feed(service, 0, 10)
    late: list[Callable[[], None]] = []
    commit = DeltaTable.create_write_transaction

    def delayed(*args: Any, **named: Any) -> None:
        late.append(lambda: commit(*args, **named))
        raise OSError("no response")

    process = Draining({"s": service}, table)
    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "create_write_transaction", delayed)
        with pytest.raises(BatchFailedError):
            process.step()
    late[0]()
    assert process.step() == 0  # it is found, and released
    assert table_rows(table) == expected(q=10) and left(service) == 0


def test_an_entry_that_arrives_late_is_taken_during_the_next_commit(
    service: ThreadedService, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next batch has the same records, and is refused by the late one."""
    feed(service, 0, 10)
    late: list[Callable[[], None]] = []
    commit = DeltaTable.create_write_transaction

    def delayed(*args: Any, **named: Any) -> None:
        late.append(lambda: commit(*args, **named))
        if len(late) > 1:
            late[0]()
            commit(*args, **named)
        raise OSError("no response")

    process = Draining({"s": service}, table)
    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "create_write_transaction", delayed)
        for _ in range(2):
            with pytest.raises(BatchFailedError):
                process.step()
    assert process.all() == 0
    assert table_rows(table) == expected(q=10) and left(service) == 0


def test_an_entry_that_another_writer_replaced_releases_nothing(
    service: ThreadedService, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a store that ignores `If-None-Match`, two writers of the table can replace each other's commits."""
    feed(service, 0, 10)
    commit = DeltaTable.create_write_transaction

    def replaced(self: DeltaTable, *args: Any, **named: Any) -> None:
        commit(self, *args, **named)
        newest = max((table / "_delta_log").glob("*.json"))
        newest.write_text('{"commitInfo": {"operation": "WRITE"}}\n')

    process = Draining({"s": service}, table)
    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "create_write_transaction", replaced)
        with pytest.raises(BatchFailedError):
            process.step()
    assert left(service) == 10


@pytest.mark.parametrize("where", ["_delta_log", "_mrecordlog", "part-"])
def test_a_disk_that_fails_to_sync_stops_the_drain(
    service: ThreadedService, table: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Nothing is truncated; of an entry whose sync failed, the next start reads what is on the medium."""
    feed(service, 0, 10)
    process = Draining({"s": service}, table)
    with monkeypatch.context() as patched:
        FailingSyncs(patched, where=str(table / where))
        with pytest.raises(NotSyncedError, match="could not be synced"):
            process.step()
    with pytest.raises(NotSyncedError):
        process.step()
    assert left(service) == 10
    assert drain_all({"s": service}, table) == (0 if where == "_delta_log" else 10)
    assert table_rows(table) == expected(q=10) and left(service) == 0


class FailingSyncs:
    """Fails the n-th sync, or each one of what is named. seen: how many there were."""

    def __init__(self, patch: pytest.MonkeyPatch, nth: int = 0, where: str = "") -> None:
        self.seen, self._nth, self._where = 0, nth, where
        for name in ("full_sync", "syncfs"):
            patch.setattr(table_files, name, self._failing(getattr(table_files, name)))

    def _failing(self, sync: Callable[[int], None]) -> Callable[[int], None]:
        def failing(handle: int) -> None:
            self.seen += 1
            path = os.readlink(f"/proc/self/fd/{handle}")
            if self.seen == self._nth or (self._where and path.startswith(self._where)):
                raise OSError(5, "Input/output error")
            sync(handle)

        return failing


def test_whichever_sync_fails_the_drain_ends_and_nothing_is_lost(
    service: ThreadedService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed sync is never tried again and believed: what the disk lost after it is still in the log."""
    monkeypatch.setattr(delta_output, "SUM_UP_EVERY", 2)
    (tmp_path / "lake").mkdir()
    nth, seen = 0, 0
    with closing(Medium(tmp_path / "lake")) as medium, medium.attached(monkeypatch):
        while seen == nth:  # no sync follows the one that failed
            nth += 1
            table, queue = tmp_path / "lake" / f"table {nth}", f"q{nth}"
            more: dict[str, Any] = {"partition_by": ("position",), "includes": queue.__eq__}
            feed(service, 0, 1, queue)
            drain_all({"s": service}, table, **more)
            feed(service, 1, 2, queue)  # in a new partition: a directory, and its name
            with monkeypatch.context() as patched, suppress(NotSyncedError):
                syncs = FailingSyncs(patched, nth)
                Draining({"s": service}, table, **more).drain.follow(None, lambda: False, lambda seconds: None)
            seen = syncs.seen
            medium.cut(OnlySynced())  # what was not synced is lost
            drain_all({"s": service}, table, **more)
            assert table_rows(table) == expected(**{queue: 2})
    assert 20 < seen < nth


def test_a_new_table_is_reported(service: ThreadedService, table: Path) -> None:
    """Where the disk of a table is not mounted, one is created that begins in the middle of the log."""
    assert f"a new table is created at {table}" in Draining({"s": service}, table).said[0]
    assert Draining({"s": service}, table).said == []


def test_a_task_elsewhere_has_the_table_of_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path is that of the driver's working directory."""
    monkeypatch.chdir(tmp_path)
    sent = pickle.dumps(TableFiles("./lake"))
    monkeypatch.chdir("/")
    assert pickle.loads(sent).path == str(tmp_path / "lake")


def test_a_new_table_is_not_partitioned_by_a_column_that_it_lacks(table: Path) -> None:
    """A function may leave it out; the next start may choose another layout."""
    with pytest.raises(OutputRefusedError, match="cannot be partitioned by customer"):
        delta_output.DeltaOutput(TableFiles(str(table)), row_schema(()), partition_by=("customer",)).open()
    assert not DeltaTable.is_deltatable(str(table))


@pytest.mark.parametrize("hidden", [False, True], ids=["repeated", "hidden by another failure"])
def test_a_task_whose_sync_failed_is_not_repeated(
    service: ThreadedService, table: Path, monkeypatch: pytest.MonkeyPatch, hidden: bool
) -> None:
    """Spark repeats tasks, and reports one failure of several: neither makes the driver believe the disk again."""
    feed(service, 0, 10)

    def repeating(tasks: Sequence[ReadTask], writer: RowWriter) -> list[WrittenFile]:
        with monkeypatch.context() as patched:
            FailingSyncs(patched, 1)
            in_process(tasks, writer)
        if hidden:
            raise BatchFailedError("another task failed")
        return in_process(tasks, writer)

    process = Draining({"s": service}, table, run=repeating)
    with pytest.raises(NotSyncedError):
        process.drain.follow(None, lambda: False, lambda seconds: None)
    assert left(service) == 10 and table_rows(table) == []


# What others do to the table.


def test_others_may_append_and_rewrite_and_vacuum(service: ThreadedService, table: Path) -> None:
    """The drain goes on next to them, and its positions stay."""
    process = Draining({"s": service}, table)
    for number in range(4):
        feed(service, 10 * number, 10 * number + 10)
        assert process.step() == 10
        write_deltalake(str(table), DeltaTable(str(table)).to_pyarrow_table().slice(0, 1), mode="append")
        other = DeltaTable(str(table))
        other.optimize.compact()
        other.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert drain_all({"s": service}, table) == 0
    feed(service, 40, 50)
    assert drain_all({"s": service}, table) == 10
    assert len(table_rows(table)) == 54 and set(expected(q=50)) <= set(table_rows(table))


def test_a_commit_after_those_of_others_is_judged_anew(service: ThreadedService, table: Path) -> None:
    """Others append while a batch is written: the batch is stored all the same, and once."""
    feed(service, 0, 10)

    def interrupted(tasks: Sequence[ReadTask], writer: RowWriter) -> list[WrittenFile]:
        files = in_process(tasks, writer)
        rows = DeltaTable(str(table)).to_pyarrow_table().schema.empty_table()
        for _ in range(3):
            write_deltalake(str(table), rows, mode="append")
        return files

    assert drain_all({"s": service}, table, run=interrupted) == 10
    assert table_rows(table) == expected(q=10)


def test_a_restore_during_a_batch_is_noticed(service: ThreadedService, table: Path) -> None:
    """Positions would be committed that are ahead of the rows."""
    feed(service, 0, 10)
    drain_all({"s": service}, table)
    feed(service, 10, 20)

    def restored(tasks: Sequence[ReadTask], writer: RowWriter) -> list[WrittenFile]:
        files = in_process(tasks, writer)
        DeltaTable(str(table)).restore(0)
        return files

    with pytest.raises(OutputRefusedError, match="was restored to a version without batch 1"):
        drain_all({"s": service}, table, run=restored)
    assert left(service) == 10


@pytest.mark.parametrize("later", [0, 3, 40])
@pytest.mark.parametrize("cleaned", [False, True], ids=["kept", "cleaned"])
@pytest.mark.parametrize("running", [False, True], ids=["started again", "running"])
def test_a_restored_table_is_refused(
    service: ThreadedService, table: Path, later: int, cleaned: bool, running: bool
) -> None:
    """However many versions others wrote since, and after its log was cleaned; it may be accepted as a loss."""
    feed(service, 0, 10)
    process = Draining({"s": service}, table)
    process.all()
    found = DeltaTable(str(table))
    found.restore(0)
    for _ in range(later):
        write_deltalake(str(table), found.to_pyarrow_table().schema.empty_table(), mode="append")
    if cleaned:
        clean(table)
    feed(service, 10, 15)
    if not running:
        process = Draining({"s": service}, table)
    with pytest.raises(OutputRefusedError, match=r"RESTORE|restored.*--allow-data-loss"):
        process.all()
    assert left(service) == 5
    assert drain_all({"s": service}, table, allow_loss=True) == 5
    assert drain_all({"s": service}, table) == 0


def clean(table: Path) -> None:
    """Delete all entries of the table's log but the newest, as a clean-up does that keeps them for a day."""
    age_entries(table)
    found = DeltaTable(str(table))
    found.alter.set_table_properties({"delta.logRetentionDuration": "interval 1 days"})
    found.update_incremental()
    found.create_checkpoint()
    found.cleanup_metadata()
    assert not entry(table, 1).exists()


def test_a_restore_that_takes_back_nothing_of_a_drain_is_passed(service: ThreadedService, table: Path) -> None:
    """To a version that has the last batch, or there and back."""
    feed(service, 0, 10)
    drain_all({"s": service}, table)
    found = DeltaTable(str(table))
    write_deltalake(str(table), found.to_pyarrow_table().slice(0, 1), mode="append")
    found.update_incremental()
    found.restore(1)
    feed(service, 10, 20)
    assert drain_all({"s": service}, table) == 10
    found.update_incremental()
    version = found.version()
    found.restore(0)
    found.restore(version)
    feed(service, 20, 30)
    assert drain_all({"s": service}, table) == 10
    assert table_rows(table) == expected(q=30)


def test_a_compaction_whose_entries_are_cleaned_is_passed_by_a_running_drain(
    service: ThreadedService, table: Path
) -> None:
    """It has seen the entries; another start cannot tell a RESTORE from them, and says so."""
    process = Draining({"s": service}, table)
    for number in range(3):
        feed(service, number, number + 1)
        assert process.step() == 1
    DeltaTable(str(table)).optimize.compact()
    assert process.step() == 0
    clean(table)
    feed(service, 3, 4)
    assert process.step() == 1
    assert drain_all({"s": service}, table) == 0


def compact(table: Path) -> None:
    """Rewrite all files into one, as a maintenance does that others run."""
    DeltaTable(str(table)).optimize.compact()


def test_a_drain_that_idles_while_others_compact_and_clean_is_continued(
    service: ThreadedService, new_service: Callable[..., ThreadedService], table: Path
) -> None:
    """It keeps in the table what it has seen: after its next start, the entries in between are not needed."""
    other = new_service()
    feed(service, 0, 10)
    feed(other, 0, 5, "r")
    idle, busy = Draining({"s": service}, table), Draining({"o": other}, table, name="busy")
    assert idle.step() == 10 and busy.step() == 5
    compact(table)
    for _ in range(3):
        assert idle.step() == 0
    written = DeltaTable(str(table)).version()
    assert idle.step() == 0 and DeltaTable(str(table)).version() == written
    clean(table)
    feed(service, 10, 15)
    assert drain_all({"s": service}, table) == 5
    assert table_rows(table) == expected(q=15, r=5)


def test_what_a_drain_has_seen_does_not_hide_a_restore(
    service: ThreadedService, new_service: Callable[..., ThreadedService], table: Path
) -> None:
    """To a version before its last batch; one to a version after it takes none of its rows back."""
    other = new_service()
    feed(other, 0, 5, "r")
    busy = Draining({"o": other}, table, name="busy")
    assert busy.step() == 5
    feed(service, 0, 10)
    idle = Draining({"s": service}, table)
    assert idle.step() == 10
    compact(table)
    assert idle.step() == 0
    DeltaTable(str(table)).restore(3)
    feed(service, 10, 15)
    assert drain_all({"s": service}, table) == 5
    compact(table)
    assert drain_all({"s": service}, table) == 0
    DeltaTable(str(table)).restore(1)
    with pytest.raises(OutputRefusedError, match="was restored to a version without batch"):
        drain_all({"s": service}, table)


def test_a_restore_is_accepted_once(service: ThreadedService, table: Path) -> None:
    """Also without new records: later starts continue without being told again."""
    feed(service, 0, 10)
    drain_all({"s": service}, table)
    DeltaTable(str(table)).restore(0)
    with pytest.raises(OutputRefusedError, match="--allow-data-loss"):
        drain_all({"s": service}, table)
    accepting = Draining({"s": service}, table, allow_loss=True)
    assert accepting.all() == 0 and "accepted, as allowed" in accepting.said[0]
    assert drain_all({"s": service}, table) == 0
    feed(service, 10, 12)
    assert drain_all({"s": service}, table) == 2
    DeltaTable(str(table)).restore(0)
    with pytest.raises(OutputRefusedError, match="--allow-data-loss"):
        drain_all({"s": service}, table)


def test_a_clean_up_keeps_the_entries_that_a_stopped_drain_needs(
    service: ThreadedService, new_service: Callable[..., ThreadedService], table: Path
) -> None:
    """A compaction has removed the file by which it knows its last batch: the entries say that it was none."""
    other = new_service()
    feed(service, 0, 10)
    drain_all({"s": service}, table)
    feed(other, 0, 5, "r")
    busy = Draining({"o": other}, table, name="busy")
    assert busy.step() == 5
    compact(table)
    feed(other, 5, 6, "r")
    assert busy.step() == 1
    age_entries(table)
    for path in (table / "_mrecordlog" / "drain").iterdir():
        os.utime(path, (time.time() - 3 * 3_600,) * 2)
    busy.output._sum_up()
    feed(service, 10, 15)
    assert drain_all({"s": service}, table) == 5
    assert table_rows(table) == expected(q=15, r=6)
    age_entries(table)
    feed(other, 6, 7, "r")
    assert busy.step() == 1
    busy.output._sum_up()
    assert not entry(table, 1).exists()


def alter(table: Path, **properties: str) -> None:
    DeltaTable(str(table)).alter.set_table_properties(
        {name.replace("__", "."): value for name, value in properties.items()}, raise_if_not_exists=False
    )


def constrain(table: Path) -> None:
    DeltaTable(str(table)).alter.add_constraint({"low": "position < 1000"})


def expire(table: Path) -> None:
    alter(table, delta__setTransactionRetentionDuration="interval 1 days")


def change_metadata(table: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Write an entry that changes the table's metadata, as other engines do."""
    version = DeltaTable(str(table)).version()
    found = None
    for number in range(version, -1, -1):
        for line in entry(table, number).read_text().splitlines():
            found = found or json.loads(line).get("metaData")
    assert found is not None
    change(found)
    info = {"timestamp": 0, "operation": "SET"}
    entry(table, version + 1).write_text(
        "\n".join(json.dumps(each) for each in ({"commitInfo": info}, {"metaData": found}))
    )


def map_columns_by_hand(table: Path) -> None:
    change_metadata(table, lambda found: found["configuration"].update({"delta.columnMapping.mode": "id"}))


def _fields(found: dict[str, Any], change: Callable[[list[dict[str, Any]]], None]) -> None:
    schema = json.loads(found["schemaString"])
    change(schema["fields"])
    found["schemaString"] = json.dumps(schema)


def demand_a_column(table: Path) -> None:
    added = {"name": "must", "type": "long", "nullable": False, "metadata": {}}
    change_metadata(table, lambda found: _fields(found, lambda fields: fields.append(added)))


def generate_a_column(table: Path) -> None:
    added = {
        "name": "made",
        "type": "long",
        "nullable": True,
        "metadata": {"delta.generationExpression": "position + 1"},
    }
    change_metadata(table, lambda found: _fields(found, lambda fields: fields.append(added)))


def change_a_type(table: Path) -> None:
    change_metadata(table, lambda found: _fields(found, lambda fields: fields[0].update(type="long")))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (constrain, "has a constraint 'low'"),
        (expire, "forgets transactions"),
        (map_columns_by_hand, "maps the names of its columns"),
        (demand_a_column, "has NOT NULL on the column 'must'"),
        (generate_a_column, "generates the column 'made'"),
        (change_a_type, "the column 'server' is long in the table, and string in the drain"),
    ],
)
@pytest.mark.parametrize("running", [False, True], ids=["at the start", "while it runs"])
def test_a_change_that_rows_could_break_is_refused(
    service: ThreadedService, table: Path, change: Callable[[Path], None], says: str, running: bool
) -> None:
    """Also between tasks and commit: nothing is stored, and nothing truncated."""
    feed(service, 0, 10)
    drain_all({"s": service}, table)
    feed(service, 10, 20)

    def changed(tasks: Sequence[ReadTask], writer: RowWriter) -> list[WrittenFile]:
        files = in_process(tasks, writer)
        change(table)
        return files

    if not running:
        change(table)
    with pytest.raises(OutputRefusedError, match=says):
        drain_all({"s": service}, table, run=changed if running else in_process)
    assert left(service) == 10


def test_a_table_that_was_deleted_or_replaced_is_refused(service: ThreadedService, table: Path, tmp_path: Path) -> None:
    """A commit there would be a version of nothing."""
    feed(service, 0, 10)
    process = Draining({"s": service}, table)
    process.all()
    feed(service, 10, 20)

    def deleted(tasks: Sequence[ReadTask], writer: RowWriter) -> list[WrittenFile]:
        table.rename(tmp_path / "away")
        table.mkdir()
        return in_process(tasks, writer)

    process.drain._run = deleted
    with pytest.raises((OutputRefusedError, BatchFailedError)):
        process.step()
    assert left(service) == 10


def test_a_table_that_was_replaced_by_a_longer_one_is_refused(
    service: ThreadedService, table: Path, tmp_path: Path
) -> None:
    """Its version has another entry than the last one of the drain: the rows of earlier batches are not there."""
    feed(service, 0, 10)
    process = Draining({"s": service}, table)
    process.all()
    feed(service, 10, 20)
    rows = DeltaTable(str(table)).to_pyarrow_table()

    def replaced(tasks: Sequence[ReadTask], writer: RowWriter) -> list[WrittenFile]:
        files = in_process(tasks, writer)
        table.rename(tmp_path / "away")
        for _ in range(2):
            write_deltalake(str(table), rows.slice(0, 1), mode="append")
        for each in files:
            (tmp_path / "away" / each["path"]).rename(table / each["path"])
        process.drain._run = in_process
        return files

    process.drain._run = replaced
    with pytest.raises(OutputRefusedError, match="was replaced"):
        process.step()
    assert left(service) == 10


def test_a_drain_that_slept_while_entries_were_deleted_continues(service: ThreadedService, table: Path) -> None:
    """It lacks the entries since its last look, and a checkpoint has what they said."""
    feed(service, 0, 10)
    process = Draining({"s": service}, table)
    process.all()
    rows = DeltaTable(str(table)).to_pyarrow_table().schema.empty_table()
    for _ in range(3):
        write_deltalake(str(table), rows, mode="append")
    clean(table)
    for number in (2, 3, 4):
        entry(table, number).unlink(missing_ok=True)
    feed(service, 10, 20)
    assert process.step() == 10
    assert table_rows(table) == expected(q=20)


def test_tables_that_exist_are_appended_to(service: ThreadedService, table: Path) -> None:
    """Columns that others add stay null; rows of others have no values in those of the drain; filters find all rows."""
    others = pa.table({"queue": ["theirs"], "price": [1.5], "tags": [["x"]], "note": ["n"]})
    write_deltalake(str(table), others)
    feed(service, 0, 10)
    assert drain_all({"s": service}, table) == 10
    write_deltalake(str(table), pa.table({"queue": ["more"], "extra": [7]}), mode="append", schema_mode="merge")
    feed(service, 10, 20)
    assert drain_all({"s": service}, table) == 10
    assert len(columns(table, "queue", "price", "extra")) == 22
    for condition, count in [("queue = 'q'", 20), ("price is null", 21), ("position >= 15", 5), ("price > 1", 1)]:
        assert rows_where(table, condition) == [count] * 2, condition
    assert pl.scan_delta(str(table)).filter(pl.col("position") >= 15).collect().height == 5
    assert pl.scan_delta(str(table)).filter(pl.col("price").is_null()).collect().height == 21


def rows_where(table: Path, condition: str) -> list[int]:
    """Count rows with delta-rs' engine and with DuckDB."""
    found = (
        QueryBuilder().register("t", DeltaTable(str(table))).execute(f"select count(*) as n from t where {condition}")
    )
    first = pa.table(found).column("n")[0].as_py()
    row = with_delta().execute(f"select count(*) from delta_scan('{table}') where {condition}").fetchone()
    assert row is not None
    return [first, row[0]]


def test_a_table_with_another_partitioning_or_files_is_refused(
    service: ThreadedService, table: Path, tmp_path: Path
) -> None:
    """So is a new table in a directory that has other files."""
    feed(service, 0, 10)
    drain_all({"s": service}, table, partition_by=("queue",))
    with pytest.raises(OutputRefusedError, match="partitioned by queue, and the drain by server"):
        drain_all({"s": service}, table, partition_by=("server",))
    assert drain_all({"s": service}, table) == 0  # that of the table
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").touch()
    with pytest.raises(OutputRefusedError, match=r"has other files, such as mine.txt"):
        drain_all({"s": service}, tmp_path / "other")
    with pytest.raises(OutputRefusedError, match="delta-rs misreads paths"):
        drain_all({"s": service}, tmp_path / "a%20b")
    with pytest.raises(OutputRefusedError, match=r"--name '../x'"):
        drain_all({"s": service}, table, name="../x")


def test_the_partitioning_of_the_table_gives_the_columns(service: ThreadedService, table: Path, tmp_path: Path) -> None:
    """A table by day is continued without naming that again; by another column, only a function can give its rows."""
    feed(service, 0, 10)
    drain_all({"s": service}, table, partition_by=("date", "queue"))
    feed(service, 10, 20)
    assert drain_all({"s": service}, table) == 10
    assert table_rows(table) == expected(q=20)
    days = {(day, time.date()) for day, time in columns(table, "date", "timestamp")}
    assert all(day == stored for day, stored in days)
    others = tmp_path / "others"
    write_deltalake(str(others), pa.table({"queue": ["theirs"], "country": ["at"]}), partition_by=["country"])
    feed(service, 20, 30)
    with pytest.raises(
        OutputRefusedError, match="partitioned by country, and the rows of the drain have no such column"
    ):
        drain_all({"s": service}, others)
    assert left(service) == 10


# Layout.

ODD = ("7", "007", "ä b", "a/b=c", "x" * 250, "表" * 80, "__HIVE_DEFAULT_PARTITION__", "%", "𠮷", "a:b?", "-")


def test_odd_names_of_queues_are_partitions(service: ThreadedService, table: Path) -> None:
    """Values are text in the table's log: every reader finds the rows of each queue by its name."""
    for queue in ODD:
        feed(service, 0, 3, queue)
    assert drain_all({"s": service}, table, partition_by=("date", "queue")) == 3 * len(ODD)
    assert sorted(columns(table, "queue", "position")) == sorted((queue, at) for queue in ODD for at in range(3))
    for queue in ODD:
        assert rows_where(table, f"queue = '{queue}'") == [3, 3], queue
    scanned = pl.scan_delta(str(table), use_pyarrow=True).collect()
    assert sorted(set(scanned["queue"])) == sorted(ODD)
    assert any(path.name.startswith("part-") for path in table.iterdir()), "those that no directory can name"


@pytest.mark.parametrize("limit", ["OPEN_FILES_MAX", "FILE_BYTES"])
def test_more_partitions_than_open_files(
    service: ThreadedService, table: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """A file is closed where others need its place, or because it is full; the rest of its rows go to another one."""
    monkeypatch.setattr(parquet_writer, "ROW_GROUP_BYTES", 10_000)
    monkeypatch.setattr(parquet_writer, limit, 2)
    queues = {f"queue {number}": 1 if number < 3 else 400 for number in range(8)}
    for queue, records in queues.items():
        feed(service, 0, records, queue)
    assert drain_all({"s": service}, table, partition_by=("queue",)) == sum(queues.values())
    assert table_rows(table) == expected(**queues)


def test_statistics_let_readers_skip_files(service: ThreadedService, table: Path) -> None:
    """The lowest and highest values of positions, queues and times are in the table's log."""
    for number in range(3):
        feed(service, 10 * number, 10 * number + 10)
        drain_all({"s": service}, table)
    found = pa.table(DeltaTable(str(table)).get_add_actions(flatten=True)).to_pylist()
    ends = sorted((each["min.position"], each["max.position"], each["num_records"]) for each in found)
    assert ends == [(0, 9, 10), (10, 19, 10), (20, 29, 10)]
    assert rows_where(table, "position between 5 and 14") == [10, 10]


# Upkeep.


def test_the_log_is_summarized_after_batches_of_its_own(
    service: ThreadedService, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted, because versions of others may come in between; entries older than a day are deleted then."""
    monkeypatch.setattr(delta_output, "SUM_UP_EVERY", 3)
    process = Draining({"s": service}, table)
    for number in range(6):
        feed(service, number, number + 1)
        assert process.step() == 1
        write_deltalake(str(table), DeltaTable(str(table)).to_pyarrow_table().schema.empty_table(), mode="append")
        age_entries(table)
    names = sorted(path.name for path in (table / "_delta_log").iterdir())
    assert sum(".checkpoint." in name for name in names) == 2
    assert not entry(table, 1).exists() and table_rows(table) == expected(q=6)
    assert len(list((table / "_mrecordlog" / "drain").glob("*.json"))) == 1


@pytest.mark.parametrize("seen", [False, True])
def test_the_proof_of_a_restore_stays_until_all_drains_have_seen_it(
    service: ThreadedService, new_service: Callable[..., ThreadedService], table: Path, seen: bool
) -> None:
    """Otherwise one drain would delete what another one needs to notice it."""
    other = new_service()
    feed(other, 0, 5)
    drain_all({"o": other}, table, name="other")
    DeltaTable(str(table)).restore(0)
    feed(service, 0, 5)
    if seen:
        feed(other, 5, 6)
        drain_all({"o": other}, table, name="other", allow_loss=True)
    process = Draining({"s": service}, table)
    process.all()
    age_entries(table)
    process.output._sum_up()
    assert entry(table, 2).exists() is not seen
    if not seen:
        with pytest.raises(OutputRefusedError, match="restored"):
            drain_all({"o": other}, table, name="other")


def test_entries_that_all_drains_have_seen_are_not_read_again(
    service: ThreadedService, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch neither lists nor reads the table's log, and a summary only reads what is new since the last one."""
    process, read, listed = Draining({"s": service}, table), list[str](), list[str]()
    reads, names = TableFiles.read, TableFiles.names

    def counted(self: TableFiles, name: str) -> bytes | None:
        read.append(name)
        return reads(self, name)

    def counted_names(self: TableFiles, directory: str) -> dict[str, float]:
        listed.append(directory)
        return names(self, directory)

    monkeypatch.setattr(TableFiles, "read", counted)
    monkeypatch.setattr(TableFiles, "names", counted_names)
    for number in range(30):
        feed(service, number, number + 1)
        assert process.step() == 1
    assert listed == []
    read.clear()
    process.output._sum_up()
    assert len([name for name in read if name.startswith("_delta_log/0")]) <= 2
    assert process.step() == 0 and listed.count("_delta_log") <= 1


def test_entries_stay_where_the_table_keeps_them(service: ThreadedService, table: Path) -> None:
    """`delta.enableExpiredLogCleanup` is false: nothing is deleted."""
    feed(service, 0, 5)
    process = Draining({"s": service}, table)
    alter(table, delta__enableExpiredLogCleanup="false")
    process.all()
    age_entries(table)
    process.output._sum_up()
    assert entry(table, 0).exists()


# After a power cut.


@pytest.mark.parametrize("at_a_line", [False, True])
def test_a_torn_entry_is_set_aside_and_its_batch_runs_again(
    service: ThreadedService, table: Path, monkeypatch: pytest.MonkeyPatch, at_a_line: bool
) -> None:
    """Nothing relied on it: only what is durable was truncated."""
    feed(service, 0, 10)
    drain_all({"s": service}, table)
    feed(service, 10, 20)
    killer = Killer()
    with killer.attached(monkeypatch):
        process = Draining({"s": service}, table)
        killer.arm("before", "the sync of the entry")
        with pytest.raises(Killed):
            process.step()
    path = entry(table, 2)
    content = path.read_bytes()
    path.write_bytes(content[: content.index(b"\n") + 1 if at_a_line else -100])
    process = Draining({"s": service}, table)
    assert "version 2 of the table is set aside" in "".join(process.said)
    assert process.all() == 10
    assert table_rows(table) == expected(q=20)


def test_entries_after_a_torn_one_of_others_are_set_aside(service: ThreadedService, table: Path) -> None:
    """Others do not sync: one of their entries may be lost, and the ones after it may not. The table stays readable."""
    feed(service, 0, 10)
    drain_all({"s": service}, table)
    rows = DeltaTable(str(table)).to_pyarrow_table().schema.empty_table()
    for _ in range(3):
        write_deltalake(str(table), rows, mode="append")
    entry(table, 3).unlink()
    feed(service, 10, 20)
    assert drain_all({"s": service}, table) == 10
    assert table_rows(table) == expected(q=20)


# After a power cut, with entries that others committed and did not sync.


Process = Callable[[], None]


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Medium]:
    """A disk that loses all that was not synced."""
    (tmp_path / "lake").mkdir()
    medium = Medium(tmp_path / "lake")
    with closing(medium), medium.attached(monkeypatch):
        yield medium


@pytest.fixture(params=["a foreign append", "a killed drain of another name", "a killed drain of the same name"])
def other(
    request: pytest.FixtureRequest,
    disk: Medium,
    service: ThreadedService,
    new_service: Callable[..., ThreadedService],
    monkeypatch: pytest.MonkeyPatch,
) -> Process:
    """Another process, which commits to the table and does not live to sync its entry."""
    table = disk.root / "table"

    def append() -> None:
        rows = DeltaTable(str(table)).to_pyarrow_table().schema.empty_table()
        write_deltalake(str(table), rows, mode="append")

    if request.param == "a foreign append":
        return append
    is_same = request.param.endswith("same name")
    theirs = service if is_same else new_service()
    if not is_same:
        feed(theirs, 0, 5, "theirs")

    def die() -> None:
        killer = Killer()
        with killer.attached(monkeypatch):
            process = Draining({"t": theirs}, table, name="drain" if is_same else "other")
            killer.arm("after", "the commit")
            with pytest.raises(Killed):
                process.step()

    return die


@pytest.mark.parametrize("records", [0, 5], ids=["before a look", "before a batch"])
def test_a_power_cut_after_a_commit_of_another_process_changes_nothing(
    service: ThreadedService, disk: Medium, other: Process, records: int
) -> None:
    """What the other one left unsynced is durable before anything is released that needs it."""
    table = disk.root / "table"
    feed(service, 0, 10)
    process = Draining({"s": service}, table)
    assert process.step() == 10
    feed(service, 10, 15)
    other()
    feed(service, 15, 15 + records)
    process.all()
    disk.cut(OnlySynced())
    with going_on():
        drain_all({"s": service}, table)
    assert [row for row in table_rows(table) if row[0] == "q"] == expected(q=15 + records)
    assert left(service) == 0


def test_a_power_cut_after_another_process_committed_during_a_batch_changes_nothing(
    service: ThreadedService, disk: Medium, other: Process
) -> None:
    """The batch is stored in a version after that of the other one, or refused because it is in the table."""
    table = disk.root / "table"
    feed(service, 0, 10)

    def interrupted(tasks: Sequence[ReadTask], writer: RowWriter) -> list[WrittenFile]:
        files = in_process(tasks, writer)
        other()
        return files

    process = Draining({"s": service}, table, run=interrupted)
    with suppress(OutputRefusedError):
        process.step()
    with suppress(OutputRefusedError):
        process.step()
    disk.cut(OnlySynced())
    with going_on():
        drain_all({"s": service}, table)
    assert [row for row in table_rows(table) if row[0] == "q"] == expected(q=10)
    assert left(service) == 0


def test_a_checkpoint_of_another_process_is_made_durable_with_the_next_batch(
    service: ThreadedService, disk: Medium
) -> None:
    """It may delete the entries that the checkpoint sums up, and then nothing else has what they said."""
    table = disk.root / "table"
    feed(service, 0, 10)
    process = Draining({"s": service}, table)
    assert process.step() == 10
    DeltaTable(str(table)).create_checkpoint()
    feed(service, 10, 15)
    assert process.step() == 5
    for number in (0, 1):
        entry(table, number).unlink()
    TableFiles(str(table)).sync_names(["_delta_log/x"])
    disk.cut(OnlySynced())
    with going_on():
        assert drain_all({"s": service}, table) == 0
    assert table_rows(table) == expected(q=15)


def test_after_a_sync_that_failed_nothing_is_released(
    service: ThreadedService, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks the same process again: the next sync would succeed, and prove nothing."""
    feed(service, 0, 10)
    process = Draining({"s": service}, table)
    sync = os_filesystem.full_sync

    def failing(handle: int) -> None:
        if "_delta_log" in os.readlink(f"/proc/self/fd/{handle}"):
            raise OSError(5, "Input/output error")
        sync(handle)

    with monkeypatch.context() as patched:
        patched.setattr(table_files, "full_sync", failing)
        with pytest.raises(NotSyncedError):
            process.step()
    for _ in range(2):
        with pytest.raises(NotSyncedError, match="could not be synced"):
            process.step()
    assert left(service) == 10
    assert drain_all({"s": service}, table) == 0
    assert table_rows(table) == expected(q=10) and left(service) == 0


@pytest.mark.parametrize("where", ["part-", "queue=q"])
def test_a_task_that_cannot_sync_stops_the_drain(
    service: ThreadedService, table: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """The batch is not tried again: the next sync of the same directory would succeed, and prove nothing."""
    feed(service, 0, 10)
    process = Draining({"s": service}, table, partition_by=("queue",))
    sync, failed = os_filesystem.full_sync, list[str]()

    def failing_once(handle: int) -> None:
        name = os.readlink(f"/proc/self/fd/{handle}").removeprefix(str(table))
        if name.rpartition("/")[2].startswith(where) and not failed:
            failed.append(name)
            raise OSError(5, "Input/output error")
        sync(handle)

    monkeypatch.setattr(table_files, "full_sync", failing_once)
    steps = iter(range(5))
    for _ in range(2):
        with pytest.raises(NotSyncedError, match="could not be synced"):
            process.drain.follow(0.0, lambda: next(steps, None) is None, lambda seconds: None)
    assert left(service) == 10 and table_rows(table) == [] and failed
    assert drain_all({"s": service}, table) == 10


def test_positions_that_cannot_be_deleted_stay(service: ThreadedService, table: Path) -> None:
    """The batch that supersedes them is stored all the same; that is said once."""
    process = Draining({"s": service}, table)
    for number in range(3):
        feed(service, number, number + 1)
        assert process.step() == 1
        (positions,) = (path for path in (table / "_mrecordlog" / "drain").glob("*.json") if path.is_file())
        positions.unlink()
        positions.mkdir()  # it cannot be deleted as a file
    assert process.drain.totals.failed == 0 and left(service) == 0
    assert len([line for line in process.said if "could not be deleted, and stays" in line]) == 1


def test_a_checkpoint_that_cannot_be_read_is_removed_while_its_entries_are_there(
    service: ThreadedService, table: Path
) -> None:
    """Without them, the table is refused: nothing else has what they said."""
    feed(service, 0, 10)
    process = Draining({"s": service}, table)
    process.all()
    process.output._sum_up()
    (checkpoint,) = (table / "_delta_log").glob("*.checkpoint.parquet")
    content = checkpoint.read_bytes()
    checkpoint.write_bytes(content[:100])
    assert "cannot be read and is removed" in Draining({"s": service}, table).said[0]
    checkpoint.write_bytes(content[:100])
    entry(table, 0).unlink()
    with pytest.raises(OutputRefusedError, match="the entries that it sums up are deleted"):
        Draining({"s": service}, table)


def test_entries_that_a_whole_checkpoint_covers_are_not_judged(
    service: ThreadedService, table: Path, tmp_path: Path
) -> None:
    """Others wrote it, and not all of their entries reached the disk: the table has what the checkpoint says."""
    feed(service, 0, 10)
    drain_all({"s": service}, table)
    for number in range(4):
        write_deltalake(str(table), pa.table({"queue": [f"theirs {number}"]}), mode="append", schema_mode="merge")
    DeltaTable(str(table)).create_checkpoint()
    for number in (3, 5):
        entry(table, number).write_bytes(entry(table, number).read_bytes()[:-50])
    feed(service, 10, 20)
    process = Draining({"s": service}, table)
    assert process.said == [] and process.all() == 10
    assert len(columns(table, "queue")) == 24 and entry(table, 5).exists()


def test_an_entry_that_is_missing_after_a_checkpoint_is_noticed(service: ThreadedService, table: Path) -> None:
    """Also as the first one: those after it are set aside."""
    feed(service, 0, 10)
    drain_all({"s": service}, table)
    rows = DeltaTable(str(table)).to_pyarrow_table().schema.empty_table()
    write_deltalake(str(table), rows, mode="append")
    clean(table)  # its last entry changes a property, and is summed up
    for _ in range(2):
        write_deltalake(str(table), rows, mode="append")
    for number in (3, 4):
        entry(table, number).unlink()
    feed(service, 10, 20)
    process = Draining({"s": service}, table)
    assert any("version 5 of the table is set aside" in line for line in process.said)
    assert process.all() == 10 and table_rows(table) == expected(q=20)


def test_a_version_whose_entry_is_lost_counts_by_its_checkpoint(service: ThreadedService, table: Path) -> None:
    """The newest entries did not reach the disk, and the checkpoint of others did."""
    feed(service, 0, 10)
    drain_all({"s": service}, table)
    rows = DeltaTable(str(table)).to_pyarrow_table().schema.empty_table()
    for _ in range(2):
        write_deltalake(str(table), rows, mode="append")
    DeltaTable(str(table)).create_checkpoint()
    for number in (2, 3):
        entry(table, number).unlink()
    feed(service, 10, 20)
    assert drain_all({"s": service}, table) == 10
    assert table_rows(table) == expected(q=20)


def test_a_checkpoint_that_lacks_a_part_is_removed(service: ThreadedService, table: Path) -> None:
    """Other engines write it in several files, and not all of them reached the disk."""
    feed(service, 0, 10)
    process = Draining({"s": service}, table)
    process.all()
    process.output._sum_up()
    (checkpoint,) = (table / "_delta_log").glob("*.checkpoint.parquet")
    checkpoint.rename(checkpoint.with_name(f"{1:020}.checkpoint.{1:010}.{2:010}.parquet"))
    feed(service, 10, 20)
    process = Draining({"s": service}, table)
    assert "cannot be read and is removed" in process.said[0] and process.all() == 10


def test_a_torn_checkpoint_after_lost_entries_is_removed(service: ThreadedService, table: Path) -> None:
    """Nothing of others was durable after the last batch: the table is what it was then."""
    feed(service, 0, 10)
    drain_all({"s": service}, table)
    rows = DeltaTable(str(table)).to_pyarrow_table().schema.empty_table()
    for _ in range(3):
        write_deltalake(str(table), rows, mode="append")
    DeltaTable(str(table)).create_checkpoint()
    (checkpoint,) = (table / "_delta_log").glob("*.checkpoint.parquet")
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    entry(table, 2).unlink()
    feed(service, 10, 20)
    assert drain_all({"s": service}, table) == 10
    assert table_rows(table) == expected(q=20)


def test_transactions_of_others_do_not_count(service: ThreadedService, table: Path) -> None:
    """Other programs use the same mechanism under their own names."""
    feed(service, 0, 10)
    drain_all({"s": service}, table)
    rows = DeltaTable(str(table)).to_pyarrow_table().schema.empty_table()
    write_deltalake(
        str(table),
        rows,
        mode="append",
        commit_properties=CommitProperties(app_transactions=[Transaction("theirs", 7)]),
        post_commithook_properties=PostCommitHookProperties(create_checkpoint=False),
    )
    feed(service, 10, 12)
    assert drain_all({"s": service}, table) == 2


def change_protocol(table: Path, *features: str, readers: tuple[str, ...] = ()) -> None:
    """Turn features of the table on, as other engines do."""
    version = DeltaTable(str(table)).version()
    protocol: dict[str, Any] = {"minReaderVersion": 3 if readers else 1, "minWriterVersion": 7}
    protocol["writerFeatures"] = sorted({*features, *readers})
    if readers:
        protocol["readerFeatures"] = list(readers)
    lines = ({"commitInfo": {"timestamp": 0, "operation": "SET"}}, {"protocol": protocol})
    entry(table, version + 1).write_text("\n".join(map(json.dumps, lines)))


@pytest.mark.parametrize("running", [False, True], ids=["at the start", "while it runs"])
def test_a_feature_that_is_not_known_is_refused(service: ThreadedService, table: Path, running: bool) -> None:
    """It may change what a file means: nothing is stored or truncated, and the sentence says so."""
    feed(service, 0, 10)
    drain_all({"s": service}, table)
    feed(service, 10, 20)

    def changed(tasks: Sequence[ReadTask], writer: RowWriter) -> list[WrittenFile]:
        files = in_process(tasks, writer)
        change_protocol(table, "fromTheFuture")
        return files

    if not running:
        change_protocol(table, "fromTheFuture")
    with pytest.raises(OutputRefusedError, match="needs what delta-rs does not write") as raised:
        drain_all({"s": service}, table, run=changed if running else in_process)
    assert "\n" not in str(raised.value) and left(service) == 10


def test_where_rows_are_deleted_by_vectors_the_drain_goes_on(service: ThreadedService, table: Path) -> None:
    """It only adds files."""
    feed(service, 0, 10)
    drain_all({"s": service}, table)
    change_protocol(table, readers=("deletionVectors",))
    feed(service, 10, 20)
    assert drain_all({"s": service}, table) == 10
    assert len(pa.table(DeltaTable(str(table)).get_add_actions())) == 2
