"""Writing without a JVM: repeated rows are stored once, and refusals say why."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from mrecordlog_async import Limits
from mrecordlog_async.spark import log_writer
from mrecordlog_async.spark.blocks import MalformedRowsError
from mrecordlog_async.spark.connection import ServiceRefusedError
from mrecordlog_async.spark.log_writer import PositionConflictError, Written, check_columns, write_rows
from mrecordlog_async.spark.options import OptionError, Options
from tests.spark.conftest import NewService
from tests.spark.services import ThreadedService, numbered


def rows(queue: str, start: int, stop: int, name: str | None = None) -> pa.RecordBatch:
    payloads = numbered(name or queue, start, stop)
    columns: dict[str, Any] = {"queue": [queue] * len(payloads), "position": range(start, stop), "payload": payloads}
    return pa.RecordBatch.from_pydict(columns)


def write(service: ThreadedService, *batches: pa.RecordBatch, **options: str) -> Written:
    return write_rows(Options.parse({"servers": service.url, "retries": "0", **options}), batches)


def expected(queue: str, start: int, stop: int) -> list[tuple[int, bytes]]:
    return list(enumerate(numbered(queue, start, stop), start))


def test_what_is_written_again_is_stored_once(service: ThreadedService) -> None:
    """A task that runs twice, with blocks of any size, stores nothing twice and counts the repeats."""
    assert write(service, rows("q", 5, 100)) == Written(95, 0)
    assert write(service, rows("q", 5, 50), rows("q", 50, 100)) == Written(95, 95)
    assert service.records() == {"q": expected("q", 5, 100)}


def test_a_task_that_stopped_half_way_is_continued(service: ThreadedService, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that is partly stored is cut where the log ends, and the rest is appended."""
    write(service, rows("q", 0, 30))
    monkeypatch.setattr(log_writer, "APPEND_RECORDS", 20)
    assert write(service, rows("q", 0, 100)) == Written(100, 30)
    assert service.records() == {"q": expected("q", 0, 100)}


def test_what_was_truncated_meanwhile_is_not_stored_again(service: ThreadedService) -> None:
    """Rows that were stored, read and truncated before a retry are not stored again, and are counted."""
    write(service, rows("q", 0, 30))
    service.truncate("q", 29)
    assert write(service, rows("q", 0, 20), rows("q", 20, 40)) == Written(40, 30)
    assert service.records() == {"q": expected("q", 30, 40)}
    assert write(service, rows("q", 5, 10)) == Written(5, 0, 5), "whether these were the same nobody knows any more"


def test_a_task_is_repeated_after_a_truncate_in_the_middle_of_its_rows(service: ThreadedService) -> None:
    """What the log still has is compared, and only what it has truncated is not: the same rows are no conflict."""
    write(service, rows("q", 0, 30))
    write(service, rows("q", 30, 60))
    service.truncate("q", 14)
    assert write(service, rows("q", 0, 30)) == Written(30, 15, 15)
    assert write(service, rows("q", 0, 70)) == Written(70, 45, 15), "and what was not stored yet follows"
    assert service.records() == {"q": expected("q", 15, 70)}
    with pytest.raises(PositionConflictError, match="positions 15 to 29 are taken"):
        write(service, rows("q", 0, 30, name="other"))


def test_other_records_at_the_same_positions_are_a_conflict(service: ThreadedService) -> None:
    """Different records at the same positions are a conflict, not a repeat."""
    write(service, rows("q", 0, 30))
    with pytest.raises(PositionConflictError, match="positions 10 to 19 are taken"):
        write(service, rows("q", 10, 20, name="other"))
    with pytest.raises(PositionConflictError):
        write(service, rows("q", 25, 40, name="other"))
    assert service.records() == {"q": expected("q", 0, 30)}


def test_rows_out_of_order_are_refused(service: ThreadedService) -> None:
    """Rows out of order are refused before they leave a gap that cannot be filled."""
    with pytest.raises(MalformedRowsError, match="sortWithinPartitions"):
        write(service, rows("q", 10, 20), rows("q", 0, 10))


