"""A drain of an earlier version goes on without its checkpoint: with its table and its log, each record once."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from mrecordlog_async.servers.names import Endpoint
from mrecordlog_async.spark.consuming import ConsumerOfDrain
from mrecordlog_async.spark.delta_output import DeltaOutput
from mrecordlog_async.spark.drain_loop import Drain
from mrecordlog_async.spark.migration import earlier_state
from mrecordlog_async.spark.output import OutputRefusedError
from mrecordlog_async.spark.runners import in_process, row_schema
from mrecordlog_async.spark.server_set import ServerSet
from mrecordlog_async.spark.state import DrainState
from mrecordlog_async.spark.surveying import DrainSettings
from mrecordlog_async.spark.table_files import TableFiles
from tests.compatibility.pipeline import PLACE, READ, payloads, rename_place
from tests.compatibility.record import DATA, unpacked
from tests.spark.draining import Draining, Killed, Killer, going_on, table_rows
from tests.spark.services import ThreadedService

RELEASES = sorted(path.name for path in DATA.iterdir())
INTO_FILES = "0.2.0"
"""The only release that kept a drain into Parquet files, instead of one with a consumer."""

ALL = 2 * READ


@pytest.fixture(params=RELEASES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Unpack what the pipeline of a release left."""
    return unpacked(request.param, tmp_path)


@pytest.fixture
def service(place: Path) -> Iterator[ThreadedService]:
    """Serve the log of the release, at an address and under a name that it did not have then: its id counts."""
    service = ThreadedService(place / "log")
    yield service
    service.end()


def migrated(place: Path, service: ThreadedService, queue: str, *, consumer: str | None = None) -> Drain:
    said: list[str] = []
    table, checkpoint = TableFiles(str(place / queue / "table")), TableFiles(str(place / queue / "checkpoint"))
    output = DeltaOutput(table, row_schema(()), migrate_from=checkpoint, report=said.append)
    output.open()
    return drain_of(output, service, queue, consumer)


def drain_of(output: DeltaOutput, service: ThreadedService, queue: str, consumer: str | None = None) -> Drain:
    held = None if consumer is None else ConsumerOfDrain(consumer, output.owner, None)
    servers = ServerSet([Endpoint(service.url, name="other")], consumer=held)
    return Drain(servers, output, in_process, DrainSettings(includes=lambda name: name == queue))


def expected(queue: str) -> list[tuple[str, int, bytes]]:
    return [(queue, position, payload) for position, payload in enumerate(payloads(queue, 0, ALL))]


def test_a_drain_goes_on_with_its_positions(service: ThreadedService, place: Path) -> None:
    """The table then has every record once, and the log is empty; the checkpoint is not needed any more."""
    drain = migrated(place, service, "orders")
    with going_on():
        assert drain.step() == READ
    shutil.rmtree(place / "orders" / "checkpoint")
    output = DeltaOutput(TableFiles(str(place / "orders" / "table")), row_schema(()))
    output.open()
    again = drain_of(output, service, "orders")
    assert again.step() == 0
    assert sorted(table_rows(place / "orders" / "table")) == sorted(expected("orders"))
    for each in (drain, again):
        each.close()


@pytest.mark.parametrize("place", sorted({*RELEASES} - {INTO_FILES}), indirect=True)
def test_a_drain_goes_on_with_its_consumer(service: ThreadedService, place: Path) -> None:
    """It is the same owner, also at later starts; nothing has to be taken over."""
    for records in (READ, 0):
        drain = migrated(place, service, "payments", consumer="lake")
        assert drain.step() == records
        drain.close()
    assert table_rows(place / "payments" / "table") == sorted(expected("payments"))


def test_without_the_option_it_is_refused(place: Path) -> None:
    """The sentence shows how to continue."""
    with pytest.raises(OutputRefusedError, match="--migrate-from CHECKPOINT"):
        DeltaOutput(TableFiles(str(place / "orders" / "table")), row_schema(())).open()


