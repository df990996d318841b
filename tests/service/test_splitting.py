"""Large bodies are split piece by piece, into the same records as decoding them at once."""

from __future__ import annotations

import json
import random
from base64 import b64encode
from collections.abc import Callable

import msgspec
import pytest

from mrecordlog_async.model import Run
from mrecordlog_async.protocol import wire
from mrecordlog_async.protocol.problems import ProblemError
from mrecordlog_async.protocol.schemas import AppendRequest
from mrecordlog_async.service.sending import Budget
from mrecordlog_async.service.splitting import _BY_TYPE, PIECE_BYTES

JSON = "application/json"
RECORDS_MAX = 100_000


def steps(body: bytes, kind: str = JSON) -> list[list[bytes]]:
    """Return the records of each step: the event loop runs between them."""
    return list(_BY_TYPE[kind](body, RECORDS_MAX, Budget("body bytes", 2**40).charge()))


def records(body: bytes, kind: str = JSON) -> list[bytes]:
    return [record for step in steps(body, kind) for record in step]


def plain(payloads: list[bytes]) -> bytes:
    return msgspec.json.encode(AppendRequest(payloads))


def spaced(payloads: list[bytes]) -> bytes:
    return (
        json.dumps({"records": [b64encode(one).decode() for one in payloads]}, indent="\t  \r").encode() + b"\n" * 900
    )


def slashes_escaped(payloads: list[bytes]) -> bytes:
    return plain(payloads).replace(b"/", rb"\/")


def everything_escaped(payloads: list[bytes]) -> bytes:
    return plain(payloads).replace(b"+", rb"\u002B").replace(b"/", rb"\u002f").replace(b"A", rb"\u0041")


@pytest.mark.parametrize("encode", [plain, spaced, slashes_escaped, everything_escaped])
@pytest.mark.parametrize("seed", range(10))
def test_records_of_json_are_those_of_its_decoder(encode: Callable[[list[bytes]], bytes], seed: int) -> None:
    """Records of any size, even larger than a piece, in any order and however their base64 is escaped."""
    dice = random.Random(seed)
    sizes = [0, 1, 2, 3, 1_000, PIECE_BYTES, 2 * PIECE_BYTES - 1, 3 * PIECE_BYTES, 4 * PIECE_BYTES + dice.randrange(9)]
    payloads = [dice.randbytes(dice.choice(sizes)) for _ in range(dice.randrange(1, 12))]
    payloads.append(dice.randbytes(100_000))
    dice.shuffle(payloads)
    assert records(encode(payloads)) == payloads


LARGE = b"QUFB" * PIECE_BYTES


@pytest.mark.parametrize(
    "body",
    [
        b'{"records":["%s]}' % LARGE,
        b'{"records":[%s"]}' % LARGE,
        b'{"records":[%s]}' % LARGE,
        b'{"records":["%s"x]}' % LARGE,
        b'{"records":["%s" "QUFB"]}' % LARGE,
        b'{"records":["%s","QUFB"' % LARGE,
        b'{"records":["%s",]}' % LARGE,
        b'{"records":[,"%s"]}' % LARGE,
        b'{"records":["%s=="]}' % LARGE,
        b'{"records":["QQ==%s"]}' % LARGE,
        b'{"records":["%sQQ==%s"]}' % (LARGE, LARGE),
        b'{"records":["%s?QUF"]}' % LARGE,
        b'{"records":["%s\\u0022\\u002c\\u0022QUFB"]}' % LARGE,
        b'{"records":["%s\\"]}' % LARGE,
        b'{"records":["%s\\u004"]}' % LARGE,
        b'{"records":["%s\\ud800"]}' % LARGE,
        b'{"records":["%s\xff"]}' % LARGE,
        b'{"records":["%sQUF"]}' % LARGE,
        b'{"records":"%s"}' % LARGE,
        b'{"recards":["%s"]}' % LARGE,
        b'{"%s":[]}' % LARGE,
        b'["%s"]' % LARGE,
        b'{"records":["%s"]}}' % LARGE,
        b'{"records":["%s"]]}' % LARGE,
        b'{"records":[["%s"]]}' % LARGE,
        b'{"records":[%s]}' % (b"[" * 2_000_000),
        b'{"records":[%s]}' % (b" " * 2_000_000),
        b'{"records":[]}%s' % (b" " * 2_000_000),
        b" " * 2_000_000,
    ],
    ids=lambda body: f"{body[:14]!r}…{body[-10:]!r}",
)
def test_large_json_that_holds_no_records_is_400(body: bytes) -> None:
    """What is not a list of base64 is refused, and the refusal does not quote it."""
    with pytest.raises((ProblemError, msgspec.DecodeError, UnicodeDecodeError)) as refused:
        steps(body)
    if isinstance(refused.value, ProblemError):
        assert refused.value.status == 400
        assert len(refused.value.detail) < 200


@pytest.mark.parametrize("encode", [plain, spaced, slashes_escaped])
def test_a_large_record_of_json_is_decoded_in_steps(encode: Callable[[list[bytes]], bytes]) -> None:
    """One record of 8 MB does not hold the event loop longer than many small ones."""
    assert len(steps(encode([random.Random(1).randbytes(8_000_000)]))) > 8_000_000 / PIECE_BYTES


def test_a_large_block_of_runs_is_cut_in_steps() -> None:
    """One block of 50,000 records is copied part by part."""
    payloads = [b"%d" % number for number in range(50_000)]
    body = b"".join(wire.encode([wire.QueueRuns("q", 0, [Run.of(0, payloads)])]))
    found = steps(body, wire.CONTENT_TYPE)
    assert [record for step in found for record in step] == payloads
    assert max(map(len, found)) <= 2_000
