"""Frames: every place relative to a block's end, and nothing that is valid anywhere else."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from mrecordlog_async.format import frame
from mrecordlog_async.format.frame import (
    BLOCK_BYTES,
    FILLER,
    FRAME_HEADER_BYTES,
    FULL,
    STEP_BYTES,
    Buffer,
    encode_all_frames,
    encode_frames,
    encode_frames_in_steps,
    encode_unsplit,
    frames_bytes_max,
    frames_end,
    read_frame,
    segment_seed,
)

SEED = segment_seed(bytes(16), 3)


def read_all(data: bytes, base: int, at: int) -> list[tuple[int, bytes]]:
    """Read (kind, payload) of frame after frame."""
    found = []
    while at < len(data) and (frame := read_frame(memoryview(data), base, at, SEED)) is not None:
        found.append((frame.kind, bytes(frame.payload)))
        at = frame.end - base
    return found


@given(offset=st.integers(0, 3 * BLOCK_BYTES), body=st.binary(min_size=1, max_size=200), times=st.integers(1, 700))
def test_record_comes_back_from_any_offset(offset: int, body: bytes, times: int) -> None:
    """Cut at any place relative to a block's end, a log record is read back whole, within the promised size."""
    parts = [body] * times
    body = body * times
    buffers: list[Buffer] = []
    end = encode_frames(parts, offset, SEED, buffers)
    data = bytes(offset) + b"".join(buffers)
    assert end == len(data)
    assert end - offset <= frames_bytes_max(len(body)) + FRAME_HEADER_BYTES
    frames = read_all(data, 0, offset)
    assert b"".join(payload for _, payload in frames) == body
    kinds = [kind for kind, _ in frames]
    assert kinds == [1] or (kinds[0] == 2 and kinds[-1] == 4 and set(kinds[1:-1]) <= {3})


@given(room=st.integers(1, BLOCK_BYTES), size=st.integers(1, 200))
def test_unsplit_record_is_one_full_frame(room: int, size: int) -> None:
    """A COMMIT never crosses a block: a FILLER or padding ends the block first."""
    offset = BLOCK_BYTES - room
    buffers: list[Buffer] = []
    end = encode_unsplit(b"c" * size, offset, SEED, buffers)
    data = bytes(offset) + b"".join(buffers)
    frames = read_all(data, 0, offset)
    assert frames[-1] == (FULL, b"c" * size)
    assert end == len(data)
    if len(frames) == 2:
        kind, filling = frames[0]
        assert kind == FILLER
        assert not any(filling)
        assert (offset + FRAME_HEADER_BYTES + len(filling)) % BLOCK_BYTES == 0
    assert (end - 1) // BLOCK_BYTES == (end - size - FRAME_HEADER_BYTES) // BLOCK_BYTES


def test_seven_bytes_left_hold_an_empty_first_frame() -> None:
    """The odd case of the specification: a FIRST frame without payload fills the block exactly."""
    buffers: list[Buffer] = []
    encode_frames([b"abc"], BLOCK_BYTES - 7, SEED, buffers)
    data = bytes(BLOCK_BYTES - 7) + b"".join(buffers)
    assert read_all(data, 0, BLOCK_BYTES - 7) == [(2, b""), (4, b"abc")]


@pytest.mark.parametrize("byte", range(27))
def test_any_flipped_byte_makes_a_frame_invalid(byte: int) -> None:
    """Checksum, length, kind and payload are all covered."""
    buffers: list[Buffer] = []
    encode_frames([b"twenty bytes", b" payload"], 100, SEED, buffers)
    data = bytearray(bytes(100) + b"".join(buffers))
    data[100 + byte] ^= 0x10
    assert read_frame(memoryview(bytes(data)), 0, 100, SEED) is None


def test_frame_is_valid_in_its_own_place_only() -> None:
    """Moved by a byte, into another segment or another log, a frame is not valid."""
    buffers: list[Buffer] = []
    encode_frames([b"pay", b"", b"load"], 100, SEED, buffers)
    data = b"".join(buffers)
    assert read_frame(memoryview(bytes(100) + data), 0, 100, SEED) is not None
    assert read_frame(memoryview(bytes(101) + data), 0, 101, SEED) is None
    assert read_frame(memoryview(bytes(100) + data), 0, 100, segment_seed(bytes(16), 4)) is None
    assert read_frame(memoryview(bytes(100) + data), 0, 100, segment_seed(bytes(15) + b"x", 3)) is None


def test_padding_must_be_zeros() -> None:
    """Bytes in the padding at a block's end are noticed."""
    buffers: list[Buffer] = []
    encode_frames([b"abc"], BLOCK_BYTES - 3, SEED, buffers)
    data = bytearray(bytes(BLOCK_BYTES - 3) + b"".join(buffers))
    assert read_frame(memoryview(bytes(data)), 0, BLOCK_BYTES - 3, SEED) is not None
    data[BLOCK_BYTES - 2] = 1
    assert read_frame(memoryview(bytes(data)), 0, BLOCK_BYTES - 3, SEED) is None


@pytest.mark.parametrize("distance", [512, 4_096, BLOCK_BYTES, 64 * BLOCK_BYTES, 2**32])
def test_frame_is_not_valid_a_whole_sector_block_or_more_away(distance: int) -> None:
    """Disks put whole sectors in the wrong place: the checksum is bound to the whole offset."""
    buffers: list[Buffer] = []
    encode_frames([b"a log record"], 700, SEED, buffers)
    frame = memoryview(b"".join(buffers))
    assert read_frame(frame, 700, 0, SEED) is not None
    assert read_frame(frame, 700 + distance, 0, SEED) is None


SIZES = st.one_of(
    st.integers(1, 300), st.integers(-40, 40).map(lambda more: BLOCK_BYTES + more), st.integers(1, 5 * BLOCK_BYTES)
)


@given(
    offset=st.one_of(st.integers(0, BLOCK_BYTES), st.integers(BLOCK_BYTES - 40, BLOCK_BYTES + 40)),
    sizes=st.lists(st.lists(SIZES, min_size=1, max_size=3), max_size=4),
    step=st.sampled_from([1, 1_000, 40_000, 1 << 20]),
)
def test_frames_made_in_steps_are_the_same_frames(offset: int, sizes: list[list[int]], step: int) -> None:
    """However large a step is, the bytes are those of one call, and they end where `frames_end` says."""
    records = [[bytes([65 + at % 26]) * size for at, size in enumerate(parts)] for parts in sizes]
    due: list[Buffer] = []
    end = encode_all_frames(records, offset, SEED, due)
    with patch.object(frame, "STEP_BYTES", step):
        made = b"".join(map(b"".join, encode_frames_in_steps(records, offset, SEED)))
    assert made == b"".join(due)
    for parts in sizes:
        offset = frames_end(sum(parts), offset)
    assert offset == end


def test_a_step_is_encoded_when_it_is_reached() -> None:
    """Nothing of a long record is computed before the steps before it were taken; no step is much too long."""
    steps = encode_frames_in_steps([[bytes(10 * BLOCK_BYTES)], [bytes(3 * STEP_BYTES)]], 0, SEED)
    with patch("mrecordlog_async.format.frame.crc32c", wraps=crc32c) as checksums:
        lengths = []
        for step in steps:
            lengths.append(sum(map(len, step)))
            assert checksums.call_count <= 2 * (sum(lengths) // (BLOCK_BYTES - 1) + 2)
    assert max(lengths) <= STEP_BYTES + BLOCK_BYTES and len(lengths) >= 5
