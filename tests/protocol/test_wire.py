from array import array
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrecordlog_async.model import Run, Times
from mrecordlog_async.protocol import wire
from mrecordlog_async.protocol.wire import (
    ENTRY,
    POSITIONS,
    TIMES,
    TRAILER,
    QueuePositions,
    QueueRuns,
    WireError,
    encode,
    gather,
    join_spans,
)
from mrecordlog_async.protocol.wire_decoder import check_offsets, decode

payload_lists = st.lists(st.binary(max_size=40), min_size=1, max_size=8)
runs = st.builds(Run.of, st.integers(0, 2**62), payload_lists)
times = st.lists(st.tuples(st.integers(0, 2**62), st.integers(1, 2**40)), max_size=5, unique_by=lambda one: one[0]).map(
    lambda entries: Times(array("q", sorted(at for at, _ in entries)), array("q", [tick for _, tick in entries]))
)
parts = st.lists(
    st.builds(QueueRuns, st.text(max_size=9), st.integers(0, 2**64 - 1), st.lists(runs, max_size=4), st.none() | times)
)


def encode_positions(sent: list[QueueRuns]) -> Iterator[bytes]:
    """Return the stream that responds to a fetch of *sent* without payloads."""
    for_positions = []
    for queue, queue_id, runs, when in sent:
        found: list[tuple[int, int]] = []
        join_spans(found, ((run.first_position, run.record_count) for run in runs))
        for_positions.append(QueuePositions(queue, queue_id, found, when))
    return wire.encode_positions(for_positions)


@given(parts)
def test_what_was_encoded_is_decoded(sent: list[QueueRuns]) -> None:
    """Queue names, incarnations, positions and payloads arrive as they were sent."""
    got = [(block.queue, block.queue_id, block.run()) for block in decode(b"".join(encode(sent)))]
    assert got == [(part.queue, part.queue_id, run) for part in sent for run in part.runs]
    assert len(b"".join(encode(sent))) == wire.size_of(sent)


@given(parts)
def test_times_arrive_with_every_block_of_their_queue(sent: list[QueueRuns]) -> None:
    """With payloads and without; a queue whose times are not known has none."""
    due = [part.times or Times.none() for part in sent for _ in part.runs]
    assert [block.times for block in decode(b"".join(encode(sent)))] == due
    without = {
        (block.queue, block.queue_id): block.times for block in decode(b"".join(encode_positions(sent)), positions=True)
    }
    assert without == {(part.queue, part.queue_id): part.times or Times.none() for part in sent if part.runs}


def test_many_times_take_several_entries() -> None:
    """More changes than one entry may have are joined again."""
    when = Times(array("q", range(70_000)), array("q", range(1, 70_001)))
    (block,) = decode(b"".join(encode([QueueRuns("q", 1, [Run.of(3, [b"x"])], when)])))
    assert block.times == when


@pytest.mark.parametrize(
    ("entry", "body"),
    [
        ((TIMES, 0, 0, 0, 0), b""),
        ((TIMES, wire.TIMES_MAX + 1, 0, 0, 0), b""),
        ((TIMES, 1, 1, 0, 0), bytes(16)),
        ((TIMES, 2, 0, 0, 0), array("q", [5, 5, 1, 2]).tobytes()),
    ],
    ids=["none", "too many", "with a number", "positions that do not ascend"],
)
def test_times_that_cannot_be_are_refused(entry: tuple[int, int, int, int, int], body: bytes) -> None:
    """Their number is checked before it is trusted, and their order before it is searched."""
    *before, end = encode([QueueRuns("q", 1, [])])
    with pytest.raises(WireError, match=r"is not valid here|do not ascend"):
        list(decode(b"".join([*before, ENTRY.pack(*entry), body, end])))


@given(parts)
def test_positions_alone_name_every_record(sent: list[QueueRuns]) -> None:
    """They name the same queues and positions, whichever runs share an entry, without a byte of payload."""
    stream = b"".join(encode_positions(sent))
    blocks = list(decode(stream, positions=True))
    got = [
        (block.queue, block.queue_id, at) for block in blocks for at in range(block.first_position, block.next_position)
    ]
    assert got == [
        (part.queue, part.queue_id, record.position) for part in sent for run in part.runs for record in run.records()
    ]
    assert all(block.record_count and not block.offsets and not block.payload for block in blocks)


