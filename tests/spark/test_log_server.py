"""One server, as a drain uses it: listings that send only changes, and responses that are compared with the plan."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing

import pytest

from mrecordlog_async.model import Run
from mrecordlog_async.protocol.wire import QueueRuns, encode
from mrecordlog_async.protocol.wire_decoder import Block
from mrecordlog_async.servers.names import Endpoint
from mrecordlog_async.spark import log_server
from mrecordlog_async.spark.connection import ServerDownError
from mrecordlog_async.spark.log_server import LogServer, RangeDiffersError, verified
from mrecordlog_async.spark.state import ReadRange
from tests.spark.canned import http, serving
from tests.spark.services import ThreadedService, numbered

QUEUES = [f"q{number}" for number in range(8)]


@pytest.mark.parametrize("page", [3, 100])
def test_a_listing_is_what_the_log_has(service: ThreadedService, monkeypatch: pytest.MonkeyPatch, page: int) -> None:
    """Whatever changed since the last one, also on several pages, and where the log was opened again."""
    monkeypatch.setattr(log_server, "PAGE_QUEUES", page)
    chance, queues = random.Random(page), set[str]()
    with closing(LogServer("s", Endpoint(service.url))) as server:
        for _ in range(25):
            for _ in range(chance.randrange(3)):
                queue = chance.choice(QUEUES)
                if queue in queues and chance.random() < 0.5:
                    service.delete(queue)
                    queues.remove(queue)
                else:
                    service.append(queue, numbered(queue, 0, 2))
                    queues.add(queue)
            if chance.random() < 0.1:
                service.stop()
                service.start()
            before, found = server.listing(), server.listing()
            assert found is before, "nothing has changed"
            with closing(LogServer("s", Endpoint(service.url))) as new:
                assert found == new.listing() and found.queues.keys() == queues


RUNS = b"".join(encode([QueueRuns("q", 7, [Run.of(0, [b"x"] * 10)])]))
WANTED = (ReadRange("q", 7, 0, 10, 10, 10),)


@pytest.mark.parametrize("cut", [4, 20, 60, 100])
@pytest.mark.parametrize("end", [lambda cut: http(RUNS)[: cut - len(RUNS)], lambda cut: http(RUNS[:cut])])
def test_a_response_that_was_cut_is_an_error(cut: int, end: Callable[[int], bytes]) -> None:
    """Whether the connection broke or the service ended the body early, a part is never taken for the whole."""
    with (
        serving(end(cut), end(cut)) as (url, _),
        closing(LogServer("s", Endpoint(url))) as server,
        pytest.raises((ServerDownError, RangeDiffersError)),
    ):
        list(server.fetch(server.task("", WANTED)))


def blocks(*parts: tuple[str, int, int, int]) -> list[Block]:
    """Make blocks from (queue, id, first position, records)."""
    return [Block(queue, queue_id, at, n, memoryview(b""), memoryview(b"")) for queue, queue_id, at, n in parts]


RANGES = (ReadRange("a", 1, 0, 10, 10, 0), ReadRange("b", 2, 5, 100, 3, 0), ReadRange("empty", 3, 5, 9, 0, 0))


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
    """Any other records fail the task, and nothing of it is stored."""
    with pytest.raises(RangeDiffersError):
        list(verified(blocks(*bad), RANGES))
