import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrecordlog_async.http.wire import ENTRY, Decoder, QueueRuns, WireError, check_offsets, decode, encode, gather
from mrecordlog_async.model import Run

payload_lists = st.lists(st.binary(max_size=40), min_size=1, max_size=8)
runs = st.builds(Run.of, st.integers(0, 2**62), payload_lists)
parts = st.lists(st.builds(QueueRuns, st.text(max_size=9), st.integers(0, 2**64 - 1), st.lists(runs, max_size=4)))


@given(parts)
def test_what_was_encoded_is_decoded(sent: list[QueueRuns]) -> None:
    """Queue names, incarnations, positions and payloads arrive as they were sent."""
    got = [(block.queue, block.queue_id, block.run()) for block in decode(b"".join(encode(sent)))]
    assert got == [(part.queue, part.queue_id, run) for part in sent for run in part.runs]


@given(parts, st.data())
def test_a_stream_that_is_cut_anywhere_is_seen(sent: list[QueueRuns], data: st.DataObject) -> None:
    """A short answer never passes for a whole one."""
    stream = b"".join(encode(sent))
    cut = stream[: data.draw(st.integers(0, len(stream) - 1))]
    with pytest.raises(WireError):
        list(decode(cut))


@given(st.binary(max_size=200))
def test_bytes_from_anywhere_are_refused_or_decoded_but_never_crash(data: bytes) -> None:
    """Hostile bytes raise WireError and nothing else."""
    for stream in (data, encode([])[0] + data):
        try:
            list(decode(stream))
        except WireError as error:
            assert str(error)


@given(parts, st.integers(1, 100))
def test_gathered_pieces_are_the_stream(sent: list[QueueRuns], piece_bytes: int) -> None:
    """Joining small buffers changes nothing but their number."""
    buffers = encode(sent)
    assert b"".join(gather(buffers, piece_bytes)) == b"".join(buffers)


def test_a_large_payload_leaves_as_the_object_it_is() -> None:
    """Encoding copies no payload."""
    payload = bytes(1_000_000)
    buffers = encode([QueueRuns("q", 1, [Run.of(5, [payload])])])
    assert any(buffer is payload for buffer in gather(buffers, 65_536))


def test_a_block_is_a_view_into_what_was_received() -> None:
    """Decoding copies no payload, and offsets lie at multiples of 8."""
    stream = b"".join(encode([QueueRuns("queue", 1, [Run.of(5, [b"a", b"bb"]), Run.of(9, [b"c"])])]))
    blocks = list(decode(stream))
    assert [block.payload.obj is stream for block in blocks] == [True, True]
    assert stream.index(bytes(blocks[1].offsets)) % 8 == 0
    assert blocks[0].next_position == 7


def test_offsets_that_do_not_fit_the_payload_are_refused() -> None:
    """A block's lengths are checked before anything is cut out of it."""
    stream = bytearray(b"".join(encode([QueueRuns("q", 1, [Run.of(0, [b"a", b"b"])])])))
    at = stream.index(b"\0\0\0\0\1\0\0\0\2\0\0\0")
    stream[at + 8] = 3
    with pytest.raises(WireError, match="do not fit"):
        list(decode(stream))


def test_offsets_that_go_down_are_found_when_asked() -> None:
    """A receiver that cuts records out checks the offsets in between too."""
    run = Run(0, Run.of(0, [b"aa", b"b", b"c"]).offsets.replace(b"\3\0\0\0", b"\1\0\0\0"), b"aabc")
    (block,) = decode(b"".join(encode([QueueRuns("q", 1, [run])])))
    with pytest.raises(WireError, match="go down"):
        check_offsets(block.offsets)


def test_a_wrong_trailer_is_refused() -> None:
    """A stream with a block lost on the way is not taken for complete."""
    stream = b"".join(encode([QueueRuns("q", 1, [])]))
    wrong = stream[: -ENTRY.size] + ENTRY.pack(3, 1, 1, 0, 0)
    with pytest.raises(WireError, match="trailer"):
        list(decode(wrong))


def test_a_stream_of_another_version_is_refused() -> None:
    """Version 2 is not read as version 1."""
    with pytest.raises(WireError, match="version"):
        Decoder().take(b"mrlruns\x02")


def test_bytes_behind_the_trailer_are_refused() -> None:
    """Nothing may follow the end."""
    with pytest.raises(WireError, match="follow"):
        list(decode(b"".join(encode([])) + b"x"))
