"""Which files below a table's directory a vacuum deletes: those of its writers that no version needs, and no others."""

from __future__ import annotations

import json
import os
import time
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from mrecordlog_async.cli.main import main
from mrecordlog_async.spark.delta.content import TableError
from mrecordlog_async.spark.delta.entries import entry_name
from mrecordlog_async.spark.delta.place import TablePlace
from mrecordlog_async.spark.delta.upkeep import Replaced, files_of, open_table, optimize
from mrecordlog_async.spark.delta.vacuum import DATA_FILE, RETENTION, are_partition, other_than_table, vacuum
from tests.spark.delta_engine import DeltaEngine
from tests.spark.services import ThreadedService, numbered

DAY = 86_400


@pytest.fixture
def drained(service: ThreadedService, tmp_path: Path) -> DeltaEngine:
    """Drain two batches of two queues into a table that is partitioned by queue."""
    engine = DeltaEngine(f"a={service.url}", tmp_path, partition_by=("queue",))
    for first in (0, 10):
        for queue in ("7", "ä/%= b"):
            service.append(queue, numbered(queue, first, first + 10))
        engine.drain()
    return engine


def data_file() -> str:
    return f"part-{uuid.uuid4()}.parquet"


def put(path: Path, age: float = 10 * DAY) -> Path:
    """Make a file that was changed *age* seconds ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"left by a task")
    os.utime(path, (time.time() - age,) * 2)
    return path


def aged(below: Path, age: float = 10 * DAY) -> None:
    """Let all files below a directory be *age* seconds old."""
    for directory, _, names in os.walk(below):
        for name in names:
            os.utime(Path(directory, name), (time.time() - age,) * 2)


def files_below(path: Path) -> set[str]:
    return {str(Path(directory, name)) for directory, _, names in os.walk(path) for name in names}


def test_what_others_have_below_a_table_stays(
    drained: DeltaEngine, service: ThreadedService, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Files of people, a log, another table and its checkpoint are as they were, however old they are."""
    data = drained.table_path
    for name in ("main.py", "notes/thesis.txt", "sales.parquet", "queue=x/list.parquet", "queue=x/part-0.parquet"):
        put(data / name)
    log = ThreadedService(data / "wal")
    log.append("q", numbered("q", 0, 100))
    log.end()
    (data / "orders").mkdir()
    other = DeltaEngine(f"a={service.url}", data / "orders", truncate="false")
    service.append("more", numbered("more", 0, 10))
    other.drain()
    drained.drain()
    orphans = {str(put(data / data_file())), str(put(data / "queue=7" / data_file()))}
    aged(data)
    before = files_below(data)
    assert main(["lake", "vacuum", str(data)]) == 0
    assert before - files_below(data) == orphans
    assert "2 files deleted" in capsys.readouterr().out and "old files that the table does not name stay" in caplog.text
    log = ThreadedService(data / "wal")
    assert len(log.records()["q"]) == 100
    log.end()
    assert [row[0] for row in other.rows()] == ["more"] * 10
    service.append("more", numbered("more", 10, 20))
    other.drain()
    drained.drain()
    assert len(other.rows()) == 20 and len(drained.rows()) == 60


def test_files_that_a_version_removed_are_deleted(drained: DeltaEngine, tmp_path: Path) -> None:
    """Whatever they are called and wherever they are: the log of the table says that they were of the table."""
    rows = drained.rows()
    log = drained.table_path / "_delta_log"
    (held, *_) = files_of(open_table(drained.place))
    (drained.table_path / "elsewhere").mkdir()
    for entry in log.glob("*.json"):
        entry.write_bytes(entry.read_bytes().replace(held.raw.encode(), b"elsewhere/of-another-writer"))
    (drained.table_path / held.path).rename(drained.table_path / "elsewhere/of-another-writer")
    assert optimize(drained.place) == Replaced(4, 2)
    aged(drained.table_path)
    assert vacuum(drained.place) == [], "they were removed just now"
    for entry in log.glob("*.json"):
        lines = [json.loads(line) for line in entry.read_bytes().splitlines()]
        for each in (line["remove"] for line in lines if "remove" in line):
            each["deletionTimestamp"] -= 10 * DAY * 1_000
        entry.write_text("\n".join(json.dumps(line) for line in lines))
    for path in (*log.glob("*.checkpoint.parquet"), log / "_last_checkpoint"):
        path.unlink()
    found = vacuum(drained.place)
    assert len(found) == 4 and "elsewhere/of-another-writer" in found
    assert drained.rows() == rows


def test_files_of_the_last_hour_stay(drained: DeltaEngine) -> None:
    """A vacuum deletes old files of killed tasks, never those of the last hour: a drain may be about to commit them."""
    rows = drained.rows()
    old, older, new = (put(drained.table_path / data_file(), age).name for age in (7_300, 4_500, 1_800))
    with pytest.raises(TableError, match="at least an hour"):
        vacuum(drained.place, 60)
    assert vacuum(drained.place, 5_400) == [old]  # never a part of an hour too early
    assert vacuum(drained.place, 3_600, apply=False) == [older]
    assert vacuum(drained.place, 3_600) == [older]
    assert drained.rows() == rows and (drained.table_path / new).exists()


