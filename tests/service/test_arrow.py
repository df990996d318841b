from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.served import Served

pyarrow = pytest.importorskip("pyarrow", reason="Arrow is optional")
ipc = pytest.importorskip("pyarrow.ipc")

RECORDS = "/v1/queues/q/records"
ARROW = "application/vnd.apache.arrow.stream"


def stream(column: Any, name: str = "payload") -> bytes:
    table = pyarrow.table({name: column})
    sink = pyarrow.BufferOutputStream()
    with ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    body: bytes = sink.getvalue().to_pybytes()
    return body


async def post(served: Served, body: bytes) -> tuple[int, Any]:
    response = await served.call("POST", RECORDS, body, headers={"Content-Type": ARROW})
    return response.status, response.json()


@pytest.mark.parametrize("kind", [pyarrow.binary(), pyarrow.large_binary(), pyarrow.string()])
async def test_a_column_is_stored_record_by_record(served: Served, kind: Any) -> None:
    """Binary and text columns are accepted, chunk by chunk."""
    column = pyarrow.chunked_array([["a", ""], ["ccc"]], type=pyarrow.string()).cast(kind)
    assert await post(served, stream(column)) == (200, {"position": 2, "records": 3, "duplicate": False})
    assert [record.payload for record in served.log.range("q")] == [b"a", b"", b"ccc"]


async def test_padding_after_a_stream_is_no_second_stream(served: Served) -> None:
    """Zeros are accepted; anything else would be records that are acknowledged and not stored."""
    assert (await post(served, stream(pyarrow.array([b"a"])) + bytes(56)))[0] == 200
    assert [record.payload for record in served.log.range("q")] == [b"a"]


async def test_an_offsets_buffer_of_odd_length_is_read_as_far_as_it_counts(served: Served) -> None:
    """The length of a buffer is not trusted: bytes after the last offset are ignored."""
    body = stream(pyarrow.array([b"abc", b"d"]))
    honest, odd = struct.pack("<qq", 0, 12), struct.pack("<qq", 0, 13)
    assert body.count(honest) == 1
    assert (await post(served, body.replace(honest, odd)))[0] == 200
    assert [record.payload for record in served.log.range("q")] == [b"abc", b"d"]


async def test_records_are_read_as_record_batches(served: Served) -> None:
    """Each run is a batch of positions and payloads."""
    await served.log.append_records("q", 5, [b"a", b"\xff"])
    await served.log.append_record("q", 90, b"c")
    response = await served.call("GET", RECORDS, headers={"Accept": ARROW})
    table = ipc.open_stream(response.body).read_all()
    table.validate(full=True)
    times = [served.log.time_of("q", position) for position in (5, 6, 90)]
    assert table.to_pydict() == {"position": [5, 6, 90], "time": times, "payload": [b"a", b"\xff", b"c"]}
    empty = await served.call("GET", RECORDS + "?start=91", headers={"Accept": ARROW})
    assert ipc.open_stream(empty.body).read_all().num_rows == 0


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no arrow",
        stream(pyarrow.array([b"a"]))[:-60],
        stream(pyarrow.array([b"a"]), "other"),
        stream(pyarrow.array([b"a", None])),
        stream(pyarrow.array([[1]])),
        stream(pyarrow.array([b"a"])) * 2,
        stream(pyarrow.array([b"a"]))[:-8] + stream(pyarrow.array([b"b"])),
    ],
    ids=["empty", "garbage", "cut", "other column", "nulls", "lists", "two streams", "two streams, one end"],
)
async def test_what_is_not_a_column_of_payloads_is_400(served: Served, body: bytes) -> None:
    """The response says what is wrong, and nothing is stored."""
    status, problem = await post(served, body)
    assert (status, problem["code"]) == (400, "bad_body")
    assert served.log.next_position("q") == 0


@pytest.fixture
def no_pyarrow(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make pyarrow look as if it were not installed."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "pyarrow.ipc", raising=False)
    yield


async def test_without_pyarrow_arrow_is_refused(served: Served, no_pyarrow: None) -> None:
    """415 for an Arrow body, 406 for a read as Arrow."""
    body = await served.call("POST", RECORDS, b"x", headers={"Content-Type": ARROW})
    assert (body.status, body.json()["code"]) == (415, "no_arrow")
    response = await served.call("GET", RECORDS, headers={"Accept": ARROW})
    assert (response.status, response.json()["code"]) == (406, "no_arrow")
