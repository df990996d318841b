"""Reading ranges: in small requests, continued where a response broke off, checked against the plan."""

from __future__ import annotations

import pytest

from mrecordlog_async.model import Run
from mrecordlog_async.protocol.wire import QueueRuns, encode
from mrecordlog_async.protocol.wire_decoder import Block
from mrecordlog_async.spark.positions.partitions import Partition, Range
from mrecordlog_async.spark.services.connection import ServerDownError
from mrecordlog_async.spark.services.fetch import ShortResponseError, requests_for, verified
from tests.spark.canned import client_of, http, serving
from tests.spark.services import ThreadedService, numbered


def test_a_partition_is_fetched_in_small_parts(service: ThreadedService) -> None:
    """The ranges, records and bytes of one request are bounded."""
    service.append("q", [b"x" * 1_000] * 20_000)
    for queue in ("a", "b"):
        service.append(queue, numbered(queue, 0, 5))
    with client_of(service.url) as client:
        found = {each.queue: each for each in client.queues()}
        ranges = tuple(
            Range(queue, each.id, 0, each.next_position, each.records, each.bytes) for queue, each in found.items()
        )
        parts = list(requests_for(ranges))
        assert [[each.records for each in part] for part in parts] == [[5, 5, 8_388], [8_388], [3_224]]  # 8 MiB each
        blocks = list(client.fetch(Partition("s", ranges)))
        assert sum(block.record_count for block in blocks) == 20_010


RUNS = b"".join(encode([QueueRuns("q", 7, [Run.of(0, [b"x"] * 10)])]))
WANTED = Partition("s", (Range("q", 7, 0, 10, 10, 10),))


@pytest.mark.parametrize("cut", [4, 20, 60, 100])
def test_a_response_cut_short_is_an_error(cut: int) -> None:
    """Whether the connection broke or the service ended the body early, a part is never taken for the whole."""
    broken = http(RUNS)[: cut - len(RUNS)]
    for response in (broken, http(RUNS[:cut])):
        with (
            serving(response) as (url, _),
            client_of(url) as client,
            pytest.raises(ServerDownError),
        ):
            list(client.fetch(WANTED))


@pytest.mark.parametrize("cut", [4, 100, len(RUNS) - 32, len(RUNS) - 1])
def test_a_broken_response_is_continued_where_it_ended(cut: int) -> None:
    """Only missing records are requested again; if only the end of the response is missing, nothing is."""
    broken = http(RUNS)[: cut - len(RUNS)]
    with serving(broken, http(RUNS)) as (url, _), client_of(url, retries=1) as client:
        assert sum(block.record_count for block in client.fetch(WANTED)) == 10


def blocks(*parts: tuple[str, int, int, int]) -> list[Block]:
    """Make blocks from (queue, id, first position, records)."""
    return [Block(queue, queue_id, at, n, memoryview(b""), memoryview(b"")) for queue, queue_id, at, n in parts]


RANGES = (Range("a", 1, 0, 10, 10, 0), Range("b", 2, 5, 100, 3, 0), Range("empty", 3, 5, 9, 0, 0))


def test_what_was_planned_is_let_through() -> None:
    """Blocks may have any size, as long as they hold the records that were planned."""
    good = blocks(("a", 1, 0, 4), ("a", 1, 4, 6), ("b", 2, 7, 1), ("b", 2, 98, 2))
    assert list(verified(good, RANGES)) == good


@pytest.mark.parametrize(
    "bad",
    [
        [("a", 1, 0, 4)],  # too few
        [("a", 1, 0, 10)],  # a range is missing
        [("a", 1, 0, 4), ("a", 1, 3, 6)],  # twice
        [("a", 1, 0, 11)],  # too many
        [("a", 9, 0, 10)],  # another incarnation
        [("b", 2, 7, 3), ("a", 1, 0, 10)],  # out of order
        [("a", 1, 0, 10), ("b", 2, 4, 3)],  # before its range
        [("a", 1, 0, 10), ("b", 2, 98, 3)],  # past its range
        [("a", 1, 0, 10), ("b", 2, 7, 3), ("c", 4, 0, 1)],  # not requested
    ],
)
def test_what_was_not_planned_is_refused(bad: list[tuple[str, int, int, int]]) -> None:
    """Any other records fail the task, and Spark runs it again."""
    with pytest.raises(ShortResponseError):
        list(verified(blocks(*bad), RANGES))