def test_a_vacuum_adds_nothing_to_the_log_of_a_table(drained: DeltaEngine) -> None:
    """Of entries that nobody synced, a power cut may keep a later one alone, and then no reader opens the table."""
    rows, version = drained.rows(), open_table(drained.place).version()
    left = [put(drained.table_path / directory / data_file()) for directory in ("", "queue=x%2Fy", "queue=ä#?")]
    assert len(vacuum(drained.place)) == len(left)
    assert not any(path.exists() for path in left) and open_table(drained.place).version() == version
    assert drained.rows() == rows


QUEUES = ("7", "ä/%= b", "a%2Fb", "𠮷", "__HIVE_DEFAULT_PARTITION__", "..", " ", "x=y", "#?*[]{}~^\\|\"'`<>")


@pytest.mark.parametrize("columns", [["queue"], ["queue", "server"], ["a%b c"]])
def test_orphans_are_found_where_delta_rs_puts_files(tmp_path: Path, columns: list[str]) -> None:
    """It escapes values in names of directories; a file that a killed writer left there is deleted."""
    table = pa.table(dict.fromkeys(columns, QUEUES) | {"value": range(len(QUEUES))})
    place = TablePlace(str(tmp_path / "t"))
    for _ in range(2):
        write_deltalake(place.uri, table, mode="append", partition_by=columns)
    paths = [each.path for each in files_of(open_table(place))]
    assert len({path.rpartition("/")[0] for path in paths}) == len(QUEUES)
    left = [put(tmp_path / "t" / path.rpartition("/")[0] / data_file()) for path in paths]
    aged(tmp_path / "t")
    assert len(vacuum(place)) == len(left)
    assert not any(path.exists() for path in left)
    assert sorted(open_table(place).to_pyarrow_table()["value"].to_pylist()) == sorted([*range(len(QUEUES))] * 2)


@pytest.mark.parametrize(
    ("directory", "columns", "found"),
    [
        ("", [], True),
        ("", ["queue"], True),
        ("queue=7", ["queue"], True),
        ("queue=", ["queue"], True),
        ("que%75e=7", ["queue"], True),
        ("queue=7", [], False),
        ("queue", ["queue"], False),
        ("wal", ["queue"], False),
        ("server=a/queue=7", ["queue"], False),
        ("server=a/queue=7", ["queue", "server"], False),
        ("server=a/queue=7", ["server", "queue"], True),
        ("server=a", ["server", "queue"], False),
        ("queue=7/old", ["queue"], False),
        ("_change_data", ["queue"], True),
        ("_change_data/queue=7", ["queue"], True),
        ("queue=7/_change_data", ["queue"], False),
    ],
)
def test_a_directory_of_a_partition_is_known_by_its_name(directory: str, columns: list[str], found: bool) -> None:
    """It names each partition column, in their order, and nothing more."""
    assert are_partition(directory.split("/") if directory else [], columns) is found


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("part-6a1c3a02-6b8d-4a32-8a42-5b3ce1a07a6b.parquet", True),
        ("part-00000-6a1c3a02-6b8d-4a32-8a42-5b3ce1a07a6b-c000.snappy.parquet", True),
        ("part-123456-6a1c3a02-6b8d-4a32-8a42-5b3ce1a07a6b-c1000.zstd.parquet", True),
        ("part-0.parquet", False),
        ("part-old.parquet", False),
        ("part-6a1c3a02-6b8d-4a32-8a42-5b3ce1a07a6b.csv", False),
        ("a-part-6a1c3a02-6b8d-4a32-8a42-5b3ce1a07a6b.parquet", False),
        ("6a1c3a02-6b8d-4a32-8a42-5b3ce1a07a6b.parquet", False),
    ],
)
def test_a_data_file_is_known_by_its_name(name: str, found: bool) -> None:
    """Only this package and delta-rs name files so; people and other programs give names without a uuid."""
    assert (DATA_FILE.fullmatch(name) is not None) is found


@pytest.mark.parametrize(
    "names",
    [
        ["_delta_log"],
        ["_mrecordlog"],
        ["_spark_metadata"],
        ["_SUCCESS"],
        ["offsets", "commits", "metadata"],
        ["LOCK"],
        ["wal-00000000000000000001"],
    ],
)
def test_orphans_stay_next_to_something_else(drained: DeltaEngine, names: list[str]) -> None:
    """In such a directory, a name does not say whose file it is: it may be of another table or output."""
    assert other_than_table(names, below=True) and other_than_table(names, below=False) == (names != ["_delta_log"])
    directory = drained.table_path / "queue=7"
    path = put(directory / data_file())
    for name in names:
        put(directory / name / "x" if not name.startswith(("LOCK", "wal-", "_SUCC")) else directory / name)
    assert vacuum(drained.place) == [] and path.exists()


