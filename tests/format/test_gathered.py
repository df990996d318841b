"""Gathered files: what is laid out is read back, and other bytes are never taken for it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import given

from mrecordlog_async.format.gathered import (
    FOOT_BYTES,
    HEAD_BYTES,
    PLACE_BYTES,
    GatheredError,
    GatheredHead,
    GatheredIndex,
    Gathering,
    StoredRun,
    decode_foot,
    decode_head,
    decode_index,
)
from mrecordlog_async.memory.collected import held_run
from mrecordlog_async.model import POSITION_MAX, Record, Run, Times, pack_offsets

HEAD = GatheredHead(bytes(range(16)), 3, 4_000, 11, 12, 13, 14)


def stored(first: int, payloads: list[bytes], distances: list[int] | None = None) -> StoredRun:
    """Return a run of *payloads*, at consecutive positions unless *distances* are given."""
    offsets = pack_offsets(accumulate(map(len, payloads), initial=0))
    return first, offsets, b"".join(payloads), array("i", distances).tobytes() if distances else b""


def file_of(queues: dict[int, list[StoredRun]], times: dict[int, Times]) -> tuple[bytes, GatheredIndex]:
    """Lay out a file; return its bytes, and the index that was made on the way."""
    gathering = Gathering(HEAD)
    data = HEAD.encode()
    for queue_id, runs in queues.items():
        for part in gathering.add_queue(queue_id, runs, times[queue_id]):
            data += b"".join(part)
    data += b"".join(gathering.end())
    assert gathering.size == len(data)
    return data, gathering.index


def decoded(
    data: bytes | bytearray, index: GatheredIndex, places: range, start: int = 0, stop: int = POSITION_MAX + 1
) -> tuple[list[Run | StoredRun], Times]:
    """Decode neighbouring places of a file."""
    at = index.offsets[places[0]]
    return index.decode(memoryview(data)[at : at + index.length(places)], places, start, stop)


def records_of(runs: Sequence[Run | StoredRun]) -> list[Record]:
    """Return the records of runs, wherever one ends."""
    return [record for run in runs for record in held_run(run).records()]


def read_index(data: bytes) -> GatheredIndex:
    """Read the index of a file, with every check."""
    head = decode_head(data[:HEAD_BYTES])
    foot = decode_foot(data[-FOOT_BYTES:], len(data))
    return decode_index(data[foot.offset : foot.offset + foot.index_bytes], head, foot)


@st.composite
def queues_of_runs(draw: st.DrawFn) -> tuple[dict[int, list[StoredRun]], dict[int, Times]]:
    """Draw queues with runs, some with gaps, and times that change anywhere."""
    queues, times = {}, {}
    for queue_id in sorted(draw(st.sets(st.integers(0, 2**64 - 1), max_size=4))):
        position, runs, changes = draw(st.integers(0, 2**40)), [], Times.none()
        for _ in range(draw(st.integers(1, 4))):
            position += draw(st.integers(0, 3))
            payloads = draw(st.lists(st.binary(max_size=20), min_size=1, max_size=5))
            if draw(st.booleans()):  # one of 200 KiB: the next run goes into another place
                payloads[0] = bytes(200 * 1024)
            gaps = draw(st.none() | st.lists(st.integers(1, 3), min_size=len(payloads), max_size=len(payloads)))
            distances = [sum(gaps[:at]) for at in range(len(gaps))] if gaps else None
            runs.append(stored(position, payloads, distances))
            changes.add(position, draw(st.integers(0, 2**40)))
            position += (distances[-1] if distances else len(payloads) - 1) + 1
        queues[queue_id], times[queue_id] = runs, changes
    return queues, times


@given(queues_of_runs())
def test_what_is_laid_out_is_read_back(drawn: tuple[dict[int, list[StoredRun]], dict[int, Times]]) -> None:
    """Every record, its position and its time are read back through the index; no place mixes queues."""
    queues, times = drawn
    data, made = file_of(queues, times)
    index = read_index(data)
    assert index.columns() == made.columns()
    assert index.head == HEAD
    assert list(index.ids) == list(queues)
    for queue_id, runs in queues.items():
        expected, found = records_of(runs), list[Record]()
        places = range(*index.bounds(queue_id))
        for place in places:
            held, changes = decoded(data, index, range(place, place + 1))
            records = records_of(held)
            assert records[0].position == index.first_positions[place]
            assert [changes.time_at(each.position) for each in records] == [
                times[queue_id].time_at(each.position) for each in records
            ]
            assert (index.first_ticks[place], index.highest_ticks[place]) == (changes.ticks[0], max(changes.ticks))
            found += records
        assert found == expected
        held, changes = decoded(data, index, places)
        assert records_of(held) == expected
        assert changes == times[queue_id]
        for first, last in pairwise(places):
            assert index.offsets[first] + index.lengths[first] == index.offsets[last]
            assert len(runs) > 1 or index.lengths[first] <= PLACE_BYTES + 8 + 16 * len(changes.ticks)
        _, *amount = index.first(places, 2**62, 2**62, 2**62)
        assert amount == [sum(len(run[1]) // 4 - 1 for run in runs), sum(len(run[2]) for run in runs)]


def test_every_byte_is_checked() -> None:
    """Whichever byte changes, the head, the foot, the index or a place is refused: nothing else is ever returned."""
    times = Times(array("q", (0,)), array("q", (7,)))
    runs = {1: [stored(0, [b"ab", b""])], 5: [stored(9, [b"c", b"d"], [0, 3])]}
    data, index = file_of(runs, {1: times, 5: times})
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 0x10
        with pytest.raises(GatheredError):
            found = read_index(bytes(flipped))
            for place in range(len(found.records)):
                decoded(flipped, found, range(place, place + 1))
    for size in range(len(data)):
        with pytest.raises(GatheredError):
            read_index(data[:size])
    assert read_index(data).columns() == index.columns()


@pytest.mark.parametrize(("start", "stop"), [(0, 155), (0, 1_000), (100, 110), (105, 155), (150, 1_000)])
def test_a_place_has_the_times_of_the_records_that_were_wanted(start: int, stop: int) -> None:
    """Whatever begins before the place or ends after it: the times begin with its first record that is wanted."""
    times = Times(array("q", range(100, 200, 10)), array("q", range(10)))
    data, index = file_of({1: [stored(100, [b"ab"] * 100)]}, {1: times})
    _, found = decoded(data, index, range(1), start, stop)
    first, end = max(start, 100), min(stop, 200)
    assert found.positions[0] == first
    assert [found.time_at(one) for one in range(first, end)] == [times.time_at(one) for one in range(first, end)]
    assert found.positions[-1] < end


def test_a_place_of_another_file_is_refused() -> None:
    """Checksums continue from that of the head: equal bytes of another segment or log are not this file's."""
    times = Times.none()
    data, index = file_of({1: [stored(0, [b"ab"])]}, {1: times})
    index.seed = HEAD._replace(segment=4).seed
    with pytest.raises(GatheredError):
        decoded(data, index, range(1))


