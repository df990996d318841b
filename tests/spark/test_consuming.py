"""A drain that is a consumer: it acknowledges what is in the table, and shares its queues with other readers."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from mrecordlog_async.model import ConsumerSummary
from mrecordlog_async.options import QueueOptions
from mrecordlog_async.spark.consuming import ConsumerNotOursError
from mrecordlog_async.spark.log_server import ReadTask
from mrecordlog_async.spark.output import RowWriter, WrittenFile
from mrecordlog_async.spark.runners import in_process
from tests.spark.draining import STEPS, Draining, Killed, Killer, drain_all, expected, table_rows
from tests.spark.services import ThreadedService, numbered

SHARED = QueueOptions(keep="until_acknowledged")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table"


def feed(service: ThreadedService, start: int, stop: int, queue: str = "q") -> None:
    service.call(service.log.create_queue(queue, exist_ok=True, options=SHARED))
    service.append(queue, numbered(queue, start, stop), start)


def consumers(service: ThreadedService, queue: str) -> dict[str, ConsumerSummary]:
    async def find() -> dict[str, ConsumerSummary]:
        return dict(service.log.consumers(queue))

    return service.call(find())


def test_drains_and_workers_share_a_queue(service: ThreadedService, table: Path, tmp_path: Path) -> None:
    """Each reads everything at its own pace; the log drops what all of them have acknowledged."""
    services = {"s": service}
    drain_all(services, table, consumer="lake")
    feed(service, 0, 10)
    service.acknowledge("q", "worker", 3)
    assert service.positions("q") == (0, 10)
    assert drain_all(services, table, consumer="lake") == 10
    assert service.positions("q") == (4, 10)
    assert drain_all(services, tmp_path / "other", consumer="audit") == 6
    service.acknowledge("q", "worker", 9)
    assert service.positions("q") == (10, 10)
    feed(service, 10, 12)
    assert drain_all(services, table, consumer="lake") == 2
    assert table_rows(table) == expected(q=12)
    assert consumers(service, "q")["audit"].records == 2


def test_a_new_queue_has_the_consumer_from_its_first_record(service: ThreadedService, table: Path) -> None:
    """A rule gives it, so that a faster consumer cannot have records removed before the drain meets the queue."""
    drain_all({"s": service}, table, consumer="lake")
    feed(service, 0, 10, "later")
    service.acknowledge("later", "worker", 9)
    assert service.positions("later") == (0, 10)
    assert drain_all({"s": service}, table, consumer="lake") == 10


def test_records_are_acknowledged_once_they_are_in_the_table(service: ThreadedService, table: Path) -> None:
    """Not before the commit."""
    feed(service, 0, 10)

    def watched(tasks: Sequence[ReadTask], writer: RowWriter) -> list[WrittenFile]:
        assert consumers(service, "q")["lake"].records == 10
        return in_process(tasks, writer)

    assert drain_all({"s": service}, table, consumer="lake", run=watched) == 10
    assert consumers(service, "q")["lake"].records == 0


@pytest.mark.parametrize("step", [*STEPS])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_at_any_step_changes_nothing(
    service: ThreadedService, table: Path, monkeypatch: pytest.MonkeyPatch, when: str, step: str
) -> None:
    """What a killed drain has stored is acknowledged by the next start, and nothing else is."""
    killer = Killer()
    feed(service, 0, 10)
    with killer.attached(monkeypatch):
        for stop in (20, 30):
            killer.arm(when, step)
            with suppress(Killed):
                Draining({"s": service}, table, consumer="lake").step()
            killer.disarm()
            feed(service, stop - 10, stop)
        drain_all({"s": service}, table, consumer="lake")
    assert table_rows(table) == expected(q=30)
    assert service.positions("q") == (30, 30)


def test_another_table_is_refused_until_it_takes_over(service: ThreadedService, table: Path, tmp_path: Path) -> None:
    """The owner is the table with the drain's name; the earlier drain stops at its next acknowledgement."""
    feed(service, 0, 10)
    service.acknowledge("q", "slow", 0)  # so nothing more is removed
    first = Draining({"s": service}, table, consumer="lake")
    assert first.all() == 9
    feed(service, 10, 20)
    other = tmp_path / "other"
    with pytest.raises(ConsumerNotOursError, match=r"belongs to another reader.*--take-over"):
        drain_all({"s": service}, other, consumer="lake")
    with pytest.raises(ConsumerNotOursError, match="belongs to another reader"):
        drain_all({"s": service}, table, consumer="lake", name="second")
    assert drain_all({"s": service}, other, consumer="lake", take_over=True) == 19
    feed(service, 20, 30)
    with pytest.raises(ConsumerNotOursError, match="no longer held here"):
        first.all()


