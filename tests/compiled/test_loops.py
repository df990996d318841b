"""Each compiled loop does what its twin in Python does, whatever it is given."""

from __future__ import annotations

import gc
import struct
from array import array
from collections.abc import Callable, Iterator
from itertools import accumulate, islice, pairwise
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from mrecordlog_async.compiled import twins
from mrecordlog_async.model import POSITION_MAX, Record, Run

loops = pytest.importorskip("mrecordlog_async.compiled._loops", reason="nothing is compiled: python hatch_build.py")

PAYLOADS = st.lists(st.binary(max_size=40), min_size=1, max_size=12)
POSITIONS = st.integers(0, 1_000) | st.integers(POSITION_MAX - 100, POSITION_MAX)


class OtherBytes(bytes):
    """What is not exactly bytes."""


class OtherInt(int):
    """What is not exactly an int."""


class WithDict(Record):
    """A record that could lead back to itself."""


class Wide(NamedTuple):
    """A tuple of more than two items."""

    a: int
    b: int
    c: int


ODD: list[Any] = [
    None,
    True,
    -1,
    2**63,
    2**70,
    1.0,
    "1",
    b"",
    b"123",
    OtherInt(1),
    OtherBytes(bytes(8)),
    bytearray(8),
    [],
    (),
]


def outcome(call: Callable[..., Any], *arguments: Any) -> Any:
    """Return everything that *call* returned with the types of it, or the error."""
    try:
        found = call(*arguments)
        each = list(found) if isinstance(found, Iterator) else found
    except Exception as error:
        return type(error), str(error)
    if each is None:
        return None
    return type(each), [(type(one), one, *(map(type, one) if isinstance(one, tuple) else ())) for one in each]


def same(name: str, *arguments: Any) -> Any:
    """Check that both do the same; return what."""
    plain = outcome(getattr(twins, name), *arguments)
    assert outcome(getattr(loops, name), *arguments) == plain
    return plain


@st.composite
def parts(draw: st.DrawFn) -> tuple[Run, int, int]:
    """Draw a run and the numbers of a stretch of its records."""
    run = Run.of(draw(POSITIONS), draw(PAYLOADS))
    start = draw(st.integers(0, run.record_count))
    return run, start, draw(st.integers(start, run.record_count))


@given(parts())
def test_a_part_of_a_run_gives_the_same_records(part: tuple[Run, int, int]) -> None:
    """Payloads, pairs and records of any part of any run are equal, and of the same types."""
    (first, offsets, payload), start, stop = part
    same("payloads_of_run", offsets, payload, start, stop)
    same("pairs_of_run", first + start, offsets, payload, start, stop)
    same("records_of_run", Record, first + start, offsets, payload, start, stop)
    same("records_of_run", WithDict, first + start, offsets, payload, start, stop)
    same("records_of_run", Wide, first + start, offsets, payload, start, stop)


@given(
    st.lists(st.integers(-3, 60) | st.integers(-(2**31), 2**31 - 1), max_size=8),
    st.binary(max_size=50),
    st.integers(-2, 10),
    st.integers(-2, 10),
)
def test_offsets_that_do_not_fit_the_payload_read_nothing_else(
    ends: list[int], payload: bytes, start: int, stop: int
) -> None:
    """Offsets that no log writes give what the twin makes of them, and no byte beyond the payload."""
    offsets = b"".join(end.to_bytes(4, "little", signed=True) for end in ends)
    for each in (offsets, offsets + b"\1"):
        same("payloads_of_run", each, payload, start, stop)
        same("pairs_of_run", 7, each, payload, start, stop)
        same("records_of_run", Record, 7, each, payload, start, stop)