def test_gaps_and_several_queues(service: ThreadedService) -> None:
    """The rows' positions become the log's positions, gaps included."""
    write(service, rows("a", 0, 3), rows("a", 10, 12), rows("b", 7, 8))
    assert service.records() == {"a": expected("a", 0, 3) + expected("a", 10, 12), "b": expected("b", 7, 8)}


def test_large_rows_are_sent_in_pieces(service: ThreadedService, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rows Spark passes, a request stays near its size limit."""
    monkeypatch.setattr(log_writer, "APPEND_BYTES", 1_000)
    batch = pa.RecordBatch.from_pydict({"payload": [bytes([n]) * 400 for n in range(10)] + [bytes(5_000)]})
    assert write(service, batch, queue="q") == Written(11, 0)
    assert [len(payload) for _, payload in service.records()["q"]] == [400] * 10 + [5_000]


@pytest.mark.parametrize("positions", [True, False])
def test_an_append_that_is_too_large_is_divided(new_service: NewService, positions: bool) -> None:
    """A service, or a proxy in front of it, may admit less than a task gathers; order and positions stay."""
    service = new_service(limits=Limits(memory_bytes=1 << 20, beyond_memory="disk"))
    payloads = [bytes([number]) * 10_000 for number in range(190)]
    columns = {"payload": payloads} | ({"position": range(len(payloads))} if positions else {})
    batch = pa.RecordBatch.from_pydict(columns)
    assert write(service, batch, queue="q") == Written(190)
    stored = service.call(service.log.fetch("q", 0, max_bytes=1 << 30))
    assert stored is not None and stored.payloads() == payloads
    if positions:
        assert write(service, batch, queue="q") == Written(190, repeated=190)
    with pytest.raises(ServiceRefusedError, match="status 413"):
        write(service, pa.RecordBatch.from_pydict({"payload": [bytes(2 << 20)]}), queue="other")


def test_without_positions_what_is_sent_again_is_stored_again(service: ThreadedService) -> None:
    """Without positions, rows are stored at least once."""
    batch = pa.RecordBatch.from_pydict({"payload": [b"x", b"y"]})
    write(service, batch, queue="q")
    write(service, batch, queue="q")
    assert service.records() == {"q": [(0, b"x"), (1, b"y"), (2, b"x"), (3, b"y")]}


def test_queues_are_created_only_if_allowed(service: ThreadedService) -> None:
    """With createQueues=false, a missing queue is an error."""
    with pytest.raises(ServiceRefusedError, match="does not exist"):
        write(service, rows("q", 0, 3), createQueues="false")


@pytest.mark.parametrize(
    ("columns", "queue", "message"),
    [
        ({"payload": "binary", "queue": "string", "color": "string"}, None, "unknown columns color"),
        ({"queue": "string"}, None, "no column 'payload'"),
        ({"payload": "binary"}, None, "no column 'queue'"),
        ({"payload": "binary", "queue": "string"}, "q", "the option queue is set"),
        ({"payload": "int", "queue": "string"}, None, "binary or string"),
        ({"payload": "binary", "queue": "string", "position": "string"}, None, "whole number"),
    ],
)
def test_columns_that_do_not_fit_are_refused(columns: dict[str, str], queue: str | None, message: str) -> None:
    """Columns that cannot be written are refused before a task starts."""
    with pytest.raises(OptionError, match=message):
        check_columns(columns, queue)


def test_rows_with_a_server_are_refused() -> None:
    """A column server is refused, because it would be dropped without notice."""
    with pytest.raises(OptionError, match="'server' is not stored"):
        check_columns({"server": "string", "queue": "string", "payload": "binary"}, None)


def test_a_position_below_zero_is_refused(service: ThreadedService) -> None:
    """A negative position is refused; the error names queue and position."""
    with pytest.raises(MalformedRowsError, match="queue 'q': position -5 is below 0"):
        write(service, rows("q", -5, -3))