def test_a_consumer_that_is_ahead_of_the_table_is_refused(
    service: ThreadedService, table: Path, tmp_path: Path
) -> None:
    """Another program uses it, or the table is older; a take-over moves it back to what the table has."""
    feed(service, 0, 10)
    drain_all({"s": service}, table, consumer="lake")
    service.acknowledge("q", "slow", 9)  # so nothing more is removed
    shutil.copytree(table, tmp_path / "older")
    feed(service, 10, 20)
    drain_all({"s": service}, table, consumer="lake")
    table.rename(tmp_path / "away")
    (tmp_path / "older").rename(table)
    with pytest.raises(ConsumerNotOursError, match=r"acknowledged up to position 20, and the output has .* before 10"):
        drain_all({"s": service}, table, consumer="lake")
    assert drain_all({"s": service}, table, consumer="lake", take_over=True) == 10
    assert table_rows(table) == expected(q=20)


def test_two_drains_as_one_consumer_fence_each_other(service: ThreadedService, table: Path) -> None:
    """The second process of a drain attaches, and the first one stops."""
    feed(service, 0, 10)
    first = Draining({"s": service}, table, consumer="lake")
    first.all()
    second = Draining({"s": service}, table, consumer="lake")
    second.all()
    feed(service, 10, 20)
    assert second.all() == 10
    feed(service, 20, 30)
    with pytest.raises(ConsumerNotOursError, match="no longer held"):
        first.all()
    assert second.all() == 10
    assert table_rows(table) == expected(q=30)
    assert service.positions("q") == (30, 30)


def test_a_service_that_restarts_is_attached_to_again(service: ThreadedService, table: Path) -> None:
    """Epochs of an earlier opening may be invalid."""
    feed(service, 0, 10)
    process = Draining({"s": service}, table, consumer="lake")
    process.all()
    service.stop()
    service.start()
    feed(service, 10, 20)
    assert process.all() == 10
    assert service.positions("q") == (20, 20)


def test_a_log_that_went_back_is_stored_again_with_its_consumers(
    service: ThreadedService, table: Path, tmp_path: Path
) -> None:
    """Accepted, a consumer that was restored with the log does not hold back what is stored again."""
    feed(service, 0, 10)
    service.acknowledge("q", "slow", 0)
    drain_all({"s": service}, table, consumer="lake")
    service.keep_copy(tmp_path / "copy")
    feed(service, 10, 20)
    drain_all({"s": service}, table, consumer="lake")
    service.go_back(tmp_path / "copy")
    assert drain_all({"s": service}, table, consumer="lake") == 0
    assert drain_all({"s": service}, table, consumer="lake", accept_went_back=True) == 9


def test_queues_that_keep_acknowledged_records_are_reported(
    service: ThreadedService, table: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """There, acknowledging removes nothing."""
    service.append("plain", numbered("plain", 0, 3))
    with caplog.at_level(logging.WARNING):
        assert drain_all({"s": service}, table, consumer="lake") == 3
    assert "acknowledging removes nothing from server 's', queues 'plain'" in caplog.text
