"""A drain or stream of an earlier release goes on: with its checkpoint, its output and its log, each record once.

The checkpoints and outputs are Spark's. They are continued without Spark: what depends on the release is the data
source and the drain, which are the real ones here. A drain takes its positions from the checkpoint into the table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mrecordlog_async.client import BlockingRecordLogClient
from tests.compatibility.pipeline import BATCH, READ, payloads
from tests.compatibility.record import DATA, unpacked
from tests.spark.services import ThreadedService

pytest.importorskip("pyspark")

ALL = 2 * READ
RELEASES = sorted(path.name for path in DATA.iterdir())
INTO_FILES = "0.2.0"
"""The only release that kept a drain into Parquet files, instead of one with a consumer."""


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


def expected(queue: str) -> list[tuple[str, int, bytes]]:
    return [(queue, position, payload) for position, payload in enumerate(payloads(queue, 0, ALL))]


def test_the_log_holds_what_no_query_has_read(service: ThreadedService) -> None:
    """A drain without a consumer truncated what it had stored; a consumer and the stream left everything."""
    with BlockingRecordLogClient(service.url) as client:
        assert (client.first_position("orders"), client.first_position("clicks")) == (READ, 0)
        if client.consumers("payments"):
            assert client.consumers("payments")["lake"].position == READ
        else:  # of 0.2.0, into files
            assert client.first_position("payments") == READ


def continued(service: ThreadedService, place: Path, queue: str, **options: Any) -> int:
    """Continue the drain of a queue from its checkpoint, once; return how many records that stored."""
    from mrecordlog_async.spark.drain_call import DrainOptions, drain

    table, checkpoint = str(place / queue / "table"), str(place / queue / "checkpoint")
    given = DrainOptions(f"a={service.url}", table, subscribe=(queue,), migrate_from=checkpoint, **options)
    return drain(given).records


def positions(table: Path) -> list[int]:
    from tests.spark.draining import columns

    return sorted(position for (position,) in columns(table, "position"))


def test_a_drain_into_a_table_goes_on(service: ThreadedService, place: Path) -> None:
    """The table then has every record once; the log is empty."""
    from tests.spark.draining import table_rows

    table = place / "orders" / "table"
    assert positions(table) == list(range(READ))
    assert continued(service, place, "orders") == ALL - READ
    assert table_rows(table) == sorted(expected("orders"))
    assert continued(service, place, "orders") == 0


@pytest.mark.parametrize("place", sorted({*RELEASES} - {INTO_FILES}), indirect=True)
def test_a_drain_with_a_consumer_goes_on(service: ThreadedService, place: Path) -> None:
    """It is the same holder: it takes the consumer over, and the table then has every record once."""
    from tests.spark.draining import table_rows

    table = place / "payments" / "table"
    assert positions(table) == list(range(READ))
    assert continued(service, place, "payments", consumer="lake") == ALL - READ
    assert table_rows(table) == sorted(expected("payments"))


@pytest.mark.parametrize("place", [INTO_FILES], indirect=True)
def test_a_drain_into_parquet_files_is_refused(service: ThreadedService, place: Path) -> None:
    """The refusal says how to go on."""
    from mrecordlog_async.spark.drain_call import DrainOptions, drain
    from mrecordlog_async.spark.output import OutputRefusedError

    checkpoint = str(place / "payments" / "checkpoint")
    options = DrainOptions(f"a={service.url}", str(place / "orders" / "table"), migrate_from=checkpoint)
    with pytest.raises(OutputRefusedError, match=r"finish that drain with 0\.2\.0, then begin a Delta table"):
        drain(options)


@pytest.mark.parametrize("killed", [False, True])
def test_a_plain_stream_goes_on(service: ThreadedService, place: Path, killed: bool) -> None:
    """It reads what it has not read, even a batch again that was planned and whose commit file is missing."""
    from tests.spark.query import Query

    offsets = (place / "clicks" / "checkpoint" / "offsets").glob("[0-9]*")
    *_, before, last = (json.loads(path.read_text().splitlines()[2]) for path in sorted(offsets))
    query = Query(f"a={service.url}", subscribe="clicks")
    query.committed, query.planned = (before, last) if killed else (last, None)
    query.drain()
    assert [row[1:] for row in query.rows] == expected("clicks")[READ - BATCH if killed else READ :]
