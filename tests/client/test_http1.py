"""Tests of `Exchange`: one response, in whatever pieces it arrives."""

import gc
import weakref
from itertools import pairwise

import pytest

from mrecordlog_async.client.http1 import BODY_BYTES, SCRATCH_BYTES, Exchange

BODY = b'{"position":0}'
COUNTED = b"HTTP/1.1 200 OK\r\nX: 1\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
CLOSED = COUNTED.replace(b"X: 1", b"Connection: close")
ANNOUNCED = b"HTTP/1.1 103 Early Hints\r\nContent-Length: 5\r\n\r\n" + COUNTED

every_response = pytest.mark.parametrize(
    "response", [COUNTED, CHUNKED, CLOSED, ANNOUNCED], ids=["counted", "chunked", "closed", "announced"]
)


def receive(exchange: Exchange, data: bytes) -> None:
    """Have *data* received as a transport does."""
    while data:
        room = exchange.room()
        count = min(len(room), len(data))
        room[:count] = data[:count]
        del room
        exchange.received(count)
        data = data[count:]


def received(*pieces: bytes) -> Exchange:
    exchange = Exchange(memoryview(bytearray(SCRATCH_BYTES)))
    for piece in pieces:
        receive(exchange, piece)
    return exchange


@every_response
def test_a_response_may_arrive_in_any_two_pieces(response: bytes) -> None:
    """It is whole with its last byte, and the connection is used again unless the response says otherwise."""
    for at in range(1, len(response)):
        assert not received(response[:at]).is_whole
        exchange = received(response[:at], response[at:])
        assert exchange.is_whole
        assert exchange.reusable == (response != CLOSED)
        assert exchange.reply()[::2] == (200, BODY)


@every_response
def test_a_response_that_is_cut_off_is_not_whole(response: bytes) -> None:
    """At any byte, in whatever two pieces it arrived: also within a body that llhttp does not see."""
    for cut in range(1, len(response)):
        for at in range(cut):
            exchange = received(response[:at], response[at:cut])
            with pytest.raises(ConnectionError):
                exchange.end()
            assert not exchange.is_whole


@pytest.mark.parametrize("more", [b"x", b"\0", COUNTED, CHUNKED], ids=["text", "zero", "counted", "chunked"])
@every_response
def test_a_connection_with_more_than_the_response_is_not_used_again(response: bytes, more: bytes) -> None:
    """The response is what it would be without; the rest would be taken for the next one."""
    for at in range(len(response)):
        exchange = received(response[:at], response[at:] + more)
        assert not exchange.reusable
        assert exchange.reply()[::2] == (200, BODY)
    exchange = received(response, more)
    assert not exchange.reusable
    assert exchange.reply()[::2] == (200, BODY)


def test_room_for_a_body_is_made_as_it_arrives() -> None:
    """A length may be anything, and says nothing about what arrives."""
    size = 2 * BODY_BYTES + 5
    exchange = received(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
    assert len(exchange.room()) == BODY_BYTES
    ends = [0, 1, BODY_BYTES - 1, BODY_BYTES, BODY_BYTES + 1, 2 * BODY_BYTES, size]
    for number, (start, end) in enumerate(pairwise(ends)):
        assert not exchange.is_whole
        receive(exchange, bytes([number]) * (end - start))
    assert exchange.is_whole and exchange.reusable
    body = exchange.reply().body
    assert len(body) == size
    assert [body[at] for at in ends[:-1]] == list(range(len(ends) - 1))


def test_a_response_does_not_wait_for_the_garbage_collector() -> None:
    """Else large bodies pile up, and the memory of each is new to the process: half of the cost of reading."""
    exchange = received(COUNTED)
    exchange.reply()
    there = weakref.ref(exchange)
    gc.disable()
    try:
        del exchange
        assert there() is None
    finally:
        gc.enable()
