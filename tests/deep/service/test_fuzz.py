"""Random requests: the service responds with a meaningful status and keeps running."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from mrecordlog_async.model import Run
from mrecordlog_async.protocol import wire
from mrecordlog_async.protocol.log_schemas import LOG_ID
from mrecordlog_async.service.routes.openapi import TABLE
from tests.serving import serving

names = st.one_of(st.just("q"), st.just("r"), st.text(max_size=12)).map(lambda name: quote(name, safe=""))
names = st.one_of(names, st.binary(min_size=1, max_size=6).map(lambda name: quote(name, safe="")))
numbers = st.one_of(
    st.integers(-1, 5).map(str), st.integers().map(str), st.text(max_size=3), st.binary(min_size=1, max_size=4)
)
header_names = st.sampled_from(
    f"{LOG_ID} traceparent tracestate baggage If-None-Match Last-Event-ID Authorization Origin Cookie Range Expect "
    "User-Agent X-Forwarded-For Content-Encoding Upgrade Connection".split()
)
header_values = st.one_of(
    st.binary(max_size=30),
    st.sampled_from([b'W/"x"', b"*", b"a=%ff", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", b"\xff"]),
).map(lambda value: bytes(byte for byte in value if byte not in b"\r\n\0"))
headers = st.lists(st.tuples(header_names, header_values), max_size=3)
queue_members = st.fixed_dictionaries(
    {"queue": st.sampled_from(["q", "r", "nope"])},
    optional={
        "start": st.integers(-1, 9),
        "stop": st.integers(-1, 9),
        "position": st.integers(-1, 9),
        "id": st.integers(-1, 2**63),
    },
)
members = st.one_of(st.lists(queue_members, max_size=3), st.integers(-1, 5), st.none(), st.text(max_size=5))
bulk_bodies = st.one_of(
    st.fixed_dictionaries({"queues": st.lists(queue_members, max_size=3)}),
    st.fixed_dictionaries({"ranges": st.lists(queue_members, max_size=3)}),
    st.fixed_dictionaries({"position": st.integers(-1, 5)}),
    st.fixed_dictionaries({}, optional={"max_records": st.integers(0, 5), "piece_bytes": st.integers(0, 9)}),
    st.dictionaries(st.sampled_from(["queues", "ranges", "records", "position", "max_bytes"]), members, max_size=2),
).map(msgspec.json.encode)
run_bodies = st.lists(st.binary(max_size=9), min_size=1, max_size=4).map(
    lambda payloads: b"".join(wire.encode([wire.QueueRuns("q", 0, [Run.of(0, payloads)])]))
)
bodies = st.one_of(st.binary(max_size=60), bulk_bodies, run_bodies)
content_types = st.sampled_from(
    ["application/json", "application/x-ndjson", wire.CONTENT_TYPE, "application/vnd.apache.arrow.stream", "text/x", ""]
)
accepts = st.sampled_from(["*/*", "text/plain", wire.CONTENT_TYPE, "application/vnd.apache.arrow.stream", "x/y", ","])
TARGETS = [route for route in TABLE if not route.path.endswith(("/tail", "/stream"))]
other_methods = st.sampled_from(["GET", "PUT", "POST", "DELETE", "HEAD", "OPTIONS", "PATCH"])


class Sent(NamedTuple):
    method: str
    path: str
    name: str
    query: str
    body: bytes
    content_type: str
    accept: str
    headers: list[tuple[str, bytes]]


@st.composite
def requests(draw: st.DrawFn) -> Sent:
    """Draw a request: mostly a route with its own parameters, sometimes another method or parameter."""
    route = draw(st.sampled_from(TARGETS))
    allowed = [name for name, _ in route.parameters if name != "wait"] or ["x"]
    if draw(st.integers(0, 9)) == 0:
        allowed.append("x")
    query = draw(st.dictionaries(st.sampled_from(allowed), numbers, max_size=2 if len(allowed) > 1 else 0))
    return Sent(
        draw(other_methods) if draw(st.integers(0, 9)) == 0 else route.method,
        route.path,
        draw(names),
        "&".join(f"{name}={quote(value)}" for name, value in query.items()),
        draw(bodies),
        draw(content_types),
        draw(accepts),
        draw(headers),
    )


def as_bytes(sent: Sent) -> bytes:
    target = sent.path.replace("{queue}", sent.name) + (f"?{sent.query}" if sent.query else "")
    head = f"{sent.method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAccept: {sent.accept}\r\n"
    head += f"Content-Type: {sent.content_type}\r\n"
    more = b"".join(b"%b: %b\r\n" % (name.encode(), value) for name, value in sent.headers)
    return head.encode() + more + b"Content-Length: %d\r\n\r\n" % len(sent.body) + sent.body


@settings(max_examples=60, deadline=None)
@given(st.lists(requests(), min_size=5, max_size=30))
def test_no_request_makes_the_service_fail(sent: list[Sent]) -> None:
    """There is always a response and never a 500; errors are problem documents, and the log still opens afterwards."""
    asyncio.run(_send_all(sent))


async def _send_all(sent: list[Sent]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with serving(Path(directory) / "wal") as served:
            await served.log.create_queue("q")
            for request in sent:
                reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
                writer.write(as_bytes(request))
                response = await reader.read()
                writer.close()
                check(request, response)
            assert (await served.call("GET", "/readyz")).status == 200
            before = {queue: list(served.log.range(queue)) for queue in served.log.list_queues()}
        async with serving(Path(directory) / "wal") as served:
            assert {queue: list(served.log.range(queue)) for queue in served.log.list_queues()} == before


def check(request: Sent, response: bytes) -> None:
    head, _, body = response.partition(b"\r\n\r\n")
    status = int(head.split()[1])
    assert status < 500, (request, response)
    if status >= 400 and b"problem+json" in head and request.method != "HEAD":
        problem = msgspec.json.decode(body)
        assert problem["status"] == status
        assert problem["code"]
        assert problem["detail"]
    else:
        assert status < 400 or request.method == "HEAD" or status == 400, (request, response)