def test_orphans_below_a_link_stay(drained: DeltaEngine, tmp_path: Path) -> None:
    """No writer makes links: what they lead to is somebody else's."""
    path = put(tmp_path / "elsewhere" / data_file())
    (drained.table_path / "queue=linked").symlink_to(tmp_path / "elsewhere")
    name = data_file()
    (drained.table_path / name).symlink_to(put(tmp_path / "elsewhere" / "one file"))
    assert vacuum(drained.place) == [] and path.exists() and (drained.table_path / name).is_symlink()


@pytest.mark.parametrize(
    ("stated", "hours"),
    [("interval 30 days", 720), ("INTERVAL 2 WEEKS", 336), ("interval 1 day 12 hours", 36), ("interval 1 minute", 1)],
)
def test_the_period_that_the_table_states_counts(drained: DeltaEngine, stated: str, hours: int) -> None:
    """Readers of the table rely on it. A shorter one is chosen by the option alone, and never less than an hour."""
    open_table(drained.place).alter.set_table_properties({RETENTION: stated})
    old, new = (put(drained.table_path / data_file(), age) for age in (hours * 3_600 + 60, hours * 3_600 - 600))
    assert vacuum(drained.place) == [old.name] and new.exists()
    if hours > 1:
        assert vacuum(drained.place, (hours - 1) * 3_600) == [new.name]


def test_a_period_that_is_not_understood_is_refused(drained: DeltaEngine, capsys: pytest.CaptureFixture[str]) -> None:
    """It may be longer than the default."""
    open_table(drained.place).alter.set_table_properties({RETENTION: "interval 1 month"})
    path = put(drained.table_path / data_file(), 100 * DAY)
    assert main(["lake", "vacuum", str(drained.table_path)]) == 1
    assert "'interval 1 month', which is not understood; set --older-than" in capsys.readouterr().err
    assert path.exists()
    assert main(["lake", "vacuum", str(drained.table_path), "--older-than", "30d"]) == 0 and not path.exists()


READER_TOO = {"vacuumProtocolCheck", "typeWidening"}
FEATURES = (
    "allowColumnDefaults",
    "clustering",
    "coordinatedCommits-preview",
    "domainMetadata",
    "icebergCompatV1",
    "icebergCompatV2",
    "identityColumns",
    "inCommitTimestamp",
    "materializePartitionColumns",
    "rowTracking",
    "typeWidening",
    "vacuumProtocolCheck",
    "an unknown one",
)


@pytest.mark.parametrize("feature", FEATURES)
def test_a_table_that_delta_rs_does_not_write_is_refused(drained: DeltaEngine, feature: str) -> None:
    """A feature may say which files a table needs, as optimize and the drain know; nothing is deleted or committed."""
    protocol: dict[str, object] = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": [feature]}
    if feature in READER_TOO:
        protocol |= {"minReaderVersion": 3, "readerFeatures": [feature]}
    version = open_table(drained.place).version() + 1
    (drained.table_path / "_delta_log" / entry_name(version)).write_text(json.dumps({"protocol": protocol}))
    path = put(drained.table_path / data_file())
    with pytest.raises(TableError, match="needs what delta-rs does not write"):
        vacuum(drained.place)
    assert path.exists() and open_table(drained.place).version() == version


@pytest.mark.parametrize("spelling", ["./{0}", "file://{1}/{0}", "{1}/{0}", "missing.parquet"])
def test_a_table_that_names_files_otherwise_is_refused(drained: DeltaEngine, spelling: str) -> None:
    """delta-rs takes a live file that it does not find at its name for one that nothing names."""
    named = data_file()
    put(drained.table_path / named)
    path = spelling.format(named, drained.table_path)
    add = {"path": path, "size": 14, "partitionValues": {"queue": "7"}, "modificationTime": 1, "dataChange": True}
    version = open_table(drained.place).version() + 1
    (drained.table_path / "_delta_log" / entry_name(version)).write_text(json.dumps({"add": add}))
    with pytest.raises(TableError, match="names"):
        vacuum(drained.place)
    assert (drained.table_path / named).exists()


@pytest.mark.parametrize("why", ["period", "missing file"])
def test_a_vacuum_that_is_refused_drops_no_rows(
    drained: DeltaEngine, capsys: pytest.CaptureFixture[str], why: str
) -> None:
    """What may refuse it is checked before the first change."""
    version = open_table(drained.place).version()
    command = ["lake", "vacuum", str(drained.table_path), "--drop-older-than", "1ms"]
    if why == "period":
        command += ["--older-than", "10min"]
    else:
        (drained.table_path / files_of(open_table(drained.place))[0].path).unlink()
    assert main(command) == 1
    assert ("at least an hour" if why == "period" else "finds no such file") in capsys.readouterr().err
    assert open_table(drained.place).version() == version