@given(st.data())
def test_wrong_types_and_subclasses_are_the_same_to_both(data: st.DataObject) -> None:
    """One argument after the other is replaced by what it must not be: both return or raise the same."""
    run = Run.of(5, [b"a", b"", b"bcd"])
    good: list[Any] = [Record, 5, run.offsets, run.payload, 0, 3]
    at = data.draw(st.integers(0, len(good) - 1))
    bad = [*good[:at], data.draw(st.sampled_from([*ODD, int, tuple, object])), *good[at + 1 :]]
    if at == 3 and isinstance(bad[at], int):
        return  # BytesIO says what it says
    same("records_of_run", *bad)
    if at:
        same("pairs_of_run", *bad[1:])
    if at > 1:
        same("payloads_of_run", *bad[2:])


def stored(run: Run, distances: bytes = b"") -> bytes:
    """Return *run* as a gathered file has it."""
    count = len(run.offsets) // 4 - 1
    return struct.pack("<qII", run[0], count, len(distances) // count) + run.offsets + run.payload + distances


def place_of(runs: list[bytes], times: list[tuple[int, int]]) -> bytes:
    """Return a place of a gathered file with stored runs."""
    changes = [position for position, _ in times] + [tick for _, tick in times]
    return struct.pack(f"<II{len(changes)}q", len(runs), len(times), *changes) + b"".join(runs)


def in_file(places: list[bytes], seed: int = 5, at: int = 0) -> tuple[memoryview, tuple[array[int], ...], range, int]:
    """Return the arguments with which *places*, the first of them at offset *at*, are read."""
    offsets = array("Q", accumulate(map(len, places[:-1]), initial=at))
    lengths, checksums = array("I", map(len, places)), array("I", [crc32c(place, seed) for place in places])
    return memoryview(b"".join(places)), (offsets, lengths, checksums), range(len(places)), seed


def same_runs(*arguments: Any) -> tuple[list[Any], array[int], array[int]]:
    """Check that both read the same of intact places; return what."""
    same("runs_in_places", *arguments)
    plain, found = twins.runs_in_places(*arguments), loops.runs_in_places(*arguments)
    assert plain is not None
    assert list(map(type, plain[0])) == list(map(type, found[0]))
    return plain


@st.composite
def stored_places(draw: st.DrawFn) -> list[bytes]:
    """Draw neighbouring places: runs with and without gaps, most of which continue the one before."""
    position, places = draw(POSITIONS), []
    for _ in range(draw(st.integers(1, 3))):
        runs = []
        times = sorted(draw(st.dictionaries(st.integers(0, 1_020), st.integers(0, 3), max_size=4)).items())
        for payloads in draw(st.lists(PAYLOADS, max_size=4)):
            position += draw(st.sampled_from([0, 0, 0, 1, 7]))
            gaps = draw(st.sampled_from([False, False, False, True]))
            runs.append(stored(Run.of(min(position, 2**63 - 1), payloads), bytes(4 * len(payloads)) if gaps else b""))
            position += len(payloads)
        places.append(place_of(runs, times))
    return places


BOUNDS = st.integers(0, 1_020) | st.integers(POSITION_MAX - 100, POSITION_MAX + 1)


@given(stored_places(), BOUNDS, BOUNDS, st.integers(0, 2**32 - 1), st.integers(0, 9))
def test_the_runs_of_places_are_cut_and_joined_the_same(
    places: list[bytes], start: int, stop: int, seed: int, at: int
) -> None:
    """Any runs, with gaps and without, wherever they are cut, at any alignment; and their times."""
    found, _, ticks = same_runs(Run, *in_file(places, seed, at), start, stop)
    for run in found:
        assert len(run) == 4 or start <= run[0] < Run(*run).next_position <= stop
    for run, following in pairwise(found):
        assert 4 in (len(run), len(following)) or Run(*run).next_position < following[0]
    assert all(tick != following for tick, following in pairwise(ticks))


def test_runs_are_joined_up_to_a_number_and_a_size() -> None:
    """Both cut where they have joined 64 runs, or 1 MiB; one that is larger alone stays whole."""
    runs = [stored(Run.of(at, [b"a%d" % at])) for at in range(100)]
    found, _, _ = same_runs(Run, *in_file([place_of(runs[:70], []), place_of(runs[70:], [])]), 0, 99)
    assert [Run(*run).record_count for run in found] == [64, 35]
    assert [record.payload for run in found for record in Run(*run).records()] == [b"a%d" % at for at in range(99)]
    runs = [stored(Run.of(at, [bytes(size << 10)])) for at, size in enumerate([2_000, 500, 500, 500])]
    found, _, _ = same_runs(Run, *in_file([place_of([run], []) for run in runs]), 0, 99)
    assert [Run(*run).record_count for run in found] == [1, 2, 1]


@given(st.binary(max_size=80), BOUNDS, BOUNDS)
def test_bytes_that_are_no_place_read_nothing_else(data: bytes, start: int, stop: int) -> None:
    """Lengths that no log writes give what the twin makes of them, and no byte beyond the place."""
    same("runs_in_places", Run, *in_file([data]), start, stop)
    whole = place_of([stored(Run.of(3, [b"ab", b"c"]))], [(3, 7)])
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 0x81
        same("runs_in_places", Run, *in_file([bytes(changed)]), start, stop)
        view, *others = in_file([whole])
        assert same("runs_in_places", Run, memoryview(changed), *others, 0, 9) is None
        same("runs_in_places", Run, view[:at], *others, 0, 9)


@given(st.data())
def test_wrong_types_of_a_place_are_the_same_to_both(data: st.DataObject) -> None:
    """One argument after the other is replaced by what it must not be: both return or raise the same."""
    good: list[Any] = [Run, *in_file([place_of([stored(Run.of(3, [b"ab", b"c"]))], [(3, 7)])]), 0, 9]
    at = data.draw(st.integers(0, len(good) - 1))
    same("runs_in_places", *good[:at], data.draw(st.sampled_from([*ODD, int, tuple, object])), *good[at + 1 :])


@pytest.mark.parametrize("module", [twins, loops], ids=["pure", "compiled"])
def test_records_that_are_kept_are_not_changed(module: ModuleType) -> None:
    """A record that somebody holds is never filled again with the next one."""
    payloads = [str(number).encode() for number in range(1_000)]
    run = Run.of(10**12, payloads)
    records = module.records_of_run(Record, 10**12, run.offsets, run.payload, 0, 1_000)
    kept = [record for record in records if record.position % 3]
    assert kept == [Record(10**12 + at, payloads[at]) for at in range(1_000) if (10**12 + at) % 3]
    assert len({id(record) for record in kept}) == len(kept)
    hashes = {hash(pair) for pair in module.pairs_of_run(10**12, run.offsets, run.payload, 0, 1_000)}
    assert hashes == {hash((10**12 + at, payload)) for at, payload in enumerate(payloads)}


@pytest.mark.parametrize("module", [twins, loops], ids=["pure", "compiled"])
def test_a_payload_that_is_all_of_its_run_is_not_copied(module: ModuleType) -> None:
    """A large record is handed out as the object that memory holds."""
    payload = bytes(1_000)
    run = Run.of(3, [payload])
    assert module.payloads_of_run(run.offsets, payload, 0, 1)[0] is payload
    assert next(module.records_of_run(Record, 3, run.offsets, payload, 0, 1)).payload is payload


def test_an_iterator_that_is_left_keeps_nothing_alive_that_a_cycle_could_hold() -> None:
    """Iterators in the middle of a run, in a cycle with others, are freed by the collector."""
    run = Run.of(0, [b"a"] * 10)
    found = loops.records_of_run(Record, 0, run.offsets, run.payload, 0, 10)
    assert list(islice(found, 3)) == [Record(0, b"a"), Record(1, b"a"), Record(2, b"a")]
    cycle: list[Any] = [found]
    cycle.append(cycle)
    del cycle, found
    gc.collect()
    records = list(loops.records_of_run(Record, 0, run.offsets, run.payload, 0, 10))
    assert not any(map(gc.is_tracked, records))  # the collector has nothing to look for in them
