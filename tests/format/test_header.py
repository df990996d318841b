"""Headers and `CLOSED`: damage is not taken for another version of the format."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import pytest

from mrecordlog_async.format import header
from mrecordlog_async.format.header import (
    Closed,
    FormatVersionError,
    HeaderError,
    SegmentHeader,
    decode_closed,
    decode_header,
    encode_closed,
    encode_header,
)

LOG_ID = bytes(range(16))
VERSION_AT = 8


def segment_header() -> bytes:
    return encode_header(SegmentHeader(LOG_ID, 3, 17, 4_096, 2))


def closed() -> bytes:
    return encode_closed(Closed(LOG_ID, 3, 4_096, 17))


BOTH = pytest.mark.parametrize(("encoded", "decode"), [(segment_header, decode_header), (closed, decode_closed)])


@BOTH
def test_any_flipped_bit_is_damage(encoded: Callable[[], bytes], decode: Callable[[bytes], object]) -> None:
    """The version is not an exception: a damaged one must not send anybody to look for another release."""
    intact = encoded()
    for bit in range(8 * len(intact)):
        damaged = bytearray(intact)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(HeaderError, match=r"fails its checksum|does not begin with its magic number") as raised:
            decode(bytes(damaged))
        assert not isinstance(raised.value, FormatVersionError), bit


@BOTH
@pytest.mark.parametrize("version", [1, 3, 65_538])
@pytest.mark.parametrize("checksum", ["the same", "another"])
def test_another_version_is_named(
    encoded: Callable[[], bytes], decode: Callable[[bytes], object], version: int, checksum: str
) -> None:
    """Whether that version computes the checksum as this one does or not."""
    with patch.object(header, "VERSION", version):
        other = bytearray(encoded())
    if checksum == "another":
        other[-4:] = b"abcd"
    with pytest.raises(FormatVersionError, match=f"format version {version} is"):
        decode(bytes(other))


@BOTH
def test_a_version_that_is_damaged_twice_is_named(
    encoded: Callable[[], bytes], decode: Callable[[bytes], object]
) -> None:
    """If other bytes are damaged too, nothing shows that it is not another version."""
    damaged = bytearray(encoded())
    damaged[VERSION_AT] ^= 4
    damaged[VERSION_AT + 8] ^= 1
    with pytest.raises(FormatVersionError, match="format version 6 is unknown here"):
        decode(bytes(damaged))