@given(st.integers(0, 2**62), st.lists(payload_lists, min_size=1, max_size=6), st.integers(1, 9))
def test_runs_that_follow_each_other_share_an_entry(first: int, groups: list[list[bytes]], most: int) -> None:
    """A queue without gaps is one entry; it is split only where its count would exceed what decoders accept."""
    following: list[Run] = []
    for group in groups:
        following.append(Run.of(following[-1].next_position if following else first, group))
    (block,) = decode(b"".join(encode_positions([QueueRuns("q", 1, following)])), positions=True)
    assert (block.first_position, block.next_position) == (first, following[-1].next_position)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "RECORDS_MAX", max(most, *(run.record_count for run in following), 1))
        cut = list(decode(b"".join(encode_positions([QueueRuns("q", 1, following)])), positions=True))
    assert sum(each.record_count for each in cut) == block.record_count
    assert all(each.next_position == after.first_position for each, after in pairwise(cut))


@given(parts.filter(lambda sent: any(part.runs for part in sent)))
def test_only_a_decoder_for_positions_accepts_them(sent: list[QueueRuns]) -> None:
    """Other decoders refuse the kind, and a decoder for positions refuses payloads."""
    for stream, positions in ((encode_positions(sent), False), (encode(sent), True)):
        with pytest.raises(WireError, match="is not valid here"):
            list(decode(b"".join(stream), positions=positions))


@given(parts, st.booleans(), st.data())
def test_a_stream_that_is_cut_anywhere_is_detected(sent: list[QueueRuns], positions: bool, data: st.DataObject) -> None:
    """A cut stream is never accepted as a whole one."""
    stream = b"".join(encode_positions(sent) if positions else encode(sent))
    cut = stream[: data.draw(st.integers(0, len(stream) - 1))]
    with pytest.raises(WireError):
        list(decode(cut, positions=positions))


@given(st.binary(max_size=200), st.booleans())
def test_bytes_from_anywhere_are_refused_or_decoded_but_never_crash(data: bytes, positions: bool) -> None:
    """Hostile bytes raise WireError and nothing else."""
    for stream in (data, next(encode([])) + data):
        try:
            list(decode(stream, positions=positions))
        except WireError as error:
            assert str(error)


@given(parts, st.integers(1, 100))
def test_gathered_pieces_are_the_stream(sent: list[QueueRuns], piece_bytes: int) -> None:
    """Joining small buffers changes nothing but their number."""
    buffers = list(encode(sent))
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
    with pytest.raises(WireError, match="do not match"):
        list(decode(stream))


def test_offsets_that_go_down_are_found_when_asked() -> None:
    """A receiver that cuts out records checks every offset."""
    run = Run(0, Run.of(0, [b"aa", b"b", b"c"]).offsets.replace(b"\3\0\0\0", b"\1\0\0\0"), b"aabc")
    (block,) = decode(b"".join(encode([QueueRuns("q", 1, [run])])))
    with pytest.raises(WireError, match="decrease"):
        check_offsets(block.offsets)


def test_a_wrong_trailer_is_refused() -> None:
    """A stream that lost a block on the way is not accepted as complete."""
    stream = b"".join(encode([QueueRuns("q", 1, [])]))
    wrong = stream[: -ENTRY.size] + ENTRY.pack(3, 1, 1, 0, 0)
    with pytest.raises(WireError, match="trailer"):
        list(decode(wrong))


@pytest.mark.parametrize(
    "entry",
    [(POSITIONS, 0, 5, 0, 0), (POSITIONS, wire.RECORDS_MAX + 1, 5, 0, 0), (POSITIONS, 1, 5, 1, 0)],
    ids=["of no records", "of too many", "with payload bytes"],
)
def test_positions_that_cannot_be_are_refused(entry: tuple[int, int, int, int, int]) -> None:
    """A number is checked against its bounds before it is trusted."""
    preamble, *queue, _ = encode_positions([QueueRuns("q", 1, [])])
    stream = b"".join([preamble, *queue, ENTRY.pack(*entry), ENTRY.pack(TRAILER, 1, 1, entry[1], entry[3])])
    with pytest.raises(WireError, match="is not valid here"):
        list(decode(stream, positions=True))


def test_a_stream_of_another_version_is_refused() -> None:
    """Version 2 is not read as version 1."""
    with pytest.raises(WireError, match="version"):
        list(decode(b"mrlruns\x02"))


def test_bytes_after_the_trailer_are_refused() -> None:
    """Nothing may follow the end."""
    with pytest.raises(WireError, match="follow"):
        list(decode(b"".join(encode([])) + b"x"))
