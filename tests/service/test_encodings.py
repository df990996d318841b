"""Bodies as senders send them: compressed, and as JSON values; never more of them in memory than the limits allow."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import ClientSession, web
from hypothesis import given
from hypothesis import strategies as st

from mrecordlog_async.aiohttp import LOG, setup
from mrecordlog_async.protocol.problems import ProblemError
from mrecordlog_async.service.bodies import STEP_BYTES, Expansion
from mrecordlog_async.service.options import ServiceOptions
from mrecordlog_async.service.sending import Budget
from mrecordlog_async.service.splitting import Splitter
from tests.served import Response, Served, serving
from tests.service.uvicorn_served import mounted

RECORDS = "/v1/queues/q/records"


def raw_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(body) + packer.flush()


def members(body: bytes) -> bytes:
    """Return *body* as gzip with a member for each kilobyte, some of them empty."""
    parts = [body[at : at + 1_000] for at in range(0, len(body), 1_000)]
    return b"".join(gzip.compress(part) + gzip.compress(b"") for part in parts)


ENCODERS: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("gzip", gzip.compress),
    ("X-GZIP", gzip.compress),
    ("gzip", members),
    ("deflate", zlib.compress),
    ("deflate", raw_deflate),
    ("identity", bytes),
]


async def post(served: Served, body: bytes, encoding: str, **headers: str) -> Response:
    return await served.call("POST", RECORDS, body, headers={"Content-Encoding": encoding, **headers})


@pytest.fixture(params=["own server", "FastAPI"])
async def either(request: pytest.FixtureRequest, directory: Path) -> AsyncIterator[Served]:
    """A service with its own server, and one mounted in a FastAPI application."""
    serve = serving if request.param == "own server" else mounted
    options = ServiceOptions(body_bytes=1 << 20, bodies_bytes=4 << 20)
    async with serve(directory, options) as served:
        await served.log.create_queue("q")
        yield served


@pytest.mark.parametrize(("encoding", "encode"), ENCODERS)
async def test_a_compressed_body_is_stored_as_what_it_expands_to(
    either: Served, encoding: str, encode: Callable[[bytes], bytes]
) -> None:
    """As one record, as lines, and in chunks; clients and agents compress without being asked."""
    body = b"".join(b'{"event": %d}\n' % number for number in range(20_000))
    assert (await post(either, encode(body), encoding)).status == 200
    lines = await post(either, encode(body), encoding, **{"Content-Type": "application/x-ndjson"})
    assert lines.json()["records"] == 20_000

    async def chunks() -> AsyncIterator[bytes]:
        sent = encode(body)
        for at in range(0, len(sent), 777):
            yield sent[at : at + 777]

    async with either.session.post(either.url + RECORDS, data=chunks(), headers={"Content-Encoding": encoding}) as done:
        assert done.status == 200
    found = [record.payload for record in either.log.range("q")]
    assert found == [body, *body.splitlines(), body]


async def test_a_bomb_ends_at_the_limit_of_a_body(either: Served) -> None:
    """1 GB of zeros in little more than 1 MB: refused once the limit is reached, and its memory is given back."""
    packer = zlib.compressobj(9, wbits=31)
    first, each = (packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    bomb = first + each * 1_000  # after a full flush the next block needs nothing before it
    assert len(bomb) < 2 << 20
    assert zlib.decompressobj(31).decompress(bomb, 8 << 20) == bytes(8 << 20)
    refused = await post(either, bomb, "gzip")
    assert (refused.status, refused.json()["code"]) == (413, "too_large")
    assert either.service.bodies.budget.used == 0
    assert either.log.next_position("q") == 0


async def test_ten_thousand_tiny_members_are_one_body(either: Served) -> None:
    """Each member is small; together they are a body like any other."""
    assert (await post(either, gzip.compress(b"x", 1) * 10_000, "gzip")).status == 200
    assert [payload for _, payload in either.log.range("q")] == [b"x" * 10_000]


@pytest.mark.parametrize(
    ("body", "encoding", "status", "says"),
    [
        (gzip.compress(b"whole")[:-1], "gzip", 400, "cut off"),
        (gzip.compress(b"whole")[:5], "gzip", 400, "cut off"),
        (zlib.compress(b"whole")[:-2], "deflate", 400, "cut off"),
        (b"plain text", "gzip", 400, "not gzip"),
        (gzip.compress(b"one") + b"more", "gzip", 400, "not gzip"),
        (zlib.compress(b"one") + b"more", "deflate", 400, "bytes follow"),
        (gzip.compress(gzip.compress(b"x")), "gzip, gzip", 415, "gzip, deflate"),
        (b"x", "br", 415, "gzip, deflate"),
        (b"x", "zstd", 415, "gzip, deflate"),
    ],
    ids=[
        "cut off",
        "cut in its head",
        "zlib cut off",
        "text",
        "text after gzip",
        "text after zlib",
        "twice",
        "brotli",
        "zstd",
    ],
)
async def test_a_body_that_is_not_what_its_encoding_says_is_refused(
    either: Served, body: bytes, encoding: str, status: int, says: str
) -> None:
    """Nothing of it is stored, and the response says what is wrong and what is supported."""
    refused = await post(either, body, encoding)
    assert refused.status == status, refused.body
    assert says in refused.json()["detail"]
    assert either.log.next_position("q") == 0
    if status == 415:
        assert refused.headers["Accept-Encoding"].startswith("gzip, deflate")


async def test_compressed_bodies_share_the_budget_of_all_bodies(directory: Path) -> None:
    """What a body expands to is charged as it grows: growth that does not fit is refused at once, not waited for."""
    options = ServiceOptions(body_bytes=1 << 20, bodies_bytes=1 << 20)
    async with serving(directory, options) as served:
        await served.log.create_queue("q")
        with served.service.bodies.budget.charge() as others:
            others.add(1 << 19)
            refused = await post(served, gzip.compress(bytes(1 << 20)), "gzip")
        assert (refused.status, refused.headers["Retry-After"]) == (429, "1")
        assert (await post(served, gzip.compress(bytes(1 << 20)), "gzip")).status == 200


async def test_control_bodies_may_be_compressed(served: Served) -> None:
    """A client that compresses everything also truncates."""
    await served.log.append_records("q", None, [b"a", b"b"])
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    done = await served.call("POST", "/v1/queues/q/truncate", gzip.compress(b'{"position": 0}'), headers=headers)
    assert (done.status, served.log.first_position("q")) == (200, 1)


@asynccontextmanager
async def in_an_application(directory: Path, app: web.Application) -> AsyncIterator[ClientSession]:
    """Serve *app* with a log below /wal; yield a session for it."""
    setup(app, directory, queues=["q"], prefix="/wal")
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        async with ClientSession(f"http://127.0.0.1:{site.port}") as session:
            yield session
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_a_body_that_the_server_of_an_application_expands_is_refused(
    directory: Path, encoding: str, chunked: bool
) -> None:
    """aiohttp takes gzip that is cut off for whole: its first lines would be stored without an error."""
    lines = b"".join(b"line %d\n" % number for number in range(5_000))
    body = (gzip.compress if encoding == "gzip" else zlib.compress)(lines)
    app = web.Application()
    async with in_an_application(directory, app) as session:
        for sent in (body, body[: len(body) // 2], body + body):
            headers = {"Content-Encoding": encoding, "Content-Type": "application/x-ndjson"}
            data = BytesIO(sent) if chunked else sent
            async with session.post("/wal" + RECORDS, data=data, headers=headers, chunked=chunked or None) as refused:
                assert refused.status == 415 or (encoding == "deflate" and refused.status == 400)  # by aiohttp
                assert "auto_decompress" in await refused.text() or sent != body
        assert app[LOG].next_position("q") == 0


async def test_an_application_that_expands_no_bodies_leaves_that_to_the_api(directory: Path) -> None:
    """A body is expanded only once, and one that is cut off is refused."""
    app = web.Application(handler_args={"auto_decompress": False})
    inside = gzip.compress(b"inside")
    twice = gzip.compress(inside)
    async with in_an_application(directory, app) as session:
        for sent, status in ((twice, 200), (twice[:-1], 400)):
            async with session.post("/wal" + RECORDS, data=sent, headers={"Content-Encoding": "gzip"}) as done:
                assert done.status == status
        assert [record.payload for record in app[LOG].range("q")] == [inside]


@given(st.binary(max_size=200_000), st.integers(1, 5_000), st.sampled_from(ENCODERS))
def test_expansion_does_not_depend_on_how_a_body_arrives(
    body: bytes, piece_bytes: int, encoder: tuple[str, Callable[[bytes], bytes]]
) -> None:
    """Every way of cutting it gives the same bytes, in steps of a bounded size."""
    encoding, encode = encoder
    sent, found = encode(body * 2), bytearray()
    if encoding == "identity":
        return
    expanding = Expansion(encoding.lower().removeprefix("x-"))
    for at in range(0, len(sent), piece_bytes):
        for part in expanding.parts(sent[at : at + piece_bytes]):
            assert len(part) <= STEP_BYTES
            found += part
    if sent:
        expanding.end()
    assert found == body * 2


@given(st.sampled_from(["gzip", "deflate"]), st.binary(max_size=500), st.integers(0, 400), st.integers(1, 255))
def test_a_damaged_body_is_refused_or_is_the_same(encoding: str, body: bytes, at: int, change: int) -> None:
    """gzip and zlib have checksums: no flipped byte becomes another record. Raw deflate has none."""
    encode = gzip.compress if encoding == "gzip" else zlib.compress
    sent = bytearray(encode(body))
    sent[at % len(sent)] ^= change
    expanding = Expansion(encoding)
    try:
        found = b"".join(expanding.parts(bytes(sent)))
        expanding.end()
    except ProblemError as problem:
        assert problem.status == 400
        return
    if encoding == "gzip" or sent[0] & 0x0F == 8:
        assert found == body


async def test_encodings_and_formats_that_are_not_supported_are_refused(served: Served) -> None:
    """Arrow and zstd would otherwise be stored as one record that nobody means."""
    for headers in ({"Content-Encoding": "zstd"}, {"Content-Type": "application/vnd.apache.arrow.stream"}):
        refused = await served.call("POST", RECORDS, b"\x28\xb5\x2f\xfd", headers=headers)
        assert refused.status == 415
    assert "Arrow is not accepted" in refused.json()["detail"]
    assert served.log.next_position("q") == 0


# JSON values.


async def test_elements_of_an_array_are_records_as_the_bytes_that_came(served: Served) -> None:
    """Numbers keep their digits, objects the order of their members, and strings their escapes."""
    elements = [
        b'{"b":1.0e400,"a":1,"a":2}',
        b"18446744073709551616",
        rb'"\u0041\n"',
        b"[1, [2]]",
        b"null",
        '"ä"'.encode(),
    ]
    body = b" [ " + b" ,\n".join(elements) + b" ] "
    for headers in ({"Content-Type": "application/json"}, {"Content-Type": "application/cloudevents-batch+json"}, {}):
        done = await served.call("POST", RECORDS + "?json=records", body, headers=headers)
        assert done.json()["records"] == len(elements)
    assert [record.payload for record in served.log.range("q")] == elements * 3


async def test_any_other_value_is_one_record(served: Served) -> None:
    """An agent that sends a batch of one as a bare object is served too; without the option, it has its usual form."""
    for value in (b'{"records": ["YQ=="]}', b"1.50", b'"text"', b"true"):
        assert (await served.call("POST", RECORDS + "?json=records", b" " + value + b"\n")).status == 200
        assert next(served.log.range("q", served.log.last_position("q"))).payload == value
    await served.call("POST", RECORDS, b'{"records": ["YQ=="]}', headers={"Content-Type": "application/json"})
    assert next(served.log.range("q", served.log.last_position("q"))).payload == b"a"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"[]", 400),
        (b"[1,]", 400),
        (b"[1 2]", 400),
        (b"[1", 400),
        (b"[1]]", 400),
        (b"{'a': 1}", 400),
        (b'["\xff"]', 400),
        (b"[NaN]", 400),
        pytest.param(b"[" * 10_000 + b"]" * 10_000, 400, id="10,000 arrays"),
        pytest.param(b'{"a":' * 10_000 + b"1" + b"}" * 10_000, 400, id="10,000 objects"),
        pytest.param(b'["' + b"x" * (9 << 20) + b'"]', 413, id="too large"),
    ],
)
async def test_what_is_no_json_is_refused(served: Served, body: bytes, status: int) -> None:
    """Nothing of it is stored."""
    refused = await served.call("POST", RECORDS + "?json=records", BytesIO(body))
    assert refused.status == status, refused.body
    assert served.log.next_position("q") == 0


async def test_more_values_than_a_body_may_hold_are_refused() -> None:
    """An array has the same limit as lines; commas inside of its elements do not count."""
    charge = Budget("body bytes", 2**40).charge()
    assert await Splitter(3).split_json(b"[1, 2, 3]", charge) == [b"1", b"2", b"3"]
    assert await Splitter(3).split_json(b"[[1,2,3,4] , {}]", charge) == [b"[1,2,3,4]", b"{}"]
    assert await Splitter(3).split_json(b'{"a": [1, 2, 3, 4]}', charge) == [b'{"a": [1, 2, 3, 4]}']
    with pytest.raises(ProblemError, match="4"):
        await Splitter(3).split_json(b"[1, 2, 3, 4]", charge)


async def test_half_a_surrogate_pair_is_stored_as_it_came() -> None:
    """JSON allows it, and a browser sends it for a text that was cut in an emoji: it must not cost the whole batch."""
    elements = [rb'"cut \ud83d"', rb'{"\uDE00":"\\ud83d","\u00e9":"\ud83d\ude00"}', b"[1, 2]", rb'"\ud83d"']
    charge = Budget("body bytes", 2**40).charge()
    assert await Splitter(10).split_json(b" [" + b" ,\n".join(elements) + b"] ", charge) == elements
    for element in elements[:2]:
        assert await Splitter(10).split_json(b"\n " + element + b" ", charge) == [element]
    with pytest.raises(ProblemError, match="4"):
        await Splitter(3).split_json(b"[" + b",".join(elements) + b"]", charge)
    with pytest.raises(msgspec.DecodeError):
        await Splitter(10).split_json(rb'["\ud83"]', charge)


async def test_millions_of_values_are_refused_before_they_are_made() -> None:
    """8 MiB hold four millions of them, which would take 300 MiB that no budget counts, and 0.4 s of the event loop."""
    body = b"[" + b"1," * 4_000_000 + b"1]"
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(others())
    tracemalloc.start()
    try:
        with pytest.raises(ProblemError, match="100001"):
            await Splitter(100_000).split_json(body, Budget("body bytes", 2**40).charge())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        other.cancel()
    assert peak < 2 * len(body)
    assert turns > 10


@pytest.mark.parametrize("body", [b'{"event": 1}', b'[{"event": 1}]', b'"text"'])
async def test_json_without_the_option_says_which_one_stores_it(served: Served, body: bytes) -> None:
    """It is the first request of most senders."""
    refused = await served.call("POST", RECORDS, body, headers={"Content-Type": "application/json"})
    assert refused.status == 400
    assert "to store JSON values as they are, send ?json=records" in refused.json()["detail"]


async def test_json_that_is_missing_says_so(served: Served) -> None:
    """The decoder says only that input was truncated."""
    for path, body in (
        (RECORDS + "?json=records", b""),
        (RECORDS + "?json=records", b"[1"),
        ("/v1/queues/q/truncate", b""),
    ):
        refused = await served.call("POST", path, body)
        assert refused.json()["detail"] == "the body is empty, or its JSON is cut off; send one whole JSON value"


async def test_an_empty_body_is_no_compressed_record(served: Served) -> None:
    """`gzip < missing | curl …` sends one: its content was lost on the way. Without an encoding it is a record."""
    assert (await post(served, b"", "gzip")).status == 400
    assert (await post(served, b"", "identity")).status == 200
    assert (await post(served, gzip.compress(b""), "gzip")).status == 200
    assert served.log.next_position("q") == 2


async def test_an_unknown_way_to_cut_json_is_refused(served: Served) -> None:
    """A misspelt value must not store the whole body as one record."""
    refused = await served.call("POST", RECORDS + "?json=record", b"[1]")
    assert (refused.status, refused.json()["code"]) == (400, "parameter")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inside: st.lists(inside) | st.dictionaries(st.text(), inside),
    max_leaves=20,
)


@given(st.lists(values, min_size=1), st.integers(0, 2**32), st.booleans())
def test_elements_are_found_wherever_they_end(elements: list[Any], seed: int, escaped: bool) -> None:
    """Space, commas and brackets anywhere, in strings and outside of them, do not move the ends of elements."""
    dice = random.Random(seed)
    elements += ["\ud83d" * dice.randrange(3)] * escaped
    texts = [json.dumps(one, ensure_ascii=escaped, indent=dice.choice([None, 1])).encode() for one in elements]
    body = b"[" + b",".join(dice.choice([b"", b" ", b"\r\n\t"]) + text for text in texts) + b" ]"
    found = asyncio.run(
        Splitter(dice.choice([len(elements), 100_000])).split_json(body, Budget("body bytes", 2**40).charge())
    )
    assert found == texts


@given(st.lists(values, min_size=1), st.integers(0, 2**32))
def test_a_damaged_array_is_refused_or_has_other_elements(elements: list[Any], seed: int) -> None:
    """What is accepted is an array by Python's decoder too, and together its records are it."""
    dice = random.Random(seed)
    body = bytearray(json.dumps(elements).encode())
    for _ in range(dice.randrange(1, 4)):
        body[dice.randrange(len(body))] = dice.choice(b'[]{},:"\\ 0a\xff')
    try:
        found = asyncio.run(
            Splitter(dice.choice([2, 100_000])).split_json(bytes(body), Budget("body bytes", 2**40).charge())
        )
    except (ProblemError, ValueError):
        return
    whole = json.loads(body.decode())
    assert [json.loads(one) for one in found] == (whole if isinstance(whole, list) else [whole])


async def test_a_client_that_wants_text_gets_it(served: Served) -> None:
    """`text/*` is what some tools send for the logs that they read."""
    await served.log.append_records("q", None, [b"a", b"b"])
    read = await served.call("GET", RECORDS, headers={"Accept": "text/*"})
    assert (read.headers["Content-Type"].partition(";")[0], read.body) == ("text/plain", b"a\nb\n")
