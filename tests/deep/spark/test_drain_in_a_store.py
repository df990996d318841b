"""A drain into a table in S3: conditional puts instead of syncs, and the same promises."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest
from deltalake import DeltaTable

from mrecordlog_async.spark import delta_output
from mrecordlog_async.spark.log_server import ReadTask
from mrecordlog_async.spark.output import BatchFailedError, OutputRefusedError, RowWriter, WrittenFile
from mrecordlog_async.spark.runners import in_process
from mrecordlog_async.spark.state import DrainState
from mrecordlog_async.spark.table_files import TableFiles
from tests.deep.spark.s3 import BUCKET, s3_server
from tests.spark.draining import STEPS, Draining, Killed, Killer, drain_all, expected, table_rows
from tests.spark.services import ThreadedService, numbered


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with s3_server(tmp_path_factory.mktemp("s3")) as options:
        yield options


@pytest.fixture
def table() -> str:
    return f"{BUCKET}/{uuid.uuid4()}"


def feed(service: ThreadedService, start: int, stop: int, queue: str = "q") -> None:
    service.append(queue, numbered(queue, start, stop))


def test_rows_are_there_once_through_kills_at_each_step(
    service: ThreadedService, store: dict[str, str], table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was begun and not committed never existed."""
    killer, records = Killer(), 0
    monkeypatch.setattr(delta_output, "SUM_UP_EVERY", 3)
    with killer.attached(monkeypatch):
        for step in STEPS:
            for when in ("before", "after"):
                feed(service, records, records + 5)
                records += 5
                killer.arm(when, step)
                with suppress(Killed):
                    Draining({"s": service}, table, storage_options=store).step()
                killer.disarm()
        drain_all({"s": service}, table, storage_options=store)
    assert table_rows(table, store) == expected(q=records)
    assert not any(service.records().values())


def test_of_two_drains_one_stops(service: ThreadedService, store: dict[str, str], table: str) -> None:
    """The store refuses the second put of a version."""
    feed(service, 0, 5)
    other = Draining({"s": service}, table, storage_options=store)

    def overtaken(tasks: Sequence[ReadTask], writer: RowWriter) -> list[WrittenFile]:
        files = in_process(tasks, writer)
        assert other.step() == 5
        return files

    with pytest.raises(OutputRefusedError, match="another drain named"):
        Draining({"s": service}, table, storage_options=store, run=overtaken).step()
    assert table_rows(table, store) == expected(q=5)


def test_files_and_positions_that_are_not_there_are_not_committed(
    service: ThreadedService, store: dict[str, str], table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver looks at each of them in the store."""
    feed(service, 0, 5)

    def deleted(tasks: Sequence[ReadTask], writer: Any) -> list[WrittenFile]:
        files = in_process(tasks, writer)
        writer.files.remove([files[0]["path"]])
        return files

    with pytest.raises(BatchFailedError, match="lacks 1 of 2 files"):
        Draining({"s": service}, table, storage_options=store, run=deleted).step()
    with monkeypatch.context() as patched:
        patched.setattr(TableFiles, "write", lambda self, name, content: None)
        with pytest.raises(BatchFailedError, match="_mrecordlog/drain/"):
            Draining({"s": service}, table, storage_options=store).step()
    assert drain_all({"s": service}, table, storage_options=store) == 5
    assert table_rows(table, store) == expected(q=5)


def test_odd_names_and_several_drains_share_a_table(
    service: ThreadedService, store: dict[str, str], table: str
) -> None:
    """As on a disk."""
    queues = ("7", "007", "ä b", "a/b=c", "x" * 250, "__HIVE_DEFAULT_PARTITION__", "%")
    for queue in queues:
        feed(service, 0, 2, queue)
    assert drain_all({"s": service}, table, storage_options=store, partition_by=("queue",)) == 2 * len(queues)
    found = DeltaTable(table, storage_options=store).to_pyarrow_table(columns=["queue"]).column("queue").to_pylist()
    assert sorted(found) == sorted(queue for queue in queues for _ in range(2))
    second = Draining({"s": service}, table, name="second", storage_options=store)
    assert second.step() == 0
    process = Draining({"s": service}, table, storage_options=store)
    process.output.load()
    assert [DrainState.decode(content).onto for _, content, _ in process.output._committed()] == [0]


def test_a_store_that_is_away_is_one_sentence(service: ThreadedService, store: dict[str, str], table: str) -> None:
    """Nothing is truncated, and the message holds no key."""
    feed(service, 0, 5)
    away = {**store, "AWS_ENDPOINT_URL": "http://127.0.0.1:9", "max_retries": "0", "retry_timeout": "1s"}
    with pytest.raises(BatchFailedError, match="cannot be used") as raised:
        drain_all({"s": service}, table, storage_options=away)
    assert "\n" not in str(raised.value) and "secret" not in str(raised.value)
