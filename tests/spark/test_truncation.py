"""What is truncated, and what never is: records are counted, logs that went back are refused, servers may be down."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

from mrecordlog_async.spark import release
from mrecordlog_async.spark.connection import ServerDownError
from mrecordlog_async.spark.ledger import LEDGER, Ledger
from mrecordlog_async.spark.truncation import LogWentBackError, ProofError
from tests.spark.conftest import NewService
from tests.spark.engine import Engine, Run, expected, go_back_after_a_batch
from tests.spark.services import ThreadedService, numbered


def test_fewer_rows_than_the_log_holds_are_not_truncated(
    engine: Engine, service: ThreadedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the log holds more records at these positions than the output has rows, nothing is truncated."""
    whole = Run._rows
    monkeypatch.setattr(Run, "_rows", lambda self, number: whole(self, number).slice(0, 49))
    with engine.started() as run:
        assert run.batch()
        with pytest.raises(ProofError, match=r"holds 50 records .* 49 rows"):
            run.release.advance()
    assert service.positions("q") == (100, 150)


def test_more_rows_than_the_log_holds_are_not_truncated(
    service: ThreadedService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the output has more rows than the log has records, nothing is truncated."""
    service.append("q", numbered("q", 0, 5), 10)
    service.append("q", numbered("q", 0, 5), 1_000)
    whole = Run._rows

    def twice(self: Run, number: int) -> pa.Table:
        rows = whole(self, number)
        return pa.concat_tables([rows, rows.slice(0, 1)])

    monkeypatch.setattr(Run, "_rows", twice)
    with Engine(f"a={service.url}", tmp_path).started() as run:
        while run.batch():
            pass
        with pytest.raises(ProofError, match=r"holds 10 records .* 11 rows"):
            run.release.advance()
    assert len(service.records()["q"]) == 10


def test_records_below_what_was_read_are_not_truncated(service: ThreadedService, tmp_path: Path) -> None:
    """A truncate would delete everything below its position, including records that came back and were never read."""
    service.append("q", numbered("q", 0, 10))
    engine = Engine(f"a={service.url}", tmp_path, startingOffsets='{"a": {"q": 5}}')
    with engine.started() as run:
        while run.batch():
            pass
        with pytest.raises(LogWentBackError, match=r"read from position 5 on, and begins at 0: it went back"):
            run.release.advance()
    assert service.positions("q") == (0, 10)


def test_a_server_that_is_down_is_truncated_later(new_service: NewService, tmp_path: Path) -> None:
    """What is proven stays in the ledger until the server is back; the other server is drained meanwhile."""
    a, b = new_service(), new_service()
    a.append("q", numbered("q", 0, 10))
    b.append("q", numbered("q", 0, 20))
    engine = Engine(f"a={a.url},b={b.url}", tmp_path, failOnServerDown="false")
    with engine.started() as run:
        while run.batch():
            pass
        b.stop()
        assert run.release.advance() == 30
        assert a.records() == {"q": []}
    with engine.started():
        pass
    b.start()
    assert b.positions("q") == (0, 20)
    with engine.started():
        assert b.positions("q") == (20, 20)


def test_truncates_by_other_clients_are_accepted(engine: Engine, service: ThreadedService) -> None:
    """If another client has truncated a part of what is stored, the rest is released."""
    with engine.started() as run:
        assert run.batch()
        service.truncate("q", 120)
        run.release.advance()
    assert service.records() == {"q": []} and engine.rows() == expected(150)


def ledger_of(engine: Engine) -> Any:
    return json.loads((engine.checkpoint_path / LEDGER).read_text())


def test_what_a_consumer_has_not_acknowledged_stays_due(
    engine: Engine, service: ThreadedService, caplog: pytest.LogCaptureFixture
) -> None:
    """What all consumers have acknowledged is truncated at each call; it is logged once which one is behind."""
    queue_id = service.summary()["q"].id
    service.acknowledge("q", "billing", 119)
    with engine.started() as run:
        assert run.batch() and run.release.advance() == 50
        assert service.positions("q") == (120, 150)
        assert ledger_of(engine)["due"] == {"a": {"q": [queue_id, 120, 150, 30]}}
        assert ledger_of(engine)["released"] == {"a": {"q": [queue_id, 120]}}
        assert run.release.advance() == 0
        service.append("q", numbered("q", 150, 160))
        service.acknowledge("q", "billing", 139)
        assert run.batch() and run.release.advance() == 10
        assert service.positions("q") == (140, 160)
        assert ledger_of(engine)["due"] == {"a": {"q": [queue_id, 140, 160, 20]}}
    (line,) = [one.getMessage() for one in caplog.records if one.name == "mrecordlog_async.spark"]
    assert line.startswith("server 'a' keeps records of queue 'q': consumer 'billing' stands at 120 ")
    assert "--format delta --consumer NAME" in line
    service.acknowledge("q", "billing", 159)
    with engine.started():
        assert service.positions("q") == (160, 160)
    assert ledger_of(engine)["due"] == {} and engine.rows() == expected(160)


def test_rows_of_truncated_records_do_not_hide_rows_that_are_missing(
    engine: Engine, service: ThreadedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a truncate up to a consumer, the records that are left are counted as exactly as before."""
    service.acknowledge("q", "billing", 119)
    with engine.started() as run:
        assert run.batch()
        run.release.advance()
        service.append("q", numbered("q", 150, 160))
        whole = Run._rows
        monkeypatch.setattr(Run, "_rows", lambda self, number: whole(self, number).slice(0, 9))
        assert run.batch()
        service.acknowledge("q", "billing", 159)
        with pytest.raises(ProofError, match=r"holds 40 records .* 39 rows from position 120"):
            run.release.advance()
    assert service.positions("q") == (120, 160)


def test_records_with_gaps_are_counted_after_a_truncate_up_to_a_consumer(
    service: ThreadedService, tmp_path: Path
) -> None:
    """Positions may have gaps: the log says how many records are left."""
    service.append("q", numbered("q", 0, 5), 10)
    service.append("q", numbered("q", 0, 5), 1_000)
    service.acknowledge("q", "billing", 11)
    engine = Engine(f"a={service.url}", tmp_path)
    assert engine.drain() == 10
    assert ledger_of(engine)["due"]["a"]["q"][1:] == [12, 1_005, 8]
    service.acknowledge("q", "billing", 1_001)
    with engine.started():
        assert service.positions("q") == (1_002, 1_005)
    assert ledger_of(engine)["due"]["a"]["q"][1:] == [1_002, 1_005, 3]


def test_a_stop_after_a_truncate_up_to_a_consumer_changes_nothing(
    engine: Engine, service: ThreadedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the ledger was not written after it, the next start continues with what the log has."""
    service.acknowledge("q", "billing", 119)
    with engine.started() as run, monkeypatch.context() as killed:
        assert run.batch()
        killed.setattr(Ledger, "settle", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run.release.advance()
        assert service.positions("q") == (120, 150)
        assert ledger_of(engine)["due"]["a"]["q"][1:] == [100, 150, 50]
    with engine.started():
        assert ledger_of(engine)["due"]["a"]["q"][1:] == [120, 150, 30]
    service.acknowledge("q", "billing", 149)
    with engine.started():
        assert service.positions("q") == (150, 150)
    assert engine.rows() == expected(150)


def test_a_log_that_has_again_what_was_truncated_up_to_a_consumer_went_back(
    engine: Engine, service: ThreadedService, tmp_path: Path
) -> None:
    """An older copy of the log is refused, though the queue was never truncated to the end of a batch."""
    service.keep_copy(tmp_path / "copy")
    service.acknowledge("q", "billing", 119)
    with engine.started() as run:
        assert run.batch()
        run.release.advance()
    service.go_back(tmp_path / "copy")
    went_back = pytest.raises(LogWentBackError, match="truncated up to position 120, and begins at 100 again")
    with went_back, engine.started():
        pass
    assert service.positions("q") == (100, 150)


def test_a_log_that_has_again_what_was_truncated_went_back(
    engine: Engine, new_service: NewService, service: ThreadedService, tmp_path: Path
) -> None:
    """Records that were truncated and exist again show that the log went back, however far it has grown."""
    service.stop()
    shutil.copytree(service.directory, tmp_path / "copy")
    service.start()
    engine.drain()
    service.stop()
    shutil.rmtree(service.directory)
    shutil.copytree(tmp_path / "copy", service.directory)
    service.start()
    service.append("q", numbered("q", 150, 400))
    went_back = pytest.raises(LogWentBackError, match="truncated up to position 150, and begins at 100 again")
    with went_back, engine.started():
        pass
    assert service.positions("q") == (100, 400)


def test_gaps_are_counted_as_the_log_counts_them(service: ThreadedService, tmp_path: Path) -> None:
    """Positions may have gaps; records are counted, not positions."""
    service.append("q", numbered("q", 0, 5), 10)
    service.append("q", numbered("q", 0, 5), 10**9)
    engine = Engine(f"a={service.url}", tmp_path)
    assert engine.drain() == 10
    assert service.records() == {"q": []}


def test_what_was_stored_without_truncating_is_released_later(service: ThreadedService, tmp_path: Path) -> None:
    """What was stored by a drain without truncating is released by one that truncates."""
    service.append("q", numbered("q", 0, 5))
    engine = Engine(f"a={service.url}", tmp_path)
    with engine.started(truncate=False) as run:
        while run.batch():
            run.release.advance()
    assert service.positions("q") == (0, 5)
    with engine.started():
        assert service.positions("q") == (5, 5)


def test_a_log_that_went_back_and_grew_is_not_truncated(
    engine: Engine, service: ThreadedService, tmp_path: Path
) -> None:
    """If the log lost its end between commit and release, and has as many other records again, nothing is truncated."""
    new = go_back_after_a_batch(engine, service, tmp_path / "copy")
    with pytest.raises(LogWentBackError, match="queue 'q': it does not know the opening in which it was read"):
        engine.drain()
    assert [payload for _, payload in service.records()["q"]][-len(new) :] == new


def test_a_service_that_only_started_again_is_truncated(engine: Engine, service: ThreadedService) -> None:
    """A restart of the service does not stop the truncation."""
    with engine.started() as run:
        assert run.batch()
    service.append("q", numbered("q", 150, 160))
    service.stop()
    service.start()
    with engine.started():
        assert service.positions("q") == (150, 160)


@pytest.mark.parametrize("change", ["truncate", "delete", "recreate"])
def test_a_queue_that_changes_between_listing_and_plan_is_left_for_the_next_call(
    engine: Engine, service: ThreadedService, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """If another client truncates or deletes a queue between listing and plan, the drain continues."""
    with engine.started() as run:
        assert run.batch()
        client = run.release._fleet.client("a")
        plan = client.plan

        def racing(*arguments: Any, **named: Any) -> Any:
            monkeypatch.undo()
            if change == "truncate":
                service.truncate("q", 149)
            else:
                service.delete("q")
            if change == "recreate":
                service.append("q", numbered("q", 0, 3))
            return plan(*arguments, **named)

        monkeypatch.setattr(client, "plan", racing)
        assert run.release.advance() == 50
        assert run.release.advance() == 0
    assert engine.drain() == (3 if change == "recreate" else 0)
    assert not any(service.records().values())


def test_what_is_due_outlives_an_address_of_another_log(new_service: NewService, tmp_path: Path) -> None:
    """After a start with swapped addresses, which fails, the next start releases what was stored before."""
    a, b = new_service(), new_service()
    a.append("q", numbered("q", 0, 50))
    b.append("r", numbered("r", 0, 50))
    engine = Engine(f"a={a.url},b={b.url}", tmp_path)
    with engine.started() as run:
        while run.batch():
            pass
    with Engine(f"a={b.url},b={a.url}", tmp_path).started():
        assert len(a.records()["q"]) == len(b.records()["r"]) == 50
    a.append("q", numbered("q", 50, 60))
    assert engine.drain() == 10
    assert a.records() == {"q": []} and b.records() == {"r": []}


def test_a_server_that_is_down_costs_no_ledger_while_nothing_changes(
    new_service: NewService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While nothing changes, the ledger is not written."""
    a, b = new_service(), new_service()
    a.append("q", numbered("q", 0, 10))
    b.append("q", numbered("q", 0, 20))
    with Engine(f"a={a.url},b={b.url}", tmp_path, failOnServerDown="false").started() as run:
        while run.batch():
            pass
        b.stop()
        run.release.advance()
        ledger = os.stat(tmp_path / "checkpoint" / LEDGER).st_ino
        run.release.advance()
        b.start()
    assert os.stat(tmp_path / "checkpoint" / LEDGER).st_ino == ledger


def test_one_server_that_hangs_is_waited_for_in_one_call(
    new_service: NewService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that hangs delays one call, and only the end tries it again; batches are proven meanwhile."""
    monkeypatch.setattr(release, "DOWN_SECONDS", 3_600.0)
    servers = [new_service() for _ in range(3)]
    for server in servers:
        server.append("q", numbered("q", 0, 10))
    names = ",".join(f"{name}={server.url}" for name, server in zip("abc", servers, strict=True))
    with Engine(names, tmp_path, failOnServerDown="false").started() as run:
        while run.batch():
            pass
        asked: list[str] = []

        def hangs(server: str) -> bool:
            asked.append(server)
            raise ServerDownError(server, "", "it hangs")

        run.release._release_server = hangs  # type: ignore[method-assign]  # a server that hangs for real costs time
        for _ in range(3):
            run.release.advance()
        assert asked == ["a", "b", "c"]
        run.release.finish()
        assert asked == ["a", "b", "c"] * 2