def test_places_are_taken_until_there_is_enough() -> None:
    """As many as it takes to reach a limit, one at least, and no more than a length."""
    runs = [stored(10 * at, [b"aa" * PLACE_BYTES] * 2) for at in range(4)]
    _, index = file_of({1: runs}, {1: Times.none()})
    places, size, length, most = range(4), 4 * PLACE_BYTES, index.lengths[0], 2**62
    assert index.first(places, 1, most, most) == (range(1), 2, size)
    assert index.first(places, 3, most, most) == index.first(places, 4, most, most) == (range(2), 4, 2 * size)
    assert index.first(places, most, 1, most) == index.first(places, most, size, most) == (range(1), 2, size)
    assert index.first(places, most, size + 1, most) == (range(2), 4, 2 * size)
    assert index.first(places, most, most, 3 * length) == (range(3), 6, 3 * size)
    assert index.first(places[1:], 9, most, 1) == (range(1, 2), 2, size)
    assert index.first(places, most, most, most) == (places, 8, 4 * size)


def test_what_a_cut_place_lacks_is_known_without_gaps() -> None:
    """Records are exact and bytes are about; with gaps, it may be everything."""
    dense, gapped = stored(10, [b"aa"] * 6), stored(10, [b"aa"] * 6, [0, 2, 4, 6, 8, 10])
    _, index = file_of({1: [dense], 2: [gapped]}, {1: Times.none(), 2: Times.none()})
    assert index.before(0, 12) == (2, 4)
    assert index.before(1, 12) == (6, 12)
    assert index.before(0, 10) == index.before(1, 3) == (0, 0)