@pytest.mark.parametrize(
    "step", ["the commit", "the sync of the entry", "a file of positions", "the look at the files"]
)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_kill_while_it_migrates_changes_nothing(
    service: ThreadedService, place: Path, monkeypatch: pytest.MonkeyPatch, when: str, step: str, nth: int
) -> None:
    """The next start continues; without the option it is refused until the positions are in the table."""
    killer, table = Killer(), place / "orders" / "table"
    with killer.attached(monkeypatch):
        killer.arm(when, step, nth)
        try:
            migrated(place, service, "orders").close()
        except Killed:
            try:
                output = DeltaOutput(TableFiles(str(table)), row_schema(()))
                output.open()
            except OutputRefusedError as error:
                assert "--migrate-from" in str(error)
            else:
                assert output.load().owner
        killer.disarm()
        drain = migrated(place, service, "orders")
        assert drain.step() == READ
        drain.close()
    assert table_rows(table) == sorted(expected("orders"))


def test_a_drain_of_another_name_does_not_take_the_positions_again(
    service: ThreadedService, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill between the positions and the note that they are in the table: it would store the rows twice."""
    killer, table = Killer(), place / "orders" / "table"
    checkpoint = TableFiles(str(place / "orders" / "checkpoint"))
    with killer.attached(monkeypatch), pytest.raises(Killed):
        killer.arm("after", "the commit")
        migrated(place, service, "orders")
    with pytest.raises(OutputRefusedError, match="the drain 'drain' began to continue"):
        DeltaOutput(TableFiles(str(table)), row_schema(()), name="other", migrate_from=checkpoint).open()
    assert migrated(place, service, "orders").step() == READ
    assert table_rows(table) == sorted(expected("orders"))


def test_a_begun_batch_that_is_not_in_the_table_is_forgotten(service: ThreadedService, place: Path) -> None:
    """Spark has planned it, and the table does not have it: its records are read again."""
    offsets = place / "orders" / "checkpoint" / "offsets"
    last = max(int(path.name) for path in offsets.iterdir() if path.name.isdecimal())
    text = (offsets / str(last)).read_text()
    end = json.loads(text.split("\n")[2])
    for each in end["logs"].values():
        each["queues"]["orders"][1] += 5
    (offsets / str(last + 1)).write_text("\n".join([*text.split("\n")[:2], json.dumps(end)]))
    drain = migrated(place, service, "orders")
    assert drain.step() == READ
    drain.close()
    assert table_rows(place / "orders" / "table") == sorted(expected("orders"))


def test_a_batch_that_the_earlier_drain_commits_meanwhile_is_not_stored_twice(
    service: ThreadedService, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It still runs, and commits after its positions were read and before it is refused."""
    table, offsets = place / "orders" / "table", place / "orders" / "checkpoint" / "offsets"
    query = json.loads((place / "orders" / "checkpoint" / "metadata").read_text())["id"]
    last = max(int(path.name) for path in offsets.iterdir() if path.name.isdecimal())
    text = (offsets / str(last)).read_text()
    end = json.loads(text.split("\n")[2])
    (at,) = {each["queues"]["orders"][1] for each in end["logs"].values()}
    for each in end["logs"].values():
        each["queues"]["orders"][1] += 5

    def overtaken(*arguments: Any) -> DrainState:
        monkeypatch.setattr("mrecordlog_async.spark.delta_output.earlier_state", earlier_state)
        found = earlier_state(*arguments)
        (offsets / str(last + 1)).write_text("\n".join([*text.split("\n")[:2], json.dumps(end)]))
        rows = DeltaTable(str(table)).to_pyarrow_table().slice(0, 5).to_pylist()
        for number, payload in enumerate(payloads("orders", at, at + 5)):
            rows[number] |= {"position": at + number, "payload": payload}
        written = CommitProperties(app_transactions=[Transaction(query, last + 1)])
        schema = DeltaTable(str(table)).to_pyarrow_dataset().schema
        write_deltalake(str(table), pa.Table.from_pylist(rows, schema), mode="append", commit_properties=written)
        return found

    monkeypatch.setattr("mrecordlog_async.spark.delta_output.earlier_state", overtaken)
    drain = migrated(place, service, "orders")
    assert drain.step() == READ - 5
    drain.close()
    assert table_rows(table) == sorted(expected("orders"))


def test_a_table_without_an_earlier_drain_takes_no_checkpoint(place: Path, tmp_path: Path) -> None:
    """Its address is wrong: the records of the log would go to another table than those before them."""
    checkpoint = TableFiles(str(place / "orders" / "checkpoint"))
    with pytest.raises(OutputRefusedError, match="--migrate-from: there is no table at"):
        DeltaOutput(TableFiles(str(tmp_path / "other")), row_schema(()), migrate_from=checkpoint).open()
    assert not (tmp_path / "other").exists()
    DeltaOutput(TableFiles(str(tmp_path / "other")), row_schema(())).open()
    with pytest.raises(OutputRefusedError, match="is not the table of a drain of an earlier version"):
        DeltaOutput(TableFiles(str(tmp_path / "other")), row_schema(()), migrate_from=checkpoint).open()


def test_an_earlier_version_refuses_the_table(service: ThreadedService, place: Path) -> None:
    """It would store again what is in the table: it refuses one whose property names another query than its own."""
    table = place / "orders" / "table"
    query = json.loads((place / "orders" / "checkpoint" / "metadata").read_text())["id"]
    assert DeltaTable(str(table)).metadata().configuration["mrecordlog.query"] == query
    migrated(place, service, "orders").close()
    assert DeltaTable(str(table)).metadata().configuration["mrecordlog.query"] == "positions are in the table"


def test_checkpoints_that_do_not_fit_are_refused(service: ThreadedService, place: Path) -> None:
    """One of another drain, of Parquet files, with positions from before 0.2.0, without its last batch, or on HDFS."""
    table = place / "orders" / "table"

    def refused(checkpoint: str, says: str) -> None:
        output = DeltaOutput(TableFiles(str(table)), row_schema(()), migrate_from=TableFiles(checkpoint))
        with pytest.raises(OutputRefusedError, match=says):
            output.open()

    own = place / "orders" / "checkpoint"
    refused("hdfs://name/checkpoint", "hdfs dfs -get")
    refused(str(place / "clicks" / "checkpoint"), "name the checkpoint of that drain")
    refused(str(place / "nothing"), "is no checkpoint of a drain")
    if place / "payments" / "out" in (place / "payments").iterdir():
        refused(str(place / "payments" / "checkpoint"), r"finish that drain with 0\.2\.0, then begin a Delta table")
    offsets = sorted((own / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    text = offsets[-1].read_text()
    old = json.loads(text.split("\n")[2])
    for each in old["logs"].values():
        each["openings"] = {"x": {"orders": [1, 2]}}
    for each in offsets:
        each.write_text("\n".join([*text.split("\n")[:2], json.dumps(old)]))
    refused(str(own), r"from before 0\.2\.0")
    for each in offsets:
        each.unlink()
    refused(str(own), "is missing or damaged")


@pytest.mark.parametrize("name", ["typed", "rest"])
def test_a_table_with_parsed_columns_needs_a_function(name: str, tmp_path: Path) -> None:
    """A table with `error` or `_rest`, or without payload, is continued only by a function that gives every column."""
    with tarfile.open(DATA / "0.3.0" / "tables.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    rename_place(tmp_path, PLACE, str(tmp_path))
    table, checkpoint = tmp_path / name / "table", TableFiles(str(tmp_path / name / "checkpoint"))
    with pytest.raises(OutputRefusedError, match="with a --transform that gives every one of them"):
        DeltaOutput(TableFiles(str(table)), row_schema(()), migrate_from=checkpoint).open()
    schema = DeltaTable(str(table)).to_pyarrow_dataset().schema
    given = DeltaOutput(TableFiles(str(table)), schema, migrate_from=checkpoint, plain=False)
    given.open()
    assert sum(len(each.queues) for each in given.load().logs.values()) == 1
    given.close()


def test_a_second_drain_may_share_the_table_afterwards(
    service: ThreadedService, place: Path, new_service: type[ThreadedService]
) -> None:
    """The table has moved on; a new name has positions of its own."""
    drain = migrated(place, service, "orders")
    drain.step()
    drain.close()
    other = new_service()  # type: ignore[call-arg]  # a fixture that makes one
    other.append("more", [b"x"] * 3)
    assert Draining({"o": other}, place / "orders" / "table", name="second").all() == 3
